//! The key of a machine that asks a server what to do, by which the server knows that it is the same one.

use base::{Error, ErrorKind, Result, hex};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};

use crate::api::proof_text;

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
}
