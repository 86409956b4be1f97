//! A version of one partition alone, made in memory from the version of its disk. It shares all chunks but the last.

use base::{Error, ErrorKind, Extent, Result, is_zero};
use bytes::Bytes;

use crate::catalogue::Catalogue;
use crate::chunk::{Decoder, Encoder};
use crate::extents::{ChunkExtents, Run};
use crate::leaf::Leaf;
use crate::manifest::{Manifest, PartitionRecord, Statistics};
use crate::object::{ObjectRef, Verified};
use crate::objects::{MemoryObjects, ObjectSink as _, ObjectSource};
use crate::tree::{LeafRun, TreeBuilder};

/// The version of one partition, and where its objects are.
pub struct Part<'a> {
    /// It has the name and number of the disk's version; it is not signed.
    pub manifest: Manifest,
    /// Its nodes, and its last chunk if that is shorter than the disk's.
    own: MemoryObjects,
    rest: &'a dyn ObjectSource,
}

impl ObjectSource for Part<'_> {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        match self.own.fetch(object) {
            Err(error) if error.kind() == ErrorKind::NotFound => self.rest.fetch(object),
            found => found,
        }
    }

    fn read_ahead(&self, object: &ObjectRef) {
        self.rest.read_ahead(object);
    }

    fn verified(&self, object: &ObjectRef) -> Result<Verified> {
        match self.own.verified(object) {
            Err(error) if error.kind() == ErrorKind::NotFound => self.rest.verified(object),
            found => found,
        }
    }
}

impl<'a> Part<'a> {
    /// The refusal of a partition without content: of each that was captured, at least both ends are there.
    #[must_use]
    pub fn left_out(number: u32) -> Error {
        let text = format!("the image holds nothing of partition {number}: it was left out, or discarded");
        Error::new(ErrorKind::Refused, text)
    }

    /// The part of `version` that is its partition `number`; `catalogue` is that of the version, whose objects come
    /// from `source`. `Refused` if the image has no such partition, or not all of it, or if it does not begin where a
    /// chunk does. Errors of `source`.
    pub fn of(
        version: &Manifest,
        catalogue: &Catalogue,
        number: u32,
        source: &'a dyn ObjectSource,
    ) -> Result<Self> {
        let found = find(version, number)?;
        let layout = catalogue.layout();
        let extent = version.extent_of(number)?;
        let chunk_sectors = u64::from(layout.chunk.sectors());
        if !extent.start.is_multiple_of(chunk_sectors) {
            let why = format!(
                "partition {number} begins at sector {}, inside a chunk: standard output (`-`) takes it",
                found.start_sector
            );
            return Err(Error::new(ErrorKind::Refused, why));
        }
        let (own, first) = (MemoryObjects::new(), extent.start / chunk_sectors);
        let count = extent.count.div_ceil(chunk_sectors);
        // Whole chunks, and what the last one has if it is shorter.
        let (whole, rest) = (extent.count / chunk_sectors, extent.count % chunk_sectors);
        let mut builder = TreeBuilder::new(layout.chunk, count, &own, catalogue.cipher());
        let mut statistics = Statistics { free_chunks: count, ..Statistics::default() };
        let mut push = |run: LeafRun| {
            statistics.remove(&Leaf::Free, run.count);
            statistics.add(&run.leaf, run.count);
            builder.push_run(&run)
        };
        for run in catalogue.leaves() {
            let run = run?;
            let (from, to) = (run.first.max(first), (run.first + run.count).min(first + whole));
            if from < to {
                push(LeafRun { first: from - first, count: to - from, leaf: run.leaf.clone() })?;
            }
            let last = first + whole;
            if rest > 0 && (run.first..run.first + run.count).contains(&last) {
                let sectors = u16::try_from(rest).expect("less than a chunk");
                let leaf = shortened(&run.leaf, sectors, catalogue, source, &own)?;
                push(LeafRun { first: whole, count: 1, leaf })?;
            }
        }
        let root = builder.finish()?;
        if statistics.allocated_bytes == 0 {
            return Err(Self::left_out(number));
        }
        let mut manifest = version.clone();
        (manifest.root, manifest.statistics, manifest.size_sectors) = (root, statistics, extent.count);
        manifest.origin.start_sector = found.start_sector;
        manifest.disk.partitions = vec![found.clone()];
        manifest.disk.source =
            version.disk.source.as_ref().map(|source| source.moved_by(extent.start)).transpose()?;
        let place = Extent::new(found.start_sector, found.sectors);
        let unreadable = version.disk.unreadable.iter().filter_map(|range| range.within(place));
        manifest.disk.unreadable = unreadable.collect();
        manifest.warnings.clear();
        manifest.layout()?;
        Ok(Self { manifest, own, rest: source })
    }
}

/// The record of partition `number`.
fn find(version: &Manifest, number: u32) -> Result<&PartitionRecord> {
    let all = &version.disk.partitions;
    all.iter().find(|partition| partition.number == number).ok_or_else(|| {
        let kind = |partition: &PartitionRecord| {
            partition.filesystem.as_ref().map_or_else(String::new, |found| format!(" ({})", found.kind))
        };
        let known: Vec<_> = all.iter().map(|one| format!("{}{}", one.number, kind(one))).collect();
        let has = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let text = format!("the image has no partition {number}; it has {has}");
        Error::new(ErrorKind::Refused, text)
    })
}

impl Manifest {
    /// Where partition `number` lies in the image, in sectors. `Refused` if the image has no such partition, or not all
    /// of it.
    pub fn extent_of(&self, number: u32) -> Result<Extent> {
        let found = find(self, number)?;
        let start = found.start_sector.checked_sub(self.origin.start_sector);
        let inside = |start: &u64| {
            found.sectors > 0 && start.checked_add(found.sectors).is_some_and(|end| end <= self.size_sectors)
        };
        start.filter(inside).map(|start| Extent::new(start, found.sectors)).ok_or_else(|| {
            Error::new(ErrorKind::Refused, format!("the image does not have all of partition {number}"))
        })
    }
}

/// The first `sectors` of a chunk. What it holds then goes into `own`.
fn shortened(
    leaf: &Leaf,
    sectors: u16,
    catalogue: &Catalogue,
    source: &dyn ObjectSource,
    own: &MemoryObjects,
) -> Result<Leaf> {
    let Some(extents) = leaf.extents() else { return Ok(Leaf::Free) };
    let kept = extents
        .runs()
        .filter(|run| run.start < sectors)
        .map(|run| Run { start: run.start, count: run.count.min(sectors - run.start) });
    let Some(shorter) = ChunkExtents::from_runs(extents.size(), kept) else { return Ok(Leaf::Free) };
    let Leaf::Data(_, chunk) = leaf else { return Ok(Leaf::Zero(shorter)) };
    if shorter == *extents {
        return Ok(leaf.clone());
    }
    let mut plain = vec![0; extents.len_bytes() as usize];
    let mut decoder = Decoder::new()?.decrypting(catalogue.cipher().clone());
    decoder.decode(&source.verified(&chunk.object())?, extents, chunk.plain, &mut plain)?;
    // The allocated sectors of a chunk lie one after the other, so those that stay are the first ones.
    plain.truncate(shorter.len_bytes() as usize);
    if is_zero(&plain) {
        return Ok(Leaf::Zero(shorter));
    }
    let digest = decoder.plain_digest(&shorter, &plain);
    let mut encoder = Encoder::new(LEVEL)?.encrypting(catalogue.cipher().clone());
    let (chunk, bytes) = encoder.encode(&shorter, &plain, digest)?;
    own.put(&chunk.object(), bytes)?;
    Ok(Leaf::Data(shorter, chunk))
}

/// It is decoded at once.
const LEVEL: i32 = 1;
