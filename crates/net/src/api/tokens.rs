//! Tokens.

use serde::{Deserialize, Serialize};

use crate::token::Secret;

/// What a token grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenGrant {
    /// Patterns of the images that it is good for.
    pub images: Vec<String>,
    /// `read` or `write`.
    pub right: String,
    /// When it ends, in seconds since 1970 by the server's clock.
    pub expires: u64,
    /// How long that is, in seconds.
    pub left_seconds: u64,
    /// For how long a token is good that it is renewed by, in seconds. `None` if it can't be renewed.
    #[serde(default)]
    pub lasts_seconds: Option<u64>,
    /// Its secret, if it is a new one.
    #[serde(default)]
    pub secret: Option<Secret>,
}
