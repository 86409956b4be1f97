//! Composes one chunk: applies a write to its old content and encodes the result.

use std::ops::Range;

use base::{Error, limits::SECTOR_BYTES};
use base::{ErrorKind, Result, is_zero};
use image::capture::LEVEL_DEFAULT;
use image::chunk::PlainHasher;
use image::{ChunkExtents, ChunkSize, Cipher, Decoder, Encoder, Layout, Leaf, ObjectSink, ObjectSource, Run};
use parking_lot::Mutex;

use super::dirty_ranges::DirtyRanges;
use super::ranges::bytes_of;

/// The bytes that a write stores, by their offset in the image. Several threads read them, and a chunk is read again
/// if another writer has changed it too: the content must not change before the write has returned.
pub trait Content: Sync {
    /// Fills `into` with the bytes from `offset` of the image on. The range is always inside one written range.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()>;

    /// Fills `into` with a whole chunk from `offset` of the image on, as it is after the write, if the writer has all
    /// of it; then the old content need not be fetched. Returns whether it did. Called only if the write is based on
    /// the version that the writer knows.
    fn whole_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<bool> {
        let _ = (offset, into);
        Ok(false)
    }
}

/// Content that consists of one range.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    /// Offset of the first byte in the image.
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

/// Content whose offset 0 is at offset `by` of the image.
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
    /// All sectors of a chunk; free ones are zeros.
    whole: Vec<u8>,
    /// The allocated sectors of a chunk, one run after the other.
    plain: Vec<u8>,
}

impl Codec {
    fn new(cipher: &Cipher) -> Result<Self> {
        let encoder = Encoder::new(LEVEL_DEFAULT)?.encrypting(cipher.clone());
        let decoder = Decoder::new()?.decrypting(cipher.clone());
        Ok(Self { encoder, decoder, hasher: PlainHasher::default(), whole: Vec::new(), plain: Vec::new() })
    }

    /// All bytes of a chunk, verified; free sectors are zeros.
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

    /// Applies `dirty` to chunk `index` with the old leaf `base`, with the bytes of `content` where it is written.
    /// Returns the new leaf; its object, if it has one, is then in `sink`. A sector that is partly written becomes
    /// allocated; the rest keeps its old bytes, or zeros if it was free. Freed bytes read as zeros; sectors that are
    /// freed entirely become free, others do not change. If `is_known`, the writer is asked for the whole chunk
    /// first.
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
        // Old content is fetched only if some of its allocated sectors are not overwritten; free ones are zeros
        // anyway.
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

/// The allocated sectors after `dirty` is applied to `base`: the old ones, minus whole logical sectors that are
/// freed, plus all logical sectors that are written. `None` if there are none.
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

/// Idle codecs, kept for the next write because allocating zstd's tables is expensive.
#[derive(Default)]
pub(crate) struct CodecPool(Mutex<Vec<Codec>>);

/// Most idle codecs.
const CODECS_MAX: usize = 16;

/// A borrowed codec; it goes back to the pool when it is dropped.
pub(crate) struct Borrowed<'a> {
    codecs: &'a CodecPool,
    cipher: &'a Cipher,
    codec: Option<Codec>,
}

impl CodecPool {
    /// Borrows a codec for `cipher`, which must be the same in all calls.
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
