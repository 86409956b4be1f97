//! Encryption of objects, manifests and records with the key of a repository. `formats/image.md`, "Encryption".
//!
//! The cipher is AES-256-GCM-SIV (RFC 8452). The nonce is a keyed digest of the plaintext, so equal plaintexts have
//! equal encrypted forms and are stored once. If two nonces were ever equal, an attacker would learn only whether the
//! plaintexts are equal. The digest of the encrypted bytes names an object. So a program without the key can check
//! objects against their names, but it can't compute the name of a content that it guesses.

use std::fmt;
use std::sync::Arc;

use aes_gcm_siv::aead::{AeadInPlace, KeyInit};
use aes_gcm_siv::{Aes256GcmSiv, Nonce, Tag};
use base::limits::SEALED_BYTES_MORE;
use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;

use crate::object::{ObjectKind, Verified};

/// The cipher's name in manifests and in the configuration of repositories.
pub const CIPHER_NAME: &str = "aes-256-gcm-siv";

const HEAD_BYTES: usize = 8;
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
const _: () = assert!(HEAD_BYTES + NONCE_BYTES + TAG_BYTES == SEALED_BYTES_MORE as usize);

/// The first bytes of an encrypted item: magic, version 1, and a byte 1 that marks it as encrypted. The
/// position of this byte depends on the format.
type Head = [u8; HEAD_BYTES];
const CHUNK: Head = *b"DCCH\x01\x00\x01\x00";
const NODE: Head = *b"DCND\x01\x01\x00\x00";
const MANIFEST: Head = *b"DCMF\x01\x01\x00\x00";
const RECORD: Head = *b"DCRC\x01\x01\x00\x00";

// BLAKE3 contexts: from the key of a repository, each derives a key for one purpose.
const SEALING_CONTEXT: &str = "diskcast image v1: key that seals";
const NONCE_CONTEXT: &str = "diskcast image v1: key of nonces";
const CHECK_CONTEXT: &str = "diskcast repository v1: check of a key";
/// The first word in the file of a key.
const FILE_WORD: &str = "diskcast-encryption-key-1";

/// The key of an encrypted repository. `Debug` does not show it.
#[derive(Clone)]
pub struct EncryptionKey(Arc<Inner>);

struct Inner {
    secret: [u8; 32],
    cipher: Aes256GcmSiv,
    /// Key of the keyed BLAKE3 that computes nonces.
    nonces: [u8; 32],
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EncryptionKey(..)")
    }
}

impl EncryptionKey {
    /// The key of these 32 random bytes.
    #[must_use]
    pub fn from_bytes(secret: [u8; 32]) -> Self {
        let cipher = Aes256GcmSiv::new(&blake3::derive_key(SEALING_CONTEXT, &secret).into());
        let nonces = blake3::derive_key(NONCE_CONTEXT, &secret);
        Self(Arc::new(Inner { secret, cipher, nonces }))
    }

    /// Reads a key from the text of its file. `Corrupt` if the text is something else. Errors do not quote the text,
    /// since it may hold a secret.
    pub fn from_text(text: &str) -> Result<Self> {
        let digits = text.trim().strip_prefix(FILE_WORD).and_then(|rest| rest.strip_prefix(' '));
        let secret = digits.and_then(|digits| digits.parse::<Digest>().ok());
        let none =
            || Error::corrupt(format!("not an encryption key (`{FILE_WORD}` and 64 hexadecimal digits)"));
        secret.map(|secret| Self::from_bytes(secret.0)).ok_or_else(none)
    }

    /// The text of the key's file.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{FILE_WORD} {}\n", Digest(self.0.secret))
    }

    /// A digest of the key and the repository's `id`. The repository stores it to recognise its key; it reveals
    /// nothing else about the key.
    #[must_use]
    pub fn check(&self, id: &str) -> Digest {
        let key = blake3::derive_key(CHECK_CONTEXT, &self.0.secret);
        Digest(*blake3::keyed_hash(&key, id.as_bytes()).as_bytes())
    }

    fn seal(&self, head: Head, plain: &[u8]) -> Vec<u8> {
        let mut hasher = blake3::Hasher::new_keyed(&self.0.nonces);
        let digest = hasher.update(plain).update(&head).finalize();
        let nonce = Nonce::from_slice(&digest.as_bytes()[..NONCE_BYTES]);
        // The last summand is room for the checksum that follows an encrypted manifest.
        let mut sealed =
            Vec::with_capacity(plain.len() + HEAD_BYTES + NONCE_BYTES + TAG_BYTES + Digest::BYTES);
        sealed.extend(head);
        sealed.extend_from_slice(nonce);
        sealed.extend_from_slice(plain);
        let body = &mut sealed[HEAD_BYTES + NONCE_BYTES..];
        let tag = self.0.cipher.encrypt_in_place_detached(nonce, &head, body);
        sealed.extend_from_slice(&tag.expect("nothing has 64 GiB"));
        sealed
    }

    fn open(&self, head: Head, what: &str, sealed: &[u8]) -> Result<Vec<u8>> {
        let plain_bytes = sealed.len().checked_sub(HEAD_BYTES + NONCE_BYTES + TAG_BYTES);
        let plain_bytes = plain_bytes.filter(|_| sealed.starts_with(&head));
        let plain_bytes = plain_bytes.ok_or_else(|| Error::corrupt(format!("{what} is not encrypted")))?;
        let (nonce, rest) = sealed[HEAD_BYTES..].split_at(NONCE_BYTES);
        let (body, tag) = rest.split_at(plain_bytes);
        let mut plain = body.to_vec();
        let opened = self.0.cipher.decrypt_in_place_detached(
            Nonce::from_slice(nonce),
            &head,
            &mut plain,
            Tag::from_slice(tag),
        );
        let failed = |_| {
            Error::corrupt(format!(
                "{what} can't be decrypted: it was encrypted with another key, or damaged"
            ))
        };
        opened.map_err(failed)?;
        Ok(plain)
    }
}

/// Whether and how objects, manifests and records are encrypted.
#[derive(Debug, Clone, Default)]
pub enum Cipher {
    /// They are not encrypted.
    #[default]
    None,
    /// They are encrypted, and this program does not have the key: it can pass them on and check digests, but not
    /// read them.
    Locked,
    /// They are encrypted with this key.
    Key(EncryptionKey),
}

impl Cipher {
    /// The name of the cipher in manifests and repositories: `none` or [`CIPHER_NAME`].
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Locked | Self::Key(_) => CIPHER_NAME,
        }
    }

    /// Whether both use the same key or no encryption, so that each can read what the other writes. False if one of
    /// them is [`Cipher::Locked`].
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) => true,
            (Self::Key(one), Self::Key(other)) => one.0.secret == other.0.secret,
            _ => false,
        }
    }

    /// The stored form of an object with the plaintext `plain`. `Refused` without the key.
    pub fn encrypt_object(&self, kind: ObjectKind, plain: Vec<u8>) -> Result<Bytes> {
        self.seal(head_of(kind), plain)
    }

    /// The plaintext of a stored object. `Corrupt` if it was not encrypted with this key; `Refused` without the key.
    pub fn decrypt_object(&self, kind: ObjectKind, object: &Verified) -> Result<Verified> {
        match self {
            Self::None => Ok(object.clone()),
            _ => self.open(head_of(kind), what_of(kind), object.bytes()).map(Verified::opened),
        }
    }

    /// Whether `bytes` may be a stored object of `kind`, judged by the first bytes only. With encryption, a plain
    /// object fails and an object that another key encrypted passes. Without encryption, everything passes.
    #[must_use]
    pub fn takes(&self, kind: ObjectKind, bytes: &[u8]) -> bool {
        matches!(self, Self::None) || bytes.starts_with(&head_of(kind))
    }

    /// The stored form of a manifest's envelope. `Refused` without the key.
    pub fn encrypt_manifest(&self, envelope: Bytes) -> Result<Bytes> {
        if let Self::None = self {
            return Ok(envelope);
        }
        let mut sealed = Vec::from(self.seal(MANIFEST, envelope.into())?);
        let checksum = Digest::of(&sealed);
        sealed.extend(checksum.0);
        Ok(sealed.into())
    }

    /// The envelope of a stored manifest. `Corrupt` if the bytes were damaged or not encrypted with this key;
    /// `Refused` without the key.
    pub fn decrypt_manifest(&self, stored: &Bytes) -> Result<Bytes> {
        const WHAT: &str = "a manifest";
        match self {
            Self::None if stored.starts_with(&MANIFEST) => Err(key_needed(WHAT)),
            Self::None => Ok(stored.clone()),
            _ => self.open(MANIFEST, WHAT, check_sealed_manifest(stored)?).map(Bytes::from),
        }
    }

    /// The encrypted form of a record's text, in hexadecimal; `None` if records are not encrypted. `Refused` without
    /// the key.
    pub fn encrypt_record(&self, text: &Bytes) -> Result<Option<String>> {
        if let Self::None = self {
            return Ok(None);
        }
        let sealed = self.seal(RECORD, text.to_vec())?;
        Ok(Some(base::hex::encode(&sealed)))
    }

    /// The text of a record from its encrypted form in hexadecimal. `Corrupt` if it was damaged or encrypted with
    /// another key; `Refused` without a key.
    pub fn decrypt_record(&self, hex: &str) -> Result<Vec<u8>> {
        const WHAT: &str = "a record";
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let sealed: Option<Vec<u8>> = hex.as_bytes().chunks(2).map(byte).collect();
        let sealed = sealed.filter(|_| hex.bytes().all(|digit| digit.is_ascii_hexdigit()));
        self.open(
            RECORD,
            WHAT,
            &sealed.ok_or_else(|| Error::corrupt("an encrypted record is not hexadecimal"))?,
        )
    }

    fn seal(&self, head: Head, plain: Vec<u8>) -> Result<Bytes> {
        match self {
            Self::None => Ok(plain.into()),
            Self::Locked => Err(key_needed("the destination")),
            Self::Key(key) => Ok(key.seal(head, &plain).into()),
        }
    }

    fn open(&self, head: Head, what: &str, sealed: &[u8]) -> Result<Vec<u8>> {
        match self {
            Self::Key(key) => key.open(head, what, sealed),
            Self::None | Self::Locked => Err(key_needed(what)),
        }
    }
}

/// Checks the checksum of an encrypted manifest, which needs no key. Returns the bytes before the checksum. `Corrupt`
/// if the checksum is wrong or the manifest is not encrypted.
pub fn check_sealed_manifest(stored: &[u8]) -> Result<&[u8]> {
    let (sealed, checksum) = stored
        .split_last_chunk::<{ Digest::BYTES }>()
        .filter(|(sealed, _)| sealed.starts_with(&MANIFEST))
        .ok_or_else(|| Error::corrupt("a manifest is not encrypted"))?;
    if Digest::of(sealed).0 != *checksum {
        return Err(Error::corrupt("the checksum of an encrypted manifest is wrong"));
    }
    Ok(sealed)
}

fn head_of(kind: ObjectKind) -> Head {
    match kind {
        ObjectKind::Chunk => CHUNK,
        ObjectKind::Node => NODE,
    }
}

fn what_of(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Chunk => "a chunk",
        ObjectKind::Node => "a tree node",
    }
}

fn key_needed(what: &str) -> Error {
    Error::new(ErrorKind::Refused, format!("{what} is encrypted, and no key was given"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ObjectRef;

    fn cipher(seed: u8) -> Cipher {
        Cipher::Key(EncryptionKey::from_bytes([seed; 32]))
    }

    fn object(kind: ObjectKind, bytes: &Bytes) -> Verified {
        ObjectRef::of(kind, bytes).verified(bytes.clone()).expect("named as it is")
    }

    #[test]
    fn equal_content_is_sealed_alike_and_opens_with_its_key_only() {
        let plain = b"some content, some content, some content".to_vec();
        let sealed = cipher(1).encrypt_object(ObjectKind::Chunk, plain.clone()).unwrap();
        assert_eq!(sealed, cipher(1).encrypt_object(ObjectKind::Chunk, plain.clone()).unwrap());
        assert_ne!(sealed, cipher(2).encrypt_object(ObjectKind::Chunk, plain.clone()).unwrap());
        assert_eq!(sealed.len(), plain.len() + SEALED_BYTES_MORE as usize);
        assert!(!sealed.windows(12).any(|window| plain.windows(12).any(|other| other == window)));
        let stored = object(ObjectKind::Chunk, &sealed);
        assert_eq!(cipher(1).decrypt_object(ObjectKind::Chunk, &stored).unwrap().bytes(), &plain);
        let kind = |cipher: Cipher, kind| cipher.decrypt_object(kind, &stored).map(drop).unwrap_err().kind();
        assert_eq!(kind(cipher(2), ObjectKind::Chunk), ErrorKind::Corrupt);
        assert_eq!(kind(cipher(1), ObjectKind::Node), ErrorKind::Corrupt);
        assert_eq!(kind(Cipher::Locked, ObjectKind::Chunk), ErrorKind::Refused);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_of_what_is_sealed_is_noticed() {
        let key = cipher(1);
        let chunk = key.encrypt_object(ObjectKind::Chunk, vec![7; 40]).unwrap();
        let manifest = key.encrypt_manifest(vec![8; 40].into()).unwrap();
        let record = key.encrypt_record(&vec![9; 40].into()).unwrap().unwrap();
        type Case<'a> = (&'a [u8], &'a dyn Fn(&[u8]) -> bool);
        let opens: [Case<'_>; 3] = [
            (&chunk, &|bytes| {
                let object = object(ObjectKind::Chunk, &Bytes::copy_from_slice(bytes));
                key.decrypt_object(ObjectKind::Chunk, &object).is_ok()
            }),
            (&manifest, &|bytes| key.decrypt_manifest(&Bytes::copy_from_slice(bytes)).is_ok()),
            (record.as_bytes(), &|bytes| {
                std::str::from_utf8(bytes).is_ok_and(|hex| key.decrypt_record(hex).is_ok())
            }),
        ];
        for (good, opens) in opens {
            assert!(opens(good));
            for bit in 0..good.len() * 8 {
                let mut bad = good.to_vec();
                bad[bit / 8] ^= 1 << (bit % 8);
                // In hexadecimal, upper and lower case are the same digit, so such a change may be accepted.
                assert!(!opens(&bad) || bad.eq_ignore_ascii_case(good), "bit {bit}");
            }
            (0..good.len()).for_each(|len| assert!(!opens(&good[..len]), "cut to {len}"));
        }
        // Correct the checksum after each change: the cipher alone must notice it.
        let cut = manifest.len() - Digest::BYTES;
        for bit in 0..cut * 8 {
            let mut bad = manifest[..cut].to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            let checksum = Digest::of(&bad);
            bad.extend(checksum.0);
            assert!(key.decrypt_manifest(&bad.into()).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn keys_come_back_from_text_and_are_never_shown() {
        let key = EncryptionKey::from_bytes([7; 32]);
        let again = EncryptionKey::from_text(&key.to_text()).unwrap();
        assert_eq!(again.check("id"), key.check("id"));
        assert_ne!(key.check("id"), key.check("other"));
        assert_ne!(key.check("id"), EncryptionKey::from_bytes([8; 32]).check("id"));
        assert!(!format!("{key:?}{:?}", cipher(7)).contains("07"));
        for bad in ["", "diskcast-encryption-key-1", "0707", &key.to_text().replace('1', "2")] {
            let error = EncryptionKey::from_text(bad).unwrap_err();
            assert!(!base::chain(&error).contains("0707"), "{bad}");
        }
    }
}
