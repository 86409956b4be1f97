//! What writers of one process share.

use std::sync::Weak;

use parking_lot::Mutex;

use super::commit_queue::Lines;
use super::compose::CodecPool;
use crate::lease::writer::Writer;
use crate::repository::Repository;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Blobs {
    pub(super) queues: Lines,
    /// That of all writes under way.
    pub(super) writer: Mutex<Weak<Writer>>,
    pub(super) codecs: CodecPool,
}

impl Repository {
    /// What the writers of this process share.
    pub(super) fn blobs(&self) -> &Blobs {
        self.memory.get()
    }
}
