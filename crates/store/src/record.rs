//! Small records as text: one line of JSON and one line with the digest of the first, so that a person can read them
//! and a changed byte is noticed. formats/repository.md, "Records".

use base::Digest;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// Longest record in bytes.
pub(crate) const RECORD_BYTES_MAX: u64 = 16 << 10;
/// The format version that this program writes, and the newest that it reads.
pub(crate) const VERSION: u32 = 1;

/// What every record begins with. A reader refuses a newer version and any critical feature that it does not know.
#[derive(Deserialize)]
struct Head {
    record: String,
    version: u32,
    #[serde(default)]
    critical: Vec<String>,
}

#[derive(Serialize)]
struct Sealed<'a, T> {
    record: &'a str,
    version: u32,
    #[serde(flatten)]
    body: &'a T,
}

/// `body` as a record of `kind`.
pub(crate) fn seal<T: Serialize>(kind: &str, body: &T) -> Bytes {
    let mut text = serde_json::to_string(&Sealed { record: kind, version: VERSION, body })
        .expect("records are plain structs with text keys");
    let digest = Digest::of(text.as_bytes());
    text.push_str(&format!("\nblake3 {digest}\n"));
    text.into()
}

/// The body of a record of `kind`. `name` says which, for errors.
pub(crate) fn unseal<T: DeserializeOwned>(kind: &str, name: &str, bytes: &[u8]) -> Result<T> {
    let corrupt = |why: &str| Error::new(ErrorKind::Corrupt, format!("`{name}` is damaged: {why}"));
    let text = std::str::from_utf8(bytes).map_err(|_| corrupt("it is no text"))?;
    let (line, digest) = text.split_once('\n').ok_or_else(|| corrupt("it ends before its digest"))?;
    if format!("blake3 {}\n", Digest::of(line.as_bytes())) != digest {
        return Err(corrupt("its digest is another"));
    }
    let malformed = |error| Error::from_source(ErrorKind::Corrupt, format!("`{name}` is no record"), error);
    let head: Head = serde_json::from_str(line).map_err(malformed)?;
    if head.version > VERSION || !head.critical.is_empty() {
        let needs = head.critical.join(", ");
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "`{name}` is of format version {} ({needs}): this program knows version {VERSION}",
                head.version
            ),
        ));
    }
    if head.record != kind {
        return Err(corrupt("it is a record of another kind"));
    }
    serde_json::from_str(line).map_err(malformed)
}

/// 128 random bits as hexadecimal digits: what makes one writer's record unlike every other's.
pub(crate) fn nonce() -> Result<String> {
    let mut bytes = [0; 16];
    let taken = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| crate::error::from_io("draw random bytes", error))?;
    assert_eq!(taken, bytes.len(), "the kernel gives up to 256 random bytes at once");
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
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
        let sealed = seal("tag", &body());
        assert_eq!(unseal::<Body>("tag", "t", &sealed).unwrap(), body());
        for at in 0..sealed.len() {
            for bit in 0..8 {
                let mut bytes = sealed.to_vec();
                bytes[at] ^= 1 << bit;
                assert_eq!(
                    unseal::<Body>("tag", "t", &bytes).unwrap_err().kind(),
                    ErrorKind::Corrupt,
                    "{at} {bit}"
                );
            }
            assert_eq!(
                unseal::<Body>("tag", "t", &sealed[..at]).unwrap_err().kind(),
                ErrorKind::Corrupt,
                "{at}"
            );
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
            assert_eq!(unseal::<Body>("tag", "t", text.as_bytes()).unwrap_err().kind(), kind, "{json}");
        }
        let later =
            r#"{"record":"tag","version":1,"tag":"a","target":1,"hint":"unknown fields are no reason"}"#;
        let text = format!("{later}\nblake3 {}\n", Digest::of(later.as_bytes()));
        assert!(unseal::<Body>("tag", "t", text.as_bytes()).is_ok());
    }
}
