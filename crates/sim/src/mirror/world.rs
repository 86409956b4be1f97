//! The simulated world of one mirror: its guests, the process's threads, the local medium, the sources, and crashes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use base::{Chance, Duration, Instant};
use mirror::machine::{
    Core, Done, Ending, Expectation, Failure, Held, Io, Item, NodePlace, OpId, Record, Request, Sectors,
    Step, Zeros,
};
use mirror::state;

use super::medium::{Mark, Medium, Value};
use super::model::Model;
use super::recovery::{self, End, Of, boot_id};
use super::sources::Sources;
use super::{Hints, MirrorOutcome, MirrorScenario};
use crate::Violation;
use crate::queue::Queue;
use crate::trace::Trace;

const STEPS_MAX: u64 = 400_000;
/// So many items are on their way from a multicast session at a time: it has a rate. Without a bound, each one that
/// arrives may start the session again, which is then asked for all that is wanted.
const ARRIVING_MAX: usize = 256;

#[derive(Debug, Clone)]
enum Event {
    /// A guest sends a request.
    Guest,
    /// An operation's input or output is done.
    Done { life: u32, op: OpId },
    /// The core's timer fires.
    Timer { life: u32 },
    /// The commit continues.
    Commit { life: u32 },
    /// An item arrives by multicast.
    Arrival { life: u32, item: Item },
    /// A kill, a power cut or an orderly end.
    Crash,
}

/// What an operation is for.
#[derive(Debug, Clone)]
enum Job {
    Read { read: u64 },
    Write { write: u64, range: Sectors, values: Vec<Value>, durable: bool },
    Flush { moment: u64 },
    Learn,
    Freeze,
    Settle,
    Frozen { range: Sectors },
    Thaw,
    Rebase,
    Own,
}

struct Running {
    job: Job,
    waits: bool,
    /// Its current input or output, and the result if that is already known.
    io: Option<(Io, Option<Done>)>,
    mark: Mark,
    /// The sectors that were read, or the chunk that was fetched.
    values: Vec<Value>,
    written: usize,
    /// The version that its fetches read.
    tree: usize,
}

impl Running {
    fn new(job: Job, tree: usize) -> Self {
        Self { job, waits: false, io: None, mark: Mark::new(), values: Vec::new(), written: 0, tree }
    }
}

struct Commit {
    pieces: Vec<Sectors>,
    /// The frozen content that was read so far.
    content: BTreeMap<u64, Value>,
    /// The allowed values of each sector in the version.
    moment: Vec<Vec<Value>>,
    freed: Vec<Sectors>,
}

/// A version of the image to which the disk is committed.
struct Version {
    /// The version that it follows.
    parent: usize,
    /// The commit that made it; `None` for a version of another writer.
    in_doubt: Option<u64>,
}

pub(super) struct World<'a> {
    scenario: &'a MirrorScenario,
    chance: Chance,
    queue: Queue<Event>,
    medium: Medium,
    side: HashMap<u64, Value>,
    /// The content of each version.
    versions: Vec<Vec<Value>>,
    line: Vec<Version>,
    of: Of,
    /// The version that is about to become the base, or to be remembered as published.
    added: usize,
    core: Core,
    life: u32,
    boot: u64,
    ops: HashMap<OpId, Running>,
    model: Model,
    sources: Sources,
    commit: Option<Commit>,
    freezing: bool,
    next: u64,
    promises: u64,
    issued: u32,
    streams: Vec<u64>,
    crash_at: BTreeSet<u32>,
    commit_at: BTreeSet<u32>,
    timer: Option<Instant>,
    local_faults: u32,
    /// Whether a multicast session delivers most of the chunks that the core wishes for.
    casts: bool,
    /// Number of items that it is delivering.
    arriving: usize,
    cast_chance: Chance,
    outcome: MirrorOutcome,
    trace: Trace,
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a MirrorScenario) -> Self {
        let mut chance = Chance::from_seed(scenario.seed ^ 0x6D69_7272);
        let cut = scenario.cut;
        let base = image(&mut chance, scenario);
        let of = Of { base: 0, landed: None, in_doubt: None };
        let journal = state::snapshot(&boot_id(0), &cut, &of.lineage(), &Held::default());
        let core = start(scenario, Held::default(), journal.len() as u64);
        let spread = |count: u32, chance: &mut Chance| {
            (0..count).map(|_| chance.below(u64::from(scenario.requests)) as u32).collect()
        };
        let (crash_at, commit_at) =
            (spread(scenario.crashes, &mut chance), spread(scenario.commits, &mut chance));
        Self {
            medium: Medium::new(cut.size_sectors, journal),
            side: HashMap::new(),
            model: Model::new(base.clone()),
            versions: vec![base],
            line: vec![Version { parent: 0, in_doubt: None }],
            of,
            added: 0,
            core,
            life: 0,
            boot: 0,
            ops: HashMap::new(),
            sources: Sources::new(scenario.config.sources.len()),
            commit: None,
            freezing: false,
            next: 0,
            promises: 0,
            issued: 0,
            streams: vec![0; 3],
            crash_at,
            commit_at,
            timer: None,
            local_faults: 0,
            casts: false,
            arriving: 0,
            cast_chance: Chance::from_seed(scenario.seed ^ 0x6361_7374),
            outcome: MirrorOutcome::default(),
            trace: Trace::new(),
            queue: Queue::default(),
            chance,
            scenario,
        }
    }

    pub(super) fn run(mut self) -> MirrorOutcome {
        for _ in 0..self.scenario.guests {
            self.queue.push(Instant::ZERO, Event::Guest);
        }
        while self.outcome.steps < STEPS_MAX && self.outcome.violations.is_empty() {
            self.outcome.steps += 1;
            if self.issued >= self.scenario.requests && self.is_quiet() {
                break;
            }
            let Some(event) = self.queue.pop() else { break };
            self.trace.note(&[self.queue.now().0, self.ops.len() as u64]);
            self.happen(event);
        }
        self.end();
        self.outcome.trace = self.trace.value();
        self.outcome
    }

    fn is_quiet(&self) -> bool {
        self.ops.is_empty() && self.commit.is_none()
    }

    fn breach(&mut self, rule: &'static str, what: impl Into<String>) {
        let what = format!("{:?}: {}", self.queue.now(), what.into());
        self.outcome.violations.push(Violation { rule, what });
    }

    fn happen(&mut self, event: Event) {
        let now = self.queue.now();
        self.arriving -= usize::from(matches!(event, Event::Arrival { .. }));
        if self.chance.hits(self.scenario.source_faults_per_million) && self.issued < self.scenario.requests {
            self.sources.turn(&mut self.chance);
        }
        if self.issued >= self.scenario.requests {
            self.sources.heal();
        }
        if self.cast_chance.hits(self.scenario.casts_per_million) {
            self.turn_cast();
        }
        match event {
            Event::Guest => self.guest(),
            Event::Done { life, op } if life == self.life => self.io_ends(op),
            Event::Timer { life } if life == self.life => {
                self.timer = None;
                self.core.handle_timeout(now);
            }
            Event::Commit { life } if life == self.life => self.go_on_with_commit(),
            Event::Arrival { life, item } if life == self.life => self.arrive(item),
            Event::Crash => self.crash(),
            Event::Arrival { .. } | Event::Done { .. } | Event::Timer { .. } | Event::Commit { .. } => {}
        }
        self.pump();
    }

    /// Runs all operations that can continue, and sets the timer.
    fn pump(&mut self) {
        let now = self.queue.now();
        loop {
            if let Some(id) = self.core.poll_wake() {
                if self.ops.get(&id).is_some_and(|running| running.waits) {
                    self.drive(id);
                }
            } else if let Some(id) = self.core.poll_begin(now) {
                self.begin(id, Job::Own);
            } else if let Some(wish) = self.core.poll_wish() {
                self.answer_wish(wish.chunk);
            } else {
                break;
            }
        }
        if let Some(at) = self.core.poll_timeout()
            && self.timer.is_none_or(|timer| at < timer)
        {
            self.timer = Some(at);
            self.queue.push(at + Duration::from_nanos(1), Event::Timer { life: self.life });
        }
    }

    fn submit(&mut self, request: Request, job: Job) {
        let id = self.core.submit(request);
        self.begin(id, job);
    }

    fn begin(&mut self, id: OpId, job: Job) {
        self.ops.insert(id, Running::new(job, self.of.base));
        self.drive(id);
    }

    fn drive(&mut self, id: OpId) {
        let step = self.core.step(self.queue.now(), id);
        match step {
            Step::Wait => self.ops.get_mut(&id).expect("it is driven").waits = true,
            Step::Do(io) => self.io_begins(id, io),
            Step::Over(result) => {
                let running = self.ops.remove(&id).expect("it is driven");
                self.over(running, result);
            }
        }
    }

    fn io_begins(&mut self, id: OpId, io: Io) {
        let micros = match &io {
            Io::Fetch { .. } => 500 + self.chance.below(20_000),
            Io::SyncData | Io::Barrier(_) | Io::Rewrite => 100 + self.chance.below(3000),
            _ => 5 + self.chance.below(200),
        };
        if let Io::Fetch { item: Item::Chunk(chunk), .. } = &io {
            let twice = self.ops.values().any(|other| match &other.io {
                Some((Io::Fetch { item: Item::Chunk(flying), .. }, _)) => flying == chunk,
                _ => false,
            });
            if twice || self.core.held().clean.contains(&(*chunk..chunk + 1)) {
                self.breach("a chunk is fetched once", format!("chunk {chunk}"));
            }
        }
        let early = self.chance.hits(500_000);
        let tree = self.of.base;
        let running = self.ops.get_mut(&id).expect("it is driven");
        (running.waits, running.mark, running.written, running.tree) = (false, self.medium.mark(), 0, tree);
        running.io = Some((io, None));
        if early {
            self.apply(id, true);
        }
        let at = self.queue.now() + Duration::from_micros(micros);
        self.queue.push(at, Event::Done { life: self.life, op: id });
    }

    fn io_ends(&mut self, id: OpId) {
        self.apply(id, false);
        let running = self.ops.get_mut(&id).expect("it is under way");
        let (io, done) = running.io.take().expect("it is under way");
        let done = done.expect("it was applied");
        match &io {
            Io::Append(Record::Committed | Record::Rebased) => {
                self.of = Of { base: self.added, landed: None, in_doubt: None };
            }
            Io::Append(Record::Landed) => (self.of.landed, self.of.in_doubt) = (Some(self.added), None),
            _ => {}
        }
        self.core.done(self.queue.now(), id, done);
        self.drive(id);
    }

    /// Performs the input or output of an operation: at its begin (`early`, perhaps only a part), or at its end.
    fn apply(&mut self, id: OpId, early: bool) {
        let mut running = self.ops.remove(&id).expect("it is under way");
        let (io, done) = running.io.take().expect("it is under way");
        let done = done.or_else(|| self.effect(&mut running, &io, early));
        running.io = Some((io, done));
        self.ops.insert(id, running);
    }

    fn effect(&mut self, running: &mut Running, io: &Io, early: bool) -> Option<Done> {
        match io {
            Io::Read(range) => running.values = self.medium.read(range),
            Io::Write(range) => {
                let Job::Write { values, .. } = &running.job else { unreachable!("only writes write") };
                let values = values.clone();
                let done = self.write_part(running, range.start, &values, early);
                return done.map(|done| self.perhaps(done));
            }
            Io::Zero { range, .. } => {
                let zeros = vec![0; (range.end - range.start) as usize];
                return self.write_part(running, range.start, &zeros, early);
            }
            Io::Append(record) => {
                let at = self.medium.journal().len() as u64;
                let added = match record {
                    Record::Frozen => self.of.in_doubt.map(|number| recovery::in_doubt(number).encode()),
                    _ => Some(recovery::named(self.added)),
                };
                let record = state::encode(at, record, &added.unwrap_or_default());
                return Some(Done::Appended(self.medium.append(&record)));
            }
            Io::SyncData if early => return None,
            Io::SyncData => self.medium.synced(&running.mark),
            Io::Barrier(upto) => return self.barrier(running, *upto, early),
            Io::Rewrite if early => return None,
            Io::Rewrite => {
                let (boot, lineage) = (boot_id(self.boot), self.of.lineage());
                let journal = state::snapshot(&boot, self.core.cut(), &lineage, self.core.held());
                let end = journal.len() as u64;
                self.medium.replace_journal(journal);
                return Some(Done::Appended(end));
            }
            Io::CopyOut(range) => {
                let values = self.medium.read(range);
                self.side.extend((range.start..).zip(values));
            }
            Io::ReadFrozen { copied, here } => self.gather_frozen(running, copied, here),
            Io::Fetch { .. } if early => return None,
            Io::Fetch { item, source } => return Some(self.fetch(running, *item, *source)),
            Io::Check(chunk) => {
                let range = self.core.cut().chunk(*chunk);
                let base = &self.versions[running.tree][range.start as usize..range.end as usize];
                return Some(Done::Checked(self.medium.read(&range) == base));
            }
            Io::Fill { chunk, parts } => {
                let whole = self.core.cut().chunk(*chunk);
                if running.values.is_empty() {
                    running.values = vec![0; (whole.end - whole.start) as usize];
                }
                let some = if early { parts.len() / 2 } else { parts.len() };
                for part in &parts[..some] {
                    let at = |sector: u64| (sector - whole.start) as usize;
                    self.medium.write(part.start, &running.values[at(part.start)..at(part.end)]);
                }
                return (!early).then(|| self.perhaps(Done::Well));
            }
        }
        Some(Done::Well)
    }

    fn barrier(&mut self, running: &mut Running, upto: u64, early: bool) -> Option<Done> {
        if running.written == 0 {
            let at = self.medium.journal().len() as u64;
            if upto > at {
                self.breach("a barrier covers what is there", format!("{upto}, the journal ends at {at}"));
            }
            running.written = self.medium.append(&state::barrier(at, upto)) as usize;
        }
        if early {
            return None;
        }
        self.medium.journal_synced(running.written as u64);
        Some(Done::Appended(running.written as u64))
    }

    fn gather_frozen(&self, running: &mut Running, copied: &[Sectors], here: &[Sectors]) {
        let Job::Frozen { range } = &running.job else { unreachable!("only commits read frozen") };
        let mut values = vec![0; (range.end - range.start) as usize];
        for sector in copied.iter().cloned().flatten() {
            values[(sector - range.start) as usize] = self.side[&sector];
        }
        for sector in here.iter().cloned().flatten() {
            values[(sector - range.start) as usize] = self.medium.read(&(sector..sector + 1))[0];
        }
        running.values = values;
    }

    /// Sometimes lets the local file fail, as if no space were left.
    fn perhaps(&mut self, done: Done) -> Done {
        if !self.chance.hits(self.scenario.local_faults_per_million) {
            return done;
        }
        self.local_faults += 1;
        Done::Failed(Failure::Local)
    }

    fn write_part(
        &mut self,
        running: &mut Running,
        start: u64,
        values: &[Value],
        early: bool,
    ) -> Option<Done> {
        let from = running.written;
        let until = if early { self.chance.below(values.len() as u64 + 1) as usize } else { values.len() };
        self.medium.write(start + from as u64, &values[from..until]);
        running.written = until;
        (!early).then_some(Done::Well)
    }

    fn fetch(&mut self, running: &mut Running, item: Item, source: usize) -> Done {
        if let Err(failure) = self.sources.ask(item, source) {
            return Done::Failed(failure);
        }
        self.bring(running, item)
    }

    /// A multicast session starts or ends.
    fn turn_cast(&mut self) {
        let patience = Duration::from_micros(self.cast_chance.below(100_000));
        let expectation = match self.cast_chance.below(4) {
            0 => Expectation::Nothing,
            1 => Expectation::Perhaps,
            _ => Expectation::Everything(patience),
        };
        self.casts = matches!(expectation, Expectation::Everything(_));
        self.core.expect_multicast(expectation);
        // It also delivers a chunk that the core did not wish for.
        let chunk = self.cast_chance.below(self.scenario.cut.chunks());
        self.answer_wish(chunk);
    }

    /// The session delivers the chunk or its leaf node, or nothing.
    fn answer_wish(&mut self, chunk: u64) {
        if self.casts && self.arriving < ARRIVING_MAX && self.cast_chance.hits(800_000) {
            let item = match self.cast_chance.below(4) {
                0 => Item::Node(NodePlace { level: 0, number: chunk / 256 }),
                _ => Item::Chunk(chunk),
            };
            let at = self.queue.now() + Duration::from_micros(self.cast_chance.below(60_000));
            self.arriving += 1;
            self.queue.push(at, Event::Arrival { life: self.life, item });
        }
    }

    fn arrive(&mut self, item: Item) {
        let mut running = Running::new(Job::Own, self.of.base);
        // Empty chunks have no object, so none can arrive.
        let is_empty = matches!(item, Item::Chunk(chunk) if self.is_empty(self.of.base, chunk..chunk + 1));
        if is_empty {
            return;
        }
        let came = self.bring(&mut running, item);
        if let Some(id) = self.core.arrived(item, came) {
            self.ops.insert(id, running);
            self.drive(id);
        }
    }

    fn is_empty(&self, version: usize, chunks: std::ops::Range<u64>) -> bool {
        let sectors = self.core.cut().sectors_of(chunks);
        self.versions[version][sectors.start as usize..sectors.end as usize].iter().all(|&value| value == 0)
    }

    /// The item of the version that `running` reads.
    fn bring(&mut self, running: &mut Running, item: Item) -> Done {
        let cut = *self.core.cut();
        let is_empty = |chunks: std::ops::Range<u64>| self.is_empty(running.tree, chunks);
        match item {
            Item::Chunk(chunk) => {
                let range = cut.chunk(chunk);
                running.values =
                    self.versions[running.tree][range.start as usize..range.end as usize].to_vec();
                if is_empty(chunk..chunk + 1) {
                    self.breach("empty chunks are not fetched", format!("chunk {chunk}"));
                }
                Done::Chunk(100)
            }
            Item::Node(NodePlace { level, number }) => {
                let each = 256u64.pow(u32::from(level));
                let first = number * 256 * each;
                let entries = (cut.chunks() - first).div_ceil(each).min(256);
                let empty = (0..entries)
                    .map(|slot| is_empty(first + slot * each..(first + (slot + 1) * each).min(cut.chunks())));
                Done::Node { empty: empty.collect(), bytes: 1000 }
            }
        }
    }

    fn over(&mut self, running: Running, result: Result<(), Failure>) {
        match (running.job, result) {
            (Job::Own, _) => {}
            (Job::Read { read }, Ok(())) => {
                if let Some(wrong) = self.model.read_ends(read, &running.values) {
                    self.breach("a read finds what was written", wrong);
                }
                self.guest_rests();
            }
            (Job::Read { read }, Err(failure)) => {
                self.model.read_fails(read);
                let is_local = failure == Failure::Local && self.local_faults > 0;
                if self.scenario.config.give_up.is_none() && !is_local && !self.sources.is_spoilt(failure) {
                    self.breach("a read waits for its sources", format!("{failure:?}"));
                }
                self.guest_rests();
            }
            (Job::Write { write, range, durable, .. }, Ok(())) => {
                self.model.write_ends(write, &range);
                if durable {
                    let moment = self.model.flush_begins();
                    self.model.flush_ends(moment, Some(&range));
                }
                self.guest_rests();
            }
            // A failed write leaves each sector old or new, as if it were in flight for ever.
            (Job::Write { .. }, Err(Failure::Local)) if self.local_faults > 0 => self.guest_rests(),
            (Job::Flush { moment }, Ok(())) => {
                self.model.flush_ends(moment, None);
                self.guest_rests();
            }
            (Job::Learn, _) => self.guest_rests(),
            (Job::Freeze, result) => self.frozen(result),
            (Job::Settle, Ok(())) => self.commit_goes_on_soon(),
            (Job::Frozen { range }, Ok(())) => self.read_frozen(&range, &running.values),
            (Job::Thaw, Ok(())) => self.commit = None,
            (Job::Rebase, Ok(())) => {
                self.check_clean();
                self.begin_commit();
            }
            (job, Err(failure)) => self.breach("nothing else fails", format!("{job:?}: {failure:?}")),
        }
    }

    fn guest_rests(&mut self) {
        let at = self.queue.now() + Duration::from_micros(self.chance.below(3000));
        self.queue.push(at, Event::Guest);
    }

    fn guest(&mut self) {
        if self.issued >= self.scenario.requests {
            return;
        }
        self.issued += 1;
        if self.crash_at.remove(&self.issued) {
            let at = self.queue.now() + Duration::from_micros(self.chance.below(5000));
            self.queue.push(at, Event::Crash);
        }
        if self.commit_at.remove(&self.issued) && self.commit.is_none() && !self.freezing {
            self.freezing = true;
            self.resolve_in_doubt();
        }
        if self.scenario.hints == Hints::Batches && self.chance.hits(30_000) {
            let count = self.chance.below(20);
            // Some of the chunks are beyond the end of the disk.
            let chunks = self.scenario.cut.chunks() + 2;
            let batch: Vec<u64> = (0..count).map(|_| self.chance.below(chunks)).collect();
            self.core.expect_reads(&batch);
        }
        let range = self.range();
        self.next += 1;
        let number = self.next;
        match self.chance.below(100) {
            0..50 => {
                self.model.read_begins(number, &range);
                self.submit(Request::Read(range), Job::Read { read: number });
            }
            50..85 => self.write(number, range, None),
            85..87 => self.write(number, range, Some(Zeros::Allocated)),
            87..89 => self.write(number, range, Some(Zeros::Hole)),
            89..92 => self.write(number, range, Some(Zeros::Free)),
            92..94 => self.submit(Request::Learn(range), Job::Learn),
            _ => {
                let moment = self.model.flush_begins();
                self.submit(Request::Flush, Job::Flush { moment });
            }
        }
    }

    fn write(&mut self, number: u64, range: Sectors, zeros: Option<Zeros>) {
        let durable = self.chance.hits(150_000);
        // The order of two concurrent writes to a sector is unknown if one of them is durable and therefore takes
        // longer.
        let meets = self.ops.values().any(|other| match &other.job {
            Job::Write { range: flying, durable: long, .. } => {
                (durable || *long) && flying.start < range.end && range.start < flying.end
            }
            _ => false,
        });
        if meets {
            return self.guest_rests();
        }
        let values: Vec<Value> =
            range.clone().map(|sector| if zeros.is_some() { 0 } else { (number << 24) | sector }).collect();
        self.model.write_begins(number, range.start, &values);
        let request = match zeros {
            Some(space) => Request::Zero { range: range.clone(), space, durable },
            None => Request::Write { range: range.clone(), durable },
        };
        self.submit(request, Job::Write { write: number, range, values, durable });
    }

    /// The range of the next request: in a stream, in a hot area, or anywhere.
    fn range(&mut self) -> Sectors {
        let size = self.scenario.cut.sectors_of(0..self.scenario.reach_chunks).end;
        let chunk = self.scenario.cut.chunk_sectors;
        let longest = if self.chance.hits(100_000) { 4 * chunk } else { chunk / 2 };
        let count = 1 + self.chance.below(longest);
        let start = match self.chance.below(4) {
            0 => {
                let at = self.chance.below(3) as usize;
                let start = self.streams[at] % size;
                self.streams[at] = start + count;
                start
            }
            1 => self.chance.below((4 * chunk).min(size)),
            _ => self.chance.below(size),
        };
        start..(start + count).min(size)
    }

    /// Begins a commit. If an earlier commit is in doubt and was published, its version becomes the base first.
    fn resolve_in_doubt(&mut self) {
        let known = self
            .of
            .in_doubt
            .and_then(|in_doubt| self.line.iter().position(|version| version.in_doubt == Some(in_doubt)));
        let Some(version) = known else { return self.begin_commit() };
        self.added = version;
        let is_child = self.line[version].parent == self.of.base;
        self.outcome.recognised += 1;
        let request = if is_child { Request::Rebase } else { Request::Thaw(Ending::Landed) };
        self.submit(request, Job::Rebase);
    }

    fn begin_commit(&mut self) {
        if self.of.in_doubt.is_none() {
            self.promises += 1;
            self.of.in_doubt = Some(self.promises);
        }
        self.submit(Request::Freeze, Job::Freeze);
    }

    fn frozen(&mut self, result: Result<(), Failure>) {
        self.freezing = false;
        if let Err(failure) = result {
            return self.breach("a commit begins", format!("{failure:?}"));
        }
        let moment: Vec<Vec<Value>> =
            (0..self.scenario.cut.size_sectors).map(|sector| self.model.visible(sector)).collect();
        let mut pieces = Vec::new();
        let freed: Vec<Sectors> = self.core.held().frozen_freed.iter().collect();
        let mut written = self.core.held().frozen.clone();
        freed.iter().for_each(|run| written.remove(run.clone()));
        for run in written.iter() {
            let mut at = run.start;
            while at < run.end {
                let end = (at + 1 + self.chance.below(24)).min(run.end);
                pieces.push(at..end);
                at = end;
            }
        }
        self.side.clear();
        self.commit = Some(Commit { pieces, content: BTreeMap::new(), moment, freed });
        self.submit(Request::Flush, Job::Settle);
    }

    fn commit_goes_on_soon(&mut self) {
        self.queue.push(self.queue.now(), Event::Commit { life: self.life });
    }

    fn go_on_with_commit(&mut self) {
        let Some(commit) = &mut self.commit else { return };
        if let Some(range) = commit.pieces.pop() {
            return self.submit(Request::ReadFrozen(range.clone()), Job::Frozen { range });
        }
        if self.chance.hits(300_000) {
            self.others_write();
        }
        let newest = self.versions.len() - 1;
        let is_child = newest == self.of.base;
        let alone = self.line[self.of.base + 1..].iter().all(|version| version.in_doubt.is_some());
        if alone && !is_child {
            self.breach("a disk knows its own versions", format!("version {newest} is of this disk"));
        }
        let ending = match self.chance.below(8) {
            // The request was lost: nothing is published.
            0 => Ending::Abandoned,
            // The answer was lost.
            1 => {
                self.publish(newest, is_child);
                Ending::Abandoned
            }
            _ => {
                self.publish(newest, is_child);
                if is_child { Ending::Committed } else { Ending::Landed }
            }
        };
        self.added = self.versions.len() - 1;
        self.submit(Request::Thaw(ending), Job::Thaw);
    }

    /// Another writer publishes a version of the image.
    fn others_write(&mut self) {
        let mut content = self.versions.last().expect("there is a first").clone();
        let number = self.versions.len() as u64;
        for _ in 0..self.chance.below(40) {
            let sector = self.chance.below(content.len() as u64);
            content[sector as usize] = (2 << 60) | (number << 32) | sector;
        }
        let parent = self.versions.len() - 1;
        self.versions.push(content);
        self.line.push(Version { parent, in_doubt: None });
    }

    /// Publishes the frozen content over version `onto`, like a repository: the rest is that version's.
    fn publish(&mut self, onto: usize, is_child: bool) {
        let commit = self.commit.as_ref().expect("it is under way");
        let mut content = self.versions[onto].clone();
        for (&sector, &value) in &commit.content {
            content[sector as usize] = value;
        }
        commit.freed.iter().cloned().flatten().for_each(|sector| content[sector as usize] = 0);
        let frozen = |sector: u64| {
            commit.content.contains_key(&sector) || commit.freed.iter().any(|run| run.contains(&sector))
        };
        let wrong = (0..).zip(&content).zip(&commit.moment).find_map(|((sector, value), allowed)| {
            let counts = is_child || frozen(sector);
            (counts && !allowed.contains(value))
                .then(|| format!("sector {sector}: {value:#x}, not of {allowed:x?}"))
        });
        if let Some(wrong) = wrong {
            self.breach("a version is of one moment", wrong);
        }
        self.versions.push(content);
        self.line.push(Version { parent: onto, in_doubt: self.of.in_doubt });
        self.outcome.published += 1;
        self.outcome.merged += u32::from(!is_child);
    }

    fn read_frozen(&mut self, range: &Sectors, values: &[Value]) {
        if let Some(commit) = &mut self.commit {
            commit.content.extend(range.clone().zip(values.iter().copied()));
        }
        let at = self.queue.now() + Duration::from_micros(self.chance.below(2000));
        self.queue.push(at, Event::Commit { life: self.life });
    }

    fn crash(&mut self) {
        let end = [End::Kill, End::Kill, End::Cut, End::Cut, End::Close][self.chance.below(5) as usize];
        let is_over = self.issued >= self.scenario.requests;
        if is_over || (end == End::Close && !self.is_quiet()) {
            return;
        }
        self.outcome.crashes += 1;
        self.life += 1;
        self.ops.clear();
        (self.commit, self.freezing, self.timer, self.casts) = (None, false, None, false);
        match end {
            End::Kill => {}
            End::Cut => self.medium.cut(&mut self.chance),
            End::Close => recovery::close(&mut self.medium),
        }
        self.boot += u64::from(end != End::Kill);
        let boot = (self.boot, end == End::Cut);
        let found = recovery::recover(&mut self.medium, boot, &self.versions, &mut self.chance);
        let found = match found {
            Ok(found) => found,
            Err(why) => return self.breach("a journal can be read again", why),
        };
        self.of = found.of;
        self.core = start(self.scenario, found.held, found.journal_end);
        if let Some(wrong) = self.model.restarts(&found.content, end == End::Cut) {
            self.breach(
                "nothing acknowledged is lost and nothing torn is served",
                format!("{end:?}: {wrong}"),
            );
        }
        self.check_clean();
        for _ in 0..self.scenario.guests {
            self.guest_rests();
        }
    }

    fn check_clean(&mut self) {
        if let Some(wrong) = recovery::differs(&self.medium, &self.core, &self.versions[self.of.base]) {
            self.breach("what is not dirty is as in the version", wrong);
        }
    }

    /// At the end, all sources work, all operations finish, and the whole disk is checked.
    fn end(&mut self) {
        if !self.outcome.violations.is_empty() {
            return;
        }
        // No further requests and no further faults of sources: a read of an item that all sources lack fails instead
        // of waiting.
        self.issued = self.scenario.requests;
        self.sources.heal();
        self.finish_all();
        (self.outcome.counters, self.outcome.expects) = (self.core.counters(), self.core.expects());
        if self.outcome.violations.is_empty() {
            self.check_clean();
        }
        self.next += 1;
        let (read, range) = (self.next, 0..self.scenario.cut.size_sectors);
        self.model.read_begins(read, &range);
        self.submit(Request::Read(range.clone()), Job::Read { read });
        self.finish_all();
        if self.outcome.violations.is_empty() {
            let complete = self.core.is_complete();
            if !complete && self.scenario.config.give_up.is_none() && self.local_faults == 0 {
                self.breach("all that was read is here", "the disk is not complete");
            }
        }
    }

    /// Handles events until no operation is running.
    fn finish_all(&mut self) {
        self.pump();
        while !self.is_quiet() && self.outcome.violations.is_empty() {
            self.outcome.steps += 1;
            let event = if self.outcome.steps < STEPS_MAX { self.queue.pop() } else { None };
            let Some(event) = event else {
                let left: Vec<_> = self.ops.values().map(|running| format!("{:?}", running.io)).collect();
                return self.breach("everything ends", left.join("; "));
            };
            self.trace.note(&[self.queue.now().0, self.ops.len() as u64]);
            self.happen(event);
        }
    }
}

/// The core of a new process.
fn start(scenario: &MirrorScenario, held: Held, journal_end: u64) -> Core {
    let mut core = Core::new(scenario.cut, scenario.config.clone(), held, journal_end);
    if let Hints::Profile(chunks) = &scenario.hints {
        core.expect_reads(&chunks.clone().collect::<Vec<_>>());
    }
    core
}

/// The content of version 0: some chunks are empty, some full, some partly filled.
fn image(chance: &mut Chance, scenario: &MirrorScenario) -> Vec<Value> {
    let cut = scenario.cut;
    let mut content = vec![0; cut.size_sectors as usize];
    for chunk in 0..cut.chunks() {
        let kind = chance.below(4);
        for sector in cut.chunk(chunk) {
            let has = match kind {
                0 => false,
                1 => chance.hits(600_000),
                _ => true,
            };
            if has {
                content[sector as usize] = (1 << 60) | sector;
            }
        }
    }
    content
}
