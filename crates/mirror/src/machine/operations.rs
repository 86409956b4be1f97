//! The state of each kind of operation, and the state that flushes and exclusive operations share.

use base::Instant;

use crate::machine::fetch_queue::Priority;
use crate::machine::types::{Done, Failure, Item, OpId, Record, Sectors, Zeros};

/// A read.
pub(in crate::machine) struct Read {
    pub(in crate::machine) range: Sectors,
    pub(in crate::machine) failure: Option<Failure>,
    pub(in crate::machine) over: bool,
    /// It has waited for missing chunks; they are counted only the first time.
    pub(in crate::machine) waited: bool,
}

impl Read {
    pub(in crate::machine) fn new(range: Sectors) -> Self {
        Self { range, failure: None, over: false, waited: false }
    }

    pub(in crate::machine) fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    pub(in crate::machine) fn done(&mut self, done: &Done) {
        self.over = true;
        if let Done::Failed(failure) = done {
            self.failure = Some(*failure);
        }
    }
}

/// A request to find out which chunks are empty.
pub(in crate::machine) struct Learn {
    pub(in crate::machine) range: Sectors,
    pub(in crate::machine) failure: Option<Failure>,
}

impl Learn {
    pub(in crate::machine) fn new(range: Sectors) -> Self {
        Self { range, failure: None }
    }

    pub(in crate::machine) fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }
}

/// A fetch of an item, or a check of a suspect chunk.
pub(in crate::machine) struct Fetch {
    pub(in crate::machine) began: Instant,
    pub(in crate::machine) item: Item,
    pub(in crate::machine) source: usize,
    pub(in crate::machine) priority: Priority,
    pub(in crate::machine) phase: FetchPhase,
    pub(in crate::machine) bytes: u32,
    pub(in crate::machine) empty: Vec<bool>,
    /// Number of the tree to which the item belongs; see `Supply::tree`.
    pub(in crate::machine) tree: u64,
}

/// In place of a source: no source is asked; the chunk in the local file is checked.
pub(in crate::machine) const NOBODY: usize = usize::MAX;
/// In place of a source: the item arrived by multicast.
pub(in crate::machine) const ITSELF: usize = usize::MAX - 1;

/// What a fetch does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::machine) enum FetchPhase {
    Get,
    /// Waits until running writes to the range have ended; new ones wait.
    Lock,
    /// Compares the chunk in the local file with its leaf.
    Check,
    Fill,
    Record,
    Over,
}

impl Fetch {
    pub(in crate::machine) fn new(
        began: Instant,
        item: Item,
        source: usize,
        priority: Priority,
        tree: u64,
    ) -> Self {
        let phase = if source == NOBODY { FetchPhase::Lock } else { FetchPhase::Get };
        Self { began, item, source, priority, phase, bytes: 0, empty: Vec::new(), tree }
    }

    /// A fetch whose item has arrived by multicast: an object of `bytes` bytes and, of a node, which of its entries
    /// are `empty`.
    pub(in crate::machine) fn arrived(
        item: Item,
        priority: Priority,
        tree: u64,
        bytes: u32,
        empty: Vec<bool>,
    ) -> Self {
        Self {
            phase: FetchPhase::Lock,
            bytes,
            empty,
            ..Self::new(Instant::ZERO, item, ITSELF, priority, tree)
        }
    }
}

/// A request that changes sectors.
pub(in crate::machine) struct Write {
    pub(in crate::machine) range: Sectors,
    /// `None`: the write has bytes. Else it writes zeros, and this is what happens to the space.
    pub(in crate::machine) zeros: Option<Zeros>,
    pub(in crate::machine) durable: bool,
    pub(in crate::machine) phase: WritePhase,
    /// Parts that must still be copied to the side file or, after a failure, cleared. The last one is the next.
    pub(in crate::machine) parts: Vec<Sectors>,
    /// Sectors of the record that is being appended.
    pub(in crate::machine) recording: Vec<Sectors>,
    pub(in crate::machine) failure: Option<Failure>,
    pub(in crate::machine) flush: Option<Flush>,
}

/// What a write does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::machine) enum WritePhase {
    Enter,
    Copy,
    /// Local sectors that are not dirty yet are recorded before they change.
    Ahead,
    Data,
    /// Sectors that were absent are recorded after they were written.
    Behind,
    /// The write failed: the bytes that it left in absent sectors are cleared.
    Clear,
    Flush,
}

impl Write {
    pub(in crate::machine) fn bytes(range: Sectors, durable: bool) -> Self {
        let (parts, recording) = (Vec::new(), Vec::new());
        let phase = WritePhase::Enter;
        Self { range, zeros: None, durable, phase, parts, recording, failure: None, flush: None }
    }

    pub(in crate::machine) fn zeros(range: Sectors, space: Zeros, durable: bool) -> Self {
        Self { zeros: Some(space), ..Self::bytes(range, durable) }
    }

    pub(in crate::machine) fn frees(&self) -> bool {
        self.zeros == Some(Zeros::Free)
    }
}

/// Rounds of syncing: flushes that run at the same time share one round (group commit).
pub(in crate::machine) struct Rounds {
    pub(in crate::machine) begun: u64,
    pub(in crate::machine) over: u64,
    pub(in crate::machine) running: bool,
    pub(in crate::machine) waiters: Vec<OpId>,
    /// Number of writes, begins and ends of generations that are over: `written` now, `running_written` when the
    /// running round began, `synced` when the last successful round began.
    pub(in crate::machine) written: u64,
    pub(in crate::machine) running_written: u64,
    pub(in crate::machine) synced: u64,
    /// Number of records in the journal, and how many of them a barrier covers.
    pub(in crate::machine) records: u64,
    pub(in crate::machine) covered: u64,
    pub(in crate::machine) journal_end: u64,
}

impl Rounds {
    pub(in crate::machine) fn new(journal_end: u64) -> Self {
        Self {
            begun: 0,
            over: 0,
            running: false,
            waiters: Vec::new(),
            written: 0,
            running_written: 0,
            synced: 0,
            records: 0,
            covered: 0,
            journal_end,
        }
    }

    pub(in crate::machine) fn journal_bytes(&self) -> u64 {
        self.journal_end
    }

    /// Counts a write (or a begin or end of a generation) that is over. Only a round that begins from now on covers
    /// it.
    pub(in crate::machine) fn wrote(&mut self) {
        self.written += 1;
    }

    pub(in crate::machine) fn appended(&mut self, end: u64) {
        self.records += 1;
        self.journal_end = self.journal_end.max(end);
    }

    pub(in crate::machine) fn begin(&mut self) {
        self.begun += 1;
        self.running = true;
        self.running_written = self.written;
    }

    /// A flush of all writes that are over now. It joins the running round only if nothing was written since that
    /// round began, and needs no round at all if everything is already durable.
    pub(in crate::machine) fn flush(&self) -> Flush {
        let joins = self.running && self.running_written == self.written;
        let idle = !self.running && self.written == self.synced && self.records == self.covered;
        Flush { round: if idle { 0 } else { self.begun + u64::from(!joins) }, phase: FlushPhase::Wait }
    }
}

/// A request for durability.
pub(in crate::machine) struct Flush {
    /// The flush is over when this round is.
    pub(in crate::machine) round: u64,
    pub(in crate::machine) phase: FlushPhase,
}

/// What a flush does next.
pub(in crate::machine) enum FlushPhase {
    Wait,
    Data { upto: u64, records: u64 },
    Barrier { upto: u64, records: u64 },
}

/// Freezing, thawing and rewriting the journal exclude each other, and block writes.
#[derive(Default)]
pub(in crate::machine) struct Exclusive {
    pub(in crate::machine) holder: Option<OpId>,
    pub(in crate::machine) waiters: Vec<OpId>,
    /// The holder is about to replace the journal.
    pub(in crate::machine) replaces: bool,
}

impl Exclusive {
    pub(in crate::machine) fn holds_writes(&self) -> bool {
        self.holder.is_some()
    }

    /// Whether nothing may be appended to the journal, because it is about to be replaced.
    pub(in crate::machine) fn holds_records(&self) -> bool {
        self.replaces
    }
}

/// A request to begin a generation.
#[derive(Default)]
pub(in crate::machine) struct Freeze {
    pub(in crate::machine) over: Option<Result<(), Failure>>,
}

/// A request to end a generation or to change the base, which it does by a record.
pub(in crate::machine) struct Thaw {
    pub(in crate::machine) record: Record,
    pub(in crate::machine) flush: Option<Flush>,
    pub(in crate::machine) failure: Option<Failure>,
}

impl Thaw {
    pub(in crate::machine) fn new(record: Record) -> Self {
        Self { record, flush: None, failure: None }
    }
}

/// Replaces the journal by a shorter one.
#[derive(Default)]
pub(in crate::machine) struct Rewrite {
    /// It has begun a round of syncing, which is the running one.
    pub(in crate::machine) begun: bool,
    pub(in crate::machine) synced: bool,
    pub(in crate::machine) over: bool,
}

/// A request for frozen bytes.
pub(in crate::machine) struct FrozenRead {
    pub(in crate::machine) range: Sectors,
    pub(in crate::machine) over: Option<Result<(), Failure>>,
}

impl FrozenRead {
    pub(in crate::machine) fn new(range: Sectors) -> Self {
        Self { range, over: None }
    }
}
