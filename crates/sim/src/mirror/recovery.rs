//! Recovery: what a process does when it opens the disk that another process left, and the rules that must hold then.

use base::Chance;
use mirror::machine::{Core, Cut, Held};
use mirror::state::{self, BootId, InDoubt, Lineage};

use super::medium::{Medium, Value};

/// How a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// kill -9: all writes survive.
    Kill,
    /// The power fails.
    Cut,
    /// An orderly end: everything is made durable, then the machine restarts.
    Close,
}

/// The result of recovery.
pub(super) struct Found {
    /// The lineage of the disk.
    pub of: Of,
    /// Which sectors are in the local file.
    pub held: Held,
    pub journal_end: u64,
    /// The content of every sector.
    pub content: Vec<Value>,
}

/// The lineage of a disk, with indices of versions and the number of a commit in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Of {
    pub base: usize,
    pub landed: Option<usize>,
    pub in_doubt: Option<u64>,
}

impl Of {
    pub(super) fn lineage(&self) -> Lineage {
        let in_doubt = self.in_doubt.map(in_doubt);
        Lineage { base: named(self.base), landed: self.landed.map(named), in_doubt }
    }

    fn read(lineage: &Lineage) -> Self {
        let number = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().expect("made here"));
        Self {
            base: number(&lineage.base) as usize,
            landed: lineage.landed.as_ref().map(|landed| number(landed) as usize),
            in_doubt: lineage.in_doubt.as_ref().map(|in_doubt| number(&in_doubt.token)),
        }
    }
}

/// The name of a version in records.
pub(super) fn named(version: usize) -> Vec<u8> {
    (version as u64).to_le_bytes().to_vec()
}

/// A commit in doubt, by its number.
pub(super) fn in_doubt(number: u64) -> InDoubt {
    let mut token = [0; state::TOKEN_BYTES];
    token[..8].copy_from_slice(&number.to_le_bytes());
    InDoubt { token, image: "disk".to_owned() }
}

pub(super) fn boot_id(boot: u64) -> BootId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&boot.to_le_bytes());
    id
}

/// Ends a process in good order.
pub(super) fn close(medium: &mut Medium) {
    let mark = medium.mark();
    medium.synced(&mark);
    let at = medium.journal().len() as u64;
    medium.append(&state::barrier(at, at));
    let at = medium.journal().len() as u64;
    let end = medium.append(&state::closed(at));
    medium.journal_synced(end);
}

/// Recovers the state from `medium`. The recovery may be interrupted and start again.
pub(super) fn recover(
    medium: &mut Medium,
    (boot, power): (u64, bool),
    versions: &[Vec<Value>],
    chance: &mut Chance,
) -> Result<Found, String> {
    loop {
        let recovered =
            state::recover(medium.journal(), &boot_id(boot)).map_err(|error| base::chain(&error))?;
        let cut = recovered.cut;
        let of = Of::read(&recovered.lineage);
        if !recovered.closed {
            let void: Vec<_> = recovered.void().collect();
            for run in void {
                let zeros = vec![0; (run.end - run.start) as usize];
                medium.write(run.start, &zeros);
            }
        }
        if chance.hits(100_000) {
            // A crash during the recovery.
            if power {
                medium.cut(chance);
            }
            continue;
        }
        let mark = medium.mark();
        medium.synced(&mark);
        let journal = state::snapshot(&boot_id(boot), &cut, &recovered.lineage, &recovered.held);
        let journal_end = journal.len() as u64;
        medium.replace_journal(journal);
        let content = content(medium, &recovered.held, &cut, &versions[of.base]);
        return Ok(Found { of, held: recovered.held, journal_end, content });
    }
}

/// The content that a reader finds: local sectors, else those of the version.
fn content(medium: &Medium, held: &Held, cut: &Cut, base: &[Value]) -> Vec<Value> {
    let mut content = medium.read(&(0..cut.size_sectors));
    for run in held.missing(cut, &(0..cut.size_sectors)).iter() {
        let run = run.start as usize..run.end as usize;
        content[run.clone()].copy_from_slice(&base[run]);
    }
    content
}

/// Describes the first sector that should equal the version and does not.
pub(super) fn differs(medium: &Medium, core: &Core, base: &[Value]) -> Option<String> {
    let (held, cut) = (core.held(), core.cut());
    let now = medium.read(&(0..cut.size_sectors));
    let clean = held.clean.iter().map(|chunks| cut.sectors_of(chunks)).chain(held.kept.iter());
    clean
        .flatten()
        .filter(|&sector| {
            let one = sector..sector + 1;
            !held.dirty.touches(&one) && !held.frozen.touches(&one)
        })
        .find(|&sector| now[sector as usize] != base[sector as usize])
        .map(|sector| {
            format!(
                "sector {sector} holds {:#x}, the version has {:#x}",
                now[sector as usize], base[sector as usize]
            )
        })
}
