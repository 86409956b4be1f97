//! One machine of the cloud: its core, its guest, and the state of its commit.

use std::collections::{HashMap, VecDeque};

use base::{Chance, Duration, Instant};
use mirror::machine::{Config, Core, Cut, Held, Io, OpId, Sectors};

use super::{Boot, Cloud, Way};

/// Number of reads of each chunk that a guest touches: the mean of the recording.
pub(super) const READS_OF_CHUNK: u64 = 4;
/// Maximum number of objects of a commit in flight, as in `mirror`.
pub(super) const SENDS_MAX: usize = 16;
/// Maximum number of fetches of a machine in flight.
const FETCHES_MAX: usize = 16;

/// What an operation is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Job {
    Read,
    Write,
    Freeze,
    Settle,
    Frozen { chunk: u64 },
    Thaw,
    Own,
}

/// A running commit.
pub(super) struct Commit {
    /// Chunks that are not composed yet, and the lengths of their objects.
    pub waiting: VecDeque<(u64, u64)>,
    pub flying: usize,
    /// Number of nodes that are not sent yet.
    pub nodes: u64,
    pub began: Instant,
}

pub(super) struct Machine {
    pub core: Core,
    pub ops: HashMap<OpId, (Job, Option<Io>)>,
    pub timer: Option<Instant>,
    /// Number of finished reads.
    pub reads: u64,
    pub started: Instant,
    pub booted: Option<Instant>,
    /// When its processor is free to compose the next chunk.
    pub composes: Instant,
    pub commit: Option<Commit>,
    pub committed: Option<Duration>,
    /// Sectors that it writes before the commit.
    pub writes: Vec<Sectors>,
    /// The chunks that its commit sends, and the lengths of their objects.
    pub dirty: Vec<(u64, u64)>,
}

impl Machine {
    pub(super) fn new(cloud: &Cloud, boot: &Boot, cut: Cut, chance: &mut Chance) -> Self {
        let config = Config {
            sources: vec![FETCHES_MAX],
            fetches_max: FETCHES_MAX,
            demand_reserve: FETCHES_MAX / 4,
            give_up: None,
            ahead_chunks_max: 32,
            background_per_second: 0,
            journal_bytes_max: 4 << 20,
        };
        let mut held = Held::default();
        if cloud.way == Way::Here {
            held.clean.insert(0..cut.chunks());
        }
        let mut core = Core::new(cut, config, held, 4096);
        if matches!(cloud.way, Way::Profile | Way::Multicast) {
            let order: Vec<u64> = boot.touches.iter().map(|touch| touch.chunk).collect();
            core.expect_reads(&order);
        }
        let (mut writes, mut dirty) = (Vec::new(), Vec::new());
        // The writes are spread over the chunks that were read; a new file follows near the end of the disk.
        let step = (boot.touches.len() / cloud.dirty_chunks.max(1)).max(1);
        for touch in boot.touches.iter().step_by(step).take(cloud.dirty_chunks) {
            let chunk = cut.chunk(touch.chunk);
            let third = (chunk.end - chunk.start).div_ceil(3);
            writes.push(chunk.start..chunk.start + third);
            dirty.push((touch.chunk, cloud.dirty_object_bytes));
        }
        let behind = cut.chunks() - 1 - cloud.random_chunks as u64;
        for chunk in behind..behind + cloud.random_chunks as u64 {
            writes.push(cut.chunk(chunk));
            dirty.push((chunk, boot.chunk_bytes));
        }
        let spread = u64::try_from(cloud.starts_over.as_micros()).unwrap_or(0) + 1;
        let started = Instant::ZERO + Duration::from_micros(chance.below(spread));
        Self {
            core,
            ops: HashMap::new(),
            timer: None,
            reads: 0,
            started,
            booted: None,
            composes: Instant::ZERO,
            commit: None,
            committed: None,
            writes,
            dirty,
        }
    }

    /// Number of nodes that a commit changes: leaf nodes and those above them.
    pub(super) fn changed_nodes(&self, height: u8) -> u64 {
        let mut leaves: Vec<u64> =
            self.dirty.iter().map(|(chunk, _)| chunk / base::limits::TREE_FANOUT).collect();
        leaves.sort_unstable();
        leaves.dedup();
        leaves.len() as u64 + u64::from(height) - 1
    }
}
