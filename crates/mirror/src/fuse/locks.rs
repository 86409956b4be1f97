//! Locks on sectors: writes of whole sectors may overlap, but a write that changes part of a sector excludes all
//! others there.
//!
//! Claims are served in order: a claim waits only for earlier ones that conflict with it. So there is neither
//! starvation nor deadlock.

use std::ops::Range;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// See the module. Ranges are in bytes and cover whole sectors.
#[derive(Debug, Default)]
pub(super) struct SectorLocks {
    queue: Mutex<Queue>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    last: u64,
    /// In the order of arrival. At most one for each writing thread.
    claims: Vec<Claim>,
}

#[derive(Debug)]
struct Claim {
    id: u64,
    all: Range<u64>,
    /// The sectors that are changed only in part: the first, the last, or none (empty ranges).
    alone: [Range<u64>; 2],
}

impl Claim {
    fn conflicts(&self, other: &Self) -> bool {
        let meet = |alone: &[Range<u64>; 2], all: &Range<u64>| alone.iter().any(|one| meet(one, all));
        meet(&self.alone, &other.all) || meet(&other.alone, &self.all)
    }
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

impl SectorLocks {
    /// Waits until `all` may be written, and no other claim touches the sectors `alone` in it.
    pub(super) fn claim(&self, all: Range<u64>, alone: [Range<u64>; 2]) -> Claimed<'_> {
        let mut queue = self.lock();
        queue.last += 1;
        let id = queue.last;
        queue.claims.push(Claim { id, all, alone });
        while queue.waits(id) {
            self.freed.wait(&mut queue);
        }
        Claimed { locks: self, id }
    }

    /// Claims `all` for a write of whole sectors. `None` if it would have to wait.
    pub(super) fn try_claim(&self, all: Range<u64>) -> Option<Claimed<'_>> {
        let mut queue = self.lock();
        queue.last += 1;
        let id = queue.last;
        queue.claims.push(Claim { id, all, alone: [0..0, 0..0] });
        if queue.waits(id) {
            queue.claims.pop();
            return None;
        }
        Some(Claimed { locks: self, id })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

impl Queue {
    fn waits(&self, id: u64) -> bool {
        let at = self.claims.iter().position(|claim| claim.id == id).expect("it was just put there");
        let (earlier, from) = self.claims.split_at(at);
        earlier.iter().any(|claim| claim.conflicts(&from[0]))
    }
}

/// A claim that holds until it is dropped.
pub(super) struct Claimed<'a> {
    locks: &'a SectorLocks,
    id: u64,
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        let mut queue = self.locks.lock();
        queue.claims.retain(|claim| claim.id != self.id);
        let wake = !queue.claims.is_empty();
        drop(queue);
        if wake {
            self.locks.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Range<u64> = 0..0;

    fn waiting(locks: &SectorLocks, all: Range<u64>, alone: [Range<u64>; 2]) -> bool {
        let mut queue = locks.lock();
        queue.last += 1;
        let id = queue.last;
        queue.claims.push(Claim { id, all, alone });
        let waits = queue.waits(id);
        queue.claims.pop();
        waits
    }

    #[test]
    fn whole_sectors_go_together_and_parts_alone() {
        let locks = SectorLocks::default();
        let whole = locks.claim(0..4096, [NONE, NONE]);
        assert!(!waiting(&locks, 0..4096, [NONE, NONE]));
        assert!(waiting(&locks, 512..1024, [512..1024, NONE]));
        assert!(!waiting(&locks, 4096..4608, [4096..4608, NONE]));
        drop(whole);
        let part = locks.claim(0..2048, [0..512, 1536..2048]);
        assert!(!waiting(&locks, 512..1536, [NONE, NONE]));
        assert!(waiting(&locks, 0..512, [NONE, NONE]));
        assert!(waiting(&locks, 512..2048, [NONE, NONE]));
        assert!(locks.try_claim(1024..2048).is_none() && locks.try_claim(512..1536).is_some());
        drop(part);
        assert!(locks.lock().claims.is_empty());
    }

    #[test]
    fn one_that_is_alone_is_not_overtaken() {
        let locks = SectorLocks::default();
        let first = locks.claim(0..512, [NONE, NONE]);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| drop(locks.claim(0..512, [0..512, NONE])));
            while locks.lock().claims.len() < 2 {
                std::thread::yield_now();
            }
            assert!(waiting(&locks, 0..512, [NONE, NONE]));
            drop(first);
            second.join().unwrap();
        });
    }
}
