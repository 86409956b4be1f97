//! What the tests of this crate share: small images, and repositories of every kind to put them in.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "only tests use this")]

pub mod faulty;

use base::Chance;
use image::chunk::PlainHasher;
use image::manifest::{DiskRecord, Origin, Statistics};
use image::{ChunkExtents, ChunkSize, Encoder, Leaf, Manifest, ObjectRef, ObjectSink, TreeBuilder};
use store::{ImageName, Location, Reference, Repository, Stamp};

/// One repository and what it lies in.
pub struct Place {
    pub repository: Repository,
    pub location: Location,
    pub folder: Option<tempfile::TempDir>,
}

/// A new repository in a folder of its own.
pub fn in_folder() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::Folder(folder.path().join("repository"));
    Place { repository: Repository::create(&location).unwrap(), location, folder: Some(folder) }
}

/// A new repository in memory.
pub fn in_memory() -> Place {
    let location = Location::Memory;
    Place { repository: Repository::create(&location).unwrap(), location, folder: None }
}

pub fn image(name: &str) -> ImageName {
    name.parse().unwrap()
}

pub fn reference(text: &str) -> Reference {
    text.parse().unwrap()
}

pub fn stamp() -> Stamp {
    Stamp { created: "2026-11-20T14:00:00Z".to_owned(), creator: "test".to_owned() }
}

/// Chunks of the smallest size.
pub fn chunk_size() -> ChunkSize {
    ChunkSize::from_log2(16).unwrap()
}

/// Puts an image of `chunks` chunks into `sink`: each third one free, each third one zero, the rest data that `seed`
/// gives. Equal seeds give equal images. Returns the draft of its manifest, and its chunks.
pub fn put_image(sink: &dyn ObjectSink, seed: u64, chunks: u64) -> (Manifest, Vec<ObjectRef>) {
    put(sink, seed, chunks, 4096, |_| true)
}

/// The same with little data, for files that are kept forever: its tree is as high, its chunks are few and small.
pub fn put_little(sink: &dyn ObjectSink, seed: u64, chunks: u64) -> (Manifest, Vec<ObjectRef>) {
    put(sink, seed, chunks, 64, |index| index < 6 || index % 99 == 0)
}

fn put(
    sink: &dyn ObjectSink,
    seed: u64,
    chunks: u64,
    random_bytes: usize,
    has_data: impl Fn(u64) -> bool,
) -> (Manifest, Vec<ObjectRef>) {
    let size = chunk_size();
    let (mut chance, mut encoder, mut hasher) =
        (Chance::from_seed(seed), Encoder::new(1).unwrap().sealing(sink.cipher()), PlainHasher::default());
    let mut tree = TreeBuilder::new(size, chunks, sink);
    let mut objects = Vec::new();
    for index in 0..chunks {
        let extents = ChunkExtents::full(size);
        let leaf = match index % 3 {
            0 if has_data(index) => {
                let mut plain = vec![0; size.bytes() as usize];
                chance.fill(&mut plain[..random_bytes]);
                let digest = hasher.digest(&extents, &plain);
                let (chunk, bytes) = encoder.encode(&extents, &plain, digest).unwrap();
                sink.put(&chunk.object(), bytes).unwrap();
                objects.push(chunk.object());
                Leaf::Data(extents, chunk)
            }
            1 => Leaf::Free,
            _ => Leaf::Zero(extents),
        };
        tree.push(index, &leaf).unwrap();
    }
    let root = tree.finish().unwrap();
    let size_sectors = chunks * u64::from(size.sectors());
    let manifest = Manifest {
        format: 1,
        features: Vec::new(),
        image: "draft".to_owned(),
        number: 0,
        nonce: String::new(),
        parent: None,
        copied: None,
        root,
        chunk_bytes: size.bytes(),
        size_sectors,
        logical_sector_bytes: 512,
        physical_sector_bytes: 4096,
        origin: Origin { disk_sectors: size_sectors, start_sector: 0 },
        disk: DiskRecord { table: "none".to_owned(), ..DiskRecord::default() },
        labels: [("seed".to_owned(), seed.to_string())].into(),
        created: "2026-11-20T14:00:00Z".to_owned(),
        creator: "test".to_owned(),
        statistics: Statistics::default(),
        warnings: Vec::new(),
        cipher: "none".to_owned(),
    };
    (manifest, objects)
}

/// Puts an image and publishes it as a version of `name`.
pub fn publish(repository: &Repository, name: &str, seed: u64) -> Manifest {
    let (draft, _) = put_image(repository, seed, 7);
    repository.publish(&image(name), draft).unwrap()
}
