//! The simulated world of a cloud: machines start, read the chunks of a boot, and are committed once all have booted.

use std::collections::{HashMap, HashSet};

use base::limits::TREE_FANOUT;
use base::{Chance, Duration, Instant};
use image::Root;
use mirror::machine::{Cut, Done, Ending, Expectation, Io, Item, NodePlace, OpId, Request, Step, Zeros};

use super::machine::{Commit, Job, Machine, READS_OF_CHUNK, SENDS_MAX};
use super::network::Network;
use super::{Boot, Cloud, CloudOutcome, Way};
use crate::queue::Queue;

/// Times of a local medium: to read or write sectors, to append to a journal, to sync.
const LOCAL: Duration = Duration::from_micros(100);
const APPEND: Duration = Duration::from_micros(20);
const SYNC: Duration = Duration::from_millis(5);
/// Time of a storage node to find or store an object.
const SERVE: Duration = Duration::from_micros(300);
/// Time to publish a version: to make its objects durable and create its record.
const PUBLISH: Duration = Duration::from_millis(20);
/// Bytes of chunks that a machine composes and encodes per second.
const ENCODE_BYTES_PER_SECOND: u64 = 200_000_000;
/// Length of a leaf node, as in the images of the bench.
const NODE_BYTES: u64 = 20_000;
/// Time after which a chunk that arrived before its node is tried again.
const TAKEN_IN: Duration = Duration::from_millis(1);
/// Time between the first machine's request and the start of the multicast.
const GATHER: Duration = Duration::from_millis(20);
/// Time after which a chunk that was expected by multicast is fetched.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
enum Event {
    Start(usize),
    /// A guest continues.
    Guest(usize),
    Done(usize, OpId),
    Timer(usize),
    /// Object `index` of a multicast has arrived.
    Multicast(usize, usize),
    /// A port starts to send.
    Depart(Parcel),
    /// The first byte has arrived.
    Arrive(Parcel),
    /// The last byte has arrived.
    There(Parcel),
    /// An object of a commit is in storage.
    Sent(usize),
    Published(usize),
}

/// An object on its way.
#[derive(Debug, Clone, Copy)]
struct Parcel {
    from: usize,
    to: usize,
    bytes: u64,
    machine: usize,
    what: Errand,
}

#[derive(Debug, Clone, Copy)]
enum Errand {
    /// For a machine that reads.
    Fetch(OpId),
    /// For storage, with the number of copies that are still to be made.
    Put { copies: usize },
}

/// The state of a run.
pub(super) struct World<'a> {
    cloud: &'a Cloud,
    boot: &'a Boot,
    cut: Cut,
    network: Network,
    queue: Queue<Event>,
    machines: Vec<Machine>,
    lengths: HashMap<u64, u64>,
    /// The items of a multicast.
    multicast: Vec<Item>,
    empties: HashMap<NodePlace, Vec<bool>>,
    outcome: CloudOutcome,
    thinks: Duration,
    booting: usize,
}

impl<'a> World<'a> {
    pub(super) fn new(cloud: &'a Cloud, boot: &'a Boot) -> Self {
        let mut chance = Chance::from_seed(cloud.seed);
        let chunk_sectors = boot.chunk_bytes / 512;
        let size_sectors = boot.disk_bytes / 512;
        let height = Root::height_of(size_sectors / chunk_sectors);
        let cut = Cut { size_sectors, chunk_sectors, height };
        let machines: Vec<Machine> =
            (0..cloud.machines).map(|_| Machine::new(cloud, boot, cut, &mut chance)).collect();
        let reads = boot.touches.len() as u64 * READS_OF_CHUNK;
        Self {
            cut,
            network: Network::new(cloud.storage + cloud.machines, cloud.bits_per_second, cloud.round_trip),
            queue: Queue::default(),
            booting: machines.len(),
            machines,
            lengths: boot.touches.iter().map(|touch| (touch.chunk, u64::from(touch.bytes))).collect(),
            multicast: Vec::new(),
            empties: HashMap::new(),
            outcome: CloudOutcome::default(),
            thinks: cloud.computes / u32::try_from(reads).expect("a boot is short"),
            cloud,
            boot,
        }
    }

    pub(super) fn run(mut self) -> CloudOutcome {
        for machine in 0..self.machines.len() {
            self.queue.push(self.machines[machine].started, Event::Start(machine));
        }
        if self.cloud.way == Way::Multicast {
            self.begin_cast();
        }
        while let Some(event) = self.queue.pop() {
            self.outcome.steps += 1;
            self.happen(&event);
        }
        let committed = self.machines.iter().map(|machine| machine.committed.expect("it ends"));
        self.outcome.committed = committed.collect();
        self.outcome.commit_bytes = self.network.bytes - self.outcome.boot_bytes;
        self.outcome
    }

    /// Multicasts the nodes and chunks of the profile once, in the order of first reads.
    fn begin_cast(&mut self) {
        let first = self.machines.iter().map(|machine| machine.started).min().unwrap_or(Instant::ZERO);
        let items = self.cast_items();
        let there = self.network.multicast(first + GATHER, 0, items.iter().map(|(_, bytes)| *bytes));
        self.multicast = items.into_iter().map(|(item, _)| item).collect();
        for machine in 0..self.machines.len() {
            let started = self.machines[machine].started;
            for (index, &at) in there.iter().enumerate() {
                self.queue.push(at.max(started), Event::Multicast(machine, index));
            }
        }
    }

    fn cast_items(&self) -> Vec<(Item, u64)> {
        let mut leaves: Vec<u64> = self.boot.touches.iter().map(|touch| touch.chunk / TREE_FANOUT).collect();
        leaves.sort_unstable();
        leaves.dedup();
        let mut items = Vec::new();
        for level in (0..self.cut.height).rev() {
            let mut numbers: Vec<u64> =
                leaves.iter().map(|leaf| leaf / TREE_FANOUT.pow(u32::from(level))).collect();
            numbers.dedup();
            items.extend(
                numbers.into_iter().map(|number| (Item::Node(NodePlace { level, number }), NODE_BYTES)),
            );
        }
        let chunks = self.boot.touches.iter().map(|touch| (Item::Chunk(touch.chunk), u64::from(touch.bytes)));
        items.extend(chunks);
        items
    }

    fn happen(&mut self, event: &Event) {
        let now = self.queue.now();
        match *event {
            Event::Start(machine) => {
                if self.cloud.way == Way::Multicast {
                    self.machines[machine].core.expect_multicast(Expectation::Everything(PATIENCE));
                }
                self.guest(machine);
                self.pump(machine);
            }
            Event::Guest(machine) => {
                self.guest(machine);
                self.pump(machine);
            }
            Event::Done(machine, op) => {
                let (_, io) = self.machines[machine].ops.get_mut(&op).expect("it is under way");
                let io = io.take().expect("it is under way");
                let done = self.done(&io);
                self.machines[machine].core.done(now, op, done);
                self.drive(machine, op);
                self.pump(machine);
            }
            Event::Timer(machine) => {
                self.machines[machine].timer = None;
                self.machines[machine].core.handle_timeout(now);
                self.pump(machine);
            }
            Event::Multicast(machine, index) => self.cast_arrives(machine, index),
            Event::Depart(parcel) => {
                let first = self.network.depart(now, parcel.from, parcel.bytes);
                self.queue.push(first, Event::Arrive(parcel));
            }
            Event::Arrive(parcel) => {
                let there = self.network.arrive(now, parcel.to, parcel.bytes);
                self.queue.push(there, Event::There(parcel));
            }
            Event::There(parcel) => self.there(parcel),
            Event::Sent(machine) => self.sent(machine),
            Event::Published(machine) => {
                let commit = self.machines[machine].commit.as_ref().expect("it was under way");
                self.machines[machine].committed = Some(now.since(commit.began));
                self.submit(machine, Request::Thaw(Ending::Committed), Job::Thaw);
                self.pump(machine);
            }
        }
    }

    fn cast_arrives(&mut self, machine: usize, index: usize) {
        let item = self.multicast[index];
        while self.machines[machine].core.poll_wish().is_some() {}
        if let Item::Chunk(chunk) = item
            && !self.machines[machine].core.knows(NodePlace { level: 0, number: chunk / TREE_FANOUT })
        {
            // Its node is still being processed; a member of a real session keeps the chunk until then.
            return self.queue.push(self.queue.now() + TAKEN_IN, Event::Multicast(machine, index));
        }
        let came = self.fetched(item);
        if let Some(op) = self.machines[machine].core.arrived(item, came) {
            self.machines[machine].ops.insert(op, (Job::Own, None));
            self.drive(machine, op);
        }
        self.pump(machine);
    }

    /// Runs all operations that can continue, and sets the timer.
    fn pump(&mut self, machine: usize) {
        let now = self.queue.now();
        loop {
            let core = &mut self.machines[machine].core;
            if let Some(op) = core.poll_wake() {
                if self.machines[machine].ops.get(&op).is_some_and(|(_, io)| io.is_none()) {
                    self.drive(machine, op);
                }
            } else if let Some(op) = core.poll_begin(now) {
                self.machines[machine].ops.insert(op, (Job::Own, None));
                self.drive(machine, op);
            } else {
                break;
            }
        }
        let machine_at = &mut self.machines[machine];
        if let Some(at) = machine_at.core.poll_timeout()
            && machine_at.timer.is_none_or(|timer| at < timer)
        {
            machine_at.timer = Some(at);
            self.queue.push(at.max(now) + Duration::from_nanos(1), Event::Timer(machine));
        }
    }

    fn submit(&mut self, machine: usize, request: Request, job: Job) {
        let op = self.machines[machine].core.submit(request);
        self.machines[machine].ops.insert(op, (job, None));
        self.drive(machine, op);
    }

    fn drive(&mut self, machine: usize, op: OpId) {
        let now = self.queue.now();
        match self.machines[machine].core.step(now, op) {
            Step::Wait => {}
            Step::Do(io) => {
                self.begins(machine, op, &io);
                self.machines[machine].ops.get_mut(&op).expect("it is driven").1 = Some(io);
            }
            Step::Over(result) => {
                let (job, _) = self.machines[machine].ops.remove(&op).expect("it is driven");
                assert!(result.is_ok() || job == Job::Own, "nothing fails in this cloud: {job:?} {result:?}");
                self.over(machine, job);
            }
        }
    }

    /// Starts an input or output, and schedules its end.
    fn begins(&mut self, machine: usize, op: OpId, io: &Io) {
        let now = self.queue.now();
        let takes = match io {
            Io::Fetch { item, .. } => {
                let (from, bytes) = match item {
                    Item::Chunk(chunk) => (self.place(*chunk), self.length(*chunk)),
                    Item::Node(place) => (self.place(place.number + 7 * u64::from(place.level)), NODE_BYTES),
                };
                let (to, what) = (self.cloud.storage + machine, Errand::Fetch(op));
                let asked = self.network.word(now) + SERVE;
                return self.queue.push(asked, Event::Depart(Parcel { from, to, bytes, machine, what }));
            }
            Io::SyncData | Io::Barrier(_) | Io::Rewrite => SYNC,
            Io::Append(_) => APPEND,
            _ => LOCAL,
        };
        self.queue.push(now + takes, Event::Done(machine, op));
    }

    fn there(&mut self, parcel: Parcel) {
        let now = self.queue.now();
        match parcel.what {
            Errand::Fetch(op) => self.queue.push(now, Event::Done(parcel.machine, op)),
            Errand::Put { copies: 0 } => {
                let told = self.network.word(now + SERVE);
                self.queue.push(told, Event::Sent(parcel.machine));
            }
            Errand::Put { copies } => {
                let (from, to) = (parcel.to, (parcel.to + 1) % self.cloud.storage);
                let what = Errand::Put { copies: copies - 1 };
                self.queue.push(now + SERVE, Event::Depart(Parcel { from, to, what, ..parcel }));
            }
        }
    }

    fn length(&self, chunk: u64) -> u64 {
        self.lengths.get(&chunk).copied().unwrap_or(0)
    }

    /// The storage node of an object; digests spread them evenly.
    fn place(&self, object: u64) -> usize {
        let mut chance = Chance::from_seed(object);
        chance.below(self.cloud.storage as u64) as usize
    }

    fn done(&mut self, io: &Io) -> Done {
        match io {
            Io::Fetch { item, .. } => self.fetched(*item),
            Io::Append(_) | Io::Barrier(_) | Io::Rewrite => Done::Appended(4096),
            Io::Check(_) => Done::Checked(true),
            _ => Done::Well,
        }
    }

    /// The fetched item. Chunks that a boot does not touch count as empty, so that nothing is read ahead into them.
    fn fetched(&mut self, item: Item) -> Done {
        match item {
            Item::Chunk(chunk) => Done::Chunk(self.length(chunk) as u32),
            Item::Node(place) => {
                let (chunks, lengths) = (self.cut.chunks(), &self.lengths);
                let empty = self.empties.entry(place).or_insert_with(|| empties(place, chunks, lengths));
                Done::Node { empty: empty.clone(), bytes: NODE_BYTES as u32 }
            }
        }
    }

    /// Submits the next read of a guest, until its boot is over.
    fn guest(&mut self, machine: usize) {
        let reads = self.machines[machine].reads;
        let touch = usize::try_from(reads / READS_OF_CHUNK).expect("a boot is short");
        let Some(touch) = self.boot.touches.get(touch) else { return self.boot_ends(machine) };
        let chunk = self.cut.chunk(touch.chunk);
        let part = (chunk.end - chunk.start) / READS_OF_CHUNK;
        let start = chunk.start + reads % READS_OF_CHUNK * part;
        self.submit(machine, Request::Read(start..start + part), Job::Read);
    }

    fn boot_ends(&mut self, machine: usize) {
        let now = self.queue.now();
        let at = &mut self.machines[machine];
        at.booted = Some(now);
        self.outcome.booted.push(now.since(at.started));
        // The writes of the boot.
        for range in std::mem::take(&mut self.machines[machine].writes) {
            let durable = false;
            self.submit(machine, Request::Write { range, durable }, Job::Write);
        }
        let last = self.cut.size_sectors - self.cut.chunk_sectors;
        let freed = last..last + 8;
        self.submit(machine, Request::Zero { range: freed, space: Zeros::Free, durable: false }, Job::Write);
        self.booting -= 1;
        if self.booting == 0 {
            let first = self.machines.iter().map(|machine| machine.started).min().unwrap_or(now);
            self.outcome.all_booted = now.since(first);
            self.outcome.boot_bytes = self.network.bytes;
            for machine in 0..self.machines.len() {
                self.begin_commit(machine);
            }
        }
    }

    fn begin_commit(&mut self, machine: usize) {
        let nodes = self.machines[machine].changed_nodes(self.cut.height);
        let waiting = self.machines[machine].dirty.iter().copied().collect();
        let began = self.queue.now();
        self.machines[machine].commit = Some(Commit { waiting, flying: 0, nodes, began });
        self.submit(machine, Request::Freeze, Job::Freeze);
        self.pump(machine);
    }

    fn over(&mut self, machine: usize, job: Job) {
        let now = self.queue.now();
        match job {
            Job::Read => {
                self.machines[machine].reads += 1;
                self.queue.push(now + self.thinks, Event::Guest(machine));
            }
            Job::Freeze => {
                let commit = self.machines[machine].commit.as_ref().expect("it is under way");
                self.outcome.frozen = self.outcome.frozen.max(now.since(commit.began));
                self.submit(machine, Request::Flush, Job::Settle);
            }
            Job::Settle => self.compose(machine),
            Job::Frozen { chunk } => self.send(machine, chunk),
            Job::Write | Job::Thaw | Job::Own => {}
        }
    }

    /// Reads frozen chunks, at most `SENDS_MAX` at a time.
    fn compose(&mut self, machine: usize) {
        loop {
            let commit = self.machines[machine].commit.as_mut().expect("it is under way");
            if commit.flying >= SENDS_MAX {
                return;
            }
            let Some(&(chunk, _)) = commit.waiting.front() else { break };
            commit.flying += 1;
            commit.waiting.pop_front();
            let range = self.cut.chunk(chunk);
            self.submit(machine, Request::ReadFrozen(range), Job::Frozen { chunk });
        }
        self.finish(machine);
    }

    /// Composes a chunk, asks the storage whether it exists, and sends it with its copies.
    fn send(&mut self, machine: usize, chunk: u64) {
        let dirty = &self.machines[machine].dirty;
        let bytes = dirty.iter().find(|(dirty, _)| *dirty == chunk).map_or(0, |(_, bytes)| *bytes);
        let encodes = Duration::from_nanos(self.boot.chunk_bytes * 1_000_000_000 / ENCODE_BYTES_PER_SECOND);
        let ready = self.queue.now().max(self.machines[machine].composes) + encodes;
        self.machines[machine].composes = ready;
        // The request whether the object exists already.
        let asked = self.network.word(self.network.word(ready) + SERVE);
        let unique = (machine as u64) << 32 | chunk;
        self.put(machine, asked, unique, bytes);
    }

    fn put(&mut self, machine: usize, at: Instant, object: u64, bytes: u64) {
        let (from, to) = (self.cloud.storage + machine, self.place(object));
        let what = Errand::Put { copies: self.cloud.replicas.min(self.cloud.storage) - 1 };
        self.queue.push(at, Event::Depart(Parcel { from, to, bytes, machine, what }));
    }

    fn sent(&mut self, machine: usize) {
        self.machines[machine].commit.as_mut().expect("it is under way").flying -= 1;
        self.compose(machine);
        self.pump(machine);
    }

    /// When all chunks are stored, sends the nodes, then publishes the version.
    fn finish(&mut self, machine: usize) {
        let now = self.queue.now();
        let commit = self.machines[machine].commit.as_mut().expect("it is under way");
        if commit.flying > 0 {
            return;
        }
        let nodes = std::mem::take(&mut commit.nodes);
        commit.flying = usize::try_from(nodes).expect("few nodes");
        if nodes == 0 {
            let asked = self.network.word(now) + PUBLISH;
            return self.queue.push(self.network.word(asked), Event::Published(machine));
        }
        for node in 0..nodes {
            self.put(machine, now, (machine as u64) << 32 | 1 << 31 | node, NODE_BYTES);
        }
    }
}

/// For each entry of a node, whether the boot touches nothing below it.
fn empties(place: NodePlace, chunks: u64, touched: &HashMap<u64, u64>) -> Vec<bool> {
    let each = TREE_FANOUT.pow(u32::from(place.level));
    let first = place.number * TREE_FANOUT * each;
    let count = chunks.saturating_sub(first).div_ceil(each).min(TREE_FANOUT);
    let full: HashSet<u64> =
        touched.keys().filter(|&&chunk| chunk >= first).map(|chunk| (chunk - first) / each).collect();
    (0..count).map(|slot| !full.contains(&slot)).collect()
}
