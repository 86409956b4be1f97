//! Encodes and decodes chunks: the content of a fixed-size range of a disk, stored as one object.
//! `formats/image.md`, "Object of a chunk".
//!
//! An object describes its format and extents, but not its position on the disk. So equal content gives the same
//! object wherever it occurs, and it is stored once.

use base::wire::Reader;
use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;

use crate::cipher::Cipher;
use crate::extents::{ChunkExtents, ChunkSize};
use crate::object::{ObjectKind, ObjectRef, Verified};

const MAGIC: [u8; 4] = *b"DCCH";
const VERSION: u8 = 1;
const CODEC_RAW: u8 = 0;
const CODEC_ZSTD: u8 = 1;
/// Length of the header before the extents, in bytes.
pub const HEADER_BYTES: usize = 16;
/// BLAKE3 context of plain digests, so that they differ from all other digests of the same bytes.
const PLAIN_CONTEXT: &str = "diskcast image v1: plain content of a chunk";

/// What a leaf holds of a data chunk: the name of its object, and the digest of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRef {
    /// Length of the chunk's object in bytes.
    pub encoded_len: u32,
    /// Digest of the chunk's object: its name. Readers verify it before they decompress anything.
    pub encoded: Digest,
    /// Digest of the plain content and the extents. It verifies a disk, and it is the same for equal chunks even if
    /// they were encoded by different encoders.
    pub plain: Digest,
}

impl ChunkRef {
    /// The name of the chunk's object.
    #[must_use]
    pub fn object(&self) -> ObjectRef {
        ObjectRef { kind: ObjectKind::Chunk, len: self.encoded_len, digest: self.encoded }
    }
}

/// Computes plain digests. Hashes the content first, so that it is aligned for BLAKE3, then the extents.
#[derive(Debug, Clone)]
pub struct PlainHasher {
    /// The hasher before any input. It is cloned for each digest, which saves deriving its key again.
    blank: blake3::Hasher,
    trailer: Vec<u8>,
}

impl Default for PlainHasher {
    fn default() -> Self {
        Self { blank: blake3::Hasher::new_derive_key(PLAIN_CONTEXT), trailer: Vec::new() }
    }
}

impl PlainHasher {
    /// The plain digest of a chunk whose allocated sectors are `extents` and contain `plain`.
    pub fn digest(&mut self, extents: &ChunkExtents, plain: &[u8]) -> Digest {
        self.trailer.clear();
        extents.encode(&mut self.trailer);
        let extents_bytes = u16::try_from(self.trailer.len()).expect("a bitmap has at most 4096 bytes");
        self.trailer.push(extents.size().log2());
        self.trailer.extend(extents_bytes.to_le_bytes());
        let mut hasher = self.blank.clone();
        hasher.update(plain).update(&self.trailer);
        Digest(*hasher.finalize().as_bytes())
    }
}

/// Encodes chunks. Each thread keeps its own and reuses it.
pub struct Encoder {
    compressor: zstd::bulk::Compressor<'static>,
    frame: Vec<u8>,
    cipher: Cipher,
}

impl Encoder {
    /// An encoder at zstd's `level`, without encryption. `Refused` if zstd has no such level.
    pub fn new(level: i32) -> Result<Self> {
        let known = zstd::compression_level_range();
        if !known.contains(&level) {
            let text = format!("zstd has levels {} to {}, not {level}", known.start(), known.end());
            return Err(Error::new(ErrorKind::Refused, text));
        }
        let compressor = zstd::bulk::Compressor::new(level)
            .map_err(|e| Error::from_source(ErrorKind::Io, "prepare the zstd encoder", e))?;
        Ok(Self { compressor, frame: Vec::new(), cipher: Cipher::None })
    }

    /// The same encoder, which encrypts its objects with `cipher`: the cipher of the sink that they go to.
    #[must_use]
    pub fn encrypting(self, cipher: Cipher) -> Self {
        Self { cipher, ..self }
    }

    /// Encodes the chunk whose allocated sectors are `extents` and contain `plain`; `digest` is its plain digest.
    /// Returns the chunk's reference and its object. `Refused` if objects are encrypted and there is no key.
    ///
    /// # Panics
    /// If `plain` does not have the length of `extents`.
    pub fn encode(
        &mut self,
        extents: &ChunkExtents,
        plain: &[u8],
        digest: Digest,
    ) -> Result<(ChunkRef, Bytes)> {
        assert_eq!(
            plain.len() as u64,
            u64::from(extents.len_bytes()),
            "content has the length of its extents"
        );
        self.frame.clear();
        self.frame.reserve(zstd::zstd_safe::compress_bound(plain.len()));
        self.compressor
            .compress_to_buffer(plain, &mut self.frame)
            .map_err(|e| Error::from_source(ErrorKind::Io, "compress a chunk", e))?;
        // Raw unless zstd makes it shorter: readers rely on this bound of an object's length.
        let smaller = self.frame.len() < plain.len();
        let (codec, payload) = if smaller { (CODEC_ZSTD, &self.frame[..]) } else { (CODEC_RAW, plain) };

        let mut object = Vec::with_capacity(HEADER_BYTES + 1 + payload.len());
        object.extend(MAGIC);
        object.extend([VERSION, codec, 0, 0, extents.size().log2(), 0, 0, 0]);
        object.extend(extents.len_bytes().to_le_bytes());
        extents.encode(&mut object);
        object.extend_from_slice(payload);
        let object = self.cipher.encrypt_object(ObjectKind::Chunk, object)?;
        let name = ObjectRef::of(ObjectKind::Chunk, &object);
        Ok((ChunkRef { encoded_len: name.len, encoded: name.digest, plain: digest }, object))
    }
}

/// Decodes chunks. Each thread keeps its own and reuses it.
pub struct Decoder {
    decompressor: zstd::bulk::Decompressor<'static>,
    hasher: PlainHasher,
    cipher: Cipher,
}

impl Decoder {
    /// A decoder of objects that are not encrypted.
    pub fn new() -> Result<Self> {
        let decompressor = zstd::bulk::Decompressor::new()
            .map_err(|e| Error::from_source(ErrorKind::Io, "prepare the zstd decoder", e))?;
        Ok(Self { decompressor, hasher: PlainHasher::default(), cipher: Cipher::None })
    }

    /// The same decoder, which decrypts objects with `cipher`: the cipher of the source that they come from.
    #[must_use]
    pub fn decrypting(self, cipher: Cipher) -> Self {
        Self { cipher, ..self }
    }

    /// Decodes `object` into `plain`, which has the length of `extents`, and compares the result with `digest`, the
    /// plain digest. `Corrupt` if the object is not a chunk, or has other extents or other content; do not use
    /// `plain` then. `Unsupported` if it has a newer format; `Refused` if it is encrypted and there is no key.
    pub fn decode(
        &mut self,
        object: &Verified,
        extents: &ChunkExtents,
        digest: Digest,
        plain: &mut [u8],
    ) -> Result<()> {
        let object = self.cipher.decrypt_object(ObjectKind::Chunk, object)?;
        let (codec, payload) = open(object.bytes(), extents)?;
        if codec == CODEC_RAW {
            if payload.len() != plain.len() {
                return Err(Error::corrupt(format!(
                    "a raw chunk has {} bytes, but its extents have {}",
                    payload.len(),
                    plain.len()
                )));
            }
            plain.copy_from_slice(payload);
        } else {
            // A frame that is longer than its leaf says fails here; it can't make the decoder take more memory.
            let written = self
                .decompressor
                .decompress_to_buffer(payload, plain)
                .map_err(|e| Error::from_source(ErrorKind::Corrupt, "decompress a chunk", e))?;
            if written != plain.len() {
                return Err(Error::corrupt(format!(
                    "a chunk was decompressed to {written} bytes, but its extents have {}",
                    plain.len()
                )));
            }
        }
        match self.hasher.digest(extents, plain) {
            found if found == digest => Ok(()),
            found => Err(Error::corrupt(format!(
                "the content has plain digest {}, not {}",
                found.short(),
                digest.short()
            ))),
        }
    }

    /// The plain digest of a chunk whose allocated sectors are `extents` and contain `plain`.
    pub fn plain_digest(&mut self, extents: &ChunkExtents, plain: &[u8]) -> Digest {
        self.hasher.digest(extents, plain)
    }
}

/// The codec and the payload of a chunk's object. `Corrupt` if its extents are not the expected ones.
fn open<'a>(object: &'a [u8], expected: &ChunkExtents) -> Result<(u8, &'a [u8])> {
    let cut = |_| Error::corrupt("the object of a chunk ends early");
    let mut reader = Reader::new(object);
    if reader.array().map_err(cut)? != MAGIC {
        return Err(Error::corrupt("this object is not a chunk"));
    }
    let [version, codec, cipher, flags, log2, pad @ ..] = reader.array::<8>().map_err(cut)?;
    if version != VERSION || codec > CODEC_ZSTD || cipher != 0 || flags != 0 || pad != [0; 3] {
        let text = format!("a chunk of version {version}, codec {codec}, cipher {cipher}, flags {flags:#x}");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let plain_len = reader.u32().map_err(cut)?;
    let size =
        ChunkSize::from_log2(log2).ok_or_else(|| Error::corrupt(format!("a chunk of 2^{log2} bytes")))?;
    let extents = ChunkExtents::decode(&mut reader, size)?;
    if extents != *expected || plain_len != extents.len_bytes() {
        return Err(Error::corrupt("the object of a chunk has other extents than its leaf"));
    }
    Ok((codec, reader.rest()))
}
