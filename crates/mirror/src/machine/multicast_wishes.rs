//! Which chunks are left to multicast, and how far the core relies on it.

use std::collections::VecDeque;

use base::Duration;

/// Maximum number of wishes in the queue. A chunk for which there is no room is fetched.
const WISHES_MAX: usize = 1024;

/// How far the core relies on multicast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expectation {
    /// Not at all: everything is fetched.
    #[default]
    Nothing,
    /// Multicast may deliver something soon: only items that a read waits for are fetched now.
    Perhaps,
    /// Multicast delivers all wanted items. An item that does not arrive within this time is fetched.
    Everything(Duration),
}

/// A chunk that the multicast session should deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkWish {
    /// Its index.
    pub chunk: u64,
    /// Whether a read waits for it or will need it soon.
    pub urgent: bool,
}

/// The chunks that are left to multicast.
#[derive(Debug, Default)]
pub(in crate::machine) struct MulticastWishes {
    pub(in crate::machine) expectation: Expectation,
    pub(in crate::machine) wishes: VecDeque<ChunkWish>,
}

impl MulticastWishes {
    /// Whether prefetches and background fetches are held back.
    pub(in crate::machine) fn holds_back(&self) -> bool {
        self.expectation != Expectation::Nothing
    }

    pub(in crate::machine) fn has_room(&self) -> bool {
        self.wishes.len() < WISHES_MAX
    }

    /// Adds a wish for `chunk`. False if multicast will not deliver it, so that it must be fetched.
    pub(in crate::machine) fn wish(&mut self, chunk: u64, urgent: bool) -> bool {
        let comes = matches!(self.expectation, Expectation::Everything(_)) && self.has_room();
        if comes {
            self.wishes.push_back(ChunkWish { chunk, urgent });
        }
        comes
    }
}
