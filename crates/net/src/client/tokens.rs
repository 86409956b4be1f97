//! Requests about the client's own token.

use base::{Error, ErrorKind, Result};
use reqwest::Method;

use super::{Body, Client};
use crate::api::{self, TokenGrant};
use crate::token::JoinToken;

impl Client {
    /// What the token grants, and for how long.
    ///
    /// # Errors
    /// `Denied` if the server does not accept it any more; `NotFound` if the server is too old for this request; as
    /// [`Self::images`].
    pub fn token_grant(&self) -> Result<TokenGrant> {
        self.json(Method::GET, &api::path::token(), Body::None)
    }

    /// Requests a new token that grants the same, with the full lifetime of a renewed token. It is not used until it
    /// is put into the client's [`super::Credential`]; the old token stays valid until its own end.
    ///
    /// # Errors
    /// `Denied` if the token has expired or cannot be renewed; as [`Self::token_grant`].
    pub fn renew_token(&self) -> Result<(JoinToken, TokenGrant)> {
        let grant: TokenGrant = self.json(Method::POST, &api::path::token(), Body::None)?;
        let lacking = || Error::new(ErrorKind::Corrupt, "the server renewed a token and did not send it");
        let secret = grant.secret.clone().ok_or_else(lacking)?;
        let fingerprint = self.credential.token().fingerprint;
        Ok((JoinToken { fingerprint, secret }, grant))
    }
}
