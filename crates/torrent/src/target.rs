//! A disk that an install writes, as the raw file of a version: pieces that arrive go through the install, and what is
//! on the disk is served to others.
//!
//! The disk itself is not that file. Free sectors keep what they held, and a larger disk gets a moved partition table.
//! So the version's tree says what is read as zeros, and each chunk that is read must have its plain digest.

use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use disk::ReadAt;
use image::chunk::PlainHasher;
use image::{Catalogue, ChunkExtents, Installer, Leaf};
use parking_lot::RwLock;

use crate::bits::Bits;
use crate::content::Content;

/// See the module.
pub struct TargetContent {
    catalogue: Arc<Catalogue>,
    disk: RwLock<Arc<dyn ReadAt>>,
    installer: RwLock<Option<Installer>>,
}

impl TargetContent {
    /// The content on `disk`, to which `installer` writes the version of `catalogue`.
    #[must_use]
    pub fn new(catalogue: Arc<Catalogue>, disk: Arc<dyn ReadAt>, installer: Installer) -> Self {
        Self { catalogue, disk: RwLock::new(disk), installer: RwLock::new(Some(installer)) }
    }

    /// The pieces that are on the disk already, or hold only zeros.
    ///
    /// # Errors
    /// `Unsupported` if a piece does not hold whole chunks; `Corrupt` if the tree is damaged.
    pub fn pieces(&self, piece_bytes: u32) -> Result<Bits> {
        let layout = self.catalogue.layout();
        let chunk_bytes = layout.chunk.bytes();
        if !piece_bytes.is_multiple_of(chunk_bytes) {
            let text = format!("pieces of {piece_bytes} bytes do not hold whole chunks of {chunk_bytes}");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let count = u32::try_from(layout.size_bytes().div_ceil(piece_bytes.into()));
        let count = count.map_err(|_| Error::new(ErrorKind::Unsupported, "the image has too many pieces"))?;
        let each = u64::from(piece_bytes / chunk_bytes);
        let mut missing = Bits::none(count);
        let installer = self.installer.read();
        for run in self.catalogue.leaves() {
            let run = run?;
            let id = data_of(&run.leaf).and_then(|(_, chunk)| self.catalogue.id_of(&chunk.encoded));
            if id.is_some_and(|id| installer.as_ref().is_some_and(|installer| installer.needs(id))) {
                missing.insert(u32::try_from(run.first / each).expect("the chunk lies in the image"));
            }
        }
        let mut here = Bits::none(count);
        (0..count).filter(|&piece| !missing.has(piece)).for_each(|piece| {
            here.insert(piece);
        });
        Ok(here)
    }

    /// Ends the part of the install: what is on the disk is still served.
    pub fn take_installer(&self) -> Option<Installer> {
        self.installer.write().take()
    }

    /// Serves what is on `disk` from now on: a copy, where the disk itself is about to change.
    pub fn serve_from(&self, disk: Arc<dyn ReadAt>) {
        *self.disk.write() = disk;
    }

    /// Calls `each` for the data chunks that `len` bytes from `offset` on touch, with the offset of each.
    fn for_each_chunk(
        &self,
        offset: u64,
        len: u64,
        mut each: impl FnMut(u64, &ChunkExtents, &image::ChunkRef) -> Result<()>,
    ) -> Result<()> {
        let layout = self.catalogue.layout();
        let chunk_bytes = u64::from(layout.chunk.bytes());
        let range = offset / chunk_bytes..(offset + len).div_ceil(chunk_bytes);
        for run in self.catalogue.leaves_within(range) {
            let run = run?;
            if let Some((extents, chunk)) = data_of(&run.leaf) {
                each(layout.chunk_offset(run.first), extents, chunk)?;
            }
        }
        Ok(())
    }
}

fn data_of(leaf: &Leaf) -> Option<(&ChunkExtents, &image::ChunkRef)> {
    if let Leaf::Data(extents, chunk) = leaf { Some((extents, chunk)) } else { None }
}

/// Copies what of a chunk at `start`, whose allocated bytes are `plain`, lies in `into`, which begins at `offset`.
fn copy_part(plain: &[u8], extents: &ChunkExtents, start: u64, (offset, into): (u64, &mut [u8])) {
    let end = offset + into.len() as u64;
    let mut from = 0;
    for run in extents.runs() {
        let at = start + run.offset_bytes();
        let (first, last) = (at.max(offset), (at + run.len_bytes()).min(end));
        if first < last {
            let source = &plain[from + index(first - at)..from + index(last - at)];
            into[index(first - offset)..index(last - offset)].copy_from_slice(source);
        }
        from += index(run.len_bytes());
    }
}

fn index(at: u64) -> usize {
    usize::try_from(at).expect("what is in memory has an index")
}

impl Content for TargetContent {
    fn len(&self) -> u64 {
        self.catalogue.layout().size_bytes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        into.fill(0);
        let (mut plain, len) = (Vec::new(), into.len() as u64);
        let disk = Arc::clone(&self.disk.read());
        self.for_each_chunk(offset, len, |start, extents, chunk| {
            plain.resize(extents.len_bytes() as usize, 0);
            let mut from = 0;
            for run in extents.runs() {
                let to = from + index(run.len_bytes());
                disk.read_exact_at(&mut plain[from..to], start + run.offset_bytes())?;
                from = to;
            }
            copy_part(&plain, extents, start, (offset, into));
            match PlainHasher::default().digest(extents, &plain) == chunk.plain {
                true => Ok(()),
                false => {
                    let text = format!("`{}` has changed at offset {start}", disk.name());
                    Err(Error::new(ErrorKind::Verification, text))
                }
            }
        })
    }

    fn keep(&self, offset: u64, piece: &[u8]) -> Result<()> {
        let installer = self.installer.read();
        let ended = || Error::new(ErrorKind::Refused, "the install has ended");
        let installer = installer.as_ref().ok_or_else(ended)?;
        let mut plain = Vec::new();
        self.for_each_chunk(offset, piece.len() as u64, |start, extents, chunk| {
            plain.clear();
            for run in extents.runs() {
                let at = index(start - offset + run.offset_bytes());
                let bytes = piece.get(at..at + index(run.len_bytes()));
                plain.extend_from_slice(bytes.ok_or_else(|| Error::corrupt("a chunk ends after its piece"))?);
            }
            match self.catalogue.id_of(&chunk.encoded) {
                Some(id) => installer.offer_plain(id, &plain),
                None => Ok(()),
            }
        })
    }
}
