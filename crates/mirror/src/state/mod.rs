//! The format of the journal, and its recovery after a crash; see `formats/mirror.md`.
//!
//! This code handles only bytes and sets: the driver has the files, and the simulator has files that lose unsynced
//! data.

mod recover;

use std::ops::Range;

use base::{Digest, Error, ErrorKind, Result, RunSet};

use crate::machine::{Cut, Held, Record, Sectors};
pub use recover::{Recovered, recover};

const MAGIC: [u8; 4] = *b"DCMJ";
const VERSION: u8 = 1;
/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 64;
const CHECK_BYTES: usize = 8;
const HEAD_BYTES: usize = 8;
/// Maximum length of a record's payload in bytes: a manifest, or runs.
const PAYLOAD_BYTES_MAX: usize = 4 << 20;
/// Maximum number of runs in one record of a snapshot.
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
const IN_DOUBT: u8 = 11;
const LANDED: u8 = 12;
const FREED: u8 = 13;
/// Length in bytes of the token that identifies a commit.
pub const TOKEN_BYTES: usize = 16;

/// 128 bits that differ for each start of the machine.
pub type BootId = [u8; 16];

fn corrupt(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, text)
}

/// What a commit will be published as. It is recorded before that, so that the version can be recognized if the
/// process dies before it learns that the version was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InDoubt {
    /// Random bytes that identify the commit; the version carries them.
    pub token: [u8; TOKEN_BYTES],
    /// The image.
    pub image: String,
}

impl InDoubt {
    /// The payload of a record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [&self.token[..], self.image.as_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let (token, image) = bytes
            .split_first_chunk()
            .ok_or_else(|| corrupt("the record of a commit in doubt is too short"))?;
        let image = std::str::from_utf8(image)
            .map_err(|_| corrupt("the record of a commit in doubt does not name an image"))?;
        Ok(Self { token: *token, image: image.to_owned() })
    }
}

/// The versions that a disk is based on. Manifests are in their envelopes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lineage {
    /// The version that it began as, or was last committed as.
    pub base: Vec<u8>,
    /// The version that the last commit made on top of changes of other writers.
    pub landed: Option<Vec<u8>>,
    /// A commit of which it is not known whether it was published.
    pub in_doubt: Option<InDoubt>,
}

/// One record, as it is written at offset `at` of the journal.
fn seal(at: u64, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + payload.len() + CHECK_BYTES);
    let len = u32::try_from(payload.len()).expect("payloads are bounded");
    bytes.extend(len.to_le_bytes());
    bytes.extend([kind, 0, 0, 0]);
    bytes.extend_from_slice(payload);
    bytes.extend(check(at, &bytes));
    bytes
}

/// The checksum includes the offset, so a record is valid only where it was written.
fn check(at: u64, bytes: &[u8]) -> [u8; CHECK_BYTES] {
    let mut input = Vec::with_capacity(8 + bytes.len());
    input.extend(at.to_le_bytes());
    input.extend_from_slice(bytes);
    *Digest::of(&input).0.first_chunk().expect("a digest is longer")
}

fn runs(runs: impl IntoIterator<Item = Range<u64>>) -> Vec<u8> {
    runs.into_iter().flat_map(|run| [run.start.to_le_bytes(), run.end.to_le_bytes()].concat()).collect()
}

/// The bytes of `record` at offset `at`. `added` is the manifest of the version for [`Record::Committed`],
/// [`Record::Landed`] and [`Record::Rebased`], and the [`InDoubt`] for [`Record::Frozen`].
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

/// A barrier at offset `at`. It says that all records before offset `upto` are durable, and the data that they
/// describe.
#[must_use]
pub fn barrier(at: u64, upto: u64) -> Vec<u8> {
    seal(at, BARRIER, &upto.to_le_bytes())
}

/// The last record of a disk, written at offset `at` when everything was durable.
#[must_use]
pub fn closed(at: u64) -> Vec<u8> {
    seal(at, CLOSED, &[])
}

/// A complete journal that states `held`, all of it durable, for a disk of this `lineage`.
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
    let in_doubt = lineage.in_doubt.as_ref().map(InDoubt::encode);
    if !held.frozen.is_empty() {
        add_set(&mut bytes, DIRTY, &held.frozen);
        add_set(&mut bytes, FREED, &held.frozen_freed);
        add(&mut bytes, FROZEN, &[]);
    }
    in_doubt.iter().for_each(|in_doubt| add(&mut bytes, IN_DOUBT, in_doubt));
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
        recover(bytes, boot).unwrap()
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
        let in_doubt = Some(InDoubt { token: [7; TOKEN_BYTES], image: "web".to_owned() });
        let lineage = Lineage { base: b"base".to_vec(), landed: Some(b"theirs".to_vec()), in_doubt };
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
        // Chunk 0 is partly dirty: the rest of it is void. Chunk 1 must be checked.
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
        let in_doubt = Some(InDoubt { token: *b"next and some mo", image: "re".to_owned() });
        assert_eq!(recovered(&bytes, &BOOT).lineage.in_doubt, in_doubt);
        append(&mut bytes, &Record::Abandoned);
        assert_eq!(recovered(&bytes, &BOOT).lineage.in_doubt, in_doubt, "who gave up knows nothing");
        let (mut landed, mut rebased) = (bytes.clone(), bytes);
        append(&mut landed, &Record::Landed);
        let found = recovered(&landed, &BOOT);
        assert_eq!(found.held.dirty, set(0..600));
        assert_eq!((found.lineage.base, found.lineage.in_doubt), (b"base".to_vec(), None));
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
            let _ = recover(&bad, &BOOT);
        }
        for end in 0..whole {
            assert!(recover(&bytes[..end], &BOOT).is_err());
        }
    }
}
