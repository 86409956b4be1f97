//! Which source is sending what.

use base::{Duration, Instant};

use crate::peer::availability::{Part, batch_of};
use crate::peer::wire::packet::MemberId;

/// A member whose first bytes take so many times as long as those of others does not answer.
const FIRST_TIMES: u32 = 8;
/// The same, whatever others took: the least.
const FIRST_MIN: Duration = Duration::from_millis(250);
/// Weight of a new time, as a divisor.
const FIRST_SMOOTHED: u32 = 8;

/// Who sends objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The server, by unicast.
    Server,
    /// A member.
    Member(MemberId),
}

/// Objects of one batch that a source is to send.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pull {
    source: Source,
    /// Those that did not arrive yet.
    part: Part,
    began: Instant,
    /// When the source last sent anything, whatever it was for.
    moved: Instant,
    /// Somebody else was asked for them, too.
    doubled: bool,
}

impl Pull {
    pub(super) fn new(now: Instant, source: Source, part: Part) -> Self {
        Self { source, part, began: now, moved: now, doubled: false }
    }
}

/// How fast a source sends.
#[derive(Debug, Clone, Copy)]
struct Flow {
    source: Source,
    /// Since when it has had something to send.
    began: Instant,
    /// It has sent anything since.
    answered: bool,
    /// How many objects came since.
    came: u32,
}

/// All pulls.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    list: Vec<Pull>,
    /// Of the sources in `list`, each once.
    flows: Vec<Flow>,
    /// How long members took for their first bytes, on average, lately.
    first: Option<Duration>,
}

impl Pulls {
    pub(super) fn begin(&mut self, pull: Pull) {
        if !self.has(pull.source) {
            self.flows.push(Flow { source: pull.source, began: pull.began, answered: false, came: 0 });
        }
        self.list.push(pull);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn has(&self, source: Source) -> bool {
        self.list.iter().any(|pull| pull.source == source)
    }

    /// How many objects the server is still to send.
    pub(super) fn of_server(&self) -> u32 {
        let ours = self.list.iter().filter(|pull| pull.source == Source::Server);
        ours.map(|pull| pull.part.count()).sum()
    }

    /// How many members send.
    pub(super) fn members(&self) -> usize {
        self.flows.iter().filter(|flow| flow.source != Source::Server).count()
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

    /// Whether a source that sent something within this time is to send an object.
    pub(super) fn is_coming(&self, now: Instant, within: Duration, object: u64) -> bool {
        let Part { batch, mask } = batch_of(object);
        let ours = self.list.iter().filter(|pull| pull.part.batch == batch && pull.part.mask & mask != 0);
        ours.into_iter().any(|pull| now.since(pull.moved) < within)
    }

    /// A source sent something.
    pub(super) fn moved(&mut self, now: Instant, source: Source) {
        if source != Source::Server
            && let Some(flow) = self.flows.iter_mut().find(|flow| flow.source == source && !flow.answered)
        {
            flow.answered = true;
            let took = now.since(flow.began);
            let first =
                self.first.map_or(took, |first| first - first / FIRST_SMOOTHED + took / FIRST_SMOOTHED);
            self.first = Some(first);
        }
        self.list.iter_mut().filter(|pull| pull.source == source).for_each(|pull| pull.moved = now);
    }

    /// An object has arrived.
    pub(super) fn settle(&mut self, object: u64) {
        let Part { batch, mask } = batch_of(object);
        for pull in self.list.iter_mut().filter(|pull| pull.part.batch == batch && pull.part.mask & mask != 0)
        {
            pull.part.mask &= !mask;
            self.flows.iter_mut().filter(|flow| flow.source == pull.source).for_each(|flow| flow.came += 1);
        }
        self.tidy();
    }

    /// Forgets what is done.
    fn tidy(&mut self) {
        let list = &mut self.list;
        list.retain(|pull| pull.part.mask != 0);
        self.flows.retain(|flow| list.iter().any(|pull| pull.source == flow.source));
    }

    /// `source` will not send these. Returns those that it was to send.
    pub(super) fn lose(&mut self, source: Source, part: Part) -> Part {
        let mut lost = 0;
        for pull in self.list.iter_mut().filter(|pull| pull.source == source && pull.part.batch == part.batch)
        {
            lost |= pull.part.mask & part.mask;
            pull.part.mask &= !part.mask;
        }
        self.tidy();
        Part { mask: lost, ..part }
    }

    /// `source` sends nothing more. Returns what it was to send.
    pub(super) fn end(&mut self, source: Source) -> Vec<Part> {
        let (ended, goes_on) = self.list.iter().partition(|pull| pull.source == source);
        self.list = goes_on;
        self.flows.retain(|flow| flow.source != source);
        let ended: Vec<Pull> = ended;
        ended.into_iter().map(|pull| pull.part).collect()
    }

    /// When the next member is given up unless it sends something before.
    pub(super) fn stalls_at(&self, after: Duration) -> Option<Instant> {
        let ours = self.list.iter().filter(|pull| pull.source != Source::Server);
        ours.map(|pull| pull.moved + self.patience(pull.source, after)).min()
    }

    /// Members that sent nothing for a time: `after`, or less if they sent nothing at all.
    pub(super) fn stalled(&self, now: Instant, after: Duration) -> Vec<MemberId> {
        let mut members: Vec<MemberId> = Vec::new();
        for pull in &self.list {
            if let Source::Member(member) = pull.source
                && now.since(pull.moved) >= self.patience(pull.source, after)
                && !members.contains(&member)
            {
                members.push(member);
            }
        }
        members
    }

    /// How long a source may send nothing. Who accepts and says nothing is not waited for as long as somebody who has
    /// shown that it answers.
    fn patience(&self, source: Source, after: Duration) -> Duration {
        let is_silent = self.flows.iter().any(|flow| flow.source == source && !flow.answered);
        let first = self.first.filter(|_| is_silent);
        first.map_or(after, |first| (first * FIRST_TIMES).max(FIRST_MIN).min(after))
    }

    /// The objects of a pull that nobody else was asked for.
    fn alone(&self, at: usize) -> Part {
        let part = self.list[at].part;
        let others = self.list.iter().enumerate();
        let others = others.filter(|(other, pull)| *other != at && pull.part.batch == part.batch);
        Part { mask: others.fold(part.mask, |mask, (_, pull)| mask & !pull.part.mask), ..part }
    }

    /// How long a source will take for the rest of what it is to send, as it goes.
    fn left(&self, now: Instant, source: Source) -> Duration {
        let Some(flow) = self.flows.iter().find(|flow| flow.source == source) else { return Duration::ZERO };
        let ours = self.list.iter().filter(|pull| pull.source == source);
        let left: u32 = ours.map(|pull| pull.part.count()).sum();
        let elapsed = now.since(flow.began);
        if flow.came == 0 { elapsed } else { elapsed * left / flow.came }
    }

    /// Objects that a member will take longer for than `after`: the last of them, which would come last. At most
    /// `most` are asked twice at a time.
    pub(super) fn late(&mut self, now: Instant, after: Duration, most: u32) -> Option<(Part, MemberId)> {
        let doubled: u32 = self.list.iter().filter(|pull| pull.doubled).map(|pull| pull.part.count()).sum();
        let is_late = |at: &usize| {
            let pull = &self.list[*at];
            !pull.doubled
                && pull.source != Source::Server
                && pull.part.count() + doubled <= most
                && self.left(now, pull.source) > after
                && self.alone(*at).mask != 0
        };
        let late = (0..self.list.len()).rev().find(is_late)?;
        let part = self.alone(late);
        let pull = &mut self.list[late];
        pull.doubled = true;
        match pull.source {
            Source::Member(member) => Some((part, member)),
            Source::Server => None,
        }
    }
}
