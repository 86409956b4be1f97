//! The state that the threads of a mirror share: the core behind one lock, the threads that wait for it, and the
//! queue of fetches for the workers.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use base::{Error, ErrorKind, Instant};
use image::{Layout, Manifest};
use net::clock::Clock;
use net::waker::Waker;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::local::{Local, Of};
use super::tree::Tree;
use crate::Source;
use crate::machine::{Core, Done, Expectation, Failure, Io, Item, OpId, Record, Request, Step};
use crate::state::InDoubt;
use crate::swarm::Swarm;

/// Maximum time that the timer thread sleeps.
const CLOCK_STEP: std::time::Duration = std::time::Duration::from_secs(10);

pub(super) struct Shared {
    pub layout: Layout,
    pub local: Local,
    pub sources: Vec<Source>,
    clock: Clock,
    state: Mutex<State>,
    /// Wakes idle workers.
    work: Condvar,
    /// Wakes the timer thread.
    time: Condvar,
    /// Wakes the thread that closes the disk when requests and workers have ended.
    idle: Condvar,
    /// Wakes the thread that records the boot, and the thread that waits for its end.
    profiles: Condvar,
}

pub(super) struct State {
    pub core: Core,
    pub tree: Tree,
    pub manifest: Manifest,
    /// A version that was published and is not in the journal yet.
    pub next: Option<Manifest>,
    /// Wakes the thread of the multicast session, if there is one.
    pub multicast: Option<Arc<Waker>>,
    /// The swarm of the version that the disk has now, if it takes part in one.
    pub swarm: Option<Arc<Swarm>>,
    /// The version that the last commit made on top of changes of other writers; see `formats/mirror.md`, "Commits".
    pub landed: Option<Manifest>,
    /// A commit that is running, or of which it is not known whether it was published.
    pub in_doubt: Option<InDoubt>,
    /// A commit is running.
    pub committing: bool,
    /// The last error of a fetch, as text.
    pub complaint: Option<String>,
    /// Items that sources have damaged, or lack: item and index of the source, with the error.
    pub damage: BTreeMap<(Item, usize), String>,
    pub closed: bool,
    /// A thread records the boot.
    pub follows: bool,
    /// That thread must end as if the disk were closed.
    parting: bool,
    stopping: bool,
    /// Number of running requests.
    requests: usize,
    sleepers: HashMap<OpId, Arc<Condvar>>,
    woken: HashSet<OpId>,
    /// Operations that the core began, and that no worker drives yet.
    begun: VecDeque<OpId>,
    idle_workers: usize,
    busy_workers: usize,
    /// When the timer thread wakes up.
    wakes_at: Option<Instant>,
}

impl Shared {
    pub(super) fn new(local: Local, core: Core, of: Of, layout: Layout, sources: Vec<Source>) -> Self {
        let state = State {
            core,
            tree: Tree::new(&of.base, layout),
            manifest: of.base,
            next: None,
            multicast: None,
            swarm: None,
            landed: of.landed,
            in_doubt: of.in_doubt,
            committing: false,
            complaint: None,
            damage: BTreeMap::new(),
            closed: false,
            follows: false,
            parting: false,
            stopping: false,
            requests: 0,
            sleepers: HashMap::new(),
            woken: HashSet::new(),
            begun: VecDeque::new(),
            idle_workers: 0,
            busy_workers: 0,
            wakes_at: None,
        };
        Self {
            layout,
            local,
            sources,
            clock: Clock::start(),
            state: Mutex::new(state),
            work: Condvar::new(),
            time: Condvar::new(),
            idle: Condvar::new(),
            profiles: Condvar::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Executes `request` and blocks until it is over; `io` does the I/O that is specific to it. Any number of
    /// threads may call this at the same time.
    pub(super) fn request(&self, request: Request, io: &mut dyn FnMut(&Io) -> Done) -> base::Result<()> {
        let mut state = self.lock();
        if state.closed {
            return Err(Error::new(ErrorKind::Refused, "the disk is closed"));
        }
        state.requests += 1;
        let id = state.core.submit(request);
        let (mut state, result) = self.drive(state, id, io);
        state.requests -= 1;
        if state.closed && state.requests == 0 {
            self.idle.notify_all();
        }
        result.map_err(|failure| describe(failure, &state))
    }

    /// Drives an operation until it is over. The lock is released during I/O.
    fn drive<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        id: OpId,
        io: &mut dyn FnMut(&Io) -> Done,
    ) -> (MutexGuard<'a, State>, Result<(), Failure>) {
        loop {
            let step = state.core.step(self.now(), id);
            self.pass_on(&mut state);
            match step {
                Step::Over(result) => {
                    state.woken.remove(&id);
                    return (state, result);
                }
                Step::Wait => state = self.sleep(state, id),
                Step::Do(task) => {
                    drop(state);
                    let done = self.carry_out(&task).unwrap_or_else(|| io(&task));
                    state = self.lock();
                    // Under the same lock as `Core::done`, so that core and tree change to a new version at the same
                    // moment.
                    if let (Io::Append(record), Done::Appended(_)) = (&task, &done) {
                        state.appended(record);
                    }
                    state.core.done(self.now(), id, done);
                }
            }
        }
    }

    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, State>, id: OpId) -> MutexGuard<'a, State> {
        let signal = Arc::new(Condvar::new());
        state.sleepers.insert(id, Arc::clone(&signal));
        // The wake may have come before this thread got here; `woken` remembers it.
        while !state.woken.remove(&id) {
            signal.wait(&mut state);
        }
        state.sleepers.remove(&id);
        state
    }

    /// Wakes the threads whose operations can continue, and workers for the operations that the core begins. Must be
    /// called after each change of the core.
    pub(super) fn pass_on(&self, state: &mut State) {
        while let Some(id) = state.core.poll_wake() {
            state.woken.insert(id);
            if let Some(signal) = state.sleepers.get(&id) {
                signal.notify_one();
            }
        }
        let now = self.now();
        // Begin no more operations than there are idle workers to drive them.
        while state.idle_workers > state.begun.len()
            && !state.stopping
            && let Some(id) = state.core.poll_begin(now)
        {
            state.begun.push_back(id);
            self.work.notify_one();
        }
        if let Some(multicast) = &state.multicast
            && state.core.has_wishes()
        {
            multicast.wake();
        }
        if let Some(at) = state.core.poll_timeout()
            && state.wakes_at.is_none_or(|wakes_at| at < wakes_at)
        {
            state.wakes_at = Some(at);
            self.time.notify_one();
        }
    }

    /// Executes the steps that are the same for all operations. `None` for a step that is specific to the operation.
    fn carry_out(&self, task: &Io) -> Option<Done> {
        let appended =
            |result: base::Result<u64>| result.map_or(Done::Failed(Failure::Local), Done::Appended);
        let well = |good: bool| if good { Done::Well } else { Done::Failed(Failure::Local) };
        Some(match task {
            Io::Append(record @ (Record::Committed | Record::Landed | Record::Rebased)) => {
                let manifest = self.lock().next.clone();
                let bytes = manifest.and_then(|manifest| manifest.encode(None).ok());
                let Some(bytes) = bytes else { return Some(Done::Failed(Failure::Local)) };
                appended(self.local.append(record, &bytes))
            }
            Io::Append(Record::Frozen) => {
                let in_doubt = self.lock().in_doubt.as_ref().map(InDoubt::encode).unwrap_or_default();
                appended(self.local.append(&Record::Frozen, &in_doubt))
            }
            Io::Append(record) => appended(self.local.append(record, &[])),
            Io::SyncData => well(disk::WriteAt::sync(self.local.data()).is_ok()),
            Io::Barrier(upto) => appended(self.local.barrier(*upto)),
            Io::Rewrite => {
                // The core holds back writes and records during a rewrite, so the sets do not change after the lock
                // is released.
                let state = self.lock();
                let (cut, of, held) = (*state.core.cut(), state.of(), state.core.held().clone());
                drop(state);
                appended(self.local.rewrite(&cut, &of, &held))
            }
            Io::CopyOut(range) => well(self.local.copy_out(range).is_ok()),
            Io::Zero { range, keep } => {
                let (offset, bytes) = super::local::bytes_of(range);
                let data = self.local.data();
                let zeroed = match keep {
                    true => data.allocate_zeroes(offset, bytes),
                    false => disk::WriteAt::write_zeroes(data, offset, bytes),
                };
                well(zeroed.is_ok())
            }
            _ => return None,
        })
    }

    /// The loop of a worker: drives the operations that the core begins, until the mirror stops.
    pub(super) fn work(&self, io: &mut dyn FnMut(&Io) -> Done) {
        let mut state = self.lock();
        while !state.stopping {
            let next = state.begun.pop_front().or_else(|| state.core.poll_begin(self.now()));
            if let Some(id) = next {
                state.busy_workers += 1;
                (state, _) = self.drive(state, id, io);
                state.busy_workers -= 1;
                continue;
            }
            // The core may have set a timer: wake the timer thread.
            self.pass_on(&mut state);
            state.idle_workers += 1;
            self.work.wait(&mut state);
            state.idle_workers -= 1;
        }
        self.idle.notify_all();
    }

    /// Gives the core an item that arrived by multicast, and drives the operation; `io` does the I/O that is
    /// specific to it.
    pub(super) fn arrived(&self, item: Item, came: Done, io: &mut dyn FnMut(&Io) -> Done) {
        let mut state = self.lock();
        if state.stopping {
            return;
        }
        let Some(id) = state.core.arrived(item, came) else { return };
        state.busy_workers += 1;
        let (mut state, _) = self.drive(state, id, io);
        state.busy_workers -= 1;
        if state.stopping {
            self.idle.notify_all();
        }
    }

    /// Tells the core how far it can rely on multicast.
    pub(super) fn expect_multicast(&self, expectation: Expectation) {
        let mut state = self.lock();
        state.core.expect_multicast(expectation);
        self.pass_on(&mut state);
    }

    /// Fetches a chunk that multicast will not deliver.
    pub(super) fn fetch_instead(&self, chunk: u64) {
        let mut state = self.lock();
        state.core.fetch_instead(chunk);
        self.pass_on(&mut state);
    }

    /// The loop of the timer thread: calls the core when a timer expires, until the mirror stops.
    pub(super) fn pass_time(&self) {
        let mut state = self.lock();
        while !state.stopping {
            let now = self.now();
            state.core.handle_timeout(now);
            state.wakes_at = state.core.poll_timeout().map(|at| at.max(now));
            self.pass_on(&mut state);
            let pause = state.wakes_at.map_or(CLOCK_STEP, |at| at.since(now).min(CLOCK_STEP));
            let pause = pause.max(std::time::Duration::from_millis(1));
            self.time.wait_for(&mut state, pause);
        }
    }

    /// Closes the disk for new requests and waits until running ones have ended; reads that wait for a source fail.
    /// False if it was closed before.
    pub(super) fn shut(&self) -> bool {
        let mut state = self.lock();
        if std::mem::replace(&mut state.closed, true) {
            return false;
        }
        state.core.give_up_all();
        self.pass_on(&mut state);
        while state.requests > 0 {
            self.idle.wait(&mut state);
        }
        true
    }

    /// Makes all threads end.
    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.work.notify_all();
        self.time.notify_all();
        self.profiles.notify_all();
    }

    /// Blocks the thread that records the boot for `pause`, or until it must end.
    pub(super) fn pause_recorder(&self, pause: std::time::Duration) {
        let mut state = self.lock();
        if state.ends().is_none() {
            self.profiles.wait_for(&mut state, pause);
        }
    }

    /// Ends the thread that records the boot, and waits for that for at most `limit`.
    pub(super) fn part(&self, limit: std::time::Duration) {
        let mut state = self.lock();
        state.parting = true;
        self.profiles.notify_all();
        self.profiles.wait_while_for(&mut state, |state| state.follows, limit);
    }

    /// Notes that the thread that recorded the boot has ended.
    pub(super) fn parted(&self) {
        self.lock().follows = false;
        self.profiles.notify_all();
    }

    /// See [`Core::expect_reads`].
    pub(super) fn expect_reads(&self, chunks: &[u64]) {
        let mut state = self.lock();
        state.core.expect_reads(chunks);
        self.pass_on(&mut state);
    }

    /// Waits until no worker drives an operation. Call it after [`Self::stop`].
    pub(super) fn wait_for_workers(&self) {
        let mut state = self.lock();
        while state.busy_workers > 0 {
            self.idle.wait(&mut state);
        }
    }
}

impl State {
    /// `None` while the disk runs. Else whether it ends properly, that is, was not just dropped.
    pub(super) fn ends(&self) -> Option<bool> {
        (self.stopping || self.parting).then_some(self.closed || self.parting)
    }

    fn of(&self) -> Of {
        Of { base: self.manifest.clone(), landed: self.landed.clone(), in_doubt: self.in_doubt.clone() }
    }

    /// Updates the versions after `record` was appended to the journal; from then on they are what a recovery would
    /// find.
    fn appended(&mut self, record: &Record) {
        let changes = matches!(record, Record::Committed | Record::Landed | Record::Rebased);
        let Some(next) = self.next.take_if(|_| changes) else { return };
        self.in_doubt = None;
        if *record == Record::Landed {
            self.landed = Some(next);
            return;
        }
        self.landed = None;
        self.tree.replace(&next);
        if let Some(swarm) = self.swarm.take() {
            swarm.leave();
        }
        self.manifest = next;
    }
}

fn describe(failure: Failure, state: &State) -> Error {
    let (kind, text) = match failure {
        Failure::Local => (ErrorKind::Io, "the local disk failed"),
        Failure::Damaged => (ErrorKind::Corrupt, "no source has it undamaged"),
        Failure::Missing => (ErrorKind::NotFound, "no source has it"),
        Failure::Dead => (ErrorKind::Unreachable, "no source can be reached"),
        Failure::Busy => (ErrorKind::Refused, "a commit is under way"),
    };
    match &state.complaint {
        Some(complaint) if !matches!(failure, Failure::Busy | Failure::Local) => {
            Error::new(kind, format!("{text}: {complaint}"))
        }
        _ => Error::new(kind, text),
    }
}
