//! A version as a QCOW2 file that is nowhere: where each byte of that file comes from. Its layout follows from the
//! tree alone, so the same version is always the same file. Source: QEMU's `docs/interop/qcow2.rst`.
//!
//! First come the header, the table of the first level, the reference counts and the tables of the second level, then
//! the clusters with data, in the order of the disk. A cluster has data if a chunk that is not zeros allocates any of
//! it; all others have no entry and read as zeros. A client that reads the file from its beginning to its end
//! therefore has all tables before the data. Only the number of clusters below each table of the second level is kept
//! in memory, 2 MiB for a disk of 64 TiB, and the clusters below the one that was used last; entries are made when they
//! are read.

use std::ops::Range;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use disk::Qcow2Header;
use parking_lot::Mutex;

use crate::layout::Layout;
use crate::leaf::Leaf;
use crate::tree::LeafRun;

const CLUSTER: u64 = Qcow2Header::CLUSTER_BYTES;
const ENTRIES: u64 = Qcow2Header::TABLE_ENTRIES;
/// Bytes of the disk that one table of the second level describes: 512 MiB.
const TABLE_SPAN: u64 = CLUSTER * ENTRIES;
/// Longest table of the first level that QEMU reads: 32 MiB, for a disk of 2 EiB.
const LEVEL1_ENTRIES_MAX: u64 = (32 << 20) / 8;

/// Where the parts of the QCOW2 file of a version lie.
#[derive(Debug)]
pub struct Qcow2Layout {
    header: Qcow2Header,
    /// How many blocks of reference counts there are.
    blocks: u64,
    /// The tables of the second level that have entries, ascending.
    tables: Vec<Table>,
    data_clusters: u64,
    /// The table that was used last, and what is below it: most readers read small ranges one after the other.
    last_used: Mutex<Option<(usize, Clusters)>>,
}

/// Ranges of clusters of the disk, ascending.
type Clusters = Arc<[Range<u64>]>;

/// A table of the second level.
#[derive(Debug, Clone, Copy)]
struct Table {
    /// Its index in the table of the first level.
    index: u64,
    /// How many clusters with data come before its own.
    data_before: u64,
}

/// A part of a buffer that is to be filled with bytes of the disk.
#[derive(Debug)]
pub struct DiskPart<'a> {
    /// Offset on the disk.
    pub offset: u64,
    /// Where its bytes go; all of them are on the disk.
    pub into: &'a mut [u8],
}

impl Qcow2Layout {
    /// The layout for an image of `layout`, whose chunks that are not free are `leaves`, ascending.
    /// `Unsupported` if the disk is larger than any in a QCOW2; errors of `leaves`.
    pub fn of(layout: &Layout, leaves: impl Iterator<Item = Result<LeafRun>>) -> Result<Self> {
        let size_bytes = layout.size_bytes();
        let level1_entries = size_bytes.div_ceil(TABLE_SPAN);
        if level1_entries > LEVEL1_ENTRIES_MAX {
            let text = format!("a disk of {size_bytes} bytes is larger than a QCOW2 can be");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let (mut tables, mut data_clusters): (Vec<Table>, _) = (Vec::new(), 0);
        for run in leaves {
            for clusters in clusters_with_data(layout, &run?) {
                let index = clusters.start / ENTRIES;
                if tables.last().is_none_or(|last| last.index != index) {
                    tables.push(Table { index, data_before: data_clusters });
                }
                data_clusters += clusters.end - clusters.start;
            }
        }
        let level1_clusters = level1_entries.div_ceil(ENTRIES);
        let used = 1 + level1_clusters + tables.len() as u64 + data_clusters;
        let (blocks, counts_clusters) = Qcow2Header::counts_of(used);
        let header = Qcow2Header {
            size_bytes,
            level1_entries,
            level1_offset: CLUSTER,
            counts_offset: (1 + level1_clusters) * CLUSTER,
            counts_clusters,
        };
        Ok(Self { header, blocks, tables, data_clusters, last_used: Mutex::default() })
    }

    /// Length of the file in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        (self.data_from() + self.data_clusters) * CLUSTER
    }

    /// Fills `into` with the bytes of the file from `offset` on, but for those that are bytes of the disk: returns
    /// these parts, ascending. `leaves` gives the chunks that are not free in a range of bytes of the disk; its errors.
    ///
    /// # Panics
    /// If the range ends after the end of the file.
    pub fn fill<'a, L: Iterator<Item = Result<LeafRun>>>(
        &self,
        layout: &Layout,
        offset: u64,
        into: &'a mut [u8],
        leaves: impl Fn(Range<u64>) -> L,
    ) -> Result<Vec<DiskPart<'a>>> {
        assert!(offset + into.len() as u64 <= self.file_bytes(), "reads end with the file");
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() && at < self.data_from() * CLUSTER {
            let (cluster, from) = (self.cluster(layout, at / CLUSTER, &leaves)?, index(at % CLUSTER));
            let count = rest.len().min(cluster.len() - from);
            let (part, behind) = rest.split_at_mut(count);
            part.copy_from_slice(&cluster[from..from + count]);
            (at, rest) = (at + count as u64, behind);
        }
        if rest.is_empty() { Ok(Vec::new()) } else { self.data_parts(layout, at, rest, &leaves) }
    }

    /// [`Self::fill`] where the clusters with data are.
    fn data_parts<'a, L: Iterator<Item = Result<LeafRun>>>(
        &self,
        layout: &Layout,
        mut at: u64,
        mut rest: &'a mut [u8],
        leaves: &impl Fn(Range<u64>) -> L,
    ) -> Result<Vec<DiskPart<'a>>> {
        let mut parts = Vec::new();
        let first = at / CLUSTER - self.data_from();
        let first = self.tables.partition_point(|table| table.data_before <= first) - 1;
        for table in first..self.tables.len() {
            let mut place = (self.data_from() + self.tables[table].data_before) * CLUSTER;
            for clusters in self.clusters_of(layout, table, leaves)?.iter() {
                let end = place + (clusters.end - clusters.start) * CLUSTER;
                if rest.is_empty() {
                    return Ok(parts);
                }
                if at < end {
                    let (part, behind) = rest.split_at_mut(rest.len().min(index(end - at)));
                    let offset = clusters.start * CLUSTER + (at - place);
                    at += part.len() as u64;
                    parts.extend(self.on_disk(offset, part));
                    rest = behind;
                }
                place = end;
            }
        }
        Ok(parts)
    }

    /// The part of the disk from `offset` on. Where the last cluster is longer than the disk, zeros follow.
    fn on_disk<'a>(&self, offset: u64, part: &'a mut [u8]) -> Option<DiskPart<'a>> {
        let count = self.header.size_bytes.saturating_sub(offset).min(part.len() as u64);
        let (into, after) = part.split_at_mut(index(count));
        after.fill(0);
        (!into.is_empty()).then_some(DiskPart { offset, into })
    }

    /// Number of the first block of reference counts, in clusters of the file.
    fn blocks_from(&self) -> u64 {
        self.header.counts_offset / CLUSTER + self.header.counts_clusters
    }

    fn tables_from(&self) -> u64 {
        self.blocks_from() + self.blocks
    }

    fn data_from(&self) -> u64 {
        self.tables_from() + self.tables.len() as u64
    }

    /// The cluster `number` of the file, which is before the data.
    fn cluster<L: Iterator<Item = Result<LeafRun>>>(
        &self,
        layout: &Layout,
        number: u64,
        leaves: &impl Fn(Range<u64>) -> L,
    ) -> Result<Vec<u8>> {
        let level1_from = self.header.level1_offset / CLUSTER;
        let counts_from = self.header.counts_offset / CLUSTER;
        let mut cluster = if number < level1_from {
            self.header.encode()
        } else if number < counts_from {
            self.level1(number - level1_from)
        } else if number < self.blocks_from() {
            let first = (number - counts_from) * ENTRIES;
            let named = first..self.blocks.min(first + ENTRIES);
            big_endian(named.map(|block| (self.blocks_from() + block) * CLUSTER))
        } else if number < self.tables_from() {
            let first = (number - self.blocks_from()) * Qcow2Header::BLOCK_COUNTS;
            let counted = (self.file_bytes() / CLUSTER - first).min(Qcow2Header::BLOCK_COUNTS);
            1u16.to_be_bytes().repeat(index(counted))
        } else {
            self.level2(layout, index(number - self.tables_from()), leaves)?
        };
        cluster.resize(index(CLUSTER), 0);
        Ok(cluster)
    }

    /// The cluster `number` of the table of the first level.
    fn level1(&self, number: u64) -> Vec<u8> {
        let entries = number * ENTRIES..(number + 1) * ENTRIES;
        let from = self.tables.partition_point(|table| table.index < entries.start);
        let until = self.tables.partition_point(|table| table.index < entries.end);
        let mut level1 = vec![0; index(ENTRIES)];
        for (at, table) in (from as u64..).zip(&self.tables[from..until]) {
            let offset = (self.tables_from() + at) * CLUSTER;
            level1[index(table.index - entries.start)] = Qcow2Header::COPIED | offset;
        }
        big_endian(level1)
    }

    /// A table of the second level.
    fn level2<L: Iterator<Item = Result<LeafRun>>>(
        &self,
        layout: &Layout,
        table: usize,
        leaves: &impl Fn(Range<u64>) -> L,
    ) -> Result<Vec<u8>> {
        let mut level2 = vec![0; index(ENTRIES)];
        let clusters = self.clusters_of(layout, table, leaves)?;
        let places = self.data_from() + self.tables[table].data_before..;
        for (place, cluster) in places.zip(clusters.iter().cloned().flatten()) {
            level2[index(cluster % ENTRIES)] = Qcow2Header::COPIED | (place * CLUSTER);
        }
        Ok(big_endian(level2))
    }

    /// [`Self::find_clusters`], unless they were found just before.
    fn clusters_of<L: Iterator<Item = Result<LeafRun>>>(
        &self,
        layout: &Layout,
        table: usize,
        leaves: &impl Fn(Range<u64>) -> L,
    ) -> Result<Clusters> {
        let known = self.last_used.lock().clone().filter(|(last, _)| *last == table);
        if let Some((_, clusters)) = known {
            return Ok(clusters);
        }
        let clusters: Clusters = self.find_clusters(layout, table, leaves)?.into();
        *self.last_used.lock() = Some((table, Arc::clone(&clusters)));
        Ok(clusters)
    }

    /// The clusters with data below a table of the second level, ascending. `Corrupt` if there are more or fewer than
    /// when the layout was made: the tree is another one.
    fn find_clusters<L: Iterator<Item = Result<LeafRun>>>(
        &self,
        layout: &Layout,
        table: usize,
        leaves: &impl Fn(Range<u64>) -> L,
    ) -> Result<Vec<Range<u64>>> {
        let Table { index, data_before } = self.tables[table];
        let end = self.tables.get(table + 1).map_or(self.data_clusters, |next| next.data_before);
        let bytes = index * TABLE_SPAN..((index + 1) * TABLE_SPAN).min(self.header.size_bytes);
        let (mut found, mut count): (Vec<Range<u64>>, _) = (Vec::new(), 0);
        for run in leaves(bytes) {
            for clusters in clusters_with_data(layout, &run?) {
                count += clusters.end - clusters.start;
                match found.last_mut() {
                    Some(last) if last.end == clusters.start => last.end = clusters.end,
                    _ => found.push(clusters),
                }
            }
        }
        if count == end - data_before {
            return Ok(found);
        }
        Err(Error::corrupt("the tree of a version is not the one that it was"))
    }
}

/// The clusters of the disk that the chunk of `run` has data for, ascending. Chunks begin where clusters do.
fn clusters_with_data(layout: &Layout, run: &LeafRun) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let Leaf::Data(extents, _) = &run.leaf else { return found };
    let base = layout.chunk_offset(run.first);
    for run in extents.runs() {
        let start = (base + run.offset_bytes()) / CLUSTER;
        let end = (base + run.offset_bytes() + run.len_bytes()).div_ceil(CLUSTER);
        match found.last_mut() {
            Some(last) if last.end >= start => last.end = last.end.max(end),
            _ => found.push(start..end),
        }
    }
    found
}

fn big_endian(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbers.into_iter().flat_map(u64::to_be_bytes).collect()
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("64 bits")
}
