//! The state of the core: sets of sectors, queues, and running operations. Each kind of operation is implemented in
//! a file of its own.

use std::collections::{HashMap, VecDeque};

use base::RunSet;

use crate::machine::fetch_queue::Supply;
use crate::machine::held::Held;
use crate::machine::operations::{
    Exclusive, Fetch, Flush, Freeze, FrozenRead, Learn, Read, Rewrite, Rounds, Thaw, Write,
};
use crate::machine::prefetch::spatial::Neighbours;
use crate::machine::prefetch::streams::Contexts;
use crate::machine::types::{Config, Counters, Cut, OpId, Sectors};

/// A running operation.
pub(in crate::machine) enum Op {
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
    pub(in crate::machine) cut: Cut,
    pub(in crate::machine) config: Config,
    pub(in crate::machine) held: Held,
    /// Frozen sectors that were copied to the side file.
    pub(in crate::machine) copied: RunSet,
    pub(in crate::machine) ops: HashMap<OpId, Op>,
    pub(in crate::machine) next_op: u64,
    /// Operations that waited and can continue; [`Core::poll_wake`] returns them.
    pub(in crate::machine) wakes: VecDeque<OpId>,
    /// Running writes and the sectors that they write.
    pub(in crate::machine) writing: Vec<(OpId, Sectors)>,
    /// Running reads of the frozen generation.
    pub(in crate::machine) frozen_reading: Vec<(OpId, Sectors)>,
    /// Suspect chunks that were compared with their leaf and differ.
    pub(in crate::machine) wrong: RunSet,
    /// Operations whose record is being appended to the journal.
    pub(in crate::machine) appending: Vec<OpId>,
    /// Sectors whose chunks are about to become clean: writes to them wait.
    pub(in crate::machine) locked: Vec<(OpId, Sectors)>,
    /// Operations that wait for a write, a fill or an exclusive operation to end. All of them are woken when one
    /// ends.
    pub(in crate::machine) blocked: Vec<OpId>,
    pub(in crate::machine) rounds: Rounds,
    pub(in crate::machine) exclusive: Exclusive,
    pub(in crate::machine) supply: Supply,
    pub(in crate::machine) contexts: Contexts,
    pub(in crate::machine) neighbours: Neighbours,
    pub(in crate::machine) counters: Counters,
    /// Chunks in the order in which they were first read.
    pub(in crate::machine) order: Vec<u64>,
    /// All chunks that were read.
    pub(in crate::machine) touched: RunSet,
    /// The journal is about to be replaced.
    pub(in crate::machine) rewriting: bool,
    /// A sync failed, or a record could not be written. From then on every write and flush fails.
    pub(in crate::machine) broken: bool,
}
