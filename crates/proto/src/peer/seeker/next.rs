//! Which objects are asked for next.

use base::Instant;

use super::{DOUBLED_MAX, LATE_AFTER, Part, SCOUTS_MAX, SERVER_REQUESTS, Seeker, WAITS_MAX, Why};
use crate::peer::availability::lowest;

impl Seeker {
    /// What is asked for next, and why.
    pub(super) fn next_request(&mut self, now: Instant) -> Option<(Part, Why)> {
        let (window, of_server) = (self.window(now), self.pulls.of_server());
        let has_failed = self.has_failed();
        let next = self.asked.iter().filter(|asked| asked.why == Why::Next).map(|asked| asked.part.count());
        let to_server = of_server + next.sum::<u32>();
        let is_crowded =
            self.scouts.is_crowded(now) && self.urgent.is_empty() && !self.patience.is_direct(now);
        let has_enough = to_server >= SERVER_REQUESTS * self.config.request_objects;
        // While others lack the same, the server and the members do not keep each other waiting. Objects that members
        // failed to send may be left to the server, too, so that its part needs a bound of its own.
        let beside = if is_crowded { of_server.min(self.config.window_objects) } else { 0 };
        if self.out.count().saturating_sub(beside) >= window {
            return None;
        }
        if is_crowded && has_enough && !has_failed {
            let scouts = self.asked.iter().filter(|asked| asked.is_scout()).count();
            let (part, share) = (scouts < SCOUTS_MAX).then(|| self.scouted_part(now)).flatten()?;
            return Some((part, Why::Scouts(share)));
        }
        if self.delayed.iter().filter(|(_, until)| *until > now).count() >= WAITS_MAX {
            return None;
        }
        let next = self.next_part(now).map(|part| (part, Why::Next));
        next.or_else(|| self.late_part(now).map(|part| (part, Why::Doubles)))
    }

    /// The next objects that are missing and not under way.
    fn next_part(&mut self, now: Instant) -> Option<Part> {
        for (&batch, &mask) in &self.failed {
            let mask = mask & !self.delayed(now, batch);
            if mask != 0 {
                return Some(Part { batch, mask: lowest(mask, self.config.request_objects) });
            }
        }
        let cursor = self.cursor.unwrap_or_else(|| self.share_of(self.config.rank));
        let part = self.part_from(now, cursor)?;
        self.cursor = Some(part.batch);
        Some(part)
    }

    /// Whether objects are to be asked for before others, since they did not come from whom they were asked of.
    fn has_failed(&mut self) -> bool {
        let failed = std::mem::take(&mut self.failed);
        let open = |(batch, mask)| (batch, mask & self.missing.mask(batch) & !self.out.mask(batch));
        self.failed = failed.into_iter().map(open).filter(|(_, mask)| *mask != 0).collect();
        !self.failed.is_empty()
    }

    /// The next objects that others may have by now, where one of them began, and which share that is.
    fn scouted_part(&mut self, now: Instant) -> Option<(Part, usize)> {
        for share in self.scouts.open(now, self.config.rank) {
            let begin = *self.scouts.share(share);
            let cursor = begin.cursor.unwrap_or_else(|| self.share_of(begin.rank));
            if let Some(part) = self.part_from(now, cursor) {
                self.scouts.share(share).cursor = Some(part.batch);
                self.scouts.asked(share);
                return Some((part, share));
            }
        }
        None
    }

    /// The first objects at or after a batch that are missing and not under way.
    fn part_from(&self, now: Instant, cursor: u32) -> Option<Part> {
        let batches = self.missing.batches();
        let mut turns = (0..batches).map(|step| (cursor + step) % batches);
        turns.find_map(|batch| {
            let mask = self.missing.mask(batch) & !self.out.mask(batch) & !self.delayed(now, batch);
            (mask != 0).then(|| Part { batch, mask: lowest(mask, self.config.request_objects) })
        })
    }

    /// The objects of a batch that are not to be asked for yet.
    fn delayed(&self, now: Instant, batch: u32) -> u32 {
        let delayed = self.delayed.iter().filter(|(part, until)| part.batch == batch && *until > now);
        delayed.fold(0, |mask, (part, _)| mask | part.mask)
    }

    /// The batch with which the member of a rank begins: at its share of what this one misses, so that members begin at
    /// different places. 0, 1/2, 1/4, 3/4, 1/8, …: wherever the number of members ends, the shares are spread.
    fn share_of(&self, rank: u32) -> u32 {
        let before = (u64::from(rank.reverse_bits()) * u64::from(self.missing.count())) >> 32;
        let mut seen = 0;
        let passes = |batch: &u32| {
            seen += u64::from(self.missing.mask(*batch).count_ones());
            seen > before
        };
        (0..self.missing.batches()).find(passes).unwrap_or(0)
    }

    /// At the end: objects that are late, to be asked of somebody else.
    fn late_part(&mut self, now: Instant) -> Option<Part> {
        if !self.asked.is_empty() || !self.delayed.is_empty() || !self.held.is_empty() {
            return None;
        }
        let (part, member) = self.pulls.late(now, LATE_AFTER, DOUBLED_MAX)?;
        self.counters.doubled += u64::from(part.count());
        self.known.avoid_for(now, member, LATE_AFTER);
        Some(part)
    }
}
