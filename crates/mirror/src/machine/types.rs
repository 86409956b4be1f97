//! The types that the core and its driver exchange: requests, steps, results, configuration and counters.

use std::ops::Range;

use base::Duration;

/// A range of sectors of 512 bytes each.
pub type Sectors = Range<u64>;

/// Identifies one operation. A number is never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub(in crate::machine) u64);

/// The place of a node in the tree: node `number` of `level` covers `256^(level + 1)` chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePlace {
    /// 0 for the nodes whose entries are leaves.
    pub level: u8,
    /// Index among the nodes of its level.
    pub number: u64,
}

/// An object that can be fetched.
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
    /// Reads bytes, as soon as they are local.
    Read(Sectors),
    /// Overwrites with bytes.
    Write {
        /// Where.
        range: Sectors,
        /// Whether the request ends only after a flush (FUA).
        durable: bool,
    },
    /// Overwrites with zeros.
    Zero {
        /// Where.
        range: Sectors,
        /// What happens to the space.
        space: Zeros,
        /// Whether the request ends only after a flush (FUA).
        durable: bool,
    },
    /// Makes all writes that have ended durable.
    Flush,
    /// Finds out which chunks of this range are not empty, by fetching tree nodes.
    Learn(Sectors),
    /// Begins a generation: the sectors that are dirty now become frozen. Fails with [`Failure::Busy`] while another
    /// one exists.
    Freeze,
    /// Reads bytes as they were when the generation began. If they are no longer or were never local, the operation
    /// ends without a step. Frozen sectors are always local.
    ReadFrozen(Sectors),
    /// Ends the generation.
    Thaw(Ending),
    /// Makes the version that the driver adds to the record the new base. All sectors in which it differs from the
    /// old base are dirty.
    Rebase,
}

/// What happens to space that is zeroed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zeros {
    /// It stays allocated in the local file.
    Allocated,
    /// It becomes a hole in the local file. A version has zeros there.
    Hole,
    /// It becomes a hole in the local file, and is free in the next version.
    Free,
}

/// How a generation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The frozen sectors were published. The version that the driver adds has them and is the base from now on.
    Committed,
    /// The frozen sectors were published in the version that the driver adds, merged with changes of other writers.
    /// They stay dirty.
    Landed,
    /// The frozen sectors were not published. They are dirty again.
    Abandoned,
}

/// The next step of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Do this, then call [`Core::done`].
    Do(Io),
    /// Nothing, until [`Core::poll_wake`] names the operation.
    Wait,
    /// The operation is over.
    Over(Result<(), Failure>),
}

/// One piece of I/O that the driver does for an operation.
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
    /// Appends to the journal. Appends end one after the other, in the order of their offsets.
    Append(Record),
    /// Makes all bytes durable that were written to the local file before this call.
    SyncData,
    /// Appends a barrier that covers the journal up to this offset in bytes, and makes the journal durable.
    Barrier(u64),
    /// Replaces the journal by one that states [`Core::held`](crate::machine::Core::held), and makes it durable.
    Rewrite,
    /// Copies these sectors from the local file to the side file.
    CopyOut(Sectors),
    /// Reads these sectors into the request's buffer: first those of the side file, then those of the local file.
    ReadFrozen {
        /// Frozen sectors that were copied out.
        copied: Vec<Sectors>,
        /// Frozen sectors that were not copied out, since they were not overwritten.
        here: Vec<Sectors>,
    },
    /// Gets an item from a source, verifies and decodes it.
    Fetch {
        /// What.
        item: Item,
        /// Index of the source.
        source: usize,
    },
    /// Compares a chunk of the local file with its leaf: the allocated sectors with the digest, all others with
    /// zeros.
    Check(u64),
    /// Writes these parts of the fetched chunk to the local file.
    Fill {
        /// The chunk.
        chunk: u64,
        /// Sectors of the disk, inside the chunk.
        parts: Vec<Sectors>,
    },
}

/// A record for the journal; see `formats/mirror.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// These sectors are dirty.
    Dirty(Vec<Sectors>),
    /// These chunks are clean.
    Clean(Vec<Range<u64>>),
    /// These sectors are dirty, zero, and free in the next version.
    Freed(Vec<Sectors>),
    /// The dirty sectors are frozen, and will be published as the promise says that the driver adds.
    Frozen,
    /// The frozen sectors were published: the version that the driver adds is the base.
    Committed,
    /// The frozen sectors are in the version that the driver adds, and are dirty again.
    Landed,
    /// The frozen sectors are dirty again.
    Abandoned,
    /// The version that the driver adds is the base.
    Rebased,
}

/// The result of a step that the driver executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// Success.
    Well,
    /// The record was appended; the journal now ends at this offset in bytes.
    Appended(u64),
    /// The chunk is in the operation's buffer. The number is the length of its object in bytes.
    Chunk(u32),
    /// The node was decoded.
    Node {
        /// For each entry of the node: whether it is free or zero. Entries after its last one are free.
        empty: Vec<bool>,
        /// Length of the object in bytes.
        bytes: u32,
    },
    /// Whether the checked chunk has the right content.
    Checked(bool),
    /// Failure.
    Failed(Failure),
}

/// Why an operation or a step failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The local medium failed.
    Local,
    /// A source sent an object that does not match its digest.
    Damaged,
    /// A source does not have the object.
    Missing,
    /// A source could not be reached.
    Dead,
    /// A commit is under way.
    Busy,
}

/// How the disk is divided into chunks. Units are sectors of 512 bytes.
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
    /// The number of chunks.
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

/// Limits and policies of the core.
#[derive(Debug, Clone)]
pub struct Config {
    /// For each source, in the order in which sources are asked: the maximum number of requests in flight. Limits
    /// the fan-in.
    pub sources: Vec<usize>,
    /// Maximum number of fetches in flight to all sources together.
    pub fetches_max: usize,
    /// How many of these are reserved for demanded chunks (chunks that a read waits for).
    pub demand_reserve: usize,
    /// A demanded chunk that no source delivers within this time is an error. `None`: wait without limit. A chunk
    /// that all sources have damaged, or lack, is an error after a few rounds of asking them, whatever this is.
    pub give_up: Option<Duration>,
    /// Maximum number of chunks that are read ahead of a stream; 0 switches read-ahead off.
    pub ahead_chunks_max: u64,
    /// Chunks per second that are fetched in the background; 0 for none.
    pub background_per_second: u32,
    /// The journal is rewritten when it is longer than this many bytes.
    pub journal_bytes_max: u64,
}

#[cfg(test)]
impl Config {
    /// One source, and nothing that is fetched ahead of need.
    pub(crate) fn of_tests(journal_bytes_max: u64) -> Self {
        Self {
            sources: vec![4],
            fetches_max: 4,
            demand_reserve: 1,
            give_up: None,
            ahead_chunks_max: 0,
            background_per_second: 0,
            journal_bytes_max,
        }
    }
}

/// Counts since the start. Bytes are those of objects, compressed as they are transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Chunks that a read waited for, whether or not it was the first to request them. A chunk counts twice if two
    /// reads waited.
    pub demanded_chunks: u64,
    /// Bytes of chunks that were requested because a read already waited.
    pub demanded_bytes: u64,
    /// Bytes of chunks that were requested before a read needed them: read ahead, or because other machines read
    /// them.
    pub prefetched_bytes: u64,
    /// Of `prefetched_bytes`: chunks that were read later, or waited for while they were in flight.
    pub prefetched_used_bytes: u64,
    /// Of `prefetched_bytes`: chunks that were requested because other machines read them.
    pub expected_bytes: u64,
    /// Of `expected_bytes`: chunks that were read later, or waited for while they were in flight.
    pub expected_used_bytes: u64,
    /// Bytes fetched in the background.
    pub background_bytes: u64,
    /// Bytes of tree nodes.
    pub node_bytes: u64,
    /// Of all the bytes above: those that arrived by multicast, without a request.
    pub arrived_bytes: u64,
    /// Fetches that failed at one source and were tried at another source, or later.
    pub retries: u64,
    /// Objects that did not match their digest.
    pub lies: u64,
    /// Sectors copied while a commit ran.
    pub copied_sectors: u64,
}

impl Counters {
    /// Counts a prefetched chunk that was written to the local file.
    pub(in crate::machine) fn prefetched(&mut self, unread: Unread) {
        self.prefetched_bytes += u64::from(unread.bytes);
        self.expected_bytes += if unread.expected { u64::from(unread.bytes) } else { 0 };
    }

    /// Counts a prefetched chunk that is read now.
    pub(in crate::machine) fn used(&mut self, unread: Unread) {
        self.prefetched_used_bytes += u64::from(unread.bytes);
        self.expected_used_bytes += if unread.expected { u64::from(unread.bytes) } else { 0 };
    }

    /// Bytes of chunks that were prefetched and have not been read yet.
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
    /// Whether it was fetched because other machines read it.
    pub(in crate::machine) expected: bool,
}

/// Navigation in the tree, for drivers that must find a node.
impl NodePlace {
    /// The parent of this node, and the index of the parent's entry for it. `None` for the root of a tree of
    /// `height` levels.
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
