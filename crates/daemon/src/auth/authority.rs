//! Makes and checks the secrets of tokens. A secret states what its holder may do and is sealed with the server's
//! secret, so a server needs no list of tokens. formats/api.md, "Tokens".
//!
//! A secret is `CLAIMS.SEAL`, both base64url without padding: CLAIMS is JSON, SEAL its keyed BLAKE3.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use net::token::Secret;

pub use crate::auth::claims::{Claims, Right};
use crate::auth::token_records::TokenRecords;

const CONTEXT: &str = "diskcast 2026 token seal v1";
/// Maximum number of patterns in one token.
pub const PATTERNS_MAX: usize = 16;

/// Why a secret is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// This server did not make it.
    Unknown,
    /// It expired at this second since 1970.
    Expired(u64),
    /// It was revoked.
    Revoked,
}

/// Makes and checks secrets of tokens.
pub struct Authority {
    key: [u8; 32],
    records: Option<TokenRecords>,
}

impl Authority {
    /// Length of the server's secret in bytes.
    pub(crate) const SECRET_BYTES: usize = 32;

    pub(crate) fn new(secret: &[u8; Self::SECRET_BYTES]) -> Self {
        Self { key: blake3::derive_key(CONTEXT, secret), records: None }
    }

    /// The same, which also refuses tokens that were revoked.
    pub(crate) fn with_records(self, records: TokenRecords) -> Self {
        Self { records: Some(records), ..self }
    }

    /// Records that a token with these claims was made at `now`.
    pub fn record_made(&self, claims: &Claims, note: &str, now: u64) -> Result<(), base::Error> {
        self.records.as_ref().map_or(Ok(()), |records| records.made(claims, note, now))
    }

    /// Forgets the records of tokens that have expired.
    pub(crate) fn forget_expired(&self, now: u64) {
        if let Some(records) = &self.records {
            // They only take room; the next start tries again.
            let _ = records.list(now);
        }
    }

    /// Records that a token was renewed.
    pub(crate) fn record_renewed(&self, claims: &Claims) -> Result<(), base::Error> {
        match (&self.records, claims.id) {
            (Some(records), Some(id)) => records.renewed(id, claims.expires),
            _ => Ok(()),
        }
    }

    /// Makes a secret that grants `claims`. `None` if they have too many patterns or the secret becomes too long.
    #[must_use]
    pub fn mint(&self, claims: &Claims) -> Option<Secret> {
        if claims.images.len() > PATTERNS_MAX {
            return None;
        }
        let body = serde_json::to_vec(claims).expect("claims are plain data");
        let seal = blake3::keyed_hash(&self.key, &body);
        format!("{}.{}", BASE64.encode(&body), BASE64.encode(seal.as_bytes())).parse().ok()
    }

    /// Returns what `secret` grants at `now`, in seconds since 1970.
    pub fn check(&self, secret: &str, now: u64) -> Result<Claims, Rejection> {
        let claims = self.unseal(secret).ok_or(Rejection::Unknown)?;
        if now >= claims.expires {
            return Err(Rejection::Expired(claims.expires));
        }
        match (&self.records, claims.id) {
            (Some(records), Some(id)) if records.is_revoked(id) => Err(Rejection::Revoked),
            _ => Ok(claims),
        }
    }

    fn unseal(&self, secret: &str) -> Option<Claims> {
        if secret.len() > net::token::SECRET_BYTES_MAX {
            return None;
        }
        let (body, seal) = secret.split_once('.')?;
        let body = BASE64.decode(body).ok()?;
        let seal: [u8; 32] = BASE64.decode(seal).ok()?.try_into().ok()?;
        // `Hash` compares in constant time.
        if blake3::keyed_hash(&self.key, &body) != blake3::Hash::from_bytes(seal) {
            return None;
        }
        serde_json::from_slice(&body).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(images: &[&str], right: Right) -> Claims {
        Claims::plain(images.iter().map(ToString::to_string).collect(), right, 1000)
    }

    #[test]
    fn a_token_says_what_was_put_in_until_it_expires() {
        let authority = Authority::new(&[7; 32]);
        let claims = claims(&["lab-*", "web"], Right::Write);
        let secret = authority.mint(&claims).unwrap();
        assert_eq!(authority.check(secret.expose(), 999), Ok(claims));
        assert_eq!(authority.check(secret.expose(), 1000), Err(Rejection::Expired(1000)));
    }

    #[test]
    fn a_token_is_renewed_for_what_it_grants_and_as_long_as_it_was_made_for() {
        let plain = claims(&["web"], Right::Write);
        assert_eq!(plain.renewed(500), None, "one that says nothing of it ends for good");
        let claims = Claims { lasts: Some(1000), ..plain };
        assert_eq!(claims.renewed(500), Some(Claims { expires: 1500, ..claims.clone() }));
        // A renewal does not shorten a token that was made to end late.
        let late = Claims { expires: 10_000, ..claims };
        assert_eq!(late.renewed(500).unwrap().expires, 10_000);
        // Tokens of older servers are accepted, and end when they say.
        let authority = Authority::new(&[7; 32]);
        let old = br#"{"images":["*"],"right":"read","expires":1000}"#;
        let seal = blake3::keyed_hash(&authority.key, old);
        let secret = format!("{}.{}", BASE64.encode(old), BASE64.encode(seal.as_bytes()));
        assert_eq!(authority.check(&secret, 999).unwrap().lasts, None);
    }

    #[test]
    fn nobody_else_can_make_or_change_one() {
        let authority = Authority::new(&[7; 32]);
        let secret = authority.mint(&claims(&["lab-*"], Right::Read)).unwrap();
        assert_eq!(Authority::new(&[8; 32]).check(secret.expose(), 0), Err(Rejection::Unknown));
        let text = secret.expose();
        for index in 0..text.len() {
            let mut changed = text.as_bytes().to_vec();
            changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(authority.check(&changed, 0), Err(Rejection::Unknown), "{changed}");
        }
        for text in ["", ".", "a.b", &"x".repeat(5000)] {
            assert_eq!(authority.check(text, 0), Err(Rejection::Unknown));
        }
    }

    #[test]
    fn patterns_cover_what_they_say() {
        for (pattern, image, covered) in [
            ("*", "", true),
            ("*", "web", true),
            ("web", "web", true),
            ("web", "web2", false),
            ("web*", "web", true),
            ("lab-*", "lab-1", true),
            ("lab-*", "xlab-1", false),
            ("*-b*", "a-a-b", true),
            ("a*b*c", "abbc", true),
            ("a*b*c", "abb", false),
            ("", "a", false),
            ("a**", "a", true),
        ] {
            assert_eq!(claims(&[pattern], Right::Read).covers(image), covered, "{pattern} {image}");
        }
        assert!(Right::Write > Right::Read);
    }
}
