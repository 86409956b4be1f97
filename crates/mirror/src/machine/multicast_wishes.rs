//! What is left to come by multicast, and how far the machine relies on that.

use std::collections::VecDeque;

use base::Duration;

/// Most wishes that wait to be heard; what finds no room is fetched.
const WISHES_MAX: usize = 1024;

/// How far the core relies on what comes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Expectation {
    /// Nothing does: everything is fetched.
    #[default]
    Nothing,
    /// Something may soon: what nobody waits for is not fetched yet.
    Perhaps,
    /// All that is wanted does, within this time; what does not is fetched.
    Everything(Duration),
}

/// A chunk that is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkWish {
    /// Its index.
    pub chunk: u64,
    /// Whether somebody waits for it, or is about to.
    pub urgent: bool,
}

/// What is left to come by itself.
#[derive(Debug, Default)]
pub(in crate::machine) struct MulticastWishes {
    pub(in crate::machine) expectation: Expectation,
    pub(in crate::machine) wishes: VecDeque<ChunkWish>,
}

impl MulticastWishes {
    /// Whether what nobody waits for is not to be fetched.
    pub(in crate::machine) fn holds_back(&self) -> bool {
        self.expectation != Expectation::Nothing
    }

    pub(in crate::machine) fn has_room(&self) -> bool {
        self.wishes.len() < WISHES_MAX
    }

    /// A chunk is wanted. False if it has to be fetched.
    pub(in crate::machine) fn wish(&mut self, chunk: u64, urgent: bool) -> bool {
        let comes = matches!(self.expectation, Expectation::Everything(_)) && self.has_room();
        if comes {
            self.wishes.push_back(ChunkWish { chunk, urgent });
        }
        comes
    }
}
