//! One chunk: what it holds, and what it becomes when bytes are written over it.

use std::ops::Range;

use base::{Error, limits::SECTOR_BYTES};
use base::{ErrorKind, Result};
use image::capture::LEVEL_DEFAULT;
use image::chunk::{PlainHasher, is_zero};
use image::{ChunkExtents, ChunkSize, Cipher, Decoder, Encoder, Layout, Leaf, ObjectSink, ObjectSource, Run};
use parking_lot::Mutex;

use super::dirty_ranges::DirtyRanges;
use super::ranges::bytes_of;

/// What a writer writes, by the offset in the image. Read by several threads, once or, if somebody else wrote the same
/// chunk at the same time, again: it must not change before the write is done.
pub trait Content: Sync {
    /// Fills `into` with the bytes from `offset` of the image on; all of them lie inside one range that is written.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()>;

    /// Fills `into` with the bytes from `offset` of the image on as they are after the write, if the writer has all of
    /// them: then what is not written need not be fetched. They are a whole chunk. Asked only where the version below
    /// is the one that the writer knows.
    fn whole_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<bool> {
        let _ = (offset, into);
        Ok(false)
    }

    /// Whether the `bytes` bytes from `offset` on are known to be zeros without a read: a hole of a file.
    fn is_known_zero(&self, offset: u64, bytes: u64) -> bool {
        let _ = (offset, bytes);
        false
    }
}

/// Bytes that are written in one piece.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// Where the first of them goes.
    pub offset: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl Content for Piece<'_> {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        let at = usize::try_from(offset - self.offset).map_err(|_| std::io::ErrorKind::InvalidInput)?;
        let end = at.checked_add(into.len()).ok_or(std::io::ErrorKind::InvalidInput)?;
        into.copy_from_slice(self.bytes.get(at..end).ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Content that lies `by` bytes further on in the image than where it counts from.
pub(super) struct Moved<'a> {
    pub(super) content: &'a dyn Content,
    pub(super) by: u64,
}

impl Content for Moved<'_> {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.content.read_at(offset - self.by, into)
    }
}

/// What one thread needs to decode and encode chunks.
pub(crate) struct Codec {
    encoder: Encoder,
    decoder: Decoder,
    hasher: PlainHasher,
    /// A chunk with all its sectors, zeros where they are free.
    whole: Vec<u8>,
    /// Its allocated sectors, one run behind the other.
    plain: Vec<u8>,
}

impl Codec {
    fn new(cipher: &Cipher) -> Result<Self> {
        let encoder = Encoder::new(LEVEL_DEFAULT)?.encrypting(cipher.clone());
        let decoder = Decoder::new()?.decrypting(cipher.clone());
        Ok(Self { encoder, decoder, hasher: PlainHasher::default(), whole: Vec::new(), plain: Vec::new() })
    }

    /// All bytes of a chunk, verified; zeros where it is free.
    pub(crate) fn open(
        &mut self,
        source: &dyn ObjectSource,
        size: ChunkSize,
        leaf: &Leaf,
    ) -> Result<&mut [u8]> {
        self.whole.clear();
        self.whole.resize(size.bytes() as usize, 0);
        if let Leaf::Data(extents, chunk) = leaf {
            self.plain.resize(extents.len_bytes() as usize, 0);
            let object = chunk.object();
            let object = source.verified(&object)?;
            self.decoder.decode(&object, extents, chunk.plain, &mut self.plain)?;
            let mut rest = &self.plain[..];
            for run in extents.runs() {
                let (bytes, behind) = rest.split_at(span(run).len());
                self.whole[span(run)].copy_from_slice(bytes);
                rest = behind;
            }
        }
        Ok(&mut self.whole)
    }

    /// What chunk `index` becomes when `dirty`, of `content` where that is written, goes over `base`; its object, if
    /// it has one, is in `sink` afterwards. Sectors that are written in part are allocated as a whole: the rest of them
    /// is what was there, zeros where they were free. What is freed reads as zeros; sectors that are freed as a whole
    /// are free, others stay what they were. If it `is_known` the writer is asked for all of it first.
    pub(super) fn compose(
        &mut self,
        (source, sink): (&dyn ObjectSource, &dyn ObjectSink),
        layout: &Layout,
        index: u64,
        base: &Leaf,
        (dirty, content, is_known): (&DirtyRanges, &dyn Content, bool),
    ) -> Result<Leaf> {
        let window = bytes_of(layout.chunk_extent(index));
        let Some(extents) = allocated(layout, &window, base, dirty) else { return Ok(Leaf::Free) };
        // Where it is free it holds zeros, which nobody needs to fetch.
        let sector = |number: u16| window.start + u64::from(number) * SECTOR_BYTES;
        let mut held = base.extents().into_iter().flat_map(ChunkExtents::runs);
        let base_is_needed = held.any(|run| !dirty.all.contains(&(sector(run.start)..sector(run.end()))));
        let unread = |offset: u64| {
            move |error| {
                let text = format!("read what is written at offset {offset}");
                Error::from_source(ErrorKind::Io, text, error)
            }
        };
        let is_whole = base_is_needed && is_known && {
            self.open(source, layout.chunk, &Leaf::Free)?;
            let all = place(&window, window.start);
            content.whole_at(window.start, &mut self.whole[all]).map_err(unread(window.start))?
        };
        if !is_whole {
            self.open(source, layout.chunk, if base_is_needed { base } else { &Leaf::Free })?;
            for part in dirty.freed.within(window.clone()) {
                self.whole[place(&part, window.start)].fill(0);
            }
            for part in dirty.written.within(window.clone()) {
                let place = place(&part, window.start);
                content.read_at(part.start, &mut self.whole[place]).map_err(unread(part.start))?;
            }
        }
        self.plain.clear();
        extents.runs().for_each(|run| self.plain.extend_from_slice(&self.whole[span(run)]));
        if is_zero(&self.plain) {
            return Ok(Leaf::Zero(extents));
        }
        let digest = self.hasher.digest(&extents, &self.plain);
        if let Leaf::Data(_, chunk) = base
            && chunk.plain == digest
            && sink.contains(&chunk.object())?
        {
            return Ok(base.clone());
        }
        let (chunk, object) = self.encoder.encode(&extents, &self.plain, digest)?;
        if !sink.contains(&chunk.object())? {
            sink.put(&chunk.object(), object)?;
        }
        Ok(Leaf::Data(extents, chunk))
    }
}

/// The sectors that are allocated when `dirty` goes over `base`: what was, without the whole logical sectors of what
/// is freed, and with all logical sectors of what is written. `None` if there are none.
fn allocated(layout: &Layout, window: &Range<u64>, base: &Leaf, dirty: &DirtyRanges) -> Option<ChunkExtents> {
    let unit = u64::from(layout.logical_sector_bytes);
    let sectors = |start: u64, end: u64| base::Extent::between(start / SECTOR_BYTES, end / SECTOR_BYTES);
    let mut set = base::ExtentSet::new();
    for run in base.extents().into_iter().flat_map(ChunkExtents::runs) {
        set.insert(base::Extent::new(run.start.into(), run.count.into()));
    }
    for part in dirty.freed.within(window.clone()) {
        let (start, end) = (part.start - window.start, part.end - window.start);
        let (start, end) = (start.next_multiple_of(unit), end / unit * unit);
        set.remove(sectors(start, end.max(start)));
    }
    for part in dirty.written.within(window.clone()) {
        let (start, end) = (part.start - window.start, part.end - window.start);
        set.insert(sectors(start / unit * unit, end.next_multiple_of(unit)));
    }
    let short = |sectors: u64| u16::try_from(sectors).expect("a chunk has at most 32,768 sectors");
    let runs = set.runs().iter().map(|run| Run { start: short(run.start), count: short(run.count) });
    (!set.is_empty()).then(|| ChunkExtents::from_runs(layout.chunk, runs).expect("they lie inside the chunk"))
}

fn place(part: &Range<u64>, origin: u64) -> Range<usize> {
    let at = |offset: u64| usize::try_from(offset - origin).expect("a chunk fits memory");
    at(part.start)..at(part.end)
}

fn span(run: Run) -> Range<usize> {
    let at = |sector: u16| usize::from(sector) * 512;
    at(run.start)..at(run.end())
}

/// CodecPool that wait for their next thread: zstd's tables are not made anew for each write.
#[derive(Default)]
pub(crate) struct CodecPool(Mutex<Vec<Codec>>);

/// Most that wait.
const CODECS_MAX: usize = 16;

/// A codec on loan.
pub(crate) struct Borrowed<'a> {
    codecs: &'a CodecPool,
    cipher: &'a Cipher,
    codec: Option<Codec>,
}

impl CodecPool {
    /// A codec for what is kept by `cipher`, always the same one.
    pub(crate) fn borrow<'a>(&'a self, cipher: &'a Cipher) -> Borrowed<'a> {
        Borrowed { codecs: self, cipher, codec: self.0.lock().pop() }
    }
}

impl std::fmt::Debug for CodecPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CodecPool")
    }
}

impl Borrowed<'_> {
    pub(crate) fn codec(&mut self) -> Result<&mut Codec> {
        match &mut self.codec {
            Some(codec) => Ok(codec),
            none => Ok(none.insert(Codec::new(self.cipher)?)),
        }
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        let mut codecs = self.codecs.0.lock();
        if codecs.len() < CODECS_MAX {
            codecs.extend(self.codec.take());
        }
    }
}
