//! The token of a client, which may be replaced while clients use it. Clients of one server share it.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use reqwest::header::HeaderValue;

use crate::token::{Fingerprint, JoinToken};

/// Reads the token again from where it came from; `None` if that fails.
pub type Again = Box<dyn Fn() -> Option<JoinToken> + Send + Sync>;

/// A token that may be replaced, and the header with its secret.
pub struct Credential {
    held: RwLock<Held>,
    again: Again,
}

struct Held {
    token: JoinToken,
    authorization: HeaderValue,
}

impl Held {
    fn new(token: JoinToken) -> Self {
        let text = format!("Bearer {}", token.secret.expose());
        let mut authorization = HeaderValue::from_str(&text).expect("secrets are visible ASCII");
        authorization.set_sensitive(true);
        Self { token, authorization }
    }
}

impl Credential {
    /// A credential that [`Self::reload`] never changes.
    #[must_use]
    pub fn fixed(token: JoinToken) -> Arc<Self> {
        Self::from_place(token, Box::new(|| None))
    }

    /// `token`, which `again` reads again from where it came from. If the server rejects the token, the client calls
    /// `again`, and repeats the request once if the token has changed.
    #[must_use]
    pub fn from_place(token: JoinToken, again: Again) -> Arc<Self> {
        Arc::new(Self { held: RwLock::new(Held::new(token)), again })
    }

    /// The present token.
    #[must_use]
    pub fn token(&self) -> JoinToken {
        self.held.read().token.clone()
    }

    /// Reads the token again. True if it has changed.
    pub fn reload(&self) -> bool {
        (self.again)().is_some_and(|token| self.replace(token))
    }

    /// Uses `token` from now on. False if it equals the present one, or if one of them is for TLS and the other is
    /// not.
    pub fn replace(&self, token: JoinToken) -> bool {
        let mut held = self.held.write();
        if held.token == token || held.token.fingerprint.is_some() != token.fingerprint.is_some() {
            return false;
        }
        *held = Held::new(token);
        true
    }

    pub(super) fn authorization(&self) -> HeaderValue {
        self.held.read().authorization.clone()
    }

    /// Fingerprint of the server's certificate. Without TLS it is zero, which no certificate matches.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        let held = self.held.read();
        held.token.fingerprint.unwrap_or(Fingerprint([0; 32]))
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({:?})", self.token())
    }
}
