//! What other machines read when they started: it is prefetched behind what is demanded, in their order, merged with
//! what is heard later, and given up where it does not pay.

use std::collections::{HashMap, HashSet, VecDeque};

use base::Instant;

/// Most chunks that are expected at a time, and most that are remembered to have been; more are not listened to.
pub(in crate::machine) const EXPECTED_MAX: usize = 1 << 16;
/// Chunks that are wanted at once for each fetch that may be in flight, those among them that wait for nodes. What is
/// wanted can't be given up any more.
pub(in crate::machine) const WANTS_EACH: usize = 4;
/// First reads that others did not foretell beyond those that they did, until what they foretell is not asked for; what
/// is foretold rightly from then on sets it going again.
pub(in crate::machine) const MISSES_DOUBT: u32 = 16;
/// First reads that are looked back at, about.
const LOOK_BACK: u32 = 256;

/// Chunks that are expected to be read.
#[derive(Debug, Default)]
pub(in crate::machine) struct Expected {
    /// Not asked for yet, first first.
    pub(in crate::machine) queue: VecDeque<u64>,
    /// All that were ever expected, as far as that is remembered.
    pub(in crate::machine) known: HashSet<u64>,
    /// First reads lately of chunks that were expected.
    pub(in crate::machine) hits: u32,
    /// First reads lately of chunks that were not, and not here either.
    pub(in crate::machine) misses: u32,
    /// When the first of them was asked for.
    pub(in crate::machine) since: Option<Instant>,
    pub(in crate::machine) given_up: bool,
}

impl Expected {
    /// Merges `chunks` in, none of which is here or on its way: those that do not wait already stand behind what is
    /// named before them and waits, else in front.
    pub(in crate::machine) fn add(&mut self, chunks: &[u64]) {
        if self.given_up {
            return;
        }
        let mut waiting: HashSet<u64> = self.queue.iter().copied().collect();
        let anchors = waiting.clone();
        let (mut front, mut behind) = (Vec::new(), HashMap::<u64, Vec<u64>>::new());
        let mut anchor = None;
        for &chunk in chunks {
            if anchors.contains(&chunk) {
                anchor = Some(chunk);
            } else if waiting.len() < EXPECTED_MAX && waiting.insert(chunk) {
                anchor.map_or(&mut front, |anchor| behind.entry(anchor).or_default()).push(chunk);
                if self.known.len() < EXPECTED_MAX {
                    self.known.insert(chunk);
                }
            }
        }
        if front.is_empty() && behind.is_empty() {
            return;
        }
        for chunk in std::mem::replace(&mut self.queue, front.into()) {
            self.queue.push_back(chunk);
            self.queue.extend(behind.remove(&chunk).unwrap_or_default());
        }
    }

    /// The next to be asked for now.
    pub(in crate::machine) fn next(&mut self, now: Instant) -> Option<u64> {
        if self.misses > self.hits + MISSES_DOUBT {
            return None;
        }
        let next = self.queue.pop_front()?;
        self.since.get_or_insert(now);
        Some(next)
    }

    pub(in crate::machine) fn is_given_up(&self) -> bool {
        self.given_up
    }

    pub(in crate::machine) fn give_up(&mut self) {
        *self = Self { given_up: true, ..Self::default() };
    }

    pub(in crate::machine) fn count(&mut self, foretold: bool) {
        let count = if foretold { &mut self.hits } else { &mut self.misses };
        *count += 1;
        if self.hits + self.misses >= LOOK_BACK {
            (self.hits, self.misses) = (self.hits / 2, self.misses / 2);
        }
    }
}
