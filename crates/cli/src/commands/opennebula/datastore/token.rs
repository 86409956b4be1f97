//! The token with which hosts fetch and publish. OpenNebula asks every few minutes how much room a datastore has: then
//! the token is looked at, too.

use std::time::Duration;

use net::clock::Stop;
use net::token::{Standing, Term};

use crate::args::ServerAccess;
use crate::commands::Context;
use crate::commands::opennebula::settings::Repository;
use crate::connect;
use crate::exit::{Exit, Failure, Result};

/// Renews the token in its file when two thirds of its time are over. What fails is told: there is time to mend it.
pub(super) fn keep(context: &Context, repository: &Repository) {
    if let Err(failure) = renew(context, repository) {
        let file = repository.token_file.display();
        context
            .output
            .warning(&format!("the token in `{file}` for {}: {}", repository.server, failure.message));
    }
}

fn renew(context: &Context, repository: &Repository) -> Result<()> {
    let access = ServerAccess { token_file: Some(repository.token_file.clone()), wait: Duration::ZERO };
    let (keys, output) = (&context.global.keys, context.output);
    let client = connect::client(&repository.server, &access, keys, Stop::new(), output)?;
    let grant = client.token_grant()?;
    let left = grant.left_seconds;
    match (Term { expires: left, lasts: grant.lasts_seconds }.standing(0), grant.lasts_seconds) {
        (Standing::Good, _) => Ok(()),
        (_, Some(_)) => {
            let (token, _) = client.renew_token()?;
            Ok(daemon::private_file::write_private(&repository.token_file, &format!("{token}\n"))?)
        }
        (_, None) => {
            let text = format!(
                "it ends in {} minutes and can't be renewed: `diskcast token --write` makes another",
                left / 60
            );
            Err(Failure::new(Exit::Unauthorized, text))
        }
    }
}
