//! A client: what it has to read or write, the runs that it keeps, its turns, its writers, and what waits for its link.

use std::collections::{HashMap, HashSet, VecDeque};

use base::Instant;
use proto::cluster::{ItemId, Run, RunCache, RunId, RunKey, Width};

use super::layout::{Content, Writers};
use super::turns::Turns;

/// Numbers an append of the world.
pub(super) type AppendId = usize;
/// Numbers a fetch of the world.
pub(super) type FetchId = usize;

/// A run that was formed.
#[derive(Debug)]
pub(super) struct Formed {
    pub(super) segment: u64,
    pub(super) place: Run,
    pub(super) width: Width,
    pub(super) items: Vec<ItemId>,
    /// Holders that have not acknowledged its entries.
    pub(super) holders: usize,
}

/// What waits for a run that is being fetched whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct Coming {
    /// So many contents.
    pub(super) contents: usize,
    /// The run behind it is to be fetched then.
    pub(super) ahead: bool,
}

/// A client and its state.
pub(super) struct Client {
    pub(super) contents: Vec<Content>,
    begun: usize,
    done: usize,
    pub(super) ended: Option<Instant>,
    pub(super) turns: Turns<FetchId>,
    pub(super) kept: RunCache,
    /// Runs that were fetched whole and are kept.
    pub(super) here: HashSet<RunKey>,
    /// Runs that are being fetched whole.
    pub(super) coming: HashMap<RunKey, Coming>,
    pub(super) writers: Writers,
    pub(super) runs: HashMap<(usize, RunId), Formed>,
    /// Appends under way, with the bytes that are still to be sent: each sends a unit, then the next has its turn, as
    /// connections share a link.
    pub(super) sends: VecDeque<(AppendId, u64)>,
    pub(super) is_sending: bool,
}

impl Client {
    /// A client that has done nothing.
    pub(super) fn new(contents: Vec<Content>, component_bytes: u64) -> Self {
        Self {
            contents,
            begun: 0,
            done: 0,
            ended: None,
            turns: Turns::default(),
            kept: RunCache::default(),
            here: HashSet::new(),
            coming: HashMap::new(),
            writers: Writers::new(component_bytes),
            runs: HashMap::new(),
            sends: VecDeque::new(),
            is_sending: false,
        }
    }

    /// The next content to begin with, if fewer than `at_once` are under way.
    pub(super) fn begin(&mut self, at_once: usize) -> Option<usize> {
        let may = self.begun < self.contents.len() && self.begun - self.done < at_once;
        may.then(|| {
            self.begun += 1;
            self.begun - 1
        })
    }

    /// A content is read or stored.
    pub(super) fn finish(&mut self, now: Instant) {
        self.done += 1;
        if self.done == self.contents.len() {
            self.ended = Some(now);
        }
    }
}
