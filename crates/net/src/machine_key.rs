//! The key of a machine that asks a server what to do, by which the server knows that it is the same one.

use base::{Error, ErrorKind, Result, hex};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};

use crate::api::proof_text;

/// Digits of a fingerprint, and how many stand between two hyphens: people compare them with a screen.
const FINGERPRINT_DIGITS: usize = 20;
const GROUP_DIGITS: usize = 4;

/// A key (Ed25519, RFC 8032). That of a machine which booted from the network lives as long as the system in memory.
pub struct MachineKey(Ed25519KeyPair);

impl MachineKey {
    /// Bytes of a seed.
    pub const SEED_BYTES: usize = 32;

    /// A new key. `Io` if the system gives no random numbers.
    pub fn draw() -> Result<Self> {
        let failed = || Error::new(ErrorKind::Io, "make a key");
        let mut seed = [0; Self::SEED_BYTES];
        SystemRandom::new().fill(&mut seed).map_err(|_| failed())?;
        Self::of_seed(&seed)
    }

    /// The key that belongs to a seed of random bytes, which nobody else may know. `Io`.
    pub fn of_seed(seed: &[u8; Self::SEED_BYTES]) -> Result<Self> {
        let failed = |_| Error::new(ErrorKind::Io, "make a key");
        Ed25519KeyPair::from_seed_unchecked(seed).map(Self).map_err(failed)
    }

    /// The public key, 64 hexadecimal digits.
    #[must_use]
    pub fn public(&self) -> String {
        hex::encode(self.0.public_key().as_ref())
    }

    /// What the key is called: [`fingerprint`].
    #[must_use]
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.public())
    }

    /// The signature of the machine with the card `mac` under the server's `nonce`, 128 hexadecimal digits.
    #[must_use]
    pub fn sign(&self, nonce: &str, mac: &str) -> String {
        hex::encode(self.0.sign(&proof_text(nonce, mac)).as_ref())
    }
}

/// Whether `signature` is one that [`MachineKey::sign`] made with the key `public`.
#[must_use]
pub fn is_proof(public: &str, nonce: &str, mac: &str, signature: &str) -> bool {
    let (Some(public), Some(signature)) = (hex::decode::<32>(public), hex::decode::<64>(signature)) else {
        return false;
    };
    UnparsedPublicKey::new(&ED25519, public).verify(&proof_text(nonce, mac), &signature).is_ok()
}

/// What a public key is called where people compare it, such as `3f2a-91c0-77de-03b5-aa10`: the first 80 bits of the
/// SHA-256 (FIPS 180-4) of its hexadecimal digits, `public`.
#[must_use]
pub fn fingerprint(public: &str) -> String {
    grouped(&hex::encode(digest(&SHA256, public.as_bytes()).as_ref()))
}

/// The fingerprint that `text` spells, with hyphens or without; `None` if it is none.
#[must_use]
pub fn parse_fingerprint(text: &str) -> Option<String> {
    let digits = text.replace('-', "").to_ascii_lowercase();
    let is_one = digits.len() == FINGERPRINT_DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_one.then(|| grouped(&digits))
}

fn grouped(digits: &str) -> String {
    let groups = (0..FINGERPRINT_DIGITS).step_by(GROUP_DIGITS).map(|at| &digits[at..at + GROUP_DIGITS]);
    groups.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_one_key_one_nonce_and_one_machine() {
        let (key, other) = (MachineKey::draw().unwrap(), MachineKey::draw().unwrap());
        let signature = key.sign("nonce", "mac");
        assert!(is_proof(&key.public(), "nonce", "mac", &signature));
        assert!(!is_proof(&other.public(), "nonce", "mac", &signature));
        assert!(!is_proof(&key.public(), "other", "mac", &signature));
        assert!(!is_proof(&key.public(), "nonce", "other", &signature));
        for text in ["", "00", &"zz".repeat(64)] {
            assert!(!is_proof(&key.public(), "nonce", "mac", text));
        }
    }

    #[test]
    fn a_fingerprint_is_what_sha256sum_says_however_it_is_spelled() {
        // printf %s "$(printf '00%.0s' {1..32})" | sha256sum
        let known = "60e0-5bd1-b195-af2f-9411";
        assert_eq!(fingerprint(&"00".repeat(32)), known);
        let spelled = [known.to_owned(), known.to_uppercase(), known.replace('-', "")];
        assert!(spelled.iter().all(|text| parse_fingerprint(text).as_deref() == Some(known)));
        for text in
            ["", "lab-01", "52:54:00:12:34:56", &known[1..], &format!("{known}0"), &known.replace('6', "g")]
        {
            assert_eq!(parse_fingerprint(text), None, "{text}");
        }
    }
}
