//! The envelope of a manifest: body, signatures, checksum. `formats/image.md`, "Envelope".

use base::limits::MANIFEST_BYTES_MAX;
use base::wire::Reader;
use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;
use ed25519_dalek::SigningKey;

use crate::manifest::Manifest;
use crate::signature::{PublicKey, SIGNATURES_MAX, Signature, Signed};

const MAGIC: [u8; 4] = *b"DCMF";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 12;
const ED25519: u8 = 1;
const SIGNATURE_BYTES: usize = 100;
/// The context that separates signatures of manifests from all other signatures.
const CONTEXT: &str = "diskcast image v1: manifest";

/// A manifest as it was read, with its digest and the keys that signed it.
#[derive(Debug, Clone)]
pub struct SignedManifest {
    /// The manifest.
    pub manifest: Manifest,
    signed: Signed,
}

impl SignedManifest {
    /// Reads a manifest. `Corrupt` if the bytes are damaged or no manifest; `Unsupported` if they have a newer format.
    pub fn open(bytes: &[u8]) -> Result<Self> {
        let cut = |_| Error::corrupt("a manifest ends early");
        if bytes.len() > MANIFEST_BYTES_MAX as usize {
            return Err(Error::corrupt(format!("a manifest of {} bytes", bytes.len())));
        }
        let mut reader = Reader::new(bytes);
        if reader.array().map_err(cut)? != MAGIC {
            return Err(Error::corrupt("these bytes are no manifest"));
        }
        let [version, flags, signature_count, pad] = reader.array().map_err(cut)?;
        if version != VERSION || flags != 0 || pad != 0 {
            return Err(Error::new(ErrorKind::Unsupported, format!("a manifest of version {version}")));
        }
        if usize::from(signature_count) > SIGNATURES_MAX {
            return Err(Error::corrupt(format!("a manifest with {signature_count} signatures")));
        }
        let checked =
            bytes.len().checked_sub(Digest::BYTES).ok_or_else(|| Error::corrupt("a manifest ends early"))?;
        if Digest::of(&bytes[..checked]).0 != bytes[checked..] {
            return Err(Error::corrupt("a manifest does not have its checksum"));
        }
        let body_len = reader.u32().map_err(cut)?;
        let body = reader.bytes(body_len as usize).map_err(cut)?;
        let signatures = (0..signature_count).map(|_| read_signature(&mut reader)).collect::<Result<_>>()?;
        if reader.remaining() != Digest::BYTES {
            return Err(Error::corrupt("a manifest is longer than it says"));
        }
        Ok(Self { manifest: Manifest::from_body(body)?, signed: Signed::new(digest_of(body), signatures) })
    }

    /// The digest that identifies this version, independent of its signatures.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.signed.digest()
    }

    /// Its digest and the keys that signed it.
    #[must_use]
    pub fn signed(&self) -> &Signed {
        &self.signed
    }
}

fn read_signature(reader: &mut Reader<'_>) -> Result<Signature> {
    let cut = |_| Error::corrupt("a manifest ends early");
    match reader.array::<4>().map_err(cut)? {
        [ED25519, 0, 0, 0] => {}
        [kind, ..] => return Err(Error::new(ErrorKind::Unsupported, format!("a signature of kind {kind}"))),
    }
    let key = PublicKey::from_bytes(&reader.array().map_err(cut)?)?;
    Ok(Signature::new(key, reader.array().map_err(cut)?))
}

/// The digest of the body's exact bytes: it identifies a manifest and is what keys sign.
fn digest_of(body: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    Digest(*hasher.update(body).finalize().as_bytes())
}

/// Makes an envelope with `body` and signatures by `keys`. `Refused` if it is too long.
pub(crate) fn seal(body: &[u8], keys: &[&SigningKey]) -> Result<Bytes> {
    let signature_count = u8::try_from(keys.len()).ok().filter(|&count| usize::from(count) <= SIGNATURES_MAX);
    let signature_count =
        signature_count.ok_or_else(|| Error::new(ErrorKind::Refused, "too many signatures"))?;
    let mut bytes =
        Vec::with_capacity(HEADER_BYTES + body.len() + SIGNATURE_BYTES * keys.len() + Digest::BYTES);
    bytes.extend(MAGIC);
    bytes.extend([VERSION, 0, signature_count, 0]);
    bytes.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend(body);
    let digest = digest_of(body);
    for key in keys {
        let signature = Signature::make(key, &digest);
        bytes.extend([ED25519, 0, 0, 0]);
        bytes.extend(signature.key().to_bytes());
        bytes.extend(signature.to_bytes());
    }
    let checksum = Digest::of(&bytes);
    bytes.extend(checksum.0);
    if bytes.len() > MANIFEST_BYTES_MAX as usize {
        return Err(Error::new(
            ErrorKind::Refused,
            format!("a manifest of {} bytes is too long", bytes.len()),
        ));
    }
    Ok(bytes.into())
}

impl Manifest {
    /// The manifest in its envelope, signed if there is a key. `Refused` if the manifest is not valid.
    pub fn encode(&self, key: Option<&SigningKey>) -> Result<Bytes> {
        self.check().map_err(|e| Error::from_source(ErrorKind::Refused, "this is no good manifest", e))?;
        let body = serde_json::to_vec(self)
            .map_err(|e| Error::from_source(ErrorKind::Refused, "write a manifest as JSON", e))?;
        seal(&body, key.as_slice())
    }

    /// Reads a manifest and ignores signatures: see [`SignedManifest`].
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        SignedManifest::open(bytes).map(|sealed| sealed.manifest)
    }
}
