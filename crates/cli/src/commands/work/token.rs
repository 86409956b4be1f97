//! The token of a job. It lasts an hour, and a job may wait longer before it fetches: for a command, for another job.

use std::sync::Arc;

use daemon::auth::tokens::Keeper;
use net::api::HostJob;
use net::client::Credential;

use crate::connect;

/// The token of a job, renewed in time while this is held.
pub(super) struct JobToken {
    given: String,
    renewed: Option<(Arc<Credential>, Keeper)>,
}

impl JobToken {
    /// The token of `job` for `server`. Text that is not a token stays as it is: its user says what is wrong.
    pub(super) fn of(job: &HostJob, server: &str) -> Self {
        let renewed = job.token.parse().ok().map(Credential::fixed).and_then(|credential| {
            let keeper = connect::keep_credential(server, &credential).ok()?;
            Some((credential, keeper))
        });
        Self { given: job.token.clone(), renewed }
    }

    /// The token as it is now.
    pub(super) fn text(&self) -> String {
        let renewed = self.renewed.as_ref().map(|(credential, _)| credential.token().to_string());
        renewed.unwrap_or_else(|| self.given.clone())
    }
}
