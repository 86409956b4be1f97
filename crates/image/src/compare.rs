//! Compares a disk with a version: is it what was installed, and where is it not?
//!
//! A chunk that is right is known by its plain digest, so its object is not read. The objects of chunks that differ are
//! decoded, to tell which of their sectors do. Free sectors hold nothing of a version and are not looked at; old
//! signatures that an install erased lie in them. A backup GPT that an install moved to the end of a larger disk is no
//! difference.

use std::sync::atomic::{AtomicU64, Ordering};

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, Extent, ExtentSet, Result, is_zero};
use disk::{ReadAt, backup_gpt};
use parking_lot::Mutex;

use crate::buffer::AlignedBuffer;
use crate::catalogue::Catalogue;
use crate::chunk::{ChunkRef, Decoder};
use crate::extents::ChunkExtents;
use crate::leaf::Leaf;
use crate::objects::ObjectSource;
use crate::progress::{Progress, Stage};
use crate::reader::VersionReader;
use crate::workers::{FirstError, thread_count};

/// Memory for the buffers of all threads.
const MEMORY_BYTES: u64 = 256 << 20;
/// Beyond as many ranges, those of a chunk count as one.
const RANGES_MAX: usize = 1 << 20;
/// After a read failed, this many bytes are read at a time.
const PAGE_BYTES: usize = 4096;
/// A disk of which more pages than this can't be read has failed: 16 MiB.
const UNREADABLE_PAGES_MAX: u64 = 4096;
/// Bytes of a sector.
const SECTOR: usize = 512;

/// What a comparison found. All sectors are counted from the start of the image.
#[derive(Debug, Default)]
pub struct Comparison {
    /// The sectors that were compared: all that the version holds.
    pub compared: ExtentSet,
    /// Those whose content is another one.
    pub other: ExtentSet,
    /// Those that can't be read.
    pub unreadable: ExtentSet,
    /// Those of chunks that differ and whose objects are missing or damaged: some of these sectors differ, and nothing
    /// tells which.
    pub untold: ExtentSet,
    /// Whether the backup GPT lies at the end of the larger disk, where an install moves it.
    pub moved_gpt: bool,
}

impl Comparison {
    /// Whether the disk holds what the version does.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        [&self.other, &self.unreadable, &self.untold].iter().all(|set| set.is_empty())
    }
}

/// Compares `disk` with the version of `catalogue`, whose objects come from `source`. `Refused` if the disk is smaller
/// than the image. Errors are those of `source`, and of a damaged tree; `Io` if much of the disk can't be read.
pub fn compare(
    catalogue: &Catalogue,
    disk: &dyn ReadAt,
    source: &dyn ObjectSource,
    progress: &dyn Progress,
) -> Result<Comparison> {
    let layout = catalogue.layout();
    let (has, needs) = (disk.geometry().size_bytes, layout.size_bytes());
    if has < needs {
        let text = format!("`{}` has {has} bytes, and the image {needs}: it can't hold it", disk.name());
        return Err(Error::new(ErrorKind::Refused, text));
    }
    let compared = allocated(catalogue)?;
    progress.begin(Stage::Verify, compared.sectors() * SECTOR_BYTES);
    let (group, found, unreadable_pages) = Default::default();
    let comparing = Comparing { catalogue, disk, source, progress, group, found, unreadable_pages };
    let mut comparison = comparing.run()?.into_comparison(compared);
    excuse_moved_gpt(&mut comparison, catalogue, disk, source)?;
    Ok(comparison)
}

/// The sectors that the version holds.
fn allocated(catalogue: &Catalogue) -> Result<ExtentSet> {
    let (layout, mut sectors) = (catalogue.layout(), ExtentSet::new());
    for run in catalogue.leaves() {
        let run = run?;
        let Some(extents) = run.leaf.extents() else { continue };
        if run.count > 1 {
            let first = layout.chunk_extent(run.first);
            sectors.insert(Extent::new(first.start, first.count * run.count));
        } else {
            layout.extents_of(run.first, extents).for_each(|extent| sectors.insert(extent));
        }
    }
    Ok(sectors)
}

/// Takes the sectors from the differences that an install writes when it moves the backup GPT, if the disk holds what
/// it would have written.
fn excuse_moved_gpt(
    comparison: &mut Comparison,
    catalogue: &Catalogue,
    disk: &dyn ReadAt,
    source: &dyn ObjectSource,
) -> Result<()> {
    let (layout, size) = (catalogue.layout(), disk.geometry().size_bytes);
    let front = Extent::new(0, 2 * u64::from(layout.logical_sector_bytes) / SECTOR_BYTES);
    let is_touched = comparison.other.within(front).next().is_some();
    if size <= layout.size_bytes() || !catalogue.is_whole_disk() || !is_touched {
        return Ok(());
    }
    let image = VersionReader::new(catalogue, source, "the image")?;
    let planned = match backup_gpt::plan_move(&image, layout.logical_sector_bytes, layout.size_bytes(), size)
    {
        // What can't be told was told already.
        Err(error) if is_lost(&error) => None,
        planned => planned?,
    };
    let Some(planned) = planned else { return Ok(()) };
    if planned.is_on(disk)? {
        comparison.moved_gpt = true;
        planned.sectors().into_iter().for_each(|sectors| comparison.other.remove(sectors));
    }
    Ok(())
}

/// Whether an error says that an object is missing or damaged.
fn is_lost(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound)
}

/// Sectors that differ, in any order.
#[derive(Default)]
struct Found {
    other: Vec<Extent>,
    unreadable: Vec<Extent>,
    untold: Vec<Extent>,
}

impl Found {
    fn into_comparison(self, compared: ExtentSet) -> Comparison {
        let set = |mut extents: Vec<Extent>| -> ExtentSet {
            extents.sort_unstable_by_key(|extent| extent.start);
            extents.into_iter().collect()
        };
        let [other, unreadable, untold] = [self.other, self.unreadable, self.untold].map(set);
        Comparison { compared, other, unreadable, untold, moved_gpt: false }
    }
}

/// A comparison on several threads.
struct Comparing<'a> {
    catalogue: &'a Catalogue,
    disk: &'a dyn ReadAt,
    source: &'a dyn ObjectSource,
    progress: &'a dyn Progress,
    group: FirstError,
    found: Mutex<Found>,
    /// Number of pages that can't be read.
    unreadable_pages: AtomicU64,
}

impl Comparing<'_> {
    fn run(self) -> Result<Found> {
        let chunk_bytes = u64::from(self.catalogue.layout().chunk.bytes());
        let threads = thread_count(0, MEMORY_BYTES, 2 * chunk_bytes);
        let (queue, chunks) = crossbeam_channel::bounded::<(u64, Leaf)>(4 * threads);
        let this = &self;
        std::thread::scope(move |scope| {
            for _ in 0..threads {
                let chunks = chunks.clone();
                scope.spawn(move || {
                    let mut worker = Worker::new(this).map_err(|error| this.group.fail(error));
                    for (index, leaf) in chunks {
                        if let (Ok(worker), false) = (&mut worker, this.group.is_stopped()) {
                            worker.chunk(index, &leaf).unwrap_or_else(|error| this.group.fail(error));
                        }
                    }
                });
            }
            drop(chunks);
            // Moved into this scope, so that the threads end when the walk does, even by an error.
            let queue = queue;
            for run in this.catalogue.leaves() {
                let run = run?;
                for index in run.first..run.first + run.count {
                    queue.send((index, run.leaf.clone())).expect("the threads take chunks until the end");
                }
            }
            Ok(())
        })?;
        self.group.take().map_or(Ok(self.found.into_inner()), Err)
    }

    /// Fills `buf` from `offset`. Pages that can't be read are zeros and noted in `unreadable`.
    fn read(&self, buf: &mut [u8], offset: u64, unreadable: &mut ExtentSet) -> Result<()> {
        if self.disk.read_exact_at(buf, offset).is_ok() {
            return Ok(());
        }
        let mut at = offset;
        for page in buf.chunks_mut(PAGE_BYTES) {
            if let Err(error) = self.disk.read_exact_at(page, at) {
                if self.unreadable_pages.fetch_add(1, Ordering::Relaxed) >= UNREADABLE_PAGES_MAX {
                    return Err(error.within(format!("much of `{}` can't be read", self.disk.name())));
                }
                page.fill(0);
                unreadable.insert(Extent::new(at / SECTOR_BYTES, (page.len() / SECTOR) as u64));
            }
            at += page.len() as u64;
        }
        Ok(())
    }
}

/// The work of one thread.
struct Worker<'a> {
    all: &'a Comparing<'a>,
    decoder: Decoder,
    here: AlignedBuffer,
    there: Vec<u8>,
}

impl<'a> Worker<'a> {
    fn new(all: &'a Comparing<'a>) -> Result<Self> {
        let decoder = Decoder::new()?.decrypting(all.catalogue.cipher().clone());
        let chunk_bytes = all.catalogue.layout().chunk.bytes() as usize;
        Ok(Self { all, decoder, here: AlignedBuffer::new(chunk_bytes), there: Vec::new() })
    }

    /// Compares chunk `index`.
    fn chunk(&mut self, index: u64, leaf: &Leaf) -> Result<()> {
        let (all, layout) = (self.all, self.all.catalogue.layout());
        let Some(extents) = leaf.extents() else { return Ok(()) };
        let (place, bytes) = (layout.chunk_extent(index), u64::from(extents.len_bytes()));
        let is_known_zero =
            matches!(leaf, Leaf::Zero(_)) && all.disk.is_hole(place.offset_bytes(), place.len_bytes());
        if !is_known_zero {
            let mut bad = ExtentSet::new();
            let here = self
                .here
                .read_extents(extents, place.offset_bytes(), |buf, offset| all.read(buf, offset, &mut bad))?;
            let unreadable =
                layout.extents_of(index, extents).flat_map(|run| bad.within(run).collect::<Vec<_>>());
            let unreadable: ExtentSet = unreadable.collect();
            let is_equal = unreadable.is_empty()
                && match leaf {
                    Leaf::Data(_, chunk) => self.decoder.plain_digest(extents, here) == chunk.plain,
                    _ => is_zero(here),
                };
            if !is_equal {
                self.note(index, leaf, extents, &unreadable)?;
            }
        }
        all.progress.advance(Stage::Verify, bytes);
        Ok(())
    }

    /// Notes which sectors of chunk `index` differ; its content on the disk is in `here`.
    fn note(
        &mut self,
        index: u64,
        leaf: &Leaf,
        extents: &ChunkExtents,
        unreadable: &ExtentSet,
    ) -> Result<()> {
        let layout = self.all.catalogue.layout();
        self.there.clear();
        self.there.resize(extents.len_bytes() as usize, 0);
        let decoded = match leaf {
            Leaf::Data(_, chunk) => self.decode(extents, chunk),
            _ => Ok(()),
        };
        let mut other = ExtentSet::new();
        match decoded {
            Ok(()) => {
                let here = self.here.front(self.there.len());
                let sectors = layout.extents_of(index, extents).flat_map(|run| run.start..run.end());
                let pairs = here.chunks(SECTOR).zip(self.there.chunks(SECTOR));
                let unequal = sectors.zip(pairs).filter(|(_, (here, there))| here != there);
                unequal.for_each(|(sector, _)| other.insert(Extent::new(sector, 1)));
            }
            Err(ref error) if is_lost(error) => {
                layout.extents_of(index, extents).for_each(|run| other.insert(run));
            }
            Err(error) => return Err(error),
        }
        unreadable.runs().iter().for_each(|run| other.remove(*run));
        let mut found = self.all.found.lock();
        found.unreadable.extend(unreadable.runs());
        let ranges = if decoded.is_ok() { &mut found.other } else { &mut found.untold };
        match other.runs() {
            [first, .., last] if ranges.len() >= RANGES_MAX => {
                ranges.push(Extent::between(first.start, last.end()));
            }
            runs => ranges.extend(runs),
        }
        Ok(())
    }

    /// Decodes what the version has of a chunk into `there`.
    fn decode(&mut self, extents: &ChunkExtents, chunk: &ChunkRef) -> Result<()> {
        let object = self.all.source.verified(&chunk.object())?;
        self.decoder.decode(&object, extents, chunk.plain, &mut self.there)
    }
}
