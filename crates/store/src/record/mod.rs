//! Small records as text: a line of JSON, lines with signatures, and a line with the digest of all lines before. So
//! people can read them, and a changed byte is noticed. formats/repository.md, "Records".

pub(crate) mod mend;

use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;
use image::signature::SIGNATURES_MAX;
use image::{Cipher, PublicKey, Signature, Signed, SigningKey};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest record in bytes.
pub(crate) const RECORD_BYTES_MAX: u64 = 16 << 10;
/// The format version that this program writes, and the newest one that it reads.
pub(crate) const VERSION: u32 = 1;

/// The word in `critical` of an encrypted repository's records.
pub(crate) const CIPHER: &str = "cipher";
/// The kind of a record that contains another record, encrypted.
const SEALED: &str = "sealed";

/// Separates signatures of records from signatures of anything else.
const SIGNED_CONTEXT: &str = "diskcast repository v1: signed record";

/// User and time of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// Time, RFC 3339.
    pub created: String,
    /// A user or a program.
    pub creator: String,
}

/// The first fields of every record. A reader rejects a newer version, and any critical feature that it does not
/// know.
#[derive(Deserialize)]
struct Head {
    record: String,
    version: u32,
    #[serde(default)]
    critical: Vec<String>,
    /// Of signed kinds: the id of the repository that it is for. Absent in what older programs wrote.
    #[serde(default)]
    repository: Option<String>,
}

#[derive(Serialize)]
struct Body<'a, T> {
    record: &'a str,
    version: u32,
    #[serde(flatten)]
    body: &'a T,
}

/// Encodes `body` as an unsigned record of `kind`.
pub(crate) fn encode<T: Serialize>(kind: &str, body: &T) -> Bytes {
    encode_signed(kind, body, None)
}

/// Encodes `body` as a record of `kind`, signed with `key` if given.
pub(crate) fn encode_signed<T: Serialize>(kind: &str, body: &T, key: Option<&SigningKey>) -> Bytes {
    let mut text = serde_json::to_string(&Body { record: kind, version: VERSION, body })
        .expect("records are plain structs with text keys");
    if let Some(key) = key {
        let signature = Signature::make(key, &signed_digest(&text));
        let bytes: String = signature.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        text.push_str(&format!("\n{} {bytes}", signature.key()));
    }
    let digest = Digest::of(text.as_bytes());
    text.push_str(&format!("\nblake3 {digest}\n"));
    text.into()
}

/// The record `text` as it is stored: encrypted if the repository is.
pub(crate) fn encrypt(cipher: &Cipher, text: Bytes) -> Result<Bytes> {
    let sealed = cipher.encrypt_record(&text).map_err(|error| error.within("write a record"))?;
    let enclosure = |sealed| Enclosure { critical: vec![CIPHER.to_owned()], sealed };
    Ok(sealed.map_or(text, |sealed| encode(SEALED, &enclosure(sealed))))
}

/// The text of a stored record. `Corrupt` if it is encrypted and should not be, or the reverse, or is encrypted with
/// another key; `Refused` without the key.
pub(crate) fn decrypt(cipher: &Cipher, name: &str, bytes: Bytes) -> Result<Bytes> {
    if let Cipher::None = cipher {
        return Ok(bytes);
    }
    let enclosure: Enclosure = decode(SEALED, name, &bytes)?;
    let opened = cipher.decrypt_record(&enclosure.sealed);
    opened.map(Bytes::from).map_err(|error| error.within(format!("read `{name}`")))
}

/// Checks what is possible without the key: `Corrupt` if `bytes` are not a record that contains an encrypted one.
pub(crate) fn check_enclosed(name: &str, bytes: &[u8]) -> Result<()> {
    decode::<Enclosure>(SEALED, name, bytes).map(drop)
}

/// The body of a record that contains another one.
#[derive(Serialize, Deserialize)]
struct Enclosure {
    critical: Vec<String>,
    sealed: String,
}

fn signed_digest(line: &str) -> Digest {
    Digest(blake3::derive_key(SIGNED_CONTEXT, line.as_bytes()))
}

/// Decodes the body of a record of `kind`. `name` is used in errors.
pub(crate) fn decode<T: DeserializeOwned>(kind: &str, name: &str, bytes: &[u8]) -> Result<T> {
    decode_signed(kind, name, bytes).map(|(body, _)| body)
}

/// Decodes the body of a record of `kind`, and its signatures. `name` is used in errors.
pub(crate) fn decode_signed<T: DeserializeOwned>(
    kind: &str,
    name: &str,
    bytes: &[u8],
) -> Result<(T, Signed)> {
    let corrupt = |why: &str| Error::new(ErrorKind::Corrupt, format!("`{name}` is damaged: {why}"));
    let text = std::str::from_utf8(bytes).map_err(|_| corrupt("it is not text"))?;
    let (covered, digest) = text
        .strip_suffix('\n')
        .and_then(|text| text.rsplit_once('\n'))
        .ok_or_else(|| corrupt("it ends before its digest"))?;
    if format!("blake3 {}", Digest::of(covered.as_bytes())) != digest {
        return Err(corrupt("its digest is another"));
    }
    let (line, rest) = covered.split_once('\n').unwrap_or((covered, ""));
    let signatures: Option<Vec<Signature>> = rest.lines().map(signature).collect();
    let signatures = signatures.filter(|signatures| signatures.len() <= SIGNATURES_MAX);
    let signatures = signatures.ok_or_else(|| corrupt("it has a signature that can't be read"))?;
    let malformed =
        |error| Error::from_source(ErrorKind::Corrupt, format!("`{name}` is not a record"), error);
    let head: Head = serde_json::from_str(line).map_err(malformed)?;
    if head.version > VERSION || head.critical.iter().any(|needed| needed != CIPHER) {
        let needs = head.critical.join(", ");
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "`{name}` is of format version {} ({needs}): this program knows version {VERSION}",
                head.version
            ),
        ));
    }
    if head.record == SEALED && kind != SEALED {
        let text = format!("`{name}` is encrypted, and no key was given");
        return Err(Error::new(ErrorKind::Refused, text));
    }
    if head.record != kind {
        return Err(corrupt("it is a record of another kind"));
    }
    let body = serde_json::from_str(line).map_err(malformed)?;
    Ok((body, Signed::new(signed_digest(line), head.repository, signatures)))
}

/// The signature in a line: a public key as text, and 128 hexadecimal digits.
fn signature(line: &str) -> Option<Signature> {
    let (key, bytes) = line.rsplit_once(' ')?;
    let key: Digest = key.strip_prefix("ed25519 ")?.parse().ok()?;
    let (front, back) = bytes.split_at_checked(64)?;
    let halves = [front.parse::<Digest>().ok()?.0, back.parse::<Digest>().ok()?.0];
    let bytes = halves.concat().try_into().expect("two halves of 32 bytes");
    Some(Signature::new(PublicKey::from_bytes(&key.0).ok()?, bytes))
}

/// 128 random bits as hexadecimal digits, which make each record different from those of all other writers.
pub(crate) fn nonce() -> Result<String> {
    Ok(random::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Random bytes from the kernel, at most 256.
pub(crate) fn random<const COUNT: usize>() -> Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    let taken = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::from_io("draw random bytes", error))?;
    assert_eq!(taken, bytes.len(), "the kernel gives up to 256 random bytes at once");
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Body {
        tag: String,
        target: u64,
    }

    fn body() -> Body {
        Body { tag: "stable".into(), target: 7 }
    }

    #[test]
    fn every_flip_and_every_cut_is_noticed() {
        let key = SigningKey::from_bytes(&[7; 32]);
        for sealed in [encode("tag", &body()), encode_signed("tag", &body(), Some(&key))] {
            assert_eq!(decode::<Body>("tag", "t", &sealed).unwrap(), body());
            let kind = |bytes: &[u8]| decode::<Body>("tag", "t", bytes).unwrap_err().kind();
            for at in 0..sealed.len() {
                for bit in 0..8 {
                    let mut bytes = sealed.to_vec();
                    bytes[at] ^= 1 << bit;
                    assert_eq!(kind(&bytes), ErrorKind::Corrupt, "{at} {bit}");
                }
                assert_eq!(kind(&sealed[..at]), ErrorKind::Corrupt, "{at}");
            }
        }
    }

    #[test]
    fn a_record_says_who_signed_it() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let signed = encode_signed("tag", &body(), Some(&key));
        let (_, found) = decode_signed::<Body>("tag", "t", &signed).unwrap();
        assert_eq!(found.signers().unwrap(), [PublicKey::from(&key)]);
        // The signature of one record under another, with the digest corrected.
        let text = String::from_utf8(signed.to_vec()).unwrap().replace("\"target\":7", "\"target\":8");
        let covered = &text[..text.trim_end().rfind('\n').unwrap()];
        let forged = format!("{covered}\nblake3 {}\n", Digest::of(covered.as_bytes()));
        let (found, signed) = decode_signed::<Body>("tag", "t", forged.as_bytes()).unwrap();
        assert_eq!(found.target, 8);
        assert_eq!(signed.signers().unwrap_err().kind(), ErrorKind::Corrupt);
        // Lines that are not signatures, and too many signatures.
        let (line, signature) = covered.split_once('\n').unwrap();
        for rest in ["hello".to_owned(), signature.replace("ed25519", "rsa"), [signature; 17].join("\n")] {
            let covered = format!("{line}\n{rest}");
            let text = format!("{covered}\nblake3 {}\n", Digest::of(covered.as_bytes()));
            assert_eq!(decode::<Body>("tag", "t", text.as_bytes()).unwrap_err().kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn the_future_is_refused_and_other_kinds_are_damage() {
        for (json, kind) in [
            (r#"{"record":"tag","version":2}"#, ErrorKind::Unsupported),
            (r#"{"record":"tag","version":1,"critical":["sealed"]}"#, ErrorKind::Unsupported),
            (r#"{"record":"removed","version":1,"tag":"a","target":1}"#, ErrorKind::Corrupt),
            (r#"{"record":"tag","version":1,"tag":7,"target":1}"#, ErrorKind::Corrupt),
            (r#"[]"#, ErrorKind::Corrupt),
            ("", ErrorKind::Corrupt),
        ] {
            let text = format!("{json}\nblake3 {}\n", Digest::of(json.as_bytes()));
            assert_eq!(decode::<Body>("tag", "t", text.as_bytes()).unwrap_err().kind(), kind, "{json}");
        }
        let later =
            r#"{"record":"tag","version":1,"tag":"a","target":1,"hint":"unknown fields are no reason"}"#;
        let text = format!("{later}\nblake3 {}\n", Digest::of(later.as_bytes()));
        assert!(decode::<Body>("tag", "t", text.as_bytes()).is_ok());
    }
}
