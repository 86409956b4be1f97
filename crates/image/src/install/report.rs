//! What an install did.

/// What an install did. Fields that end in `_bytes` count bytes of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InstallReport {
    /// Content of chunks that was written.
    pub written_bytes: u64,
    /// Content of chunks that the target held already, found by `InstallOptions::reuse`.
    pub kept_bytes: u64,
    /// Content of chunks that the target held in other places and that was copied.
    pub moved_bytes: u64,
    /// Zeros that were made: allocated ones, and free space with [`FreeSpace::Zero`].
    pub zeroed_bytes: u64,
    /// Free space that was discarded.
    pub discarded_bytes: u64,
    /// Free space that was left unchanged.
    pub skipped_bytes: u64,
    /// Content and allocated zeros that were read back and found right.
    pub verified_bytes: u64,
    /// Number of old signatures that were erased in free space.
    pub erased_signatures: u64,
    /// Whether the backup of the GPT was moved to the end of a larger target.
    pub moved_gpt: bool,
    /// Whether the target was read back, and each read came from the medium, not from the page cache.
    pub past_cache: bool,
}

impl InstallReport {
    /// The report of two targets together.
    pub(super) fn plus(&self, other: &Self) -> Self {
        Self {
            written_bytes: self.written_bytes + other.written_bytes,
            kept_bytes: self.kept_bytes + other.kept_bytes,
            moved_bytes: self.moved_bytes + other.moved_bytes,
            zeroed_bytes: self.zeroed_bytes + other.zeroed_bytes,
            discarded_bytes: self.discarded_bytes + other.discarded_bytes,
            skipped_bytes: self.skipped_bytes + other.skipped_bytes,
            verified_bytes: self.verified_bytes + other.verified_bytes,
            erased_signatures: self.erased_signatures + other.erased_signatures,
            moved_gpt: self.moved_gpt || other.moved_gpt,
            past_cache: self.past_cache && other.past_cache,
        }
    }
}
