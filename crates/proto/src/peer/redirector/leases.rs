//! Who fetches what from afar for its place, so that it crosses once.

use std::collections::HashMap;

use base::{Duration, Instant};

use crate::peer::{MemberId, Part};

/// How long others wait for a member that is alive.
const LEASE: Duration = Duration::from_secs(30);
/// Most leases of a swarm. Beyond it objects may cross twice.
const LEASES_MAX: usize = 1 << 16;

#[derive(Debug, Clone, Copy)]
struct Lease {
    member: MemberId,
    mask: u32,
    until: Instant,
}

/// The leases of a swarm, by place and batch.
#[derive(Debug, Default)]
pub(super) struct Leases {
    by_batch: HashMap<(u32, u32), Vec<Lease>>,
    count: usize,
}

impl Leases {
    /// Which of the objects nobody else at `place` is about to have.
    pub(super) fn open(&self, now: Instant, place: u32, member: MemberId, part: Part) -> u32 {
        let leases = self.by_batch.get(&(place, part.batch)).map_or(&[][..], Vec::as_slice);
        let others = leases.iter().filter(|lease| lease.member != member && lease.until > now);
        others.fold(part.mask, |open, lease| open & !lease.mask)
    }

    /// `member` will fetch these objects from afar.
    pub(super) fn take(&mut self, now: Instant, place: u32, member: MemberId, part: Part) {
        if self.count >= LEASES_MAX {
            return;
        }
        let leases = self.by_batch.entry((place, part.batch)).or_default();
        let until = now + LEASE;
        match leases.iter_mut().find(|lease| lease.member == member) {
            // A member that asks again does not keep the others waiting for longer.
            Some(lease) if lease.until > now => lease.mask |= part.mask,
            Some(lease) => (lease.mask, lease.until) = (part.mask, until),
            None => {
                self.count += 1;
                leases.push(Lease { member, mask: part.mask, until });
            }
        }
    }

    /// `member` will not fetch these objects now.
    pub(super) fn release(&mut self, place: u32, member: MemberId, part: Part) {
        let leases = self.by_batch.get_mut(&(place, part.batch)).map_or(&mut [][..], Vec::as_mut_slice);
        leases.iter_mut().filter(|lease| lease.member == member).for_each(|lease| lease.mask &= !part.mask);
    }

    /// Ends the leases that have passed, and those of members that are gone.
    pub(super) fn sweep(&mut self, now: Instant, lives: impl Fn(MemberId) -> bool) {
        self.by_batch.retain(|_, leases| {
            leases.retain(|lease| lease.until > now && lives(lease.member));
            !leases.is_empty()
        });
        self.count = self.by_batch.values().map(Vec::len).sum();
    }
}
