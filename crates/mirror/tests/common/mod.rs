//! Helpers for the tests of this crate: an image with many kinds of chunks, and sources that fail on purpose.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "only tests use this")]
#![allow(clippy::cast_possible_truncation, reason = "images of tests fit memory")]

pub(crate) mod far;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use base::{Chance, Error, ErrorKind, Result};
use bytes::Bytes;
use image::{ChunkSize, Cipher, Manifest, ObjectKind, ObjectRef, ObjectSource};
use mirror::{Mirror, MirrorOptions, Served as _, Source};
use store::{Location, Repository, Shape, Stamp};

pub(crate) const CHUNK: u64 = 1 << 16;

pub(crate) fn stamp() -> Stamp {
    Stamp { created: "2026-11-21T21:00:00Z".into(), creator: "test@here".into() }
}

/// A repository in a folder with the image `disk` of `size` bytes. Some of its chunks are free, some full, some
/// partly full.
pub(crate) struct Place {
    pub folder: tempfile::TempDir,
    pub repository: Arc<Repository>,
    pub content: Vec<u8>,
}

impl Place {
    pub(crate) fn new(size: u64, seed: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::Folder(folder.path().join("repository"));
        let repository = Arc::new(Repository::create(&location).unwrap());
        let blob = repository.blob(&"disk".parse().unwrap());
        let chunk = ChunkSize::from_bytes(CHUNK as u32).unwrap();
        blob.create(&Shape { size_bytes: size, chunk, logical_sector_bytes: 512 }, &stamp()).unwrap();
        let mut content = vec![0; size as usize];
        let mut chance = Chance::from_seed(seed);
        let mut ranges = Vec::new();
        for at in (0..size).step_by(CHUNK as usize) {
            let end = match chance.below(3) {
                0 => continue,
                1 => at + 512 * (1 + chance.below(127)),
                _ => at + CHUNK,
            };
            let range = at..end.min(size);
            chance.fill(&mut content[range.start as usize..range.end as usize]);
            ranges.push(range);
        }
        let piece = store::Piece { offset: 0, bytes: &content };
        let changes = store::Changes { written: &ranges, content: &piece, freed: &[] };
        blob.commit(&changes, None, &stamp()).unwrap();
        Self { folder, repository, content }
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn manifest(&self, reference: &str) -> Manifest {
        self.repository.resolve(&reference.parse().unwrap()).unwrap()
    }

    pub(crate) fn sources(&self) -> Vec<Source> {
        vec![Source::repository(Arc::clone(&self.repository))]
    }

    /// The content of a version.
    pub(crate) fn read(&self, reference: &str) -> Vec<u8> {
        let snapshot = self.repository.snapshot(&reference.parse().unwrap()).unwrap();
        let mut bytes = vec![0; snapshot.layout().size_bytes() as usize];
        snapshot.read(0, &mut bytes).unwrap();
        bytes
    }
}

pub(crate) fn options() -> MirrorOptions {
    MirrorOptions::default()
}

/// The content of a disk.
pub(crate) fn all(mirror: &Mirror) -> Vec<u8> {
    let mut bytes = vec![0; mirror.geometry().size_bytes as usize];
    mirror.read(0, &mut bytes).unwrap();
    bytes
}

pub(crate) const GOOD: u8 = 0;
pub(crate) const DEAD: u8 = 1;
pub(crate) const FLIPS: u8 = 2;
pub(crate) const GONE: u8 = 3;

/// A source whose behaviour can be changed: [`GOOD`], [`DEAD`], [`FLIPS`] (damaged chunks) or [`GONE`] (missing
/// objects).
pub(crate) struct Moody {
    pub inner: Arc<Repository>,
    pub mood: AtomicU8,
}

impl Moody {
    pub(crate) fn new(place: &Place, mood: u8) -> Arc<Self> {
        Arc::new(Self { inner: Arc::clone(&place.repository), mood: AtomicU8::new(mood) })
    }

    pub(crate) fn becomes(&self, mood: u8) {
        self.mood.store(mood, Ordering::SeqCst);
    }
}

impl ObjectSource for Moody {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        match self.mood.load(Ordering::SeqCst) {
            DEAD => Err(Error::new(ErrorKind::Io, "nobody there")),
            GONE => Err(Error::new(ErrorKind::NotFound, "no such object")),
            FLIPS if object.kind == ObjectKind::Chunk => {
                let mut bytes = self.inner.fetch(object)?.to_vec();
                let at = bytes.len() / 2;
                bytes[at] ^= 1;
                Ok(bytes.into())
            }
            _ => self.inner.fetch(object),
        }
    }
}

pub(crate) fn source(name: &str, moody: &Arc<Moody>) -> Source {
    Source {
        name: name.to_owned(),
        objects: Arc::clone(moody) as Arc<dyn ObjectSource>,
        cipher: Cipher::None,
        at_once: 4,
    }
}
