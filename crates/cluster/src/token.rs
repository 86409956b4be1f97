//! The join token of a cluster: devices and clients show it to the metadata service.

use std::fmt;
use std::str::FromStr;

use base::{Error, ErrorKind, Result, hex};

/// A secret of 256 bits that lets its bearer join the cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterToken(String);

impl fmt::Debug for ClusterToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterToken(secret)")
    }
}

impl ClusterToken {
    /// A new token.
    ///
    /// # Errors
    /// `Io` if the kernel gives no random bytes.
    pub fn random() -> Result<Self> {
        Ok(Self(hex::encode(&random::<32>()?)))
    }

    /// Its text, 64 hexadecimal digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the header `Authorization` shows this token. The comparison takes the same time for every wrong one.
    pub(crate) fn is_shown_by(&self, header: Option<&str>) -> bool {
        let shown = header.and_then(|header| header.strip_prefix("Bearer ")).unwrap_or_default();
        blake3::hash(shown.as_bytes()) == blake3::hash(self.0.as_bytes())
    }
}

impl FromStr for ClusterToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let is_token = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_token {
            return Err(Error::new(ErrorKind::Invalid, "a cluster's token has 64 hexadecimal digits"));
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

/// Random bytes of the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let failed = |error| Error::from_source(ErrorKind::Io, "get random bytes from the kernel", error);
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_itself_is_accepted() {
        let token = ClusterToken::random().unwrap();
        assert_eq!(token.as_str().parse::<ClusterToken>().unwrap(), token);
        assert!(token.is_shown_by(Some(&format!("Bearer {}", token.as_str()))));
        let other = ClusterToken::random().unwrap();
        assert!(!token.is_shown_by(Some(&format!("Bearer {}", other.as_str()))));
        assert!(!token.is_shown_by(Some(token.as_str())) && !token.is_shown_by(None));
        assert!("abc".parse::<ClusterToken>().is_err());
    }
}
