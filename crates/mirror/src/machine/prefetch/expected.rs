//! The queue of chunks that other machines read when they booted. They are prefetched after demanded chunks, in the
//! order of the other machines. Later reports are merged in. It is given up if it does not help.

use std::collections::{HashMap, HashSet, VecDeque};

use base::Instant;

/// Maximum number of chunks in the queue, and of chunks that are remembered as expected. More are ignored.
pub(in crate::machine) const EXPECTED_MAX: usize = 1 << 16;
/// Expected chunks are wanted only while the number of wants is below this many for each fetch that may be in flight
/// (wants that wait for nodes included). A chunk that is wanted cannot be given up any more.
pub(in crate::machine) const WANTS_EACH: usize = 4;
/// If first reads that were not expected exceed the expected ones by more than this, no expected chunk is requested.
/// Later hits can restart it.
pub(in crate::machine) const MISSES_DOUBT: u32 = 16;
/// Number of first reads after which the counts of hits and misses are halved, so that old ones fade out.
const LOOK_BACK: u32 = 256;

/// Chunks that are expected to be read.
#[derive(Debug, Default)]
pub(in crate::machine) struct Expected {
    /// Chunks that were not requested yet; the first is the next.
    pub(in crate::machine) queue: VecDeque<u64>,
    /// All chunks that were ever expected, at most [`EXPECTED_MAX`].
    pub(in crate::machine) known: HashSet<u64>,
    /// Recent first reads of expected chunks.
    pub(in crate::machine) hits: u32,
    /// Recent first reads of chunks that were neither expected nor local.
    pub(in crate::machine) misses: u32,
    /// When the first expected chunk was requested.
    pub(in crate::machine) since: Option<Instant>,
    pub(in crate::machine) given_up: bool,
}

impl Expected {
    /// Merges `chunks` into the queue; none of them is local or wanted. A chunk that is not in the queue yet is
    /// inserted after the nearest chunk before it in `chunks` that is in the queue; without one, it goes to the
    /// front.
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

    /// Takes the next chunk to request from the queue. `None` if there is none, or while misses prevail.
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
