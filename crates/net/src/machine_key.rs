//! The key of a machine that boots from the network, by which the server knows that it is the same one.

use base::{Error, ErrorKind, Result, hex};
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};

use crate::api::proof_text;

/// A key that lives as long as the system in memory (Ed25519, RFC 8032).
pub struct MachineKey(Ed25519KeyPair);

impl MachineKey {
    /// A new key. `Io` if the system gives no random numbers.
    pub fn draw() -> Result<Self> {
        let failed = || Error::new(ErrorKind::Io, "make a key");
        let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| failed())?;
        Ed25519KeyPair::from_pkcs8(pair.as_ref()).map(Self).map_err(|_| failed())
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
