//! Which source is sending what.

use base::{Duration, Instant};

use super::Source;
use crate::peer::availability::{Part, batch_of};
use crate::peer::wire::packet::MemberId;

/// Objects of one batch that a source is to send.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pull {
    source: Source,
    /// Those that did not arrive yet.
    part: Part,
    /// When it was asked for, or, until the first of them came, when the source last sent what was asked for earlier.
    began: Instant,
    /// When the source last sent anything, whatever it was for.
    moved: Instant,
    /// How many came.
    came: u32,
    /// Somebody else was asked for them, too.
    doubled: bool,
}

impl Pull {
    pub(super) fn new(now: Instant, source: Source, part: Part) -> Self {
        Self { source, part, began: now, moved: now, came: 0, doubled: false }
    }

    /// How long the rest will take, as it goes.
    fn left(&self, now: Instant) -> Duration {
        let elapsed = now.since(self.began);
        match self.came {
            0 => elapsed,
            came => elapsed * self.part.count() / came,
        }
    }
}

/// All pulls.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    list: Vec<Pull>,
}

impl Pulls {
    pub(super) fn begin(&mut self, pull: Pull) {
        self.list.push(pull);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn has(&self, source: Source) -> bool {
        self.list.iter().any(|pull| pull.source == source)
    }

    /// How many members send.
    pub(super) fn members(&self) -> usize {
        let is_first = |at: usize| !self.list[..at].iter().any(|pull| pull.source == self.list[at].source);
        let members = (0..self.list.len()).filter(|&at| self.list[at].source != Source::Server);
        members.filter(|&at| is_first(at)).count()
    }

    /// Which objects of a batch are under way.
    pub(super) fn mask(&self, batch: u32) -> u32 {
        self.list.iter().filter(|pull| pull.part.batch == batch).fold(0, |mask, pull| mask | pull.part.mask)
    }

    /// Those of a batch that the server is to send.
    pub(super) fn mask_of_server(&self, batch: u32) -> u32 {
        let pulls = self.list.iter().filter(|pull| pull.part.batch == batch && pull.source == Source::Server);
        pulls.fold(0, |mask, pull| mask | pull.part.mask)
    }

    /// A source sent something.
    pub(super) fn moved(&mut self, now: Instant, source: Source) {
        for pull in self.list.iter_mut().filter(|pull| pull.source == source) {
            pull.moved = now;
            if pull.came == 0 {
                pull.began = now;
            }
        }
    }

    /// An object has arrived.
    pub(super) fn settle(&mut self, object: u64) {
        let Part { batch, mask } = batch_of(object);
        for pull in self.list.iter_mut().filter(|pull| pull.part.batch == batch && pull.part.mask & mask != 0)
        {
            pull.part.mask &= !mask;
            pull.came += 1;
        }
        self.list.retain(|pull| pull.part.mask != 0);
    }

    /// `source` will not send these. Returns those that it was to send.
    pub(super) fn lose(&mut self, source: Source, part: Part) -> Part {
        let mut lost = 0;
        for pull in self.list.iter_mut().filter(|pull| pull.source == source && pull.part.batch == part.batch)
        {
            lost |= pull.part.mask & part.mask;
            pull.part.mask &= !part.mask;
        }
        self.list.retain(|pull| pull.part.mask != 0);
        Part { mask: lost, ..part }
    }

    /// `source` sends nothing more. Returns what it was to send.
    pub(super) fn end(&mut self, source: Source) -> Vec<Part> {
        let (ended, goes_on) = self.list.iter().partition(|pull| pull.source == source);
        self.list = goes_on;
        let ended: Vec<Pull> = ended;
        ended.into_iter().map(|pull| pull.part).collect()
    }

    /// When the source that is silent for the longest time last sent anything.
    pub(super) fn oldest_move(&self) -> Option<Instant> {
        self.list.iter().filter(|pull| pull.source != Source::Server).map(|pull| pull.moved).min()
    }

    /// Members that sent nothing for a time.
    pub(super) fn stalled(&self, now: Instant, after: Duration) -> Vec<MemberId> {
        let mut members: Vec<MemberId> = Vec::new();
        for pull in self.list.iter().filter(|pull| now.since(pull.moved) >= after) {
            if let Source::Member(member) = pull.source
                && !members.contains(&member)
            {
                members.push(member);
            }
        }
        members
    }

    /// The objects of a pull that nobody else was asked for.
    fn alone(&self, at: usize) -> Part {
        let part = self.list[at].part;
        let others = self
            .list
            .iter()
            .enumerate()
            .filter(|(other, pull)| *other != at && pull.part.batch == part.batch);
        Part { mask: others.fold(part.mask, |mask, (_, pull)| mask & !pull.part.mask), ..part }
    }

    /// Objects that a member will take longer for than `after`; at most `most` are asked twice at a time.
    pub(super) fn late(&mut self, now: Instant, after: Duration, most: u32) -> Option<(Part, MemberId)> {
        let doubled: u32 = self.list.iter().filter(|pull| pull.doubled).map(|pull| pull.part.count()).sum();
        let is_late = |at: &usize| {
            let pull = &self.list[*at];
            !pull.doubled
                && pull.source != Source::Server
                && pull.left(now) > after
                && pull.part.count() + doubled <= most
                && self.alone(*at).mask != 0
        };
        let at = (0..self.list.len()).find(is_late)?;
        let part = self.alone(at);
        let pull = &mut self.list[at];
        pull.doubled = true;
        match pull.source {
            Source::Member(member) => Some((part, member)),
            Source::Server => None,
        }
    }
}
