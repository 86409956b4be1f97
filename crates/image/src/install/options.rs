//! How to install.

use base::limits::PIPELINE_BYTES_DEFAULT;

/// What happens to space that the image does not use, inside it and behind its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FreeSpace {
    /// Keeps what it held.
    #[default]
    Skip,
    /// Holds zeros.
    Zero,
    /// Is discarded, where the target knows that; then what it holds is open.
    Discard,
}

/// How to install.
#[derive(Debug, Clone, Copy)]
pub struct InstallOptions {
    /// What happens to free space.
    pub free: FreeSpace,
    /// Whether to read everything back, past the page cache where the target allows, and compare.
    pub verify: bool,
    /// Whether to look first which chunks the target holds already.
    pub resume: bool,
    /// Whether to decode and write what comes. If not, objects are held against their names and dropped, to try a
    /// network: nothing is written, and there is nothing to read back.
    pub decode: bool,
    /// Whether signatures of what was on the target before stay in free space. Otherwise they are erased.
    pub keep_signatures: bool,
    /// Whether the backup of a GPT stays where it was on the image's disk, also on a larger target. Otherwise it moves
    /// to the end.
    pub keep_gpt: bool,
    /// Worker threads; 0 for as many as this machine can use.
    pub threads: usize,
    /// Memory for objects that wait and for buffers, in bytes. One worker runs whatever it is.
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
