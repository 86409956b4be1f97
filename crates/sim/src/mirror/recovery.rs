//! What a daemon does when it starts over what another one left, and what must hold then.

use base::Chance;
use mirror::core::{Core, Cut, Held, Mutant};
use mirror::state::{self, BootId};

use super::medium::{Medium, Value};

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// kill -9: what was written stays written.
    Kill,
    /// The power fails.
    Cut,
    /// Everything is made durable, and the machine is started anew.
    Close,
}

/// What was found.
pub struct Found {
    /// The version that the disk is on.
    pub base: usize,
    /// What is in the local file.
    pub held: Held,
    pub journal_end: u64,
    /// What every sector holds.
    pub content: Vec<Value>,
}

pub fn boot_id(boot: u64) -> BootId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&boot.to_le_bytes());
    id
}

/// Ends a life in good order.
pub fn close(medium: &mut Medium) {
    let mark = medium.mark();
    medium.synced(&mark);
    let at = medium.journal().len() as u64;
    medium.append(&state::barrier(at, at));
    let at = medium.journal().len() as u64;
    let end = medium.append(&state::closed(at));
    medium.journal_synced(end);
}

/// Starts over what `medium` holds. It may be ended again half way.
pub fn recover(
    medium: &mut Medium,
    (boot, power): (u64, bool),
    versions: &[Vec<Value>],
    mutant: Mutant,
    chance: &mut Chance,
) -> Result<Found, String> {
    loop {
        let recovered = state::recover(medium.journal(), &boot_id(boot), mutant)
            .map_err(|error| base::fault::chain(&error))?;
        let cut = recovered.cut;
        let base = u64::from_le_bytes(recovered.manifest[..].try_into().expect("made here")) as usize;
        if !recovered.closed && !Mutant::LeavesVoid.is(mutant) {
            let void: Vec<_> = recovered.void().collect();
            for run in void {
                let zeros = vec![0; (run.end - run.start) as usize];
                medium.write(run.start, &zeros);
            }
        }
        if chance.hits(100_000) {
            // It happens again, half way.
            if power {
                medium.cut(chance);
            }
            continue;
        }
        let mark = medium.mark();
        medium.synced(&mark);
        let journal = state::snapshot(&boot_id(boot), &cut, &recovered.manifest, &recovered.held);
        let journal_end = journal.len() as u64;
        medium.replace_journal(journal);
        let content = content(medium, &recovered.held, &cut, &versions[base]);
        return Ok(Found { base, held: recovered.held, journal_end, content });
    }
}

/// What a reader finds in every sector: what is here, else what the version has.
fn content(medium: &Medium, held: &Held, cut: &Cut, base: &[Value]) -> Vec<Value> {
    let mut content = medium.read(&(0..cut.size_sectors));
    for run in held.missing(cut, &(0..cut.size_sectors)).iter() {
        let run = run.start as usize..run.end as usize;
        content[run.clone()].copy_from_slice(&base[run]);
    }
    content
}

/// The first sector that counts as equal to the version and is not.
pub fn differs(medium: &Medium, core: &Core, base: &[Value]) -> Option<String> {
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
