//! The options of an install.

use base::limits::PIPELINE_BYTES_DEFAULT;

/// What an install does with free space: sectors that are not allocated in the image, and sectors after its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FreeSpace {
    /// Leave it unchanged.
    #[default]
    Skip,
    /// Make it zeros.
    Zero,
    /// Discard it; what it reads as afterwards is undefined. Leave it unchanged if the target can't discard.
    Discard,
}

/// Whether an install looks for what the target holds already, to write only the rest. What it finds counts as read
/// back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reuse {
    /// Write everything.
    #[default]
    Never,
    /// Compare everything if one half of a sample is right.
    IfItPays,
    /// Compare everything.
    InPlace,
    /// Compare everything, and look for what is missing in free space, too.
    Always,
}

/// The options of an install.
#[derive(Debug, Clone, Copy)]
pub struct InstallOptions {
    /// What to do with free space.
    pub free: FreeSpace,
    /// Whether to read everything back and compare, past the page cache if the target allows it.
    pub verify: bool,
    /// Whether to look first for what the target holds already.
    pub reuse: Reuse,
    /// Whether to decode and write objects. If false, the install only checks each object's digest and drops it, to
    /// test a network: it writes nothing and reads nothing back.
    pub decode: bool,
    /// Whether to keep signatures of earlier content in free space. If false, they are erased.
    pub keep_signatures: bool,
    /// Whether to leave the backup of a GPT at its offset on the captured disk, even if the target is larger. If false,
    /// it moves to the end of the target.
    pub keep_gpt: bool,
    /// The number of worker threads; 0 for twice the number of cores. `memory_bytes` may reduce it.
    pub threads: usize,
    /// Memory for objects in the queue and for buffers, in bytes. At least one worker runs, even if this is too small.
    pub memory_bytes: u64,
}

impl Default for InstallOptions {
    fn default() -> Self {
        let memory_bytes = PIPELINE_BYTES_DEFAULT;
        Self {
            free: FreeSpace::Skip,
            verify: true,
            reuse: Reuse::Never,
            decode: true,
            keep_signatures: false,
            keep_gpt: false,
            threads: 0,
            memory_bytes,
        }
    }
}
