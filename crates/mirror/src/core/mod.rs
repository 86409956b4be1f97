//! The heart of the mirror: which sectors are here, what is fetched when and from whom, and in which order data, records
//! and syncs reach the local medium. Sans-IO: it holds sets of sectors and no bytes; time is an argument.
//!
//! Whatever happens is an *operation*: a request of a front end, or a fetch that the core starts itself. Whoever drives
//! one (a thread of a front end, a worker, the simulator) asks [`Core::step`] what is to be done next, does it, and tells
//! [`Core::done`]. Operations that wait for others are named by [`Core::poll_wake`] when they may go on.
//!
//! ```text
//! sector   dirty    written since the base version; lies in the local file
//!          frozen   dirty when a commit began; copied aside before it is overwritten
//!          kept     committed since, in a chunk that is not here as a whole
//!          other    as its chunk is
//! chunk    clean    all of it that is not dirty equals the base version, zeros where that is free
//!          suspect  was clean before a power cut; held against its digest before it is used
//!          absent   fetched as a whole on first touch; what is dirty or kept of it stays
//! ```
//!
//! **Order.** `formats/mirror.md` has the argument. A sector that becomes dirty is recorded *after* its data was written
//! where it was not here before (what lies there without a record is void and is cleared after a crash), and *before* where
//! it was (a record too many says that equal data is dirty). A flush syncs the data first, then writes a barrier that covers
//! the records that were there before, and syncs that. A chunk is recorded as clean after all of it was written.

mod cast;
mod contexts;
mod expected;
mod fetch;
mod mutant;
mod neighbours;
mod runs;
mod supply;
mod sync;
mod window;
mod write;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use base::{Duration, Instant};

use contexts::Contexts;
use fetch::{Fetch, Learn, Read};
use neighbours::Neighbours;
use supply::{Supply, Unread};
use sync::{Exclusive, Flush, Freeze, FrozenRead, Rewrite, Rounds, Thaw};
use write::Write;

pub use cast::{ChunkWish, Reliance};
pub use mutant::Mutant;
pub use runs::RunSet;

/// Sectors of 512 bytes.
pub type Sectors = Range<u64>;

/// One operation. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(u64);

/// A node of the tree by its place: node `number` of `level` stands over `256^(level + 1)` chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePlace {
    /// 0 for nodes of leaves.
    pub level: u8,
    /// Index among the nodes of its level.
    pub number: u64,
}

/// What is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// The tree node at this place.
    Node(NodePlace),
    /// The chunk of this index.
    Chunk(u64),
}

/// What a front end or a commit asks for. Ranges are inside the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Bytes, once they are here.
    Read(Sectors),
    /// Bytes over what is there.
    Write {
        /// Where.
        range: Sectors,
        /// Whether it is flushed before it is over.
        durable: bool,
    },
    /// Zeros over what is there.
    Zero {
        /// Where.
        range: Sectors,
        /// What becomes of the space.
        space: Zeros,
        /// Whether it is flushed before it is over.
        durable: bool,
    },
    /// All writes that are over become durable.
    Flush,
    /// It is found out which chunks of this range hold anything.
    Learn(Sectors),
    /// Begins a generation: what is dirty now is frozen. Fails with [`Failure::Busy`] while another is.
    Freeze,
    /// Bytes as they were when the generation began. If they are not here any more, or never were, it ends without a step;
    /// frozen ones are here.
    ReadFrozen(Sectors),
    /// Ends the generation.
    Thaw(Ending),
    /// The version that the driver adds is the base from now on: all that it has otherwise than the base before is dirty.
    Rebase,
}

/// What becomes of space that is zeroed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zeros {
    /// It stays allocated in the local file.
    Allocated,
    /// It is a hole in the local file. In a version it is zeros.
    Hole,
    /// The same, and nobody needs it: in a version it is free.
    Free,
}

/// How a generation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// What was frozen is a version that the driver adds, which is the base from now on.
    Committed,
    /// What was frozen is in a version that the driver adds, which holds what others wrote besides: it stays dirty.
    Landed,
    /// What was frozen is no version: it is dirty as before.
    Abandoned,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// This; then [`Core::done`].
    Do(Io),
    /// Nothing, until [`Core::poll_wake`] names the operation.
    Wait,
    /// The operation is over.
    Over(Result<(), Failure>),
}

/// Something that the driver does for an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Io {
    /// Reads these sectors of the local file into the request's buffer.
    Read(Sectors),
    /// Writes the request's bytes to these sectors of the local file.
    Write(Sectors),
    /// Zeros these sectors of the local file; the space stays allocated if `keep`.
    Zero {
        /// Where.
        range: Sectors,
        /// Whether the space stays allocated.
        keep: bool,
    },
    /// Appends to the journal. Appends end one after the other, in the order of their places.
    Append(Record),
    /// Makes durable what was written to the local file before this call.
    SyncData,
    /// Appends a barrier that covers the journal up to this place, and makes the journal durable.
    Barrier(u64),
    /// Replaces the journal by one that says what [`Core::snapshot`] says, durably.
    Rewrite,
    /// Copies these sectors from the local file to the side file.
    CopyOut(Sectors),
    /// Reads these sectors into the request's buffer: first those of the side file, then those of the local file.
    ReadFrozen {
        /// Frozen sectors that were copied out.
        aside: Vec<Sectors>,
        /// Those that were not.
        here: Vec<Sectors>,
    },
    /// Gets an item from a source, verifies and opens it.
    Fetch {
        /// What.
        item: Item,
        /// Which of the sources.
        source: usize,
    },
    /// Holds a chunk, as the local file has it, against its leaf: content where it has some, zeros everywhere else.
    Check(u64),
    /// Writes these parts of the chunk that was fetched to the local file.
    Fill {
        /// The chunk.
        chunk: u64,
        /// Sectors of the disk, inside the chunk.
        parts: Vec<Sectors>,
    },
}

/// What the journal is to remember. `formats/mirror.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// These sectors are dirty.
    Dirty(Vec<Sectors>),
    /// These chunks are clean.
    Clean(Vec<Range<u64>>),
    /// These sectors are dirty, zero, and free in the next version.
    Freed(Vec<Sectors>),
    /// What was dirty is frozen, to be published as the driver adds.
    Frozen,
    /// What was frozen is the version that the driver adds.
    Committed,
    /// What was frozen is in the version that the driver adds, and dirty again.
    Landed,
    /// What was frozen is dirty again.
    Abandoned,
    /// The version that the driver adds is the base.
    Rebased,
}

/// How something went that the driver did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// Well.
    Well,
    /// The record stands in the journal, which ends here now.
    Appended(u64),
    /// The chunk is in the operation's buffer; its object had so many bytes.
    Chunk(u32),
    /// The node was opened: which entries hold nothing but zeros, and how many bytes its object had.
    Node {
        /// For each entry that the node has, whether it is free or zero. Entries behind its last are free.
        empty: Vec<bool>,
        /// Length of the object.
        bytes: u32,
    },
    /// Whether what was checked is right.
    Checked(bool),
    /// Not.
    Failed(Failure),
}

/// Why an operation or a step failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The local medium failed.
    Local,
    /// A source had something else than it should have.
    Lies,
    /// A source has no such object.
    Missing,
    /// A source could not be reached.
    Dead,
    /// A commit is under way.
    Busy,
}

/// How the disk is cut. Units of 512 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Size of the disk in sectors.
    pub size_sectors: u64,
    /// Size of a chunk in sectors; the last chunk may be shorter.
    pub chunk_sectors: u64,
    /// Levels of the tree, at least 1.
    pub height: u8,
}

impl Cut {
    /// How many chunks there are.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.size_sectors.div_ceil(self.chunk_sectors)
    }

    /// The sectors of `chunks`.
    #[must_use]
    pub fn sectors_of(&self, chunks: Range<u64>) -> Sectors {
        (chunks.start * self.chunk_sectors).min(self.size_sectors)
            ..(chunks.end * self.chunk_sectors).min(self.size_sectors)
    }

    /// The sectors of one chunk.
    #[must_use]
    pub fn chunk(&self, chunk: u64) -> Sectors {
        self.sectors_of(chunk..chunk + 1)
    }

    /// The chunks that `range` touches.
    #[must_use]
    pub fn chunks_of(&self, range: &Sectors) -> Range<u64> {
        range.start / self.chunk_sectors..range.end.div_ceil(self.chunk_sectors)
    }
}

/// How the core goes about its work.
#[derive(Debug, Clone)]
pub struct Config {
    /// Most requests that are in flight to each source, in the order in which sources are asked. Bounds fan-in.
    pub sources: Vec<usize>,
    /// Most fetches in flight, all sources together.
    pub fetches_max: usize,
    /// Of these so many are for demanded chunks alone.
    pub demand_reserve: usize,
    /// After so long a demanded chunk that no source gives is an error; without, it is waited for. One that all sources have
    /// damaged, or lack, is an error at once.
    pub give_up: Option<Duration>,
    /// Most chunks that are read ahead of a stream; 0 for none.
    pub ahead_chunks_max: u64,
    /// Chunks a second that are filled in the background; 0 for none.
    pub background_per_second: u32,
    /// The journal is rewritten when it has grown to so many bytes.
    pub journal_bytes_max: u64,
    /// A bug to be found, for the simulator.
    pub mutant: Mutant,
}

/// What happened so far. Bytes are of objects, as they travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Chunks that a read waited for, whoever had them fetched; twice if two reads did.
    pub demanded_chunks: u64,
    /// Bytes of chunks that were asked for when a read waited already.
    pub demanded_bytes: u64,
    /// Bytes of chunks that were asked for before: ahead of a stream, or as other machines read.
    pub prefetched_bytes: u64,
    /// Bytes of those that were read since, or waited for on their way.
    pub prefetched_used_bytes: u64,
    /// Of the bytes prefetched those that came because other machines read them.
    pub expected_bytes: u64,
    /// Bytes of those that were read since, or waited for on their way.
    pub expected_used_bytes: u64,
    /// Bytes fetched in the background.
    pub background_bytes: u64,
    /// Bytes of tree nodes.
    pub node_bytes: u64,
    /// Of all these what came by itself, by multicast.
    pub arrived_bytes: u64,
    /// Fetches that failed at one source and were tried elsewhere, or later.
    pub retries: u64,
    /// Objects that were not what their name says.
    pub lies: u64,
    /// Sectors copied aside while a commit ran.
    pub copied_sectors: u64,
}

impl Counters {
    /// Something that was prefetched is in the local file.
    fn prefetched(&mut self, unread: Unread) {
        self.prefetched_bytes += u64::from(unread.bytes);
        self.expected_bytes += if unread.expected { u64::from(unread.bytes) } else { 0 };
    }

    /// Something that was prefetched is read.
    fn used(&mut self, unread: Unread) {
        self.prefetched_used_bytes += u64::from(unread.bytes);
        self.expected_used_bytes += if unread.expected { u64::from(unread.bytes) } else { 0 };
    }

    /// Bytes of chunks that were fetched before they were asked for, and were not asked for since.
    #[must_use]
    pub fn prefetched_unused_bytes(&self) -> u64 {
        self.prefetched_bytes.saturating_sub(self.prefetched_used_bytes)
    }
}

/// What lies in the local file, by sets: what the journal remembers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// Sectors written since the base version.
    pub dirty: RunSet,
    /// Of these, those that nobody needs: they hold zeros, and are free in the next version.
    pub freed: RunSet,
    /// Sectors that are being committed.
    pub frozen: RunSet,
    /// Of these, those that are free in the version.
    pub frozen_freed: RunSet,
    /// Sectors that were committed, in chunks that are not here as a whole.
    pub kept: RunSet,
    /// Chunks that are here.
    pub clean: RunSet,
    /// Chunks that have to be checked.
    pub suspect: RunSet,
}

impl Held {
    /// The parts of `range` that are not in the local file.
    #[must_use]
    pub fn missing(&self, cut: &Cut, range: &Sectors) -> RunSet {
        let mut missing = RunSet::new();
        for chunks in self.clean.gaps(cut.chunks_of(range)) {
            let sectors = cut.sectors_of(chunks);
            missing.insert(sectors.start.max(range.start)..sectors.end.min(range.end));
        }
        for set in [&self.dirty, &self.frozen, &self.kept] {
            set.within(range.clone()).for_each(|run| missing.remove(run));
        }
        missing
    }

    /// What is dirty is frozen: a commit begins.
    pub fn freeze(&mut self) {
        self.frozen = std::mem::take(&mut self.dirty);
        self.frozen_freed = std::mem::take(&mut self.freed);
    }

    /// What was frozen is dirty again, and free unless it was written since.
    pub fn abandon(&mut self) {
        let mut freed = std::mem::take(&mut self.frozen_freed);
        self.dirty.iter().for_each(|run| freed.remove(run));
        self.freed.extend(&freed);
        let frozen = std::mem::take(&mut self.frozen);
        self.dirty.extend(&frozen);
    }

    /// These sectors hold something.
    pub fn write(&mut self, range: Sectors) {
        self.freed.remove(range.clone());
        self.dirty.insert(range);
    }

    /// These sectors hold zeros that nobody needs.
    pub fn free(&mut self, range: Sectors) {
        self.dirty.insert(range.clone());
        self.freed.insert(range);
    }

    /// What was frozen is a version now, and the base.
    pub fn commit(&mut self, cut: &Cut) {
        self.frozen_freed = RunSet::new();
        let frozen = std::mem::take(&mut self.frozen);
        for run in frozen.iter() {
            let chunks = cut.chunks_of(&run);
            let whole = run.start.div_ceil(cut.chunk_sectors)..if run.end == cut.size_sectors {
                chunks.end
            } else {
                run.end / cut.chunk_sectors
            };
            if !whole.is_empty() {
                self.clean.insert(whole);
            }
            // The first and the last may have been written in part.
            for chunk in [chunks.start, chunks.end - 1] {
                let sectors = cut.chunk(chunk);
                self.kept.insert(run.start.max(sectors.start)..run.end.min(sectors.end));
                if self.missing(cut, &sectors).is_empty() {
                    self.clean.insert(chunk..chunk + 1);
                }
            }
        }
        let here: Vec<Sectors> = self.clean.iter().map(|chunks| cut.sectors_of(chunks)).collect();
        here.into_iter().for_each(|run| self.kept.remove(run));
        let dirty: Vec<Sectors> = self.dirty.iter().collect();
        dirty.into_iter().for_each(|run| self.kept.remove(run));
    }

    /// Whether all of `range` is in the local file.
    #[must_use]
    pub fn is_here(&self, cut: &Cut, range: &Sectors) -> bool {
        self.clean.contains(&cut.chunks_of(range))
            || self.dirty.contains(range)
            || self.missing(cut, range).is_empty()
    }
}

enum Op {
    Read(Read),
    Write(Write),
    Flush(Flush),
    Rewrite(Rewrite),
    Learn(Learn),
    Freeze(Freeze),
    FrozenRead(FrozenRead),
    Thaw(Thaw),
    Fetch(Fetch),
}

/// See the module.
pub struct Core {
    cut: Cut,
    config: Config,
    held: Held,
    /// Frozen sectors that were copied to the side file.
    copied: RunSet,
    ops: HashMap<OpId, Op>,
    next_op: u64,
    wakes: VecDeque<OpId>,
    /// Writes under way, and what they write.
    writing: Vec<(OpId, Sectors)>,
    /// Reads of the frozen generation under way.
    frozen_reading: Vec<(OpId, Sectors)>,
    /// Suspect chunks that were held against their leaf, and differ.
    wrong: RunSet,
    /// Operations whose record is on its way to the journal.
    appending: Vec<OpId>,
    /// Sectors whose chunks are about to become clean: writes wait.
    settling: Vec<(OpId, Sectors)>,
    /// Who waits for a write, a fill, or a generation to get out of the way.
    blocked: Vec<OpId>,
    rounds: Rounds,
    exclusive: Exclusive,
    supply: Supply,
    contexts: Contexts,
    neighbours: Neighbours,
    counters: Counters,
    /// Chunks in the order in which they were first read.
    order: Vec<u64>,
    touched: RunSet,
    /// The journal is about to be replaced.
    rewriting: bool,
    /// A sync failed, or a record could not be written: nothing is promised any more.
    broken: bool,
}

/// Most chunks of the order of first reads that are remembered.
const ORDER_MAX: usize = 1 << 16;

impl Core {
    /// A disk that is cut like this, of which `held` is in the local file, and whose journal ends at `journal_end`, all of
    /// it durable.
    #[must_use]
    pub fn new(cut: Cut, config: Config, held: Held, journal_end: u64) -> Self {
        let supply = Supply::new(&config, cut.height);
        Self {
            cut,
            held,
            copied: RunSet::new(),
            ops: HashMap::new(),
            next_op: 0,
            wakes: VecDeque::new(),
            writing: Vec::new(),
            frozen_reading: Vec::new(),
            wrong: RunSet::new(),
            appending: Vec::new(),
            settling: Vec::new(),
            blocked: Vec::new(),
            rounds: Rounds::new(journal_end),
            exclusive: Exclusive::default(),
            supply,
            contexts: Contexts::new(config.ahead_chunks_max),
            neighbours: Neighbours::default(),
            counters: Counters::default(),
            order: Vec::new(),
            touched: RunSet::new(),
            rewriting: false,
            broken: false,
            config,
        }
    }

    /// Begins an operation; drive it by [`Self::step`].
    pub fn submit(&mut self, request: Request) -> OpId {
        let op = match request {
            Request::Read(range) => {
                self.note_read(&range);
                Op::Read(Read::new(range))
            }
            Request::Write { range, durable } => Op::Write(Write::bytes(range, durable)),
            Request::Zero { range, space, durable } => Op::Write(Write::zeros(range, space, durable)),
            Request::Flush => Op::Flush(self.rounds.flush()),
            Request::Learn(range) => Op::Learn(Learn::new(range)),
            Request::Freeze => Op::Freeze(Freeze::default()),
            Request::ReadFrozen(range) => Op::FrozenRead(FrozenRead::new(range)),
            Request::Thaw(Ending::Committed) => Op::Thaw(Thaw::new(Record::Committed)),
            Request::Thaw(Ending::Landed) => Op::Thaw(Thaw::new(Record::Landed)),
            Request::Thaw(Ending::Abandoned) => Op::Thaw(Thaw::new(Record::Abandoned)),
            Request::Rebase => Op::Thaw(Thaw::new(Record::Rebased)),
        };
        self.enter(op)
    }

    fn enter(&mut self, op: Op) -> OpId {
        let id = OpId(self.next_op);
        self.next_op += 1;
        self.ops.insert(id, op);
        id
    }

    /// What operation `id` needs now. After [`Step::Over`] there is no such operation any more.
    pub fn step(&mut self, now: Instant, id: OpId) -> Step {
        let mut op = self.ops.remove(&id).expect("only operations that are not over are driven");
        let step = match &mut op {
            Op::Read(read) => self.step_read(now, id, read),
            Op::Write(write) => self.step_write(id, write),
            Op::Flush(flush) => self.step_flush(id, flush),
            Op::Rewrite(rewrite) => self.step_rewrite(id, rewrite),
            Op::Learn(learn) => self.step_learn(now, id, learn),
            Op::Freeze(freeze) => self.step_freeze(id, freeze),
            Op::FrozenRead(read) => self.step_frozen_read(id, read),
            Op::Thaw(thaw) => self.step_thaw(id, thaw),
            Op::Fetch(fetch) => self.step_fetch(now, id, fetch),
        };
        match &step {
            Step::Over(_) => return step,
            Step::Do(Io::Append(_)) => self.appending.push(id),
            Step::Do(_) | Step::Wait => {}
        }
        self.ops.insert(id, op);
        step
    }

    /// Says how it went what operation `id` was last told to do. Then comes [`Self::step`].
    pub fn done(&mut self, now: Instant, id: OpId, done: Done) {
        if let Done::Appended(end) = done {
            self.rounds.appended(end);
        }
        self.appending.retain(|appending| *appending != id);
        let mut op = self.ops.remove(&id).expect("only operations that are not over are driven");
        match &mut op {
            Op::Read(read) => read.done(&done),
            Op::Write(write) => self.done_write(id, write, &done),
            Op::Flush(flush) => self.done_flush(id, flush, &done),
            Op::Rewrite(rewrite) => self.done_rewrite(id, rewrite, &done),
            Op::Learn(_) => {}
            Op::Freeze(freeze) => self.done_freeze(id, freeze, &done),
            Op::FrozenRead(read) => self.done_frozen_read(id, read, &done),
            Op::Thaw(thaw) => self.done_thaw(id, thaw, &done),
            Op::Fetch(fetch) => self.done_fetch(now, id, fetch, done),
        }
        self.ops.insert(id, op);
    }

    /// The next operation that waited and may go on. It may have to wait again.
    pub fn poll_wake(&mut self) -> Option<OpId> {
        loop {
            let id = self.wakes.pop_front()?;
            if self.ops.contains_key(&id) {
                return Some(id);
            }
        }
    }

    /// The next operation that the core began itself, to be driven as any other: a fetch, if there is something to fetch
    /// and somebody to ask, or a new journal.
    pub fn poll_begin(&mut self, now: Instant) -> Option<OpId> {
        if self.rounds.journal_bytes() > self.config.journal_bytes_max && !self.rewriting && !self.broken {
            self.rewriting = true;
            return Some(self.enter(Op::Rewrite(Rewrite::default())));
        }
        self.next_fetch(now)
    }

    /// When [`Self::handle_timeout`] is to be called; never earlier than necessary.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next_timeout()
    }

    /// Lets what waited for its time go on; [`Self::poll_begin`] and [`Self::poll_wake`] say what.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.pass_time(now);
    }

    /// Whether a read of `range` needs no operation at all: all of it is here.
    #[must_use]
    pub fn is_here(&self, range: &Sectors) -> bool {
        self.held.is_here(&self.cut, range)
    }

    /// A read that is answered without an operation, since [`Self::is_here`]. Whether there may be something to begin now.
    pub fn read_here(&mut self, range: &Sectors) -> bool {
        self.note_read(range)
    }

    /// The end is near: reads that wait for a source fail.
    pub fn give_up_all(&mut self) {
        let reads = |(id, op): (&OpId, &Op)| matches!(op, Op::Read(_) | Op::Learn(_)).then_some(*id);
        let waiting: Vec<OpId> = self.ops.iter().filter_map(reads).collect();
        self.fail(waiting, Failure::Dead);
    }

    /// What is in the local file.
    #[must_use]
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Whether the chunk is known to hold nothing but zeros in the base version.
    #[must_use]
    pub fn is_empty(&self, chunk: u64) -> bool {
        self.supply.empty.contains(&(chunk..chunk + 1))
    }

    /// How the disk is cut.
    #[must_use]
    pub fn cut(&self) -> &Cut {
        &self.cut
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The chunks that were read so far, in the order of their first read.
    #[must_use]
    pub fn order(&self) -> &[u64] {
        &self.order
    }

    /// Chunks that are likely to be read, in this order: fetched behind what is demanded. What was expected before stays;
    /// what is new goes behind what stands before it here and was not asked for yet, else it is next.
    pub fn expect_reads(&mut self, chunks: &[u64]) {
        let count = self.cut.chunks();
        let is_new =
            |&chunk: &u64| chunk < count && !self.is_chunk_here(chunk) && !self.supply.is_wanted(chunk);
        let new: Vec<u64> = chunks.iter().copied().filter(is_new).collect();
        self.supply.expected.add(&new);
    }

    /// Whether what is expected is still fetched. Where most of it was in vain nothing is expected any more.
    #[must_use]
    pub fn expects(&self) -> bool {
        !self.supply.expected.is_given_up()
    }

    /// Whether every chunk is in the local file.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.held.is_here(&self.cut, &(0..self.cut.size_sectors))
    }

    /// Wakes whoever waits for a write, a fill or a generation.
    fn unblock(&mut self) {
        self.wakes.extend(self.blocked.drain(..));
    }

    fn wait_blocked(&mut self, id: OpId) -> Step {
        self.blocked.push(id);
        Step::Wait
    }

    fn has(&self, mutant: Mutant) -> bool {
        mutant.is(self.config.mutant)
    }

    /// Books a read: for the order of first reads, for what was prefetched, and for the streams.
    fn note_read(&mut self, range: &Sectors) -> bool {
        let chunks = self.cut.chunks_of(range);
        for chunk in chunks.clone() {
            if let Some(unread) = self.supply.unread.remove(&chunk) {
                self.counters.used(unread);
                self.contexts.used(chunk);
            } else if self.supply.is_wanted(chunk) {
                // It is on its way: not in vain.
                self.contexts.used(chunk);
            }
        }
        let mut bets = false;
        if !self.touched.contains(&chunks) && self.order.len() < ORDER_MAX {
            let fresh: Vec<u64> = self.touched.gaps(chunks.clone()).flatten().collect();
            self.compare_expected(&fresh);
            bets = self.bet_beside(&fresh, range);
            let room = ORDER_MAX - self.order.len();
            self.order.extend(fresh.into_iter().take(room));
            self.touched.insert(chunks);
        }
        let ahead = self.contexts.read(range, &self.cut);
        let begins = bets || !ahead.is_empty();
        self.read_ahead(ahead);
        begins
    }
}

fn overlaps(one: &Sectors, other: &Sectors) -> bool {
    one.start < other.end && other.start < one.end
}
