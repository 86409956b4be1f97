//! What the journal says and how it is read after a crash. `formats/mirror.md`.
//!
//! Bytes and sets only: the driver has the files, the simulator has files that lose what was not synced.

use std::ops::Range;

use base::Digest;
use base::wire::Reader;

use crate::core::{Cut, Held, Mutant, Record, RunSet, Sectors};
use crate::{Error, ErrorKind, Result};

const MAGIC: [u8; 4] = *b"DCMJ";
const VERSION: u8 = 1;
/// Length of the header.
pub const HEADER_BYTES: usize = 64;
const CHECK_BYTES: usize = 8;
const HEAD_BYTES: usize = 8;
/// Longest payload of a record: a manifest, or runs.
const PAYLOAD_BYTES_MAX: usize = 4 << 20;
/// Most runs of one record of a snapshot.
const SNAPSHOT_RUNS_MAX: usize = 1 << 16;

const BASE: u8 = 1;
const DIRTY: u8 = 2;
const CLEAN: u8 = 3;
const FROZEN: u8 = 4;
const COMMITTED: u8 = 5;
const ABANDONED: u8 = 6;
const BARRIER: u8 = 7;
const CLOSED: u8 = 8;
const KEPT: u8 = 9;
const SUSPECT: u8 = 10;

/// 128 bits that are other after each start of the machine.
pub type BootId = [u8; 16];

fn corrupt(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, text)
}

/// One record as it stands at offset `at` of the journal.
fn seal(at: u64, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + payload.len() + CHECK_BYTES);
    let len = u32::try_from(payload.len()).expect("payloads are bounded");
    bytes.extend(len.to_le_bytes());
    bytes.extend([kind, 0, 0, 0]);
    bytes.extend_from_slice(payload);
    bytes.extend(check(at, &bytes));
    bytes
}

/// A record stands where it was written, and nowhere else.
fn check(at: u64, bytes: &[u8]) -> [u8; CHECK_BYTES] {
    let mut input = Vec::with_capacity(8 + bytes.len());
    input.extend(at.to_le_bytes());
    input.extend_from_slice(bytes);
    *Digest::of(&input).0.first_chunk().expect("a digest is longer")
}

fn runs(runs: impl IntoIterator<Item = Range<u64>>) -> Vec<u8> {
    runs.into_iter().flat_map(|run| [run.start.to_le_bytes(), run.end.to_le_bytes()].concat()).collect()
}

/// `record` as it is appended at offset `at`. `manifest` is that of the new version, for [`Record::Committed`].
#[must_use]
pub fn encode(at: u64, record: &Record, manifest: &[u8]) -> Vec<u8> {
    match record {
        Record::Dirty(sectors) => seal(at, DIRTY, &runs(sectors.iter().cloned())),
        Record::Clean(chunks) => seal(at, CLEAN, &runs(chunks.iter().cloned())),
        Record::Frozen => seal(at, FROZEN, &[]),
        Record::Committed => seal(at, COMMITTED, manifest),
        Record::Abandoned => seal(at, ABANDONED, &[]),
    }
}

/// A barrier at offset `at` which says that all before offset `upto` is durable, and the data that it is about.
#[must_use]
pub fn barrier(at: u64, upto: u64) -> Vec<u8> {
    seal(at, BARRIER, &upto.to_le_bytes())
}

/// The last record of a disk that was closed when everything was durable.
#[must_use]
pub fn closed(at: u64) -> Vec<u8> {
    seal(at, CLOSED, &[])
}

/// A whole journal that says `held`, all of it durable, of a disk that began as the version of `manifest`.
#[must_use]
pub fn snapshot(boot: &BootId, cut: &Cut, manifest: &[u8], held: &Held) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 << 12);
    bytes.extend(MAGIC);
    bytes.extend([VERSION, cut.height, 0, 0]);
    bytes.extend(boot);
    bytes.extend(cut.size_sectors.to_le_bytes());
    bytes.extend(cut.chunk_sectors.to_le_bytes());
    bytes.resize(HEADER_BYTES - CHECK_BYTES, 0);
    bytes.extend(check(0, &bytes));
    let mut add = |kind: u8, payload: &[u8]| {
        let record = seal(bytes.len() as u64, kind, payload);
        bytes.extend(record);
    };
    add(BASE, manifest);
    let mut add_set = |kind: u8, set: &RunSet| {
        let all: Vec<Sectors> = set.iter().collect();
        all.chunks(SNAPSHOT_RUNS_MAX).for_each(|some| add(kind, &runs(some.iter().cloned())));
    };
    add_set(CLEAN, &held.clean);
    add_set(SUSPECT, &held.suspect);
    add_set(KEPT, &held.kept);
    if !held.frozen.is_empty() {
        add_set(DIRTY, &held.frozen);
        add(FROZEN, &[]);
    }
    let mut add_set = |kind: u8, set: &RunSet| {
        let all: Vec<Sectors> = set.iter().collect();
        all.chunks(SNAPSHOT_RUNS_MAX).for_each(|some| add(kind, &runs(some.iter().cloned())));
    };
    add_set(DIRTY, &held.dirty);
    let at = bytes.len() as u64;
    bytes.extend(barrier(at, at));
    bytes
}

/// What a journal says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// How the disk is cut.
    pub cut: Cut,
    /// The manifest of the version that it began as, or was last committed as.
    pub manifest: Vec<u8>,
    /// What lies in the local file.
    pub held: Held,
    /// It was closed in good order: there is nothing to clear.
    pub closed: bool,
}

impl Recovered {
    /// The sectors of which nothing is known: what lies there was being written when the end came, and is to be cleared.
    pub fn void(&self) -> impl Iterator<Item = Sectors> + '_ {
        let absent = self.held.clean.gaps(0..self.cut.chunks());
        let absent = absent.flat_map(|chunks| self.held.suspect.gaps(chunks));
        absent.flat_map(|chunks| {
            let missing = self.held.missing(&self.cut, &self.cut.sectors_of(chunks));
            missing.iter().collect::<Vec<_>>()
        })
    }
}

/// Reads a journal as it was left. `boot` is that of now: if the machine was started anew since, only what a barrier
/// covers counts, and what was clean has to be checked. `Corrupt` if it is no journal; `Unsupported` if it is newer.
pub fn recover(bytes: &[u8], boot: &BootId, mutant: Mutant) -> Result<Recovered> {
    let (cut, begun) = header(bytes)?;
    let records = scan(bytes);
    let covered = records.iter().filter(|record| record.kind == BARRIER).map(Entry::number).max();
    let closed = records.last().is_some_and(|record| record.kind == CLOSED);
    let trusts_all = closed || begun == *boot || Mutant::UsesUnbarriered.is(mutant);
    let covered = covered.ok_or_else(|| corrupt("the journal has no barrier"))?;
    let mut manifest = None;
    let mut held = Held::default();
    for record in records.iter().filter(|record| trusts_all || record.at < covered) {
        apply(record, &cut, &mut held, &mut manifest)?;
    }
    // A commit of which nobody knows how it ended.
    if Mutant::ForgetsFrozen.is(mutant) {
        held.frozen = RunSet::new()
    } else {
        held.abandon()
    }
    if !closed && begun != *boot && !Mutant::TrustsSuspects.is(mutant) {
        held.kept = RunSet::new();
        let clean = std::mem::take(&mut held.clean);
        held.suspect.extend(&clean);
    }
    let dirty: Vec<Range<u64>> = held.dirty.iter().map(|run| cut.chunks_of(&run)).collect();
    // What is dirty in part can't be held against a digest: the rest of it is fetched again.
    dirty.into_iter().for_each(|chunks| held.suspect.remove(chunks));
    let manifest = manifest.ok_or_else(|| corrupt("the journal names no version"))?;
    Ok(Recovered { cut, manifest, held, closed })
}

fn header(bytes: &[u8]) -> Result<(Cut, BootId)> {
    let cut = |_| corrupt("the journal ends in its header");
    let mut reader = Reader::new(bytes);
    if reader.array().map_err(cut)? != MAGIC {
        return Err(corrupt("this is no journal of a disk"));
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

/// The records up to the first that is not whole: behind that nothing was acknowledged.
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

fn apply(record: &Entry<'_>, cut: &Cut, held: &mut Held, manifest: &mut Option<Vec<u8>>) -> Result<()> {
    match record.kind {
        BASE => *manifest = Some(record.payload.to_vec()),
        DIRTY => {
            for run in record.runs(cut.size_sectors)? {
                held.kept.remove(run.clone());
                held.dirty.insert(run);
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
        FROZEN => held.freeze(),
        ABANDONED => held.abandon(),
        COMMITTED => {
            *manifest = Some(record.payload.to_vec());
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

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "records hold runs")]
mod tests {
    use super::*;

    const CUT: Cut = Cut { size_sectors: 4000, chunk_sectors: 512, height: 1 };
    const BOOT: BootId = [1; 16];
    const LATER: BootId = [2; 16];

    fn set(run: Range<u64>) -> RunSet {
        [run].into_iter().collect()
    }

    fn recovered(bytes: &[u8], boot: &BootId) -> Recovered {
        recover(bytes, boot, Mutant::None).unwrap()
    }

    fn append(bytes: &mut Vec<u8>, record: &Record) {
        let record = encode(bytes.len() as u64, record, b"next");
        bytes.extend(record);
    }

    #[test]
    fn a_snapshot_says_what_it_was_made_of() {
        let held = Held {
            dirty: set(5..9),
            frozen: RunSet::new(),
            kept: set(600..700),
            clean: set(3..5),
            suspect: set(6..7),
        };
        let bytes = snapshot(&BOOT, &CUT, b"base", &held);
        let found = recovered(&bytes, &BOOT);
        assert_eq!((found.held, found.manifest.as_slice(), found.cut), (held, &b"base"[..], CUT));
    }

    #[test]
    fn after_a_kill_all_records_count_after_a_power_cut_those_that_a_barrier_covers() {
        let mut bytes = snapshot(&BOOT, &CUT, b"base", &Held::default());
        append(&mut bytes, &Record::Dirty(vec![0..8]));
        append(&mut bytes, &Record::Clean(vec![0..2]));
        let upto = bytes.len() as u64;
        append(&mut bytes, &Record::Dirty(vec![100..108]));
        let at = bytes.len() as u64;
        bytes.extend(barrier(at, upto));
        append(&mut bytes, &Record::Dirty(vec![200..208]));
        let killed = recovered(&bytes, &BOOT).held;
        assert_eq!(killed.dirty, [0..8, 100..108, 200..208].into_iter().collect());
        assert_eq!(killed.clean, set(0..2));
        let cut = recovered(&bytes, &LATER);
        assert_eq!(cut.held.dirty, set(0..8));
        assert_eq!((cut.held.clean.clone(), cut.held.suspect.clone()), (RunSet::new(), set(1..2)));
        // Chunk 0 is dirty in part: the rest of it is void. Chunk 1 is looked at first.
        assert_eq!(cut.void().collect::<RunSet>(), [8..512, 1024..4000].into_iter().collect());
    }

    #[test]
    fn commits_are_replayed() {
        let mut bytes = snapshot(&BOOT, &CUT, b"base", &Held::default());
        append(&mut bytes, &Record::Dirty(vec![0..600]));
        append(&mut bytes, &Record::Frozen);
        append(&mut bytes, &Record::Dirty(vec![16..24]));
        let open = recovered(&bytes, &BOOT);
        assert_eq!((open.held.dirty, open.manifest.as_slice()), (set(0..600), &b"base"[..]));
        append(&mut bytes, &Record::Committed);
        let found = recovered(&bytes, &BOOT);
        assert_eq!(found.manifest, b"next");
        assert_eq!((found.held.dirty, found.held.clean), (set(16..24), set(0..1)));
        assert_eq!(found.held.kept, set(512..600));
    }

    #[test]
    fn a_closed_disk_is_trusted_by_the_next_boot() {
        let held = Held { clean: set(0..2), ..Held::default() };
        let mut bytes = snapshot(&BOOT, &CUT, b"base", &held);
        let at = bytes.len() as u64;
        bytes.extend(closed(at));
        let found = recovered(&bytes, &LATER);
        assert!(found.closed);
        assert_eq!(found.held, held);
    }

    #[test]
    fn a_torn_tail_ends_the_journal_and_damage_never_panics() {
        let mut bytes = snapshot(&BOOT, &CUT, b"base", &Held::default());
        let whole = bytes.len();
        append(&mut bytes, &Record::Dirty(vec![0..8]));
        for end in whole..bytes.len() {
            assert!(recovered(&bytes[..end], &BOOT).held.dirty.is_empty());
        }
        let mut chance = base::Chance::from_seed(1);
        for _ in 0..5000 {
            let mut bad = bytes.clone();
            for _ in 0..=chance.below(3) {
                let at = usize::try_from(chance.below(bad.len() as u64)).unwrap();
                bad[at] = u8::try_from(chance.below(256)).unwrap();
            }
            let _ = recover(&bad, &BOOT, Mutant::None);
        }
        for end in 0..whole {
            assert!(recover(&bytes[..end], &BOOT, Mutant::None).is_err());
        }
    }
}
