//! The envelope of a manifest, in binary: JSON body, signatures, checksum. `formats/image.md`, "Envelope".

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
/// BLAKE3 context of the digests of manifests, so that a signature of a manifest is not valid for anything else.
const CONTEXT: &str = "diskcast image v1: manifest";

/// A manifest that was read, with its digest and its signatures. The signatures are not verified yet.
#[derive(Debug, Clone)]
pub struct SignedManifest {
    /// The manifest.
    pub manifest: Manifest,
    signed: Signed,
}

impl SignedManifest {
    /// Reads a manifest; does not verify its signatures. `Corrupt` if the bytes are not a manifest or were damaged;
    /// `Unsupported` if they have a newer format.
    pub fn open(bytes: &[u8]) -> Result<Self> {
        let cut = |_| Error::corrupt("a manifest ends early");
        if bytes.len() > MANIFEST_BYTES_MAX as usize {
            return Err(Error::corrupt(format!("a manifest of {} bytes", bytes.len())));
        }
        let mut reader = Reader::new(bytes);
        if reader.array().map_err(cut)? != MAGIC {
            return Err(Error::corrupt("these bytes are not a manifest"));
        }
        // The version is read before the checksum, so that a newer format is reported as newer, not as damaged.
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
            return Err(Error::corrupt("the checksum of a manifest is wrong"));
        }
        let body_len = reader.u32().map_err(cut)?;
        let body = reader.bytes(body_len as usize).map_err(cut)?;
        let signatures = (0..signature_count).map(|_| read_signature(&mut reader)).collect::<Result<_>>()?;
        if reader.remaining() != Digest::BYTES {
            return Err(Error::corrupt("the length of a manifest does not match its header"));
        }
        let manifest = Manifest::from_body(body)?;
        let signed = Signed::new(digest_of(body), manifest.repository.clone(), signatures);
        Ok(Self { manifest, signed })
    }

    /// The manifest's digest, which names this version. It does not depend on the signatures.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.signed.digest()
    }

    /// The manifest's digest and the signatures of it.
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

/// The manifest's digest: that of the exact bytes of its body. It names the manifest, and signatures sign it.
fn digest_of(body: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    Digest(*hasher.update(body).finalize().as_bytes())
}

/// Puts `body` into an envelope, signed by `keys`. `Refused` if the envelope is longer than `MANIFEST_BYTES_MAX` or
/// there are more than `SIGNATURES_MAX` keys.
pub(crate) fn seal(body: &[u8], keys: &[&SigningKey]) -> Result<Bytes> {
    let signature_count = u8::try_from(keys.len()).ok().filter(|&count| usize::from(count) <= SIGNATURES_MAX);
    let signature_count =
        signature_count.ok_or_else(|| Error::new(ErrorKind::Refused, "too many signatures"))?;
    let mut bytes =
        Vec::with_capacity(HEADER_BYTES + body.len() + SIGNATURE_BYTES * keys.len() + Digest::BYTES);
    bytes.extend(MAGIC);
    bytes.extend([VERSION, 0, signature_count, 0]);
    // A body whose length does not fit is refused at the end, as too long.
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
    /// The manifest in its envelope, signed by `key` if there is one. `Refused` if the manifest is not valid or too
    /// long.
    pub fn encode(&self, key: Option<&SigningKey>) -> Result<Bytes> {
        self.check().map_err(|e| Error::from_source(ErrorKind::Refused, "the manifest is not valid", e))?;
        let body = serde_json::to_vec(self)
            .map_err(|e| Error::from_source(ErrorKind::Refused, "write a manifest as JSON", e))?;
        seal(&body, key.as_slice())
    }

    /// Reads a manifest and drops its signatures, unverified; [`SignedManifest::open`] keeps them. Errors are the
    /// same.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        SignedManifest::open(bytes).map(|sealed| sealed.manifest)
    }
}
