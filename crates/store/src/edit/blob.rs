//! A blob is a writable image: the operations of callers, and how each becomes a version.

use std::collections::BTreeMap;
use std::ops::Range;

use base::limits::{CHUNK_BYTES_DEFAULT, SECTOR_BYTES};
use base::{Error, ErrorKind, Result};
use image::manifest::{DiskRecord, FORMAT, Origin, Statistics};
use image::{Child, ChunkSize, Layout, Made, Manifest, Root, SurveyRecord};

use super::commit::{Committed, Write, publish};
use super::commit_queue::Tip;
use super::compose::{Content, Moved, Piece};
use super::describe;
use super::dirty_ranges::DirtyRanges;
use super::upload::Upload;
use crate::backend::Created;
use crate::names::{ImageName, Reference};
use crate::record::{self, Stamp};
use crate::repository::Repository;
use crate::versions::next;

/// An image for random reads and writes. Cheap to create; threads may share one or use one each.
#[derive(Debug, Clone)]
pub struct Blob<'a> {
    pub(super) repository: &'a Repository,
    pub(super) image: ImageName,
}

/// Size, chunk size and sector size of a new image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Size in bytes; at least one logical sector, and a multiple of it.
    pub size_bytes: u64,
    /// Size of a chunk.
    pub chunk: ChunkSize,
    /// Logical sector size in bytes, a power of two from 512 to 65,536.
    pub logical_sector_bytes: u32,
}

impl Default for Shape {
    /// One sector of 512 bytes, the smallest possible image, with chunks of the default size.
    fn default() -> Self {
        let chunk = ChunkSize::from_bytes(CHUNK_BYTES_DEFAULT).expect("the default is a good size");
        Self { size_bytes: SECTOR_BYTES, chunk, logical_sector_bytes: 512 }
    }
}

/// The changes of a commit. Ranges may be in any order and may overlap.
#[derive(Clone, Copy)]
pub struct Changes<'a> {
    /// Ranges of bytes of the image that are written.
    pub written: &'a [Range<u64>],
    /// The bytes for these ranges.
    pub content: &'a dyn Content,
    /// Ranges of bytes that are not needed any more. They read as zeros. Whole logical sectors in them become free:
    /// not stored, and not written when the image is installed. A byte that is also in `written` counts as written.
    pub freed: &'a [Range<u64>],
}

/// The newest version of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recent {
    /// Number of the version.
    pub number: u64,
    /// Size of the image in this version, in bytes.
    pub size_bytes: u64,
}

impl Repository {
    /// The image of this name, for reads and writes. It need not exist yet.
    #[must_use]
    pub fn blob(&self, image: &ImageName) -> Blob<'_> {
        Blob { repository: self, image: image.clone() }
    }
}

impl Blob<'_> {
    /// Creates the image with version 1, or with the number after those of removed versions. All of it is free and
    /// reads as zeros. `Exists` if the image exists, `Invalid` if the shape is not possible.
    pub fn create(&self, shape: &Shape, stamp: &Stamp) -> Result<Manifest> {
        let size_sectors = shape.size_bytes / SECTOR_BYTES;
        let layout =
            Layout { chunk: shape.chunk, size_sectors, logical_sector_bytes: shape.logical_sector_bytes };
        let (chunk_count, mut statistics) = (layout.chunk_count(), Statistics::default());
        statistics.add(&image::Leaf::Free, chunk_count);
        let manifest = Manifest {
            format: FORMAT,
            features: Vec::new(),
            image: self.image.to_string(),
            number: 0,
            nonce: String::new(),
            repository: None,
            parent: None,
            copied: None,
            commit: None,
            made: Some(Made {
                by: Made::CREATE.to_owned(),
                survey: Some(SurveyRecord::default()),
                unproven_free: false,
            }),
            members: Vec::new(),
            root: Root { child: Child::Free, height: Root::height_of(chunk_count), chunk_count },
            chunk_bytes: shape.chunk.bytes(),
            size_sectors,
            logical_sector_bytes: shape.logical_sector_bytes,
            physical_sector_bytes: shape.logical_sector_bytes,
            origin: Origin { disk_sectors: size_sectors, start_sector: 0 },
            disk: DiskRecord { table: "none".to_owned(), ..DiskRecord::default() },
            labels: BTreeMap::new(),
            created: stamp.created.clone(),
            creator: stamp.creator.clone(),
            statistics,
            warnings: Vec::new(),
            cipher: self.repository.cipher().name().to_owned(),
        };
        let invalid =
            |text: String| Error::new(ErrorKind::Invalid, format!("create `{}`: {text}", self.image));
        if !shape.size_bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(invalid(format!("{} bytes are not a multiple of the sector size", shape.size_bytes)));
        }
        manifest.layout().map_err(|error| invalid(base::chain(&error)))?;
        Upload::retrying(self.repository, stamp, |upload| self.begin(manifest.clone(), upload))
    }

    /// Creates the image as a clone of the version `from`: both name the same tree. Takes one record, whatever the
    /// size. `Exists` if the image exists, `NotFound` if `from` does not.
    pub fn clone_from(&self, from: &Reference, stamp: &Stamp) -> Result<Manifest> {
        Upload::retrying(self.repository, stamp, |upload| {
            let (sealed, _) = self.repository.signed_manifest(from)?;
            let digest = sealed.digest();
            let layout = sealed.manifest.layout().map_err(|error| error.within(format!("clone `{from}`")))?;
            let parent = Tip { manifest: sealed.manifest, digest, layout, next: 1 };
            let clone = Manifest { image: self.image.to_string(), ..describe::child(&parent, stamp) };
            self.begin(clone, upload)
        })
    }

    /// Publishes the first version of an image.
    fn begin(&self, mut manifest: Manifest, upload: &Upload<'_>) -> Result<Manifest> {
        let exists = || Error::new(ErrorKind::Exists, format!("there is an image `{}` already", self.image));
        let newest = self.repository.newest_numbers(&self.image, None)?;
        if newest.live.is_some() {
            return Err(exists());
        }
        manifest.number = next(newest.highest, &self.image)?;
        manifest.nonce = record::nonce()?;
        let (bytes, _) = self.repository.seal_version(&mut manifest)?;
        match upload.create(&self.image, &manifest, &bytes)? {
            Created::Ours => Ok(manifest),
            Created::Taken => Err(exists()),
        }
    }

    /// The newest version. `NotFound` if there is no such image. Never older than the version of any write that
    /// returned before this call.
    pub fn recent(&self) -> Result<Recent> {
        let tip = self.repository.newest_tip(&self.image)?;
        Ok(Recent { number: tip.manifest.number, size_bytes: tip.layout.size_bytes() })
    }

    /// Writes `bytes` at `offset`, which need not be aligned, as a new version. Every sector that is touched becomes
    /// allocated; its other bytes stay as they were, or zero. `Refused` if the range ends after the end of the image.
    pub fn write(&self, offset: u64, bytes: &[u8], stamp: &Stamp) -> Result<Committed> {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        let content = &Piece { offset, bytes };
        let written = std::slice::from_ref(&range);
        self.commit(&Changes { written, content, freed: &[] }, None, stamp)
    }

    /// Publishes all of `changes` as one new version. With `expected`, only on top of that version: `Refused` if the
    /// image has a newer one. Use `expected` for the disk of a running machine. Without it, what other writers wrote
    /// meanwhile is merged with these changes.
    pub fn commit(&self, changes: &Changes<'_>, expected: Option<u64>, stamp: &Stamp) -> Result<Committed> {
        let dirty = DirtyRanges::new(changes.written, changes.freed);
        publish(
            self.repository,
            &self.image,
            &Write { dirty, content: changes.content, grows_to: 0, expected, stamp },
        )
    }

    /// Appends `bytes` to the image as a new version; the image grows by their length in whole logical sectors, and the
    /// rest of the last one is zeros. Returns their offset too. Appends of several writers never overlap and are placed
    /// in the order of their begin; an append that fails leaves free space. `Invalid` if there are no bytes.
    pub fn append(&self, bytes: &[u8], stamp: &Stamp) -> Result<(u64, Committed)> {
        self.append_begun(bytes, bytes.len() as u64, stamp)
    }

    /// [`Self::append`] with the first `bytes` bytes of `content`, whose offset 0 is the first byte appended.
    pub fn append_from(&self, bytes: u64, content: &dyn Content, stamp: &Stamp) -> Result<(u64, Committed)> {
        self.append_part(bytes, bytes, content, stamp)
    }

    /// [`Self::append`] with `room` bytes, of which only `first` are given now. The image grows as for `room` bytes,
    /// and those after `first` are free. Other appends do not use this space; the caller writes it later.
    pub fn append_begun(&self, first: &[u8], room: u64, stamp: &Stamp) -> Result<(u64, Committed)> {
        let bytes = first.len() as u64;
        if room < bytes {
            let text = format!("append {bytes} bytes to `{}` in room for {room}", self.image);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.append_part(room, bytes, &Piece { offset: 0, bytes: first }, stamp)
    }

    fn append_part(
        &self,
        room: u64,
        bytes: u64,
        content: &dyn Content,
        stamp: &Stamp,
    ) -> Result<(u64, Committed)> {
        let Range { start: offset, end } = self.reserve(room, stamp)?;
        let dirty = DirtyRanges::new(std::slice::from_ref(&(offset..offset + bytes)), &[]);
        let content = &Moved { content, by: offset };
        let write = Write { dirty, content, grows_to: end, expected: None, stamp };
        Ok((offset, publish(self.repository, &self.image, &write)?))
    }
}
