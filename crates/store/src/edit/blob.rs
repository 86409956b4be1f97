//! The blob of an image: what a caller asks for, and how each of it becomes a version.

use std::collections::BTreeMap;
use std::ops::Range;

use base::limits::{CHUNK_BYTES_DEFAULT, SECTOR_BYTES};
use base::{Error, ErrorKind, Result};
use image::manifest::{DiskRecord, FORMAT, Origin, Statistics};
use image::{Child, ChunkSize, Layout, Manifest, Root};

use super::commit::{Committed, Write, publish};
use super::commit_queue::Tip;
use super::compose::{Content, Moved, Piece};
use super::describe;
use super::dirty_ranges::DirtyRanges;
use super::upload::Upload;
use crate::backend::Created;
use crate::lease::writer::retry_if_revoked;
use crate::names::{ImageName, Reference};
use crate::record::{self, Stamp};
use crate::repository::Repository;
use crate::versions::next;

/// An image that is written and read in place. Cheap to make; threads may share one or have one each.
#[derive(Debug, Clone)]
pub struct Blob<'a> {
    pub(super) repository: &'a Repository,
    pub(super) image: ImageName,
}

/// How large a new image is, and how it is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Size in bytes, whole logical sectors, at least one.
    pub size_bytes: u64,
    /// Size of a chunk.
    pub chunk: ChunkSize,
    /// Logical sector in bytes, a power of two from 512 to 65,536.
    pub logical_sector_bytes: u32,
}

impl Default for Shape {
    /// One sector of 512 bytes, which is as small as an image can be, in chunks of the usual size.
    fn default() -> Self {
        let chunk = ChunkSize::from_bytes(CHUNK_BYTES_DEFAULT).expect("the default is a good size");
        Self { size_bytes: SECTOR_BYTES, chunk, logical_sector_bytes: 512 }
    }
}

/// What a commit changes. Ranges come in any order and may overlap.
#[derive(Clone, Copy)]
pub struct Changes<'a> {
    /// Bytes of the image that are written.
    pub written: &'a [Range<u64>],
    /// What is written there.
    pub content: &'a dyn Content,
    /// Bytes of the image that nobody needs any more. They read as zeros; whole logical sectors of them are free from
    /// then on: not stored, and not touched by an install. What is also written counts as written.
    pub freed: &'a [Range<u64>],
}

/// The newest version of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recent {
    /// Its number.
    pub number: u64,
    /// The size of the image in it.
    pub size_bytes: u64,
}

impl Repository {
    /// The image of this name, to be written and read in place. It need not exist yet.
    #[must_use]
    pub fn blob(&self, image: &ImageName) -> Blob<'_> {
        Blob { repository: self, image: image.clone() }
    }
}

impl Blob<'_> {
    /// Makes the image, version 1 (or the number after those of removed ones): all of it is free and reads as zeros.
    /// `Exists` if there is one, `Invalid` if it can't have this shape.
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
            parent: None,
            copied: None,
            commit: None,
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
            return Err(invalid(format!("{} bytes are no whole sectors", shape.size_bytes)));
        }
        manifest.layout().map_err(|error| invalid(base::chain(&error)))?;
        retry_if_revoked(|| self.begin(manifest.clone(), &Upload::begin(self.repository, stamp)?))
    }

    /// Makes the image a clone of the version `from`: it names the same tree. Takes one record, whatever the size.
    /// `Exists` if the image exists.
    pub fn clone_from(&self, from: &Reference, stamp: &Stamp) -> Result<Manifest> {
        retry_if_revoked(|| {
            let upload = Upload::begin(self.repository, stamp)?;
            let (sealed, _) = self.repository.signed_manifest(from)?;
            let digest = sealed.digest();
            let layout = sealed.manifest.layout().map_err(|error| error.within(format!("clone `{from}`")))?;
            let parent = Tip { manifest: sealed.manifest, digest, layout, next: 1 };
            let clone = Manifest { image: self.image.to_string(), ..describe::child(&parent, stamp) };
            self.begin(clone, &upload)
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
        let (bytes, _) = self.repository.seal_version(&manifest)?;
        match upload.create(&self.image, &manifest, &bytes)? {
            Created::Ours => Ok(manifest),
            Created::Taken => Err(exists()),
        }
    }

    /// The newest version. `NotFound` if there is no such image. It is never older than one that a write had returned
    /// before this call.
    pub fn recent(&self) -> Result<Recent> {
        let tip = self.repository.newest_tip(&self.image)?;
        Ok(Recent { number: tip.manifest.number, size_bytes: tip.layout.size_bytes() })
    }

    /// Writes `bytes` at `offset`, any byte of the image: a new version. Sectors that are written, also in part, are
    /// allocated from then on; the rest of them keeps what it held, or zeros. `Refused` if that is behind the image's
    /// end.
    pub fn write(&self, offset: u64, bytes: &[u8], stamp: &Stamp) -> Result<Committed> {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        let content = &Piece { offset, bytes };
        let written = std::slice::from_ref(&range);
        self.commit(&Changes { written, content, freed: &[] }, None, stamp)
    }

    /// Makes all of `changes`, as one new version. With `expected` they go onto that version and no other: `Refused` if
    /// the image has a newer one by then. For a disk that runs on a version that is the thing to do; without it, what
    /// others wrote meanwhile stays beside what is written here.
    pub fn commit(&self, changes: &Changes<'_>, expected: Option<u64>, stamp: &Stamp) -> Result<Committed> {
        let dirty = DirtyRanges::new(changes.written, changes.freed);
        publish(
            self.repository,
            &self.image,
            &Write { dirty, content: changes.content, grows_to: 0, expected, stamp },
        )
    }

    /// Writes `bytes` behind the end of the image, which grows by as much: a new version. Returns where they went, too.
    /// Appends of several writers never overlap, and end in the order in which they were begun; one that fails half way
    /// leaves free space. `Invalid` unless they are whole logical sectors.
    pub fn append(&self, bytes: &[u8], stamp: &Stamp) -> Result<(u64, Committed)> {
        self.append_begun(bytes, bytes.len() as u64, stamp)
    }

    /// The same with the first `bytes` bytes of `content`, whose offsets count from the first byte that is appended.
    pub fn append_from(&self, bytes: u64, content: &dyn Content, stamp: &Stamp) -> Result<(u64, Committed)> {
        self.append_part(bytes, bytes, content, stamp)
    }

    /// The same for an append of `room` bytes of which only `first` are there yet: the image grows by `room` bytes,
    /// what is behind `first` is free. It is nobody else's, to be written by whoever appends.
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
        let offset = self.reserve(room, stamp)?;
        let dirty = DirtyRanges::new(std::slice::from_ref(&(offset..offset + bytes)), &[]);
        let content = &Moved { content, by: offset };
        let write = Write { dirty, content, grows_to: offset + room, expected: None, stamp };
        Ok((offset, publish(self.repository, &self.image, &write)?))
    }
}
