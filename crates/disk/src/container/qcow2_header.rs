//! What every QCOW2 file of ours has in common: version 3, clusters of 64 KiB, reference counts of 16 bits, no backing
//! file. Source: QEMU's `docs/interop/qcow2.rst`.

/// Binary logarithm of the size of a cluster.
pub(super) const CLUSTER_BITS: u32 = 16;

/// The header of a QCOW2 file, and the sizes of its tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qcow2Header {
    /// Size of the disk in bytes.
    pub size_bytes: u64,
    /// Number of entries of the table of the first level.
    pub level1_entries: u64,
    /// Offset of that table in the file, in bytes; a multiple of the cluster.
    pub level1_offset: u64,
    /// Offset of the table that names the blocks of reference counts.
    pub counts_offset: u64,
    /// Length of that table in clusters.
    pub counts_clusters: u64,
}

impl Qcow2Header {
    /// Size of a cluster in bytes.
    pub const CLUSTER_BYTES: u64 = 1 << CLUSTER_BITS;
    /// Entries of a table, of 8 bytes each, in one cluster. A table of the second level is one cluster.
    pub const TABLE_ENTRIES: u64 = Self::CLUSTER_BYTES / 8;
    /// Reference counts in one block, of 2 bytes each.
    pub const BLOCK_COUNTS: u64 = Self::CLUSTER_BYTES / 2;
    /// Marks an entry whose cluster has one reference.
    pub const COPIED: u64 = 1 << 63;

    /// How many blocks of reference counts a file has that uses `used` clusters besides them, and how many clusters the
    /// table has that names these blocks. The blocks and their table are counted, too.
    #[must_use]
    pub fn counts_of(used: u64) -> (u64, u64) {
        let table = |blocks: u64| blocks.div_ceil(Self::TABLE_ENTRIES);
        let mut blocks = used.div_ceil(Self::BLOCK_COUNTS).max(1);
        while used + blocks + table(blocks) > blocks * Self::BLOCK_COUNTS {
            blocks += 1;
        }
        (blocks, table(blocks))
    }

    /// The bytes of the header.
    ///
    /// # Panics
    /// If a number of entries or clusters does not fit into 32 bits: the disk would have more than 2 EiB.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let short = |number: u64| u32::try_from(number).expect("tables of a disk of 2 EiB").to_be_bytes();
        let mut header = b"QFI\xfb".to_vec();
        let mut put = |bytes: &[u8]| header.extend_from_slice(bytes);
        put(&3u32.to_be_bytes());
        // No backing file.
        put(&[0; 12]);
        put(&CLUSTER_BITS.to_be_bytes());
        put(&self.size_bytes.to_be_bytes());
        // No encryption.
        put(&[0; 4]);
        put(&short(self.level1_entries));
        put(&self.level1_offset.to_be_bytes());
        put(&self.counts_offset.to_be_bytes());
        put(&short(self.counts_clusters));
        // No snapshots, and no features of version 3.
        put(&[0; 4 + 8 + 24]);
        // Counts of 1 << 4 bits; length of the header; no extensions.
        put(&4u32.to_be_bytes());
        put(&104u32.to_be_bytes());
        put(&[0; 8]);
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_count_themselves_and_there_is_none_too_many() {
        let near = Qcow2Header::BLOCK_COUNTS;
        let far = near * Qcow2Header::TABLE_ENTRIES;
        for used in [1, 2, near - 3, near - 2, near - 1, near, 3 * near - 4, far - 9000, far, 5 * far + 1] {
            let (blocks, table) = Qcow2Header::counts_of(used);
            let fits = |blocks: u64, table: u64| used + blocks + table <= blocks * near;
            assert!(fits(blocks, table), "{used} clusters");
            assert_eq!(table, blocks.div_ceil(Qcow2Header::TABLE_ENTRIES), "{used} clusters");
            let less = blocks - 1;
            assert!(!fits(less, less.div_ceil(Qcow2Header::TABLE_ENTRIES)), "{used} clusters");
        }
    }
}
