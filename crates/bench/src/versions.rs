//! Figures of changes to images in a repository: clone and commit in a large image with many versions, and many
//! concurrent writers of one image, compared with plain `object_store` that puts the same records. All run in this
//! process by the library's interface, with a repository in a folder.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use base::{Chance, Digest};
use futures::executor::block_on;
use image::chunk::PlainHasher;
use image::{ChunkExtents, ChunkSize, Encoder, Leaf, ObjectRef, ObjectSink, TreeBuilder};
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore as _, PutMode, PutOptions};
use parking_lot::Mutex;
use store::{Changes, ImageName, Location, Reference, Repository, Shape, Stamp};

use crate::context::{Context, said};
use crate::figure::{Bar, Figure, median};
use crate::threads::each;
use crate::{Group, Result};

pub(crate) const LARGE: Group = Group {
    figures: &[
        ("versions.clone_time", "ms to clone a 64 TiB image with 10 million chunks; at most 20"),
        ("versions.commit_1m", "s to commit 1 MiB contiguous in it, a process of its own each; at most 0.3"),
        ("versions.commit_1m_bytes", "MiB that such a commit stores; at most 1.5"),
        ("versions.commit_4k", "KiB stored for each of 256 scattered writes of 4 KiB in one commit; shown"),
    ],
    measure: large,
};

pub(crate) const WRITERS: Group = Group {
    figures: &[
        (
            "versions.write_rate",
            "32 writers of 1 MiB over object_store with fsync and the same objects; at least 0.8",
        ),
        ("versions.retries", "lost races a writer, 32 at once through one process; at most 3"),
    ],
    measure: writers,
};

/// Chunks with data in the large image.
const CHUNKS: u64 = 10_000_000;
/// Size of the large image.
pub(crate) const SIZE_BYTES: u64 = 64 << 40;
/// Versions of the large image.
const VERSIONS: u64 = 10_000;
const RUNS: usize = 15;
const MIB: usize = 1 << 20;

/// A fixed stamp for versions that benchmarks make.
pub(crate) fn stamp() -> Stamp {
    Stamp { created: "2026-11-20T14:00:00Z".to_owned(), creator: "bench".to_owned() }
}

/// Puts each object only once: ten million equal leaves make few different nodes, but many puts of them.
struct Once<'a> {
    to: &'a Repository,
    seen: Mutex<HashSet<Digest>>,
}

impl ObjectSink for Once<'_> {
    fn contains(&self, object: &ObjectRef) -> base::Result<bool> {
        self.to.contains(object)
    }

    fn put(&self, object: &ObjectRef, bytes: bytes::Bytes) -> base::Result<()> {
        let new = self.seen.lock().insert(object.digest);
        if new { self.to.put(object, bytes) } else { Ok(()) }
    }
}

/// Makes a sparse image of 64 TiB with ten million chunks of data in runs of a million, with 2 versions. All chunks
/// have the same content, so that the image is made quickly.
pub(crate) fn begin_large(repository: &Repository, name: &ImageName) -> Result<()> {
    let chunk = ChunkSize::from_bytes(base::limits::CHUNK_BYTES_DEFAULT).ok_or("a good size")?;
    repository.blob(name).create(&Shape { size_bytes: SIZE_BYTES, ..Shape::default() }, &stamp())?;
    let mut draft = repository.resolve(&Reference::Newest(name.clone()))?;
    let sink = Once { to: repository, seen: Mutex::default() };
    let extents = ChunkExtents::full(chunk);
    let mut plain = vec![0; chunk.bytes() as usize];
    Chance::from_seed(1).fill(&mut plain[..4096]);
    let digest = PlainHasher::default().digest(&extents, &plain);
    let (reference, object) = Encoder::new(1)?.encode(&extents, &plain, digest)?;
    sink.put(&reference.object(), object)?;
    let leaf = Leaf::Data(extents, reference);
    let (count, step) = (draft.root.chunk_count, draft.root.chunk_count / 10);
    let mut tree = TreeBuilder::new(chunk, count, &sink, repository.cipher());
    for run in 0..10 {
        (run * step..run * step + CHUNKS / 10).try_for_each(|index| tree.push(index, &leaf))?;
    }
    draft.root = tree.finish()?;
    draft.statistics = Default::default();
    draft.statistics.add(&leaf, CHUNKS);
    draft.statistics.add(&Leaf::Free, count - CHUNKS);
    repository.publish(name, draft)?;
    Ok(())
}

/// Writes 4 KiB at a random place in the image for each of `seeds`, with 32 threads. Each write makes a version.
pub(crate) fn write_on(repository: &Repository, name: &ImageName, seeds: Range<u64>) -> Result<()> {
    let seeds: Vec<u64> = seeds.collect();
    each(&seeds, 32, |&seed| {
        let mut chance = Chance::from_seed(seed);
        let mut bytes = [0; 4096];
        chance.fill(&mut bytes);
        let offset = chance.below(SIZE_BYTES / 4096) * 4096;
        repository.blob(name).write(offset, &bytes, &stamp()).map(drop)
    })?;
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn large(context: &Context) -> Result<Vec<Figure>> {
    let location = Location::Folder(context.folder()?.join("repository"));
    let name: ImageName = "large".parse()?;
    let made = Repository::create(&location)?;
    begin_large(&made, &name)?;
    // One version for each seed, in addition to the 2 that the image has.
    write_on(&made, &name, 2..VERSIONS)?;
    let mut chance = Chance::from_seed(2);
    let (mut clones, mut commits, mut stored, mut scattered) = (vec![], vec![], vec![], vec![]);
    for run in 0..RUNS {
        said(std::process::Command::new("sync").arg("-f").arg(&context.scratch))?;
        // Opened again for each measurement, so that nothing is cached, as in a new process.
        let repository = Repository::open(&location)?;
        let start = Instant::now();
        let to: ImageName = format!("clone{run}").parse()?;
        repository.blob(&to).clone_from(&Reference::Newest(name.clone()), &stamp())?;
        clones.push(start.elapsed().as_secs_f64() * 1e3);

        let mut bytes = vec![0; MIB];
        chance.fill(&mut bytes);
        let offset = chance.below((SIZE_BYTES - MIB as u64) / 4096) * 4096;
        let repository = Repository::open(&location)?;
        let start = Instant::now();
        let done = repository.blob(&name).write(offset, &bytes, &stamp())?;
        commits.push(start.elapsed().as_secs_f64());
        stored.push(done.stored_bytes as f64 / MIB as f64);

        let ranges: Vec<_> = (0..256)
            .map(|_| chance.below(SIZE_BYTES / 4096) * 4096)
            .map(|offset| offset..offset + 4096)
            .collect();
        let changes = Changes { written: &ranges, content: &Noise, freed: &[] };
        let done = repository.blob(&name).commit(&changes, None, &stamp())?;
        scattered.push(done.stored_bytes as f64 / 1024.0 / 256.0);
    }
    let sink = "repository in a folder of the local disk, durable";
    let workload = format!("64 TiB, {CHUNKS} chunks of data, {VERSIONS} versions");
    Ok(vec![
        Figure::new("versions.clone_time", &clones, "ms", Bar::AtMost(20.0)).on(&workload, sink),
        Figure::new("versions.commit_1m", &commits, "s", Bar::AtMost(0.3)).on(&workload, sink),
        Figure::new("versions.commit_1m_bytes", &stored, "MiB", Bar::AtMost(1.5)).on(&workload, sink),
        Figure::new("versions.commit_4k", &scattered, "KiB", Bar::Shown).on(&workload, sink),
    ])
}

/// Incompressible content.
struct Noise;

impl store::Content for Noise {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        Chance::from_seed(offset).fill(into);
        Ok(())
    }
}

/// Concurrent writers.
const THREADS: usize = 32;
/// Writes of each writer in a round.
const WRITES: u8 = 12;
const ROUNDS: usize = 5;

/// Runs one round of writers; returns its seconds, the number of lost races, and the repository's folder.
fn write_all(context: &Context, round: usize) -> Result<(f64, u32, PathBuf)> {
    let folder = context.folder()?.join("repository");
    let repository = Repository::create(&Location::Folder(folder.clone()))?;
    let name: ImageName = "shared".parse()?;
    repository.blob(&name).create(&Shape { size_bytes: 1 << 40, ..Shape::default() }, &stamp())?;
    let contents: Vec<Vec<u8>> = (0..THREADS)
        .map(|writer| {
            let mut bytes = vec![0; MIB];
            Chance::from_seed((round * THREADS + writer) as u64).fill(&mut bytes);
            bytes
        })
        .collect();
    let retries = std::sync::atomic::AtomicU32::new(0);
    said(std::process::Command::new("sync").arg("-f").arg(&context.scratch))?;
    let start = Instant::now();
    let seeded: Vec<_> = (0..).zip(&contents).collect();
    each(&seeded, THREADS, |&(seed, content)| {
        let mut chance = Chance::from_seed(seed);
        let mut bytes = content.clone();
        for turn in 1..=WRITES {
            // Changes one byte of each 4 KiB: new content for each write, made faster than new random bytes.
            bytes.iter_mut().step_by(4096).for_each(|byte| *byte = byte.wrapping_add(turn));
            let offset = chance.below((1 << 40) / MIB as u64) * MIB as u64;
            let done = repository.blob(&name).write(offset, &bytes, &stamp())?;
            retries.fetch_add(done.retries, Relaxed);
        }
        base::Result::Ok(())
    })?;
    Ok((start.elapsed().as_secs_f64(), retries.into_inner(), folder))
}

/// Puts all records below `folder` into a new folder with `object_store`, each with fsync; returns its seconds and the
/// bytes put.
fn put_all(context: &Context, folder: &Path) -> Result<(f64, u64)> {
    let mut records = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => {
                    let name = entry.path().strip_prefix(folder)?.to_string_lossy().into_owned();
                    records.push((object_store::path::Path::from(name), std::fs::read(entry.path())?));
                }
            }
        }
    }
    // Random order, as writers do not put records in the order of their names.
    records.sort_unstable_by_key(|(path, _)| Digest::of(path.as_ref().as_bytes()).0);
    let bytes = records.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    let store = LocalFileSystem::new_with_prefix(context.folder()?)?.with_fsync(true);
    said(std::process::Command::new("sync").arg("-f").arg(&context.scratch))?;
    let start = Instant::now();
    each(&records, THREADS, |(path, bytes)| {
        // As the repository puts them: it publishes a version by creating its record, which must not exist.
        let mode = if path.as_ref().starts_with("versions") { PutMode::Create } else { PutMode::Overwrite };
        let options = PutOptions { mode, ..PutOptions::default() };
        block_on(store.put_opts(path, bytes.clone().into(), options)).map(drop)
    })?;
    Ok((start.elapsed().as_secs_f64(), bytes))
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn writers(context: &Context) -> Result<Vec<Figure>> {
    let (mut shares, mut rates, mut peers, mut retries) = (vec![], vec![], vec![], vec![]);
    for round in 0..ROUNDS {
        let (seconds, lost, folder) = write_all(context, round)?;
        let (alone, bytes) = put_all(context, &folder)?;
        shares.push(alone / seconds);
        rates.push(bytes as f64 / seconds / 1e6);
        peers.push(bytes as f64 / alone / 1e6);
        retries.push(f64::from(lost) / THREADS as f64);
    }
    let workload = format!("{THREADS} writers of one image, {WRITES} writes of 1 MiB each, random bytes");
    let sink = "repository in a folder of the local disk, durable";
    Ok(vec![
        Figure::new("versions.write_rate", &shares, "ratio", Bar::AtLeast(0.8))
            .peer("object_store", "the same records, fsync, 32 threads", median(&peers), "MB/s")
            .peer("diskcast", "", median(&rates), "MB/s")
            .on(&workload, sink),
        Figure::new("versions.retries", &retries, "races", Bar::AtMost(3.0)).on(&workload, sink),
    ])
}
