//! The JSON answer to requests about a token.

use serde::{Deserialize, Serialize};

use crate::token::Secret;

/// What a token grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenGrant {
    /// Patterns of the images that the token covers.
    pub images: Vec<String>,
    /// `read` or `write`.
    pub right: String,
    /// When it ends, in seconds since 1970 by the server's clock.
    pub expires: u64,
    /// The time until then, in seconds, by the server's clock.
    pub left_seconds: u64,
    /// Lifetime of a token that renews this one, in seconds; `None` if it cannot be renewed.
    #[serde(default)]
    pub lasts_seconds: Option<u64>,
    /// Its secret, if it is a new token.
    #[serde(default)]
    pub secret: Option<Secret>,
}
