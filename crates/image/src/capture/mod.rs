//! Capture: reads the allocated sectors of a disk, encodes them, and stores them as objects under a tree.
//!
//! Each worker takes the next chunk, and reads, hashes, encodes and stores it by itself. There is one buffer per worker
//! and no queue between stages, and all cores are busy as long as there are chunks to encode.

mod assembly;
mod plan;

use std::collections::HashMap;

use base::limits::{CHUNK_BYTES_DEFAULT, DISK_SECTORS_MAX, PIPELINE_BYTES_DEFAULT};
use base::{Digest, Error, ErrorKind, Extent, Result};
use disk::{DiskMap, ReadAt};
use parking_lot::Mutex;

use crate::buffer::AlignedBuffer;
use crate::catalogue::Catalogue;
use crate::chunk::{ChunkRef, Encoder, PlainHasher, is_zero};
use crate::cipher::Cipher;
use crate::extents::{ChunkExtents, ChunkSize};
use crate::layout::Layout;
use crate::leaf::Leaf;
use crate::manifest::Statistics;
use crate::objects::ObjectSink;
use crate::progress::{Progress, Stage};
use crate::tree::{LeafRun, Root, TreeBuilder};
use crate::workers::{FirstError, thread_count};
use assembly::Assembly;
use plan::{Plan, Planned};

/// At this zstd level system files become smaller than with zlib level 4 in 1 MiB pieces, at several times its speed.
pub const LEVEL_DEFAULT: i32 = 2;

/// Options of a capture.
#[derive(Debug, Clone)]
pub struct CaptureOptions {
    /// Size of a chunk.
    pub chunk: ChunkSize,
    /// Level of zstd.
    pub level: i32,
    /// Worker threads; 0 for as many as this machine can use.
    pub threads: usize,
    /// Memory for chunks and encoders in bytes. At least one worker runs, whatever the value is.
    pub memory_bytes: u64,
    /// Chunks that need not be encoded again.
    pub known: KnownChunks,
    /// How the sink's objects are encrypted.
    pub cipher: Cipher,
}

impl Default for CaptureOptions {
    fn default() -> Self {
        Self {
            chunk: ChunkSize::from_bytes(CHUNK_BYTES_DEFAULT).expect("the default is a good size"),
            level: LEVEL_DEFAULT,
            threads: 0,
            memory_bytes: PIPELINE_BYTES_DEFAULT,
            known: KnownChunks::default(),
            cipher: Cipher::None,
        }
    }
}

/// The chunks of an existing version by plain digest. A chunk with equal content keeps its object, even if zstd would
/// encode it differently today.
#[derive(Debug, Clone, Default)]
pub struct KnownChunks(HashMap<Digest, ChunkRef>);

impl KnownChunks {
    /// The chunks of `catalogue`.
    pub fn of(catalogue: &Catalogue) -> Result<Self> {
        let mut known = HashMap::new();
        for run in catalogue.leaves() {
            if let Leaf::Data(_, chunk) = run?.leaf {
                known.insert(chunk.plain, chunk);
            }
        }
        Ok(Self(known))
    }
}

/// The result of a capture, without the texts of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured {
    /// Sizes of the image and its chunks.
    pub layout: Layout,
    /// The tree; its nodes and chunks are in the sink.
    pub root: Root,
    /// What was counted.
    pub statistics: Statistics,
}

/// Captures the sectors of the disk `source` that `map` marks as allocated into `sink`. Peak memory is about
/// `options.memory_bytes`.
///
/// `Refused` if the map's window is empty, lies outside the disk or is no multiple of its logical sector; `Io` with the
/// chunk and its offset if reading fails; errors of the sink. After an error some objects may be stored.
pub fn capture(
    source: &dyn ReadAt,
    map: &DiskMap,
    sink: &dyn ObjectSink,
    options: &CaptureOptions,
    progress: &dyn Progress,
) -> Result<Captured> {
    let DiskMap { window, allocated, .. } = map;
    let window = *window;
    let layout = layout_of(source, window, options.chunk)?;
    Encoder::new(options.level)?;
    progress.begin(Stage::Capture, allocated.within(window).map(Extent::len_bytes).sum());
    let builder = TreeBuilder::new(layout.chunk, layout.chunk_count(), sink, &options.cipher);
    let job = Job {
        source,
        start_bytes: window.offset_bytes(),
        layout,
        sink,
        options,
        progress,
        plan: Mutex::new((0..).zip(Plan::new(layout, window.start, allocated, source))),
        assembly: Assembly::new(builder),
        group: FirstError::default(),
    };
    // A chunk, its frame and its object; zstd's own tables grow with the chunk size, up to some MiB.
    let bytes_each = 3 * u64::from(layout.chunk.bytes()) + (2 << 20);
    std::thread::scope(|scope| {
        for _ in 0..thread_count(options.threads, options.memory_bytes, bytes_each) {
            scope.spawn(|| job.work());
        }
    });
    if let Some(error) = job.group.take() {
        return Err(error);
    }
    let (root, statistics) = job.assembly.finish()?;
    Ok(Captured { layout, root, statistics })
}

fn layout_of(source: &dyn ReadAt, window: Extent, chunk: ChunkSize) -> Result<Layout> {
    let geometry = source.geometry();
    let unit = u64::from(geometry.logical_sector_bytes);
    let end = window.start.checked_add(window.count).filter(|&end| end <= DISK_SECTORS_MAX);
    let fits = end.is_some_and(|end| end <= geometry.size_bytes / 512);
    if window.is_empty() || !fits || !(window.offset_bytes() | window.len_bytes()).is_multiple_of(unit) {
        let (name, size) = (source.name(), geometry.size_bytes);
        let text = format!("{window:?} is no part of `{name}`, which has {size} bytes in sectors of {unit}");
        return Err(Error::new(ErrorKind::Refused, text));
    }
    Ok(Layout { chunk, size_sectors: window.count, logical_sector_bytes: geometry.logical_sector_bytes })
}

/// What all workers share.
struct Job<'a> {
    source: &'a dyn ReadAt,
    /// Offset of the image on the source.
    start_bytes: u64,
    layout: Layout,
    sink: &'a dyn ObjectSink,
    options: &'a CaptureOptions,
    progress: &'a dyn Progress,
    plan: Mutex<std::iter::Zip<std::ops::RangeFrom<u64>, Plan<'a>>>,
    assembly: Assembly<'a>,
    group: FirstError,
}

/// Wakes the other workers if one ends early, even by a panic.
struct WakeOthers<'a, 'b>(&'a Job<'b>);

impl Drop for WakeOthers<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.group.stop();
        }
        if self.0.group.is_stopped() {
            self.0.assembly.wake();
        }
    }
}

impl Job<'_> {
    fn work(&self) {
        let _wake = WakeOthers(self);
        if let Err(error) = self.encode_all() {
            self.group.fail(error);
        }
    }

    fn encode_all(&self) -> Result<()> {
        let mut worker = Worker::new(self.layout.chunk, self.options.level, self.options.cipher.clone())?;
        while !self.group.is_stopped() {
            let next = self.plan.lock().next();
            let Some((ticket, planned)) = next else { break };
            let bytes = planned.count * u64::from(planned.extents.len_bytes());
            let run = worker.run(self, planned)?;
            self.assembly.deliver(ticket, run, &self.group)?;
            self.progress.advance(Stage::Capture, bytes);
        }
        Ok(())
    }

    /// Fills `plain` with the allocated sectors of chunk `index`, one run after the other.
    fn read(&self, index: u64, extents: &ChunkExtents, plain: &mut [u8]) -> Result<()> {
        let mut rest = plain;
        for extent in self.layout.extents_of(index, extents) {
            let len = usize::try_from(extent.len_bytes()).expect("a run lies inside a chunk");
            let (run, behind) = rest.split_at_mut(len);
            let offset = self.start_bytes + extent.offset_bytes();
            let read = self.source.read_exact_at(run, offset);
            read.map_err(|e| e.within(format!("capture chunk {index}, {len} bytes at offset {offset}")))?;
            rest = behind;
        }
        Ok(())
    }
}

/// Buffers that a worker keeps from chunk to chunk.
struct Worker {
    buffer: AlignedBuffer,
    hasher: PlainHasher,
    encoder: Encoder,
}

impl Worker {
    fn new(chunk: ChunkSize, level: i32, cipher: Cipher) -> Result<Self> {
        let buffer = AlignedBuffer::new(chunk.bytes() as usize);
        Ok(Self { buffer, hasher: PlainHasher::default(), encoder: Encoder::new(level)?.encrypting(cipher) })
    }

    /// The leaves of a part of the plan; their objects are in the sink when this returns.
    fn run(&mut self, job: &Job<'_>, planned: Planned) -> Result<LeafRun> {
        let Planned { first, count, extents, is_hole } = planned;
        let leaf = if is_hole { Leaf::Zero(extents) } else { self.leaf(job, first, extents)? };
        Ok(LeafRun { first, count, leaf })
    }

    /// Reads chunk `index` and makes its leaf; its object, if it has one, is in the sink when this returns.
    fn leaf(&mut self, job: &Job<'_>, index: u64, extents: ChunkExtents) -> Result<Leaf> {
        let plain = self.buffer.front(extents.len_bytes() as usize);
        job.read(index, &extents, plain)?;
        if is_zero(plain) {
            return Ok(Leaf::Zero(extents));
        }
        let digest = self.hasher.digest(&extents, plain);
        if let Some(known) = job.options.known.0.get(&digest)
            && job.sink.contains(&known.object())?
        {
            return Ok(Leaf::Data(extents, *known));
        }
        let (chunk, object) = self.encoder.encode(&extents, plain, digest)?;
        let stored = job.sink.put(&chunk.object(), object);
        stored.map_err(|e| Error::from_source(e.kind(), format!("store chunk {index}"), e))?;
        Ok(Leaf::Data(extents, chunk))
    }
}
