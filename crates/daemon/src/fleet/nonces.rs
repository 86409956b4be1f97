//! What machines sign, to show that they have their keys.
//!
//! A nonce is a keyed hash of the card, the key and the time. The server keeps nothing of it, so no call of one key
//! can spoil the nonce of another.

use std::time::Duration;

use base::{Error, ErrorKind, Instant, Result};
use net::mac::Mac;
use net::machine_key::is_proof;

/// How long a nonce is given out. It is good for as long once more.
const TURN: Duration = Duration::from_secs(30);

/// Makes nonces, and checks what was signed.
pub(super) struct Nonces([u8; blake3::KEY_LEN]);

impl Nonces {
    /// With a secret of its own: nonces of an earlier start are no good.
    pub(super) fn draw() -> Result<Self> {
        let mut secret = [0; blake3::KEY_LEN];
        getrandom::fill(&mut secret)
            .map_err(|_| Error::new(ErrorKind::Io, "the server has no random numbers"))?;
        Ok(Self(secret))
    }

    /// What a machine with this card and this public key is to sign, 64 hexadecimal digits.
    pub(super) fn nonce(&self, mac: Mac, key: &str, now: Instant) -> String {
        self.of_turn(mac, key, turn(now))
    }

    /// Whether `signature` shows that who calls has the key.
    pub(super) fn is_proof(&self, mac: Mac, key: &str, signature: &str, now: Instant) -> bool {
        let last = turn(now);
        (last.saturating_sub(1)..=last)
            .any(|turn| is_proof(key, &self.of_turn(mac, key, turn), &mac.to_string(), signature))
    }

    fn of_turn(&self, mac: Mac, key: &str, turn: u64) -> String {
        let text = [&mac.0[..], &turn.to_be_bytes(), key.as_bytes()].concat();
        blake3::keyed_hash(&self.0, &text).to_hex().to_string()
    }
}

fn turn(now: Instant) -> u64 {
    now.since(Instant::ZERO).as_secs() / TURN.as_secs()
}

#[cfg(test)]
mod tests {
    use net::machine_key::MachineKey;

    use super::*;

    #[test]
    fn a_nonce_is_good_for_one_card_one_key_and_a_minute_whatever_others_ask_for() {
        let nonces = Nonces::draw().unwrap();
        let (own, other) = (MachineKey::draw().unwrap(), MachineKey::draw().unwrap());
        let (one, two) = (Mac([1; 6]), Mac([2; 6]));
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let nonce = nonces.nonce(one, &own.public(), at(100));
        let signature = own.sign(&nonce, &one.to_string());
        let proves = |mac, key: &MachineKey, signature: &str, seconds| {
            nonces.is_proof(mac, &key.public(), signature, at(seconds))
        };
        // Others call for the same card, without a key or with their own.
        for seconds in 100..=149 {
            nonces.nonce(one, &own.public(), at(seconds));
            nonces.nonce(one, &other.public(), at(seconds));
            assert!(proves(one, &own, &signature, seconds), "after {seconds} s");
        }
        assert!(!proves(one, &own, &signature, 150), "too old");
        assert!(!proves(one, &other, &signature, 101) && !proves(two, &own, &signature, 101));
        let forged = other.sign(&nonce, &one.to_string());
        assert!(!proves(one, &own, &forged, 101) && !proves(one, &other, &forged, 101));
        assert!(!Nonces::draw().unwrap().is_proof(one, &own.public(), &signature, at(101)), "another start");
    }
}
