//! Connects the prefetching of neighbours ("bets", see [`super::spatial`]) to the core.

use base::Instant;

use crate::machine::fetch_queue::Priority;
use crate::machine::state::Core;
use crate::machine::types::Sectors;

impl Core {
    /// Bets on the neighbours of `fresh`: chunks that `range` touches for the first time. Chunks that other machines
    /// read too are left out: their order predicts better what comes next. Returns whether there was any bet.
    pub(in crate::machine) fn bet_beside(&mut self, fresh: &[u64], range: &Sectors) -> bool {
        if self.config.ahead_chunks_max == 0 {
            return false;
        }
        let (held, cut) = (&self.held, &self.cut);
        let is_here = |chunk: u64| held.is_here(cut, &cut.chunk(chunk));
        let unread = self.counters.prefetched_unused_bytes();
        let mut any = false;
        for &chunk in fresh {
            if !self.is_foretold(chunk) && !self.is_empty(chunk) {
                any |= self.neighbours.bet(chunk, range, cut, unread, is_here);
            }
        }
        any
    }

    /// Wants the neighbours whose delay has passed.
    pub(in crate::machine) fn place_bets(&mut self, now: Instant) {
        let demand = self.supply.next_priority() == Some(Priority::Demand);
        let chunks = self.neighbours.ready(now, demand);
        self.read_ahead(chunks);
    }
}
