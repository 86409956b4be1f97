//! Follows chains of clusters in the file allocation table, and reads what is in them.

use super::super::{Why, require};
use super::{Boot, FIRST_CLUSTER};
use crate::volume::Volume;

/// Bytes of the table that one read takes.
const PIECE_BYTES: u64 = 64 << 10;
/// The entry of the last cluster of a chain.
const LAST: u32 = 0xFFFF_FFFF;
/// The entry of a cluster that can't be read. It says so only of what belongs to no file: nobody writes the entries of
/// a file whose clusters follow each other.
pub(super) const BAD: u32 = 0xFFFF_FFF7;
/// A folder has at most this many bytes (section 7.4, "Directory entries").
const FOLDER_BYTES_MAX: u64 = 256 << 20;

/// A run of clusters: the number of the first, and how many.
pub(super) type Run = (u64, u64);

/// The chains of a filesystem.
pub(super) struct Chains<'a, 'v> {
    pub(super) boot: &'a Boot,
    volume: &'a Volume<'v>,
    /// The piece of the table that was read last, and its number.
    piece: Vec<u8>,
    at: Option<u64>,
}

impl<'a, 'v> Chains<'a, 'v> {
    pub(super) fn new(boot: &'a Boot, volume: &'a Volume<'v>) -> Self {
        Self { boot, volume, piece: Vec::new(), at: None }
    }

    /// The clusters of a chain that begins at `first`, and that has `count` clusters if that is known.
    pub(super) fn follow(&mut self, first: u64, count: Option<u64>) -> Result<Vec<Run>, Why> {
        let mut runs: Vec<Run> = Vec::new();
        let (mut cluster, mut passed) = (first, 0);
        loop {
            self.check(cluster, 1)?;
            match runs.last_mut() {
                Some((start, len)) if *start + *len == cluster => *len += 1,
                _ => runs.push((cluster, 1)),
            }
            passed += 1;
            let entry = self.entry(cluster)?;
            if entry == LAST {
                let is_whole = count.is_none_or(|count| count == passed);
                require(is_whole, || format!("the chain from cluster {first} on ends too early"))?;
                return Ok(runs);
            }
            let more = count.unwrap_or(self.boot.clusters) > passed;
            require(more, || format!("the chain from cluster {first} on is too long"))?;
            cluster = entry.into();
        }
    }

    /// Checks that `count` clusters from `first` on exist.
    pub(super) fn check(&self, first: u64, count: u64) -> Result<(), Why> {
        let behind = first.saturating_add(count);
        require(first >= FIRST_CLUSTER && behind <= self.boot.behind(), || {
            format!("it points to cluster {first}, which it does not have")
        })
    }

    /// Reads clusters of a folder.
    pub(super) fn contents(&self, runs: &[Run]) -> Result<Vec<u8>, Why> {
        let clusters: u64 = runs.iter().map(|(_, count)| count).sum();
        let len = clusters.saturating_mul(self.boot.cluster_bytes());
        require(len <= FOLDER_BYTES_MAX, || "it has a folder of more than 256 MiB".to_owned())?;
        let mut bytes = vec![0; usize::try_from(len).expect("at most 256 MiB")];
        let mut rest = bytes.as_mut_slice();
        for &(first, count) in runs {
            let len = usize::try_from(count * self.boot.cluster_bytes()).expect("at most 256 MiB");
            let (part, behind) = rest.split_at_mut(len);
            self.volume.read(part, self.boot.offset(first))?;
            rest = behind;
        }
        Ok(bytes)
    }

    /// What the table says of a cluster.
    pub(super) fn entry(&mut self, cluster: u64) -> Result<u32, Why> {
        let offset = cluster * 4;
        if self.at != Some(offset / PIECE_BYTES) {
            let start = offset / PIECE_BYTES * PIECE_BYTES;
            let table_bytes = self.boot.table_sectors * self.boot.sector_bytes;
            let len = PIECE_BYTES.min(table_bytes - start);
            self.piece.resize(usize::try_from(len).expect("a piece"), 0);
            self.volume.read(&mut self.piece, self.boot.table_start * self.boot.sector_bytes + start)?;
            self.at = Some(offset / PIECE_BYTES);
        }
        let at = usize::try_from(offset % PIECE_BYTES).expect("inside a piece");
        let entry = self.piece.get(at..).and_then(|rest| rest.first_chunk());
        let entry = entry.ok_or_else(|| Why::Whole("its file allocation table ends too early".to_owned()))?;
        Ok(u32::from_le_bytes(*entry))
    }
}
