//! Reads a journal, also after a crash.

use std::ops::Range;

use base::wire::Reader;
use base::{Error, ErrorKind, Result, RunSet};

use super::{
    ABANDONED, BARRIER, BASE, BootId, CHECK_BYTES, CLEAN, CLOSED, COMMITTED, DIRTY, FREED, FROZEN,
    HEAD_BYTES, HEADER_BYTES, IN_DOUBT, InDoubt, KEPT, LANDED, Lineage, MAGIC, PAYLOAD_BYTES_MAX, SUSPECT,
    VERSION, check, corrupt,
};
use crate::machine::{Cut, Held, Sectors};

/// The content of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// How the disk is divided into chunks.
    pub cut: Cut,
    /// The versions that the disk is based on.
    pub lineage: Lineage,
    /// The valid parts of the local file.
    pub held: Held,
    /// The disk was closed properly: nothing must be cleared.
    pub closed: bool,
}

impl Recovered {
    /// The sectors that have no valid content. Their bytes in the local file may have been in the middle of a write,
    /// and must be cleared.
    pub fn void(&self) -> impl Iterator<Item = Sectors> + '_ {
        let absent = self.held.clean.gaps(0..self.cut.chunks());
        let absent = absent.flat_map(|chunks| self.held.suspect.gaps(chunks));
        absent.flat_map(|chunks| {
            let missing = self.held.missing(&self.cut, &self.cut.sectors_of(chunks));
            missing.iter().collect::<Vec<_>>()
        })
    }
}

/// Reads a journal. `boot` is the current boot id: if the machine was restarted since, only records that a barrier
/// covers count, and clean chunks must be checked. `Malformed` if it is no journal; `Unsupported` if its format is
/// newer.
pub fn recover(bytes: &[u8], boot: &BootId) -> Result<Recovered> {
    let (cut, begun) = header(bytes)?;
    let records = scan(bytes);
    // A barrier never covers anything after itself, whatever offset it has.
    let barriers = records.iter().filter(|record| record.kind == BARRIER);
    let covered = barriers.map(|barrier| barrier.number().min(barrier.at)).max();
    let closed = records.last().is_some_and(|record| record.kind == CLOSED);
    let trusts_all = closed || begun == *boot;
    let covered = covered.ok_or_else(|| corrupt("the journal has no barrier"))?;
    let (mut lineage, mut held) = (Lineage::default(), Held::default());
    for record in records.iter().filter(|record| trusts_all || record.at < covered) {
        apply(record, &cut, &mut held, &mut lineage)?;
    }
    // A commit of which nobody knows how it ended.
    held.abandon();
    let was_cut = !closed && begun != *boot;
    if was_cut {
        // A write over these sectors may have reached the disk without its record.
        held.freed = RunSet::new();
        held.kept = RunSet::new();
        let clean = std::mem::take(&mut held.clean);
        held.suspect.extend(&clean);
    }
    if !closed {
        // A partly dirty chunk cannot be compared with a digest: the rest of it is cleared and fetched again.
        let dirty: Vec<Range<u64>> = held.dirty.iter().map(|run| cut.chunks_of(&run)).collect();
        dirty.into_iter().for_each(|chunks| held.suspect.remove(chunks));
    }
    if lineage.base.is_empty() {
        return Err(corrupt("the journal does not name a version"));
    }
    Ok(Recovered { cut, lineage, held, closed })
}

fn header(bytes: &[u8]) -> Result<(Cut, BootId)> {
    let cut = |_| corrupt("the journal ends in its header");
    let mut reader = Reader::new(bytes);
    if reader.array().map_err(cut)? != MAGIC {
        return Err(corrupt("this is not the journal of a disk"));
    }
    let [version, height, ..] = reader.array::<4>().map_err(cut)?;
    if version != VERSION {
        let text = format!("a journal of version {version}; this program knows {VERSION}");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let boot = reader.array().map_err(cut)?;
    let size_sectors = reader.u64().map_err(cut)?;
    let chunk_sectors = reader.u64().map_err(cut)?;
    let whole = bytes.get(..HEADER_BYTES).ok_or_else(|| corrupt("the journal ends in its header"))?;
    let (said, found) = whole.split_at(HEADER_BYTES - CHECK_BYTES);
    let sizes = (1..=base::limits::DISK_SECTORS_MAX).contains(&size_sectors)
        && chunk_sectors.is_power_of_two()
        && (1..=base::limits::TREE_HEIGHT_MAX).contains(&height);
    if check(0, said) != *found || !sizes {
        return Err(corrupt("the header of the journal is damaged"));
    }
    Ok((Cut { size_sectors, chunk_sectors, height }, boot))
}

struct Entry<'a> {
    at: u64,
    kind: u8,
    payload: &'a [u8],
}

impl Entry<'_> {
    fn number(&self) -> u64 {
        self.payload.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn runs(&self, end: u64) -> Result<Vec<Range<u64>>> {
        let (pairs, rest) = self.payload.as_chunks::<16>();
        let number = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().expect("half of 16"));
        let runs: Vec<_> = pairs.iter().map(|pair| number(&pair[..8])..number(&pair[8..])).collect();
        let good = rest.is_empty() && runs.iter().all(|run| run.start < run.end && run.end <= end);
        if good { Ok(runs) } else { Err(corrupt(format!("the record at offset {} is damaged", self.at))) }
    }
}

/// The records before the first invalid one. Nothing after it was acknowledged.
fn scan(bytes: &[u8]) -> Vec<Entry<'_>> {
    let mut records = Vec::new();
    let mut at = HEADER_BYTES;
    while let Some((head, rest)) = bytes.get(at..).and_then(|rest| rest.split_first_chunk::<HEAD_BYTES>()) {
        let [a, b, c, d, kind, pad @ ..] = *head;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        let sealed = rest.get(len..len.saturating_add(CHECK_BYTES));
        let whole = len <= PAYLOAD_BYTES_MAX
            && pad == [0; 3]
            && sealed.is_some_and(|found| check(at as u64, &bytes[at..at + HEAD_BYTES + len]) == *found);
        if !whole {
            break;
        }
        records.push(Entry { at: at as u64, kind, payload: &rest[..len] });
        at += HEAD_BYTES + len + CHECK_BYTES;
    }
    records
}

fn apply(record: &Entry<'_>, cut: &Cut, held: &mut Held, lineage: &mut Lineage) -> Result<()> {
    match record.kind {
        BASE => *lineage = Lineage { base: record.payload.to_vec(), ..Lineage::default() },
        DIRTY => {
            for run in record.runs(cut.size_sectors)? {
                held.kept.remove(run.clone());
                held.write(run);
            }
        }
        FREED => {
            for run in record.runs(cut.size_sectors)? {
                held.kept.remove(run.clone());
                held.free(run);
            }
        }
        CLEAN => {
            for run in record.runs(cut.chunks())? {
                held.kept.remove(cut.sectors_of(run.clone()));
                held.suspect.remove(run.clone());
                held.clean.insert(run);
            }
        }
        KEPT => record.runs(cut.size_sectors)?.into_iter().for_each(|run| held.kept.insert(run)),
        SUSPECT => record.runs(cut.chunks())?.into_iter().for_each(|run| held.suspect.insert(run)),
        FROZEN => {
            held.freeze();
            // A snapshot has the promise in a record of its own, `IN_DOUBT`.
            if !record.payload.is_empty() {
                lineage.in_doubt = Some(InDoubt::decode(record.payload)?);
            }
        }
        IN_DOUBT => lineage.in_doubt = Some(InDoubt::decode(record.payload)?),
        ABANDONED => held.abandon(),
        LANDED => {
            lineage.landed = Some(record.payload.to_vec());
            lineage.in_doubt = None;
            held.abandon();
        }
        COMMITTED => {
            *lineage = Lineage { base: record.payload.to_vec(), ..Lineage::default() };
            held.commit(cut);
        }
        BARRIER | CLOSED => {}
        kind => {
            let text = format!("the journal has a record of kind {kind} at offset {}", record.at);
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
    }
    Ok(())
}
