//! What a client shows a server: a token, which may be replaced while clients use it. Clients of one server share one.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use reqwest::header::HeaderValue;

use crate::token::{Fingerprint, JoinToken};

/// Looks for the token again where it came from: `None` if it can't be read there.
pub type Again = Box<dyn Fn() -> Option<JoinToken> + Send + Sync>;

/// See the module.
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
    /// `token`, whatever becomes of it.
    #[must_use]
    pub fn fixed(token: JoinToken) -> Arc<Self> {
        Self::from_place(token, Box::new(|| None))
    }

    /// `token`, which `again` looks for where it came from. A server that does not take the one that is held is asked
    /// once more if that has become another.
    #[must_use]
    pub fn from_place(token: JoinToken, again: Again) -> Arc<Self> {
        Arc::new(Self { held: RwLock::new(Held::new(token)), again })
    }

    /// The token as it is now.
    #[must_use]
    pub fn token(&self) -> JoinToken {
        self.held.read().token.clone()
    }

    /// Looks for the token where it came from. Whether another is held now.
    pub fn reload(&self) -> bool {
        (self.again)().is_some_and(|token| self.replace(token))
    }

    /// Holds `token` from now on. False if it is the one that is held, or one for another way to speak: with TLS or
    /// without.
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

    /// Of the server's certificate. Without TLS none is right.
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
