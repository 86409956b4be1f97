//! Capture: reads the allocated sectors of a disk, encodes them as chunks, and stores chunks and tree as objects.
//!
//! There are no stages with queues between them: each worker takes the next chunk, then reads, hashes, encodes and
//! stores it. So a worker needs one buffer only, and all cores are busy until the last chunk.

mod assembly;
mod plan;

use std::collections::HashMap;

use base::limits::{CHUNK_BYTES_DEFAULT, DISK_SECTORS_MAX, PIPELINE_BYTES_DEFAULT};
use base::{Digest, Error, ErrorKind, Extent, Result, is_zero};
use disk::{DiskMap, ReadAt};
use parking_lot::Mutex;

use crate::buffer::AlignedBuffer;
use crate::catalogue::Catalogue;
use crate::chunk::{ChunkRef, Encoder, PlainHasher};
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

/// The default zstd level. It makes system files smaller than zlib level 4 in pieces of 1 MiB does, and is several
/// times as fast. `examples/rates.rs` compares the levels.
pub const LEVEL_DEFAULT: i32 = 2;

/// The options of a capture.
#[derive(Debug, Clone)]
pub struct CaptureOptions {
    /// Size of a chunk.
    pub chunk: ChunkSize,
    /// The compression level, in the range of zstd.
    pub level: i32,
    /// The number of worker threads; 0 for twice the number of cores. `memory_bytes` may reduce it.
    pub threads: usize,
    /// Memory for chunks and encoders, in bytes. At least one worker runs, even if this is too small for it.
    pub memory_bytes: u64,
    /// Chunks that need no encoding, because an earlier version has them.
    pub known: KnownChunks,
    /// The cipher that encrypts the objects of the sink.
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

/// The chunks of a base version, by plain digest. A chunk with the same content and extents reuses the object of the
/// base, even if another release or level of zstd would encode it differently.
#[derive(Debug, Clone, Default)]
pub struct KnownChunks(HashMap<Digest, ChunkRef>);

impl KnownChunks {
    /// The chunks of the version of `catalogue`. Returns the error of the first tree node that is damaged.
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

/// The result of a capture: the parts of a manifest that describe the image's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured {
    /// The sizes of the image, its sectors and its chunks.
    pub layout: Layout,
    /// The root of the tree. The sink holds the tree's nodes and chunks.
    pub root: Root,
    /// Counts of chunks and bytes, by kind.
    pub statistics: Statistics,
}

/// Reads the sectors of the disk `source` that are allocated according to `map`, and stores them in `sink`. Peak memory
/// is about `options.memory_bytes`.
///
/// Errors: `Refused` if the map's window is empty, lies outside the disk or is not aligned to its logical sectors, or
/// if zstd does not have the level; `Io` with the chunk and its offset if a read fails; the sink's errors. After an
/// error the sink may already hold some of the objects.
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
    // Refuses an unknown level before any thread starts.
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
    // Each worker holds a chunk, its compressed frame and its object. 2 MiB stand for zstd's tables, which grow with
    // the chunk up to some MiB.
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

/// The layout of an image of `window`. `Refused` as for [`capture`].
fn layout_of(source: &dyn ReadAt, window: Extent, chunk: ChunkSize) -> Result<Layout> {
    let geometry = source.geometry();
    let unit = u64::from(geometry.logical_sector_bytes);
    let end = window.start.checked_add(window.count).filter(|&end| end <= DISK_SECTORS_MAX);
    let fits = end.is_some_and(|end| end <= geometry.size_bytes / 512);
    if window.is_empty() || !fits || !(window.offset_bytes() | window.len_bytes()).is_multiple_of(unit) {
        let (name, size) = (source.name(), geometry.size_bytes);
        let text = format!(
            "cannot capture {window:?} of `{name}`: it is empty, or not made of whole sectors of the disk, which has \
             {size} bytes in sectors of {unit}"
        );
        return Err(Error::new(ErrorKind::Refused, text));
    }
    Ok(Layout { chunk, size_sectors: window.count, logical_sector_bytes: geometry.logical_sector_bytes })
}

/// The state that all workers share.
struct Job<'a> {
    source: &'a dyn ReadAt,
    /// Offset of the image on the source, in bytes.
    start_bytes: u64,
    layout: Layout,
    sink: &'a dyn ObjectSink,
    options: &'a CaptureOptions,
    progress: &'a dyn Progress,
    /// The parts of the plan, with their tickets.
    plan: Mutex<std::iter::Zip<std::ops::RangeFrom<u64>, Plan<'a>>>,
    assembly: Assembly<'a>,
    group: FirstError,
}

/// Wakes the waiting workers when a worker ends because of an error or a panic. Otherwise they would wait forever for
/// its ticket.
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

    /// Fills `plain` with the allocated sectors of chunk `index`, without gaps between the runs.
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

/// The buffers of one worker, which it reuses for each chunk.
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

    /// Returns the leaves of one part of the plan, after it has stored their objects in the sink.
    fn run(&mut self, job: &Job<'_>, planned: Planned) -> Result<LeafRun> {
        let Planned { first, count, extents, is_hole } = planned;
        let leaf = if is_hole { Leaf::Zero(extents) } else { self.leaf(job, first, extents)? };
        Ok(LeafRun { first, count, leaf })
    }

    /// Reads chunk `index` and returns its leaf. If the chunk has data, its object is in the sink afterwards.
    fn leaf(&mut self, job: &Job<'_>, index: u64, extents: ChunkExtents) -> Result<Leaf> {
        let plain = self.buffer.front(extents.len_bytes() as usize);
        job.read(index, &extents, plain)?;
        if is_zero(plain) {
            return Ok(Leaf::Zero(extents));
        }
        let digest = self.hasher.digest(&extents, plain);
        // The catalogue of the base was read from tree nodes only: the chunk's object may be missing from the sink.
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
