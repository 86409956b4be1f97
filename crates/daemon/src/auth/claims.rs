//! What tokens grant: rights, patterns of images, a time, and the name by which a token can be revoked.

use std::str::FromStr;

use base::{Error, ErrorKind, Result};
use net::token::Term;
use serde::{Deserialize, Serialize};

/// The name of a token and of all its renewals: 64 random bits; 16 hexadecimal digits as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenId(u64);

impl TokenId {
    /// A new name. `Io` if the system gives no random numbers.
    pub fn draw() -> Result<Self> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::from_source(ErrorKind::Io, "name a token", error))?;
        Ok(Self(u64::from_be_bytes(bytes)))
    }
}

impl std::fmt::Display for TokenId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for TokenId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number =
            Some(text).filter(|text| text.len() == 16).and_then(|text| u64::from_str_radix(text, 16).ok());
        number.map(Self).ok_or_else(|| {
            let text = format!("`{}` names no token: expected 16 hexadecimal digits", text.escape_debug());
            Error::new(ErrorKind::Invalid, text)
        })
    }
}

impl TryFrom<String> for TokenId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<TokenId> for String {
    fn from(id: TokenId) -> Self {
        id.to_string()
    }
}

/// What a token allows. Each right includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Read lists, manifests and objects, join sessions.
    Read,
    /// Also add objects and versions.
    Write,
    /// Also manage the machines that boot from the network.
    Manage,
}

/// What a token grants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Patterns of image names; `*` stands for any characters, also none.
    pub images: Vec<String>,
    /// What the holder may do with these images.
    pub right: Right,
    /// Expiry in seconds since 1970; from this second on the token is invalid.
    pub expires: u64,
    /// Lifetime of a renewed token in seconds; `None`: the token cannot be renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasts: Option<u64>,
    /// Name of the token and its renewals, by which it can be revoked; `None` of tokens of older programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<TokenId>,
    /// Whether it was made for a job, for the hour in which its holder renews it: it always ends soon, and nobody is
    /// told of that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub brief: bool,
}

impl Claims {
    /// Those of a token that ends at `expires` for good, and can't be revoked alone.
    #[must_use]
    pub fn plain(images: Vec<String>, right: Right, expires: u64) -> Self {
        Self { images, right, expires, lasts: None, id: None, brief: false }
    }

    /// The claims of a renewed token, made at `now`. `None` if the token cannot be renewed.
    #[must_use]
    pub fn renewed(&self, now: u64) -> Option<Self> {
        let expires = now.checked_add(self.lasts?)?.max(self.expires);
        Some(Self { expires, ..self.clone() })
    }

    /// When the token expires, and the lifetime of a renewed one.
    #[must_use]
    pub fn term(&self) -> Term {
        Term { expires: self.expires, lasts: self.lasts }
    }

    /// Whether some pattern matches every name.
    pub(crate) fn covers_all(&self) -> bool {
        self.images.iter().any(|pattern| !pattern.is_empty() && pattern.bytes().all(|byte| byte == b'*'))
    }

    /// Whether some pattern matches the image name.
    #[must_use]
    pub fn covers(&self, image: &str) -> bool {
        self.images.iter().any(|pattern| matches(pattern.as_bytes(), image.as_bytes()))
    }
}

/// Whether `text` matches `pattern`, where `*` stands for any bytes. Takes at most the product of the two lengths in
/// steps: on a mismatch, only the last `*` takes one more byte.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((after, from)) = star {
            star = Some((after, from + 1));
            (p, t) = (after + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}
