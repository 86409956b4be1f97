//! What the machine and its driver say to each other.

use std::ops::Range;

use base::Duration;

/// Sectors of 512 bytes.
pub type Sectors = Range<u64>;

/// One operation. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub(in crate::machine) u64);

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

impl std::fmt::Display for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Chunk(index) => write!(f, "chunk {index}"),
            Self::Node(NodePlace { level, number }) => write!(f, "node {number} of level {level}"),
        }
    }
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
    /// Bytes as they were when the generation began. If they are not here any more, or never were, it ends without a
    /// step; frozen ones are here.
    ReadFrozen(Sectors),
    /// Ends the generation.
    Thaw(Ending),
    /// The version that the driver adds is the base from now on: all that it has otherwise than the base before is
    /// dirty.
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
        copied: Vec<Sectors>,
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
    Damaged,
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
    /// After so long a demanded chunk that no source gives is an error; without, it is waited for. One that all sources
    /// have damaged, or lack, is an error at once.
    pub give_up: Option<Duration>,
    /// Most chunks that are read ahead of a stream; 0 for none.
    pub ahead_chunks_max: u64,
    /// Chunks a second that are filled in the background; 0 for none.
    pub background_per_second: u32,
    /// The journal is rewritten when it has grown to so many bytes.
    pub journal_bytes_max: u64,
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
    /// Sectors copied while a commit ran.
    pub copied_sectors: u64,
}

impl Counters {
    /// Something that was prefetched is in the local file.
    pub(in crate::machine) fn prefetched(&mut self, unread: Unread) {
        self.prefetched_bytes += u64::from(unread.bytes);
        self.expected_bytes += if unread.expected { u64::from(unread.bytes) } else { 0 };
    }

    /// Something that was prefetched is read.
    pub(in crate::machine) fn used(&mut self, unread: Unread) {
        self.prefetched_used_bytes += u64::from(unread.bytes);
        self.expected_used_bytes += if unread.expected { u64::from(unread.bytes) } else { 0 };
    }

    /// Bytes of chunks that were fetched before they were asked for, and were not asked for since.
    #[must_use]
    pub fn prefetched_unused_bytes(&self) -> u64 {
        self.prefetched_bytes.saturating_sub(self.prefetched_used_bytes)
    }
}

/// A chunk that was fetched before it was read.
#[derive(Debug, Clone, Copy)]
pub(in crate::machine) struct Unread {
    /// Bytes of its object.
    pub(in crate::machine) bytes: u32,
    /// Whether it came because other machines read it.
    pub(in crate::machine) expected: bool,
}

/// Where a node stands over which entry of its parent: used by drivers to find it.
impl NodePlace {
    /// The node above, and which of its entries this is. `None` for the root of a tree of this height.
    #[must_use]
    pub fn parent(self, height: u8) -> Option<(Self, usize)> {
        let fanout = base::limits::TREE_FANOUT;
        let slot = usize::try_from(self.number % fanout).expect("below the fan-out");
        (self.level + 1 < height)
            .then_some((Self { level: self.level + 1, number: self.number / fanout }, slot))
    }
}

/// Whether two runs of sectors have any in common.
pub(in crate::machine) fn overlaps(one: &Sectors, other: &Sectors) -> bool {
    one.start < other.end && other.start < one.end
}
