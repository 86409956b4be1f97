//! Join tokens: the one text by which a machine trusts a server, and the server trusts the machine.
//!
//! `diskcast1.FINGERPRINT.SECRET`: a version, the SHA-256 fingerprint of the server's certificate as 64 hexadecimal
//! digits (`-` for a server without TLS, which is accepted only on loopback), and the bearer secret for the
//! `Authorization` header. Only the server knows what the secret grants; here it is opaque.

use std::fmt;
use std::str::FromStr;

use base::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

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
        f.write_str(&base::hex::encode(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// The bearer secret for the `Authorization` header: letters, digits and `-._~`. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Secret(String);

impl TryFrom<String> for Secret {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Secret> for String {
    fn from(secret: Secret) -> Self {
        secret.0
    }
}

impl Secret {
    /// The text, for sending or checking it.
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

/// The parts of a join token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// Fingerprint of the server's certificate; `None` for a server without TLS on loopback.
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
            hex => Some(Fingerprint(base::hex::decode(hex).ok_or_else(invalid)?)),
        };
        Ok(Self { fingerprint, secret: secret.parse()? })
    }
}

/// Users are warned of tokens that end within this time, in seconds: a day.
pub const WARNING_SECONDS: u64 = 24 * 3600;

/// How long a token is valid. Times are seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// From this second on the token is invalid.
    pub expires: u64,
    /// Lifetime of a token that renews this one, in seconds; `None` if it cannot be renewed.
    pub lasts: Option<u64>,
}

/// The state of a token at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is valid, and there is nothing to do.
    Good,
    /// Two thirds of its lifetime are over: request a new token.
    Due,
    /// It ends within a day (within a sixth of its lifetime, if that is shorter): warn the user.
    Ending,
    /// It has ended.
    Over,
}

impl Term {
    /// The state of the token at `now`, in seconds since 1970.
    #[must_use]
    pub fn standing(&self, now: u64) -> Standing {
        let left = self.expires.saturating_sub(now);
        let warning = self.lasts.map_or(WARNING_SECONDS, |lasts| WARNING_SECONDS.min(lasts / 6));
        match self.lasts {
            _ if left == 0 => Standing::Over,
            _ if left <= warning => Standing::Ending,
            Some(lasts) if left <= lasts / 3 => Standing::Due,
            _ => Standing::Good,
        }
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
    fn a_token_is_renewed_in_time_and_told_of_a_day_before_it_ends() {
        let (day, begins) = (WARNING_SECONDS, 1_000_000_000);
        let month = Term { expires: begins + 30 * day, lasts: Some(30 * day) };
        for (days, standing) in [(0, Standing::Good), (19, Standing::Good), (20, Standing::Due)] {
            assert_eq!(month.standing(begins + days * day), standing, "day {days}");
        }
        assert_eq!(month.standing(begins + 29 * day - 1), Standing::Due);
        assert_eq!(month.standing(begins + 29 * day), Standing::Ending);
        assert_eq!(month.standing(begins + 30 * day - 1), Standing::Ending);
        assert_eq!(month.standing(begins + 30 * day), Standing::Over);
        let never = Term { lasts: None, ..month };
        assert_eq!(never.standing(begins + 29 * day - 1), Standing::Good);
        assert_eq!(never.standing(begins + 29 * day), Standing::Ending);
        let short = Term { expires: 600, lasts: Some(600) };
        let standings = [399, 400, 500, 600].map(|now| short.standing(now));
        assert_eq!(standings, [Standing::Good, Standing::Due, Standing::Ending, Standing::Over]);
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
