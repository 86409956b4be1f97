//! Options of an install.

use base::limits::PIPELINE_BYTES_DEFAULT;

/// What happens to space that the image does not use, inside it and after its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FreeSpace {
    /// It keeps its bytes.
    #[default]
    Skip,
    /// It is filled with zeros.
    Zero,
    /// It is discarded if the target supports that; its contents are undefined afterwards.
    Discard,
}

/// Options of an install.
#[derive(Debug, Clone, Copy)]
pub struct InstallOptions {
    /// What happens to free space.
    pub free: FreeSpace,
    /// Whether to read everything back and compare, past the page cache if the target allows it.
    pub verify: bool,
    /// Whether to search the target first for chunks that it already holds.
    pub resume: bool,
    /// Whether to decode and write objects. If not, objects are verified and dropped, to test a network: nothing is
    /// written or read back.
    pub decode: bool,
    /// Whether signatures of earlier contents stay in free space. Otherwise they are erased.
    pub keep_signatures: bool,
    /// Whether the backup of a GPT keeps its position on the image's disk, even on a larger target. Otherwise it moves
    /// to the end.
    pub keep_gpt: bool,
    /// Worker threads; 0 for as many as this machine can use.
    pub threads: usize,
    /// Memory for queued objects and for buffers, in bytes. At least one worker runs, whatever the value is.
    pub memory_bytes: u64,
}

impl Default for InstallOptions {
    fn default() -> Self {
        let memory_bytes = PIPELINE_BYTES_DEFAULT;
        Self {
            free: FreeSpace::Skip,
            verify: true,
            resume: false,
            decode: true,
            keep_signatures: false,
            keep_gpt: false,
            threads: 0,
            memory_bytes,
        }
    }
}
