//! Join tokens: the one text that a machine needs to trust a server and be trusted by it.
//!
//! `diskcast1.FINGERPRINT.SECRET`: a version, the SHA-256 fingerprint of the server's certificate as 64 hexadecimal
//! digits (`-` for a server without TLS, which is accepted on loopback only), and the bearer secret that goes into
//! the `Authorization` header. What the secret grants is the server's business; here it is opaque.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// Longest bearer secret, in bytes.
pub const SECRET_BYTES_MAX: usize = 1024;

const VERSION: &str = "diskcast1";

/// SHA-256 of a certificate's DER bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The fingerprint of the certificate whose DER encoding is `certificate`.
    #[must_use]
    pub fn of(certificate: &[u8]) -> Self {
        let hash = ring::digest::digest(&ring::digest::SHA256, certificate);
        Self(hash.as_ref().try_into().expect("SHA-256 gives 32 bytes"))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::hex::encode(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// What goes into the `Authorization` header: letters, digits and `-._~`. Never printed by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text, to be sent or to be checked.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl FromStr for Secret {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if text.is_empty() || text.len() > SECRET_BYTES_MAX || !text.bytes().all(allowed) {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the secret of a token is letters, digits and `-._~`",
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Whom to trust, and by what to be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// The server's certificate; `None` for a server without TLS on loopback.
    pub fingerprint: Option<Fingerprint>,
    /// The bearer secret.
    pub secret: Secret,
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fingerprint {
            Some(fingerprint) => write!(f, "{VERSION}.{fingerprint}.{}", self.secret.0),
            None => write!(f, "{VERSION}.-.{}", self.secret.0),
        }
    }
}

impl FromStr for JoinToken {
    type Err = Error;

    /// # Errors
    /// `Unsupported` for a token of another version, `Invalid` for any other text.
    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid =
            || Error::new(ErrorKind::Invalid, format!("expected a token `{VERSION}.FINGERPRINT.SECRET`"));
        let mut parts = text.trim().splitn(3, '.');
        let (Some(version), Some(fingerprint), Some(secret)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(invalid());
        };
        if version != VERSION {
            let newer = version.strip_prefix("diskcast").is_some_and(|n| n.parse::<u32>().is_ok());
            let context = format!("a token of version `{version}`, this program knows `{VERSION}`");
            return Err(if newer { Error::new(ErrorKind::Unsupported, context) } else { invalid() });
        }
        let fingerprint = match fingerprint {
            "-" => None,
            hex => Some(Fingerprint(crate::hex::decode(hex).ok_or_else(invalid)?)),
        };
        Ok(Self { fingerprint, secret: secret.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_being_printed() {
        for fingerprint in [None, Some(Fingerprint::of(b"certificate"))] {
            let token = JoinToken { fingerprint, secret: "abc.DEF-123_~".parse().unwrap() };
            assert_eq!(token.to_string().parse::<JoinToken>().unwrap(), token);
            assert!(!format!("{token:?}").contains("DEF"), "the secret must not reach a log");
        }
    }

    #[test]
    fn a_fingerprint_is_what_openssl_prints() {
        let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Fingerprint::of(b"abc").to_string(), of_abc);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["", "diskcast1", "diskcast1.-", "diskcast1.-.", "diskcast1.00.x", "diskcast1.-.a b", "x.-.y"]
        {
            assert_eq!(text.parse::<JoinToken>().unwrap_err().kind(), ErrorKind::Invalid, "{text}");
        }
        let newer = "diskcast2.-.abc".parse::<JoinToken>().unwrap_err();
        assert_eq!(newer.kind(), ErrorKind::Unsupported);
    }
}
