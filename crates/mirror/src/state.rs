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
const PROMISE: u8 = 11;
const LANDED: u8 = 12;
const FREED: u8 = 13;
/// Length of what tells a commit from all others.
pub const TOKEN_BYTES: usize = 16;

/// 128 bits that are other after each start of the machine.
pub type BootId = [u8; 16];

fn corrupt(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, text)
}

/// What a commit is to be published as. It is written down before, so that the version is known again if the process dies before
/// it is told that it was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    /// Random bytes, other for each base of each disk; the version carries them.
    pub token: [u8; TOKEN_BYTES],
    /// The image.
    pub image: String,
}

impl Promise {
    /// As a record has it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [&self.token[..], self.image.as_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let (token, image) = bytes.split_first_chunk().ok_or_else(|| corrupt("a promise ends early"))?;
        let image = std::str::from_utf8(image).map_err(|_| corrupt("a promise names no image"))?;
        Ok(Self { token: *token, image: image.to_owned() })
    }
}

/// What a disk is of. Manifests are in their envelopes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lineage {
    /// The version that it began as, or was last committed as.
    pub base: Vec<u8>,
    /// The version of others onto which what is dirty was committed last.
    pub landed: Option<Vec<u8>>,
    /// A commit of which nobody knows how it ended.
    pub promise: Option<Promise>,
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

/// `record` as it is appended at offset `at`. `added` is the manifest of the version for [`Record::Committed`],
/// [`Record::Landed`] and [`Record::Rebased`], the [`Promise`] for [`Record::Frozen`].
#[must_use]
pub fn encode(at: u64, record: &Record, added: &[u8]) -> Vec<u8> {
    match record {
        Record::Dirty(sectors) => seal(at, DIRTY, &runs(sectors.iter().cloned())),
        Record::Clean(chunks) => seal(at, CLEAN, &runs(chunks.iter().cloned())),
        Record::Freed(sectors) => seal(at, FREED, &runs(sectors.iter().cloned())),
        Record::Frozen => seal(at, FROZEN, added),
        Record::Committed => seal(at, COMMITTED, added),
        Record::Landed => seal(at, LANDED, added),
        Record::Abandoned => seal(at, ABANDONED, &[]),
        Record::Rebased => seal(at, BASE, added),
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

/// A whole journal that says `held`, all of it durable, of a disk of this `lineage`.
#[must_use]
pub fn snapshot(boot: &BootId, cut: &Cut, lineage: &Lineage, held: &Held) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 << 12);
    bytes.extend(MAGIC);
    bytes.extend([VERSION, cut.height, 0, 0]);
    bytes.extend(boot);
    bytes.extend(cut.size_sectors.to_le_bytes());
    bytes.extend(cut.chunk_sectors.to_le_bytes());
    bytes.resize(HEADER_BYTES - CHECK_BYTES, 0);
    bytes.extend(check(0, &bytes));
    add(&mut bytes, BASE, &lineage.base);
    lineage.landed.iter().for_each(|manifest| add(&mut bytes, LANDED, manifest));
    add_set(&mut bytes, CLEAN, &held.clean);
    add_set(&mut bytes, SUSPECT, &held.suspect);
    add_set(&mut bytes, KEPT, &held.kept);
    let promise = lineage.promise.as_ref().map(Promise::encode);
    if !held.frozen.is_empty() {
        add_set(&mut bytes, DIRTY, &held.frozen);
        add_set(&mut bytes, FREED, &held.frozen_freed);
        add(&mut bytes, FROZEN, &[]);
    }
    promise.iter().for_each(|promise| add(&mut bytes, PROMISE, promise));
    add_set(&mut bytes, DIRTY, &held.dirty);
    add_set(&mut bytes, FREED, &held.freed);
    let at = bytes.len() as u64;
    bytes.extend(barrier(at, at));
    bytes
}

fn add(journal: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    let record = seal(journal.len() as u64, kind, payload);
    journal.extend(record);
}

fn add_set(journal: &mut Vec<u8>, kind: u8, set: &RunSet) {
    let all: Vec<Sectors> = set.iter().collect();
    all.chunks(SNAPSHOT_RUNS_MAX).for_each(|some| add(journal, kind, &runs(some.iter().cloned())));
}

/// What a journal says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// How the disk is cut.
    pub cut: Cut,
    /// What it is of.
    pub lineage: Lineage,
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
    // A barrier speaks of what stands before it, whatever it says.
    let barriers = records.iter().filter(|record| record.kind == BARRIER);
    let covered = barriers.map(|barrier| barrier.number().min(barrier.at)).max();
    let closed = records.last().is_some_and(|record| record.kind == CLOSED);
    let trusts_all = closed || begun == *boot || Mutant::UsesUnbarriered.is(mutant);
    let covered = covered.ok_or_else(|| corrupt("the journal has no barrier"))?;
    let (mut lineage, mut held) = (Lineage::default(), Held::default());
    for record in records.iter().filter(|record| trusts_all || record.at < covered) {
        apply(record, &cut, &mut held, &mut lineage)?;
    }
    if Mutant::ForgetsPromise.is(mutant) {
        lineage.promise = None;
    }
    // A commit of which nobody knows how it ended.
    if Mutant::ForgetsFrozen.is(mutant) {
        held.frozen = RunSet::new()
    } else {
        held.abandon()
    }
    let was_cut = !closed && begun != *boot;
    if was_cut && !Mutant::TrustsFreed.is(mutant) {
        // Something may have been written there without a record.
        held.freed = RunSet::new();
    }
    if was_cut && !Mutant::TrustsSuspects.is(mutant) {
        held.kept = RunSet::new();
        let clean = std::mem::take(&mut held.clean);
        held.suspect.extend(&clean);
    }
    if !closed {
        // What is dirty in part can't be held against a digest: the rest of it is cleared, and fetched again.
        let dirty: Vec<Range<u64>> = held.dirty.iter().map(|run| cut.chunks_of(&run)).collect();
        dirty.into_iter().for_each(|chunks| held.suspect.remove(chunks));
    }
    if lineage.base.is_empty() {
        return Err(corrupt("the journal names no version"));
    }
    Ok(Recovered { cut, lineage, held, closed })
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
            if !record.payload.is_empty() {
                lineage.promise = Some(Promise::decode(record.payload)?);
            }
        }
        PROMISE => lineage.promise = Some(Promise::decode(record.payload)?),
        ABANDONED => held.abandon(),
        LANDED => {
            lineage.landed = Some(record.payload.to_vec());
            lineage.promise = None;
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

    fn base() -> Lineage {
        Lineage { base: b"base".to_vec(), ..Lineage::default() }
    }

    fn recovered(bytes: &[u8], boot: &BootId) -> Recovered {
        recover(bytes, boot, Mutant::None).unwrap()
    }

    fn append(bytes: &mut Vec<u8>, record: &Record) {
        let record = encode(bytes.len() as u64, record, b"next and some more");
        bytes.extend(record);
    }

    #[test]
    fn a_snapshot_says_what_it_was_made_of() {
        let held = Held {
            dirty: set(5..9),
            freed: set(6..8),
            frozen: RunSet::new(),
            frozen_freed: RunSet::new(),
            kept: set(600..700),
            clean: set(3..5),
            suspect: set(6..7),
        };
        let promise = Some(Promise { token: [7; TOKEN_BYTES], image: "web".to_owned() });
        let lineage = Lineage { base: b"base".to_vec(), landed: Some(b"theirs".to_vec()), promise };
        let bytes = snapshot(&BOOT, &CUT, &lineage, &held);
        let found = recovered(&bytes, &BOOT);
        assert_eq!((found.held, found.lineage, found.cut), (held, lineage, CUT));
    }

    #[test]
    fn after_a_kill_all_records_count_after_a_power_cut_those_that_a_barrier_covers() {
        let mut bytes = snapshot(&BOOT, &CUT, &base(), &Held::default());
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
    fn what_was_to_be_checked_when_the_disk_was_closed_still_is() {
        let held = Held { suspect: set(1..2), dirty: set(512..520), ..Held::default() };
        let mut bytes = snapshot(&BOOT, &CUT, &base(), &held);
        // Killed: the rest of the chunk is cleared. Closed: nothing is.
        assert!(recovered(&bytes, &BOOT).held.suspect.is_empty());
        let at = bytes.len() as u64;
        bytes.extend(closed(at));
        assert_eq!(recovered(&bytes, &LATER).held.suspect, set(1..2));
    }

    #[test]
    fn a_barrier_covers_nothing_behind_it() {
        let mut bytes = snapshot(&BOOT, &CUT, &base(), &Held::default());
        append(&mut bytes, &Record::Dirty(vec![0..8]));
        let at = bytes.len() as u64;
        bytes.extend(barrier(at, 4 * at));
        append(&mut bytes, &Record::Dirty(vec![100..108]));
        assert_eq!(recovered(&bytes, &LATER).held.dirty, set(0..8));
    }

    #[test]
    fn commits_are_replayed() {
        let mut bytes = snapshot(&BOOT, &CUT, &base(), &Held::default());
        append(&mut bytes, &Record::Dirty(vec![0..600]));
        append(&mut bytes, &Record::Frozen);
        append(&mut bytes, &Record::Dirty(vec![16..24]));
        let open = recovered(&bytes, &BOOT);
        assert_eq!((open.held.dirty, open.lineage.base.as_slice()), (set(0..600), &b"base"[..]));
        append(&mut bytes, &Record::Committed);
        let found = recovered(&bytes, &BOOT);
        assert_eq!(found.lineage.base, b"next and some more");
        assert_eq!((found.held.dirty, found.held.clean), (set(16..24), set(0..1)));
        assert_eq!(found.held.kept, set(512..600));
    }

    #[test]
    fn a_promise_is_kept_until_it_is_known_how_it_ended() {
        let mut bytes = snapshot(&BOOT, &CUT, &base(), &Held::default());
        append(&mut bytes, &Record::Dirty(vec![0..600]));
        append(&mut bytes, &Record::Frozen);
        let promise = Some(Promise { token: *b"next and some mo", image: "re".to_owned() });
        assert_eq!(recovered(&bytes, &BOOT).lineage.promise, promise);
        append(&mut bytes, &Record::Abandoned);
        assert_eq!(recovered(&bytes, &BOOT).lineage.promise, promise, "who gave up knows nothing");
        let (mut landed, mut rebased) = (bytes.clone(), bytes);
        append(&mut landed, &Record::Landed);
        let found = recovered(&landed, &BOOT);
        assert_eq!(found.held.dirty, set(0..600));
        assert_eq!((found.lineage.base, found.lineage.promise), (b"base".to_vec(), None));
        assert_eq!(found.lineage.landed.unwrap(), b"next and some more");
        append(&mut rebased, &Record::Rebased);
        let found = recovered(&rebased, &BOOT);
        assert_eq!(found.held.dirty, set(0..600));
        assert_eq!(found.lineage, Lineage { base: b"next and some more".to_vec(), ..Lineage::default() });
    }

    #[test]
    fn what_is_free_is_free_until_it_is_written_or_the_power_fails() {
        let mut bytes = snapshot(&BOOT, &CUT, &base(), &Held::default());
        append(&mut bytes, &Record::Freed(vec![0..600]));
        append(&mut bytes, &Record::Dirty(vec![16..24]));
        let freed = [0..16, 24..600].into_iter().collect::<RunSet>();
        assert_eq!(recovered(&bytes, &BOOT).held.freed, freed);
        append(&mut bytes, &Record::Frozen);
        append(&mut bytes, &Record::Dirty(vec![32..40]));
        let found = recovered(&bytes, &BOOT).held;
        assert_eq!(found.freed, [0..16, 24..32, 40..600].into_iter().collect::<RunSet>());
        assert_eq!(found.dirty, set(0..600));
        let at = bytes.len() as u64;
        bytes.extend(barrier(at, at));
        let found = recovered(&bytes, &LATER).held;
        assert_eq!((found.dirty, found.freed), (set(0..600), RunSet::new()));
    }

    #[test]
    fn a_closed_disk_is_trusted_by_the_next_boot() {
        let held = Held { clean: set(0..2), ..Held::default() };
        let mut bytes = snapshot(&BOOT, &CUT, &base(), &held);
        let at = bytes.len() as u64;
        bytes.extend(closed(at));
        let found = recovered(&bytes, &LATER);
        assert!(found.closed);
        assert_eq!(found.held, held);
    }

    #[test]
    fn a_torn_tail_ends_the_journal_and_damage_never_panics() {
        let mut bytes = snapshot(&BOOT, &CUT, &base(), &Held::default());
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
