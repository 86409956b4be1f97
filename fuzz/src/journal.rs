//! The journal of an attached disk, as it may lie there after a crash.

use mirror::machine::{Cut, Held, Record};
use mirror::state::{InDoubt, Lineage, TOKEN_BYTES, barrier, encode, recover, snapshot};

use crate::Target;

pub(crate) const JOURNAL: Target = Target { name: "journal", seeds, take };

const BOOTS: [[u8; 16]; 2] = [[1; 16], [2; 16]];

fn seeds() -> Vec<Vec<u8>> {
    let cut = Cut { size_sectors: 1 << 20, chunk_sectors: 512, height: 2 };
    let mut held = Held::default();
    (0..40).for_each(|at| held.dirty.insert(at * 100..at * 100 + 8));
    held.clean.insert(60..900);
    held.free(4000..4008);
    let in_doubt = Some(InDoubt { token: [7; TOKEN_BYTES], image: "web".to_owned() });
    let lineage = Lineage { base: b"a manifest".to_vec(), landed: Some(b"others".to_vec()), in_doubt };
    let mut bytes = snapshot(&BOOTS[0], &cut, &lineage, &held);
    let first = bytes.clone();
    let dirty = |start: u64| Record::Dirty(std::iter::once(start..start + 600).collect());
    let clean = Record::Clean(std::iter::once(3..9).collect());
    let freed = Record::Freed(std::iter::once(9000..9060).collect());
    let commit = [dirty(9000), clean, freed, Record::Frozen, dirty(9100), Record::Committed];
    let others = [Record::Abandoned, Record::Landed, Record::Rebased];
    for record in commit.into_iter().chain(others) {
        bytes.extend(encode(bytes.len() as u64, &record, b"the next version of it"));
        bytes.extend(barrier(bytes.len() as u64, bytes.len() as u64));
    }
    vec![first, bytes]
}

fn take(bytes: &[u8]) {
    for boot in &BOOTS {
        if let Ok(found) = recover(bytes, boot) {
            assert!(found.void().take(10_000).all(|run| run.end <= found.cut.size_sectors));
        }
    }
}
