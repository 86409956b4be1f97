//! BLAKE3-256 digests, which name and verify all stored and sent objects.

use std::fmt;
use std::str::FromStr;

/// A BLAKE3-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; Digest::BYTES]);

impl Digest {
    /// Length of a digest in bytes.
    pub const BYTES: usize = 32;

    /// Computes the digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The first 16 bytes: enough to distinguish objects, and a table of them needs half the memory.
    #[must_use]
    pub fn first_half(&self) -> &[u8; 16] {
        self.0.first_chunk().expect("a digest has 32 bytes")
    }

    /// The digest as 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn to_hex(self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    /// The first 12 hexadecimal digits, for messages to people.
    #[must_use]
    pub fn short(self) -> String {
        self.to_hex()[..12].to_owned()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({})", self.short())
    }
}

/// The error of parsing a [`Digest`]: the text is not 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotADigest;

impl fmt::Display for NotADigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a digest of 64 hexadecimal digits")
    }
}

impl std::error::Error for NotADigest {}

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        blake3::Hash::from_hex(text).map(|hash| Self(*hash.as_bytes())).map_err(|_| NotADigest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trip() {
        let digest = Digest::of(b"diskcast");
        assert_eq!(digest.to_hex().parse::<Digest>(), Ok(digest));
        assert_eq!("xyz".parse::<Digest>(), Err(NotADigest));
        assert!(digest.to_hex().starts_with(&digest.short()));
    }
}
