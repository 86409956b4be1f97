//! The limits of diskcast in one place. Assertions at the end, which the compiler checks, relate them to each other.
//! Code checks untrusted input against these limits before it allocates memory for it.

/// Unit of extents in memory and in formats, in bytes. It does not depend on the sector size of the disk.
pub const SECTOR_BYTES: u64 = 512;
/// Size of the largest disk, in sectors of 512 bytes: 16 EiB.
pub const DISK_SECTORS_MAX: u64 = 1 << 55;

/// Smallest, default and largest chunk, in bytes of the disk; powers of two. A chunk is the unit of compression,
/// naming, deduplication and reading on demand.
pub const CHUNK_BYTES_MIN: u32 = 1 << 16;
/// See [`CHUNK_BYTES_MIN`].
pub const CHUNK_BYTES_DEFAULT: u32 = 1 << 18;
/// See [`CHUNK_BYTES_MIN`]. Equal to 32,768 sectors, so that 16-bit numbers can describe an extent inside a chunk.
pub const CHUNK_BYTES_MAX: u32 = 1 << 24;
/// Most bytes that encoding may add to the plain content of a chunk: the header, and a bitmap of one bit per sector.
pub const CHUNK_OVERHEAD_MAX: u32 = 64 + CHUNK_BYTES_MAX / 512 / 8;

/// Bytes that encryption adds to an object: head, nonce and authentication tag.
pub const SEALED_BYTES_MORE: u32 = 36;

/// Most children of a tree node.
pub const TREE_FANOUT: u64 = 256;
/// Most levels of a tree: enough for the largest disk in the smallest chunks.
pub const TREE_HEIGHT_MAX: u8 = 6;
/// Largest encoded tree node, in bytes: 256 leaf entries, each with a bitmap of the sectors of the largest chunk.
pub const NODE_BYTES_MAX: u32 = 64 + 256 * (96 + CHUNK_BYTES_MAX / 512 / 8);
/// Largest encoded manifest, in bytes.
pub const MANIFEST_BYTES_MAX: u32 = 1 << 20;

/// Longest name of an image or a tag, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Most partitions, and most filesystems, that a manifest describes.
pub const PARTITIONS_MAX: usize = 1024;
/// Most logical partitions that are read from the chain of an MBR's extended partition.
pub const LOGICAL_PARTITIONS_MAX: usize = 128;
/// Most runs of allocated sectors in the map of a disk: a terabyte whose files lie in pieces of 64 KiB. They take 256
/// MiB. If a disk has more, its smallest free gaps count as allocated.
pub const MAP_RUNS_MAX: usize = 1 << 24;
/// Most labels in a manifest.
pub const LABELS_MAX: usize = 64;

/// Most chunks of a boot profile, which lists the chunks that a machine is likely to read when it starts.
pub const PROFILE_CHUNKS_MAX: usize = 1 << 14;
/// Most bytes of a disk that a boot profile covers.
pub const PROFILE_DISK_BYTES_MAX: u64 = 1 << 30;
/// Largest stored record of a boot profile, in bytes.
pub const PROFILE_RECORD_BYTES_MAX: u32 = 1 << 20;

/// Smallest and largest block of a multicast session, in payload bytes. A block is the part of an object in one packet.
pub const BLOCK_BYTES_MIN: u16 = 512;
/// See [`BLOCK_BYTES_MIN`]. Fits a jumbo frame of 9000 bytes.
pub const BLOCK_BYTES_MAX: u16 = 8960;
/// Largest object of a multicast session, in bytes: a chunk or a tree node.
pub const OBJECT_BYTES_MAX: u32 = CHUNK_BYTES_MAX + CHUNK_OVERHEAD_MAX;
/// Most blocks of one object, so that a block's index fits 16 bits.
pub const OBJECT_BLOCKS_MAX: u32 = 1 << 16;
/// Most objects of one multicast session.
pub const SESSION_OBJECTS_MAX: u64 = 1 << 26;
/// Most receivers that a multicast session ever admits, including those that have left. The server refuses more.
pub const SESSION_RECEIVERS_MAX: usize = 1 << 14;

/// Memory of a receiver for objects that are incomplete, not yet verified or not yet written, in bytes.
pub const RECEIVER_BUFFER_BYTES_DEFAULT: u64 = 64 << 20;
/// Memory of a capture or an install for chunks that wait between two stages of its pipeline, in bytes.
pub const PIPELINE_BYTES_DEFAULT: u64 = 64 << 20;

const _: () = {
    assert!(CHUNK_BYTES_MIN <= CHUNK_BYTES_DEFAULT && CHUNK_BYTES_DEFAULT <= CHUNK_BYTES_MAX);
    assert!(CHUNK_BYTES_MIN.is_power_of_two() && CHUNK_BYTES_DEFAULT.is_power_of_two());
    assert!(CHUNK_BYTES_MAX.is_power_of_two() && CHUNK_BYTES_MAX as u64 / SECTOR_BYTES <= 1 << 15);
    // Header (16 bytes), kind of the extents (1 byte) and encryption fit the part of the overhead that is not bitmap.
    assert!(16 + 1 + SEALED_BYTES_MORE <= CHUNK_OVERHEAD_MAX - CHUNK_BYTES_MAX / 512 / 8);
    // A tree of the largest height has enough leaves for the largest disk in the smallest chunks.
    assert!(
        DISK_SECTORS_MAX / (CHUNK_BYTES_MIN as u64 / SECTOR_BYTES) <= TREE_FANOUT.pow(TREE_HEIGHT_MAX as u32)
    );
    // The limit in chunks and the limit in bytes agree for the smallest chunks. The longest record fits: it has a run
    // for each chunk, with an index of 15 digits. An encrypted record is written in hexadecimal, which doubles it.
    assert!(PROFILE_CHUNKS_MAX as u64 * CHUNK_BYTES_MIN as u64 == PROFILE_DISK_BYTES_MAX);
    assert!(2 * (24 * PROFILE_CHUNKS_MAX as u64 + 4096) <= PROFILE_RECORD_BYTES_MAX as u64);
    assert!(DISK_SECTORS_MAX / (CHUNK_BYTES_MIN as u64 / SECTOR_BYTES) < 1_000_000_000_000_000);
    // A session can carry every chunk and every node, even in blocks of the smallest size.
    assert!(NODE_BYTES_MAX <= OBJECT_BYTES_MAX);
    assert!(OBJECT_BYTES_MAX.div_ceil(BLOCK_BYTES_MIN as u32) <= OBJECT_BLOCKS_MAX);
    // A receiver can hold at least two of the largest objects.
    assert!(RECEIVER_BUFFER_BYTES_DEFAULT >= 2 * OBJECT_BYTES_MAX as u64);
    assert!(PIPELINE_BYTES_DEFAULT >= 2 * CHUNK_BYTES_MAX as u64);
};
