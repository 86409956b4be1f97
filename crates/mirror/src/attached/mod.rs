//! An attached disk ([`Mirror`]): it runs from an image before all content has arrived. Its local state is in a
//! folder, and its content comes from repositories and servers.
//!
//! The core decides; the threads here execute its steps. A request runs on the thread that makes it. Fetches run on
//! worker threads, one for each fetch that may be in flight. One more thread handles timers.

mod boot_recorder;
mod commit;
mod fetch;
mod local;
mod multicast;
mod shared;
mod tree;
mod trouble;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, Result};
use disk::{Geometry, ReadAt, WriteAt};
use image::{Leaf, Manifest};
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use store::Stamp;

use crate::images::BootProfiles;
use crate::machine::{Config, Core, Counters, Done, Failure, Io, Request, Sectors, Zeros};
use crate::served::{check_range, push_run};
use crate::{Durability, Served, Source, Space, Status, StatusRun, Swarm, SwarmTraffic};
use boot_recorder::BootRecorder;
use fetch::Worker;
use local::{Local, Opened, bytes_of};
use multicast::Membership;
use shared::{Shared, State};

pub use commit::{Commit, CommitOptions, Onto, QuiesceHook};
pub use multicast::{Join, MulticastOptions};
pub use trouble::{Damage, Waiting};

/// Maximum number of fetches in flight, and of worker threads.
const WORKERS_MAX: usize = 32;

/// How a mirror works.
#[derive(Debug, Clone)]
pub struct MirrorOptions {
    /// A block device that keeps the bytes. `None`: a file in the folder.
    pub data: Option<PathBuf>,
    /// A read that no source answers within this time is an error. `None`: it waits. A chunk that every source has
    /// damaged, or lacks, is an error in both cases.
    pub give_up: Option<Duration>,
    /// Maximum number of chunks that are read ahead of a stream; 0 switches read-ahead off.
    pub ahead_chunks_max: u64,
    /// Bytes per second that are fetched in the background; 0 for none.
    pub background_bytes_per_second: u64,
    /// The journal is rewritten when it is longer than this many bytes.
    pub journal_bytes_max: u64,
}

impl Default for MirrorOptions {
    fn default() -> Self {
        Self {
            data: None,
            give_up: None,
            ahead_chunks_max: 32,
            background_bytes_per_second: 0,
            journal_bytes_max: 4 << 20,
        }
    }
}

/// See the module. Dropping it without [`Served::close`] has the effect of a killed process: no written data is
/// lost.
pub struct Mirror {
    shared: Arc<Shared>,
    geometry: Geometry,
    threads: Vec<JoinHandle<()>>,
    multicast: Mutex<Option<Membership>>,
    recorder: Mutex<Option<JoinHandle<()>>>,
    /// Also after the disk has left it.
    swarm: Mutex<Option<Arc<Swarm>>>,
    /// Shared by the writes that run; whoever has it alone holds all others.
    writes: RwLock<()>,
}

/// As long as this exists, writes wait.
pub type WriteHold<'a> = RwLockWriteGuard<'a, ()>;

impl Mirror {
    /// Makes a disk in `folder` that begins as the version of `manifest`. Its objects come from `sources`, which are
    /// asked in this order. Nothing is fetched yet. `Exists` if there is a disk in `folder`.
    pub fn create(
        folder: &Path,
        manifest: &Manifest,
        sources: Vec<Source>,
        options: &MirrorOptions,
    ) -> Result<Self> {
        Self::start(Local::create(folder, options.data.as_deref(), manifest)?, sources, options)
    }

    /// Opens the disk in `folder` after [`Served::close`], a kill or a power cut. `NotFound` if there is none,
    /// `Exists` if another process uses it, `Malformed` if its journal is damaged before its first barrier.
    pub fn open(folder: &Path, sources: Vec<Source>, options: &MirrorOptions) -> Result<Self> {
        Self::start(Local::open(folder, options.data.as_deref())?, sources, options)
    }

    fn start(opened: Opened, sources: Vec<Source>, options: &MirrorOptions) -> Result<Self> {
        let Opened { local, of, layout, cut, held, journal_end } = opened;
        let fetches_max = sources.iter().map(|source| source.at_once).sum::<usize>().clamp(1, WORKERS_MAX);
        let chunk_bytes = u64::from(layout.chunk.bytes());
        let each_second = options.background_bytes_per_second.div_ceil(chunk_bytes);
        let config = Config {
            sources: sources.iter().map(|source| source.at_once).collect(),
            fetches_max,
            // A quarter stays free for demanded chunks, so that a read need not wait behind prefetches.
            demand_reserve: fetches_max / 4,
            give_up: options.give_up,
            ahead_chunks_max: options.ahead_chunks_max,
            background_per_second: u32::try_from(each_second).unwrap_or(u32::MAX),
            journal_bytes_max: options.journal_bytes_max,
        };
        let geometry = Geometry {
            size_bytes: layout.size_bytes(),
            logical_sector_bytes: layout.logical_sector_bytes,
            physical_sector_bytes: of.base.physical_sector_bytes,
        };
        let core = Core::new(cut, config, held, journal_end);
        let shared = Arc::new(Shared::new(local, core, of, layout, sources));
        let mut threads = Vec::new();
        for _ in 0..fetches_max {
            let worker = Worker::new(Arc::clone(&shared))
                .map_err(|error| Error::from_source(ErrorKind::Io, "start a mirror", error))?;
            threads.push(std::thread::spawn(move || worker.run()));
        }
        let timed = Arc::clone(&shared);
        threads.push(std::thread::spawn(move || timed.pass_time()));
        Ok(Self {
            shared,
            geometry,
            threads,
            multicast: Mutex::default(),
            recorder: Mutex::default(),
            swarm: Mutex::default(),
            writes: RwLock::default(),
        })
    }

    /// The version that the disk began as, or was last committed as.
    #[must_use]
    pub fn base(&self) -> Manifest {
        self.shared.lock().manifest.clone()
    }

    /// The counters since the disk was opened.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.lock().core.counters()
    }

    /// Takes part in the multicast sessions of a server from now on, as long as they are useful. Call it before
    /// [`Self::expect_reads`]: then chunks that many machines expect are not fetched by each of them.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub fn join_multicast(&self, options: MulticastOptions) -> Result<()> {
        self.leave_cast();
        let multicast = Membership::start(Arc::clone(&self.shared), options)?;
        *self.multicast.lock() = Some(multicast);
        Ok(())
    }

    /// Takes part in the swarm of the disk's version from now on, until that changes. Call it before
    /// [`Self::follow_boots`], with the swarm of one of the disk's sources ([`Source::with_peers`]).
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub fn join_swarm(&self, swarm: &Arc<Swarm>) -> Result<()> {
        self.leave_swarm();
        let manifest = {
            let mut state = self.shared.lock();
            state.swarm = Some(Arc::clone(swarm));
            state.manifest.clone()
        };
        *self.swarm.lock() = Some(Arc::clone(swarm));
        swarm.begin(manifest)
    }

    /// What came from other machines, and what they got.
    #[must_use]
    pub fn swarm_traffic(&self) -> SwarmTraffic {
        self.swarm.lock().as_ref().map(|swarm| swarm.traffic()).unwrap_or_default()
    }

    fn leave_swarm(&self) {
        self.shared.lock().swarm = None;
        if let Some(swarm) = &*self.swarm.lock() {
            swarm.end();
        }
    }

    fn leave_cast(&self) {
        let multicast = self.multicast.lock().take();
        multicast.into_iter().for_each(Membership::end);
    }

    /// Bytes that were written since the base version.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        let state = self.shared.lock();
        (state.core.held().dirty.sum() + state.core.held().frozen.sum()) * SECTOR_BYTES
    }

    /// Bytes of the disk that are local; this includes space that is known to be free.
    #[must_use]
    pub fn local_bytes(&self) -> u64 {
        let state = self.shared.lock();
        let whole = 0..state.core.cut().size_sectors;
        let missing = state.core.held().missing(state.core.cut(), &whole);
        (whole.end - missing.sum()) * SECTOR_BYTES
    }

    /// Whether all of the disk is local.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.shared.lock().core.is_complete()
    }

    /// Indices of the chunks in the order of their first reads. Another machine can use them for
    /// [`Self::expect_reads`].
    #[must_use]
    pub fn order(&self) -> Vec<u64> {
        self.shared.lock().core.order().to_vec()
    }

    /// Prefetches chunks that will probably be read, in this order, after demanded chunks. Chunks that were expected
    /// before stay in the queue.
    pub fn expect_reads(&self, chunks: &[u64]) {
        self.shared.expect_reads(chunks);
    }

    /// Prefetches the chunks that `profiles` names, and reports the chunks that this machine reads, until it has
    /// booted. Then, or when the disk is closed, the boot is recorded if the disk was new. Call it once, before
    /// anything is read.
    ///
    /// # Errors
    /// `Io` if no thread can be started.
    pub fn follow_boots(&self, profiles: Arc<dyn BootProfiles>, stamp: &Stamp) -> Result<()> {
        let recorder = BootRecorder::new(Arc::clone(&self.shared), profiles, stamp.clone());
        let shared = Arc::clone(&self.shared);
        shared.lock().follows = true;
        let run = move || {
            recorder.run();
            shared.parted();
        };
        let spawned = std::thread::Builder::new().name("mirror-boots".into()).spawn(run);
        let thread =
            spawned.map_err(|error| Error::from_source(ErrorKind::Io, "follow boot profiles", error))?;
        *self.recorder.lock() = Some(thread);
        Ok(())
    }

    /// Ends the recording of the boot: the chunks that were read until now are recorded, as when the disk is closed.
    /// Call it while the network is still up, which the recording needs. Waits for the end for at most `limit`.
    pub fn part(&self, limit: Duration) {
        self.shared.part(limit);
    }

    /// Lets the writes that run end, for `limit` at most, and all others wait until the hold is dropped. Nobody is
    /// told meanwhile that something was written. Flushes go on, and reads that need no place behind a write.
    ///
    /// # Errors
    /// `Unreachable` if writes take longer.
    pub fn hold_writes(&self, limit: Duration) -> Result<WriteHold<'_>> {
        self.writes.try_write_for(limit).ok_or_else(|| {
            Error::new(ErrorKind::Unreachable, format!("writes of the disk take more than {limit:?}"))
        })
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<Sectors> {
        check_range(&self.geometry, offset, bytes)?;
        Ok(offset / SECTOR_BYTES..(offset + bytes) / SECTOR_BYTES)
    }

    /// Whether a read needs only the local file. If so, the read is noted in the core. Local sectors stay local
    /// while the disk runs, so the read itself needs no lock.
    fn is_here(&self, range: &Sectors) -> bool {
        let mut state = self.shared.lock();
        let here = !state.closed && state.core.is_here(range);
        if here && state.core.read_here(range) {
            self.shared.pass_on(&mut state);
        }
        here
    }

    fn read_data(&self, range: &Sectors, into: &mut [u8]) -> Result<()> {
        self.shared.local.data().read_exact_at(into, bytes_of(range).0)
    }

    /// Zeros are written like other bytes: they become dirty, and the old content is never fetched.
    fn zero(&self, offset: u64, bytes: u64, space: Zeros, durability: Durability) -> Result<()> {
        let range = self.check(offset, bytes)?;
        if range.is_empty() {
            return Ok(());
        }
        let durable = durability == Durability::Durable;
        let _turn = self.writes.read();
        self.shared.request(Request::Zero { range, space, durable }, &mut |_| Done::Failed(Failure::Local))
    }
}

fn done(result: Result<()>) -> Done {
    if result.is_ok() { Done::Well } else { Done::Failed(Failure::Local) }
}

impl Served for Mirror {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let range = self.check(offset, into.len() as u64)?;
        if range.is_empty() {
            return Ok(());
        }
        if self.is_here(&range) {
            let read = self.read_data(&range, into);
            return read.map_err(|error| error.within("read the local disk"));
        }
        self.shared.request(Request::Read(range), &mut |task| match task {
            Io::Read(range) => done(self.read_data(range, into)),
            _ => Done::Failed(Failure::Local),
        })
    }

    fn write(&self, offset: u64, bytes: &[u8], durability: Durability) -> Result<()> {
        let range = self.check(offset, bytes.len() as u64)?;
        if range.is_empty() {
            return Ok(());
        }
        let durable = durability == Durability::Durable;
        let _turn = self.writes.read();
        self.shared.request(Request::Write { range, durable }, &mut |task| match task {
            Io::Write(_) => done(self.shared.local.data().write_all_at(bytes, offset)),
            _ => Done::Failed(Failure::Local),
        })
    }

    fn flush(&self) -> Result<()> {
        self.shared.request(Request::Flush, &mut |_| Done::Failed(Failure::Local))
    }

    fn discard(&self, offset: u64, bytes: u64, durability: Durability) -> Result<()> {
        self.zero(offset, bytes, Zeros::Free, durability)
    }

    fn write_zeroes(&self, offset: u64, bytes: u64, space: Space, durability: Durability) -> Result<()> {
        let space = if space == Space::Keep { Zeros::Allocated } else { Zeros::Hole };
        self.zero(offset, bytes, space, durability)
    }

    fn status(&self, offset: u64, bytes: u64, runs_max: usize) -> Result<Vec<StatusRun>> {
        let range = self.check(offset, bytes)?;
        if range.is_empty() {
            return Ok(Vec::new());
        }
        self.shared.request(Request::Learn(range.clone()), &mut |_| Done::Failed(Failure::Local))?;
        let mut runs = Vec::new();
        let chunks = self.shared.lock().core.cut().chunks_of(&range);
        for chunk in chunks {
            let state = self.shared.lock();
            let sectors = state.core.cut().chunk(chunk);
            let part = sectors.start.max(range.start)..sectors.end.min(range.end);
            self.status_of_chunk(&state, chunk, &part, &mut runs);
            if runs.len() > runs_max {
                runs.truncate(runs_max);
                break;
            }
        }
        Ok(runs)
    }

    fn zeroes_fast(&self) -> bool {
        !self.shared.local.data().is_device()
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Result<bool> {
        let range = self.check(offset, into.len() as u64)?;
        if range.is_empty() {
            return Ok(true);
        }
        if !self.is_here(&range) {
            return Ok(false);
        }
        let read = self.shared.local.data().read_cached_at(into, offset);
        read.map_err(|error| error.within("read the local disk"))
    }

    fn close(&self) -> Result<()> {
        if !self.shared.shut() {
            return Ok(());
        }
        self.shared.stop();
        // First: workers may wait for other machines.
        self.leave_swarm();
        self.leave_cast();
        // The local state is closed only when requests, multicast and workers have ended and nothing can write to
        // it.
        self.shared.wait_for_workers();
        self.shared.local.close()
    }
}

impl Mirror {
    /// The status of a part of a chunk.
    fn status_of_chunk(&self, state: &State, chunk: u64, part: &Sectors, runs: &mut Vec<StatusRun>) {
        let held = state.core.held();
        let missing = held.missing(state.core.cut(), part);
        let mut at = part.start;
        while at < part.end {
            // The run ends at the next place where the sets change.
            let here = !missing.touches(&(at..at + 1));
            let next_missing =
                missing.within(at..part.end).map(|run| if run.start > at { run.start } else { run.end });
            let next_dirty =
                held.dirty.within(at..part.end).map(|run| if run.start > at { run.start } else { run.end });
            let mut end = next_missing.chain(next_dirty).min().unwrap_or(part.end).min(part.end);
            let dirty = held.dirty.touches(&(at..at + 1)) || held.frozen.touches(&(at..at + 1));
            let zero = if here {
                let (offset, bytes) = bytes_of(&(at..end));
                let data = self.shared.local.data().next_data(offset).min(offset + bytes);
                let hole = data > offset;
                end = if hole { data / SECTOR_BYTES } else { end };
                hole
            } else {
                let (zero, until) = self.absent(state, chunk, at);
                end = end.min(until);
                zero
            };
            let status = Status { zero, hole: zero, dirty, local: here };
            push_run(runs, StatusRun { bytes: (end - at) * SECTOR_BYTES, status });
            at = end;
        }
    }

    /// Whether sector `at` of a chunk that is not local is free, and the end of the run of sectors for which that
    /// holds.
    fn absent(&self, state: &State, chunk: u64, at: u64) -> (bool, u64) {
        let whole = state.core.cut().chunk(chunk);
        let Some(Leaf::Data(extents, _)) = state.tree.leaf(chunk) else { return (false, whole.end) };
        for run in extents.runs() {
            let (start, end) = (whole.start + u64::from(run.start), whole.start + u64::from(run.end()));
            if at < start {
                return (true, start);
            }
            if at < end {
                return (false, end);
            }
        }
        (true, whole.end)
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.shared.stop();
        self.leave_swarm();
        self.leave_cast();
        let recorder = self.recorder.lock().take();
        for thread in self.threads.drain(..).chain(recorder) {
            // A thread that panicked has already printed its message.
            let _ = thread.join();
        }
    }
}
