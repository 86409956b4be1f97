//! Which objects are asked for next.

use base::Instant;

use super::{DOUBLED_MAX, LATE_AFTER, Part, Seeker};
use crate::peer::availability::lowest;

impl Seeker {
    /// The next objects that are missing and not under way.
    pub(super) fn next_part(&mut self, now: Instant) -> Option<Part> {
        let failed = std::mem::take(&mut self.failed);
        let open = |(batch, mask)| (batch, mask & self.missing.mask(batch) & !self.out.mask(batch));
        self.failed = failed.into_iter().map(open).filter(|(_, mask)| *mask != 0).collect();
        for (&batch, &mask) in &self.failed {
            let mask = mask & !self.delayed(now, batch);
            if mask != 0 {
                return Some(Part { batch, mask: lowest(mask, self.config.request_objects) });
            }
        }
        let batches = self.missing.batches();
        let cursor = self.cursor.unwrap_or_else(|| self.share());
        for step in 0..batches {
            let batch = (cursor + step) % batches;
            let mask = self.missing.mask(batch) & !self.out.mask(batch) & !self.delayed(now, batch);
            if mask != 0 {
                self.cursor = Some(batch);
                return Some(Part { batch, mask: lowest(mask, self.config.request_objects) });
            }
        }
        None
    }

    /// The objects of a batch that are not to be asked for yet.
    fn delayed(&self, now: Instant, batch: u32) -> u32 {
        let delayed = self.delayed.iter().filter(|(part, until)| part.batch == batch && *until > now);
        delayed.fold(0, |mask, (part, _)| mask | part.mask)
    }

    /// The batch with which this member begins: at its share of what it misses, so that members begin at different
    /// places. 0, 1/2, 1/4, 3/4, 1/8, …: wherever the number of members ends, the shares are spread.
    fn share(&self) -> u32 {
        let before = (u64::from(self.config.rank.reverse_bits()) * u64::from(self.missing.count())) >> 32;
        let mut seen = 0;
        let passes = |batch: &u32| {
            seen += u64::from(self.missing.mask(*batch).count_ones());
            seen > before
        };
        (0..self.missing.batches()).find(passes).unwrap_or(0)
    }

    /// At the end: objects that are late, to be asked of somebody else.
    pub(super) fn late_part(&mut self, now: Instant) -> Option<Part> {
        if !self.asked.is_empty() || !self.delayed.is_empty() || !self.held.is_empty() {
            return None;
        }
        let (part, member) = self.pulls.late(now, LATE_AFTER, DOUBLED_MAX)?;
        self.counters.doubled += u64::from(part.count());
        self.known.avoid_for(now, member, LATE_AFTER);
        Some(part)
    }
}
