//! All bounds of diskcast in one place. Assertions that the compiler checks relate them to each other. Untrusted input
//! is compared with these bounds before memory is allocated.

/// Unit of extents on disk and in formats, in bytes, whatever the disk's own sector size.
pub const SECTOR_BYTES: u64 = 512;
/// Largest disk: 16 EiB, in sectors of 512 bytes.
pub const DISK_SECTORS_MAX: u64 = 1 << 55;

/// Smallest, default and largest chunk (logical bytes; powers of two). A chunk is the unit of compression, naming,
/// deduplication and on-demand reading.
pub const CHUNK_BYTES_MIN: u32 = 1 << 16;
/// See [`CHUNK_BYTES_MIN`].
pub const CHUNK_BYTES_DEFAULT: u32 = 1 << 18;
/// See [`CHUNK_BYTES_MIN`]. 32,768 sectors, so that an extent inside a chunk fits 16-bit numbers.
pub const CHUNK_BYTES_MAX: u32 = 1 << 24;
/// Most bytes that encoding may add to the plain content of a chunk: header and its extents as a bitmap.
pub const CHUNK_OVERHEAD_MAX: u32 = 64 + CHUNK_BYTES_MAX / 512 / 8;

/// Bytes that encryption adds to an object.
pub const SEALED_BYTES_MORE: u32 = 36;

/// Children of a tree node.
pub const TREE_FANOUT: u64 = 256;
/// Most levels of a tree: enough for the largest disk in the smallest chunks.
pub const TREE_HEIGHT_MAX: u8 = 6;
/// Largest encoded tree node, in bytes: 256 leaves, each with its extents as a bitmap in the largest chunk.
pub const NODE_BYTES_MAX: u32 = 64 + 256 * (96 + CHUNK_BYTES_MAX / 512 / 8);
/// Largest encoded manifest, in bytes.
pub const MANIFEST_BYTES_MAX: u32 = 1 << 20;

/// Longest name of an image or a tag, in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Most partitions and filesystems that a manifest describes.
pub const PARTITIONS_MAX: usize = 1024;
/// Most logical partitions followed along an MBR's extended chain.
pub const LOGICAL_PARTITIONS_MAX: usize = 128;
/// Most runs in the map of a disk. Where free space is scattered more finely, its smallest pieces count as allocated.
pub const MAP_RUNS_MAX: usize = 1 << 21;
/// Most labels in a manifest.
pub const LABELS_MAX: usize = 64;

/// Most chunks of a boot profile: what a machine reads until it is up.
pub const PROFILE_CHUNKS_MAX: usize = 1 << 14;
/// Most bytes of a disk that a boot profile names.
pub const PROFILE_DISK_BYTES_MAX: u64 = 1 << 30;
/// Longest record of a boot profile, in bytes.
pub const PROFILE_RECORD_BYTES_MAX: u32 = 1 << 20;

/// Smallest and largest block of a multicast session, in payload bytes.
pub const BLOCK_BYTES_MIN: u16 = 512;
/// See [`BLOCK_BYTES_MIN`]. Fits a jumbo frame of 9000 bytes.
pub const BLOCK_BYTES_MAX: u16 = 8960;
/// Largest object of a multicast session, in bytes: a chunk or a tree node.
pub const OBJECT_BYTES_MAX: u32 = CHUNK_BYTES_MAX + CHUNK_OVERHEAD_MAX;
/// Most blocks of one object, so that a block's index fits 16 bits.
pub const OBJECT_BLOCKS_MAX: u32 = 1 << 16;
/// Most objects of one multicast session.
pub const SESSION_OBJECTS_MAX: u64 = 1 << 26;
/// Most receivers that a server tells apart in one session's statistics.
pub const SESSION_RECEIVERS_MAX: usize = 1 << 14;

/// Memory of a receiver for objects that are not complete, not verified or not yet written, in bytes.
pub const RECEIVER_BUFFER_BYTES_DEFAULT: u64 = 64 << 20;
/// Memory of a capture or install pipeline for chunks between its stages, in bytes.
pub const PIPELINE_BYTES_DEFAULT: u64 = 64 << 20;

const _: () = {
    assert!(CHUNK_BYTES_MIN <= CHUNK_BYTES_DEFAULT && CHUNK_BYTES_DEFAULT <= CHUNK_BYTES_MAX);
    assert!(CHUNK_BYTES_MIN.is_power_of_two() && CHUNK_BYTES_DEFAULT.is_power_of_two());
    assert!(CHUNK_BYTES_MAX.is_power_of_two() && CHUNK_BYTES_MAX as u64 / SECTOR_BYTES <= 1 << 15);
    // Header, tag of the extents and the overhead of encryption fit the overhead that encoding may add besides a
    // bitmap.
    assert!(16 + 1 + SEALED_BYTES_MORE <= CHUNK_OVERHEAD_MAX - CHUNK_BYTES_MAX / 512 / 8);
    // The tree can address the last chunk of the largest disk.
    assert!(
        DISK_SECTORS_MAX / (CHUNK_BYTES_MIN as u64 / SECTOR_BYTES) <= TREE_FANOUT.pow(TREE_HEIGHT_MAX as u32)
    );
    // A profile of the smallest chunks can name any part of the largest disk that it may cover. Its record has runs of
    // one chunk each with indices of 15 digits, in hexadecimal because it is encrypted, and stays within its bound.
    assert!(PROFILE_CHUNKS_MAX as u64 * CHUNK_BYTES_MIN as u64 == PROFILE_DISK_BYTES_MAX);
    assert!(2 * (24 * PROFILE_CHUNKS_MAX as u64 + 4096) <= PROFILE_RECORD_BYTES_MAX as u64);
    assert!(DISK_SECTORS_MAX / (CHUNK_BYTES_MIN as u64 / SECTOR_BYTES) < 1_000_000_000_000_000);
    // Every chunk and node is an object that a session can carry in blocks of the smallest size.
    assert!(NODE_BYTES_MAX <= OBJECT_BYTES_MAX);
    assert!(OBJECT_BYTES_MAX.div_ceil(BLOCK_BYTES_MIN as u32) <= OBJECT_BLOCKS_MAX);
    // A receiver can hold at least two of the largest objects.
    assert!(RECEIVER_BUFFER_BYTES_DEFAULT >= 2 * OBJECT_BYTES_MAX as u64);
    assert!(PIPELINE_BYTES_DEFAULT >= 2 * CHUNK_BYTES_MAX as u64);
};
