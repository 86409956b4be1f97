//! State shared by the writers of one process.

use std::sync::Weak;

use parking_lot::Mutex;

use super::commit_queue::CommitQueues;
use super::compose::CodecPool;
use crate::lease::writer::Writer;
use crate::repository::Repository;

/// State shared by the writers of one process.
#[derive(Debug, Default)]
pub(super) struct Blobs {
    pub(super) queues: CommitQueues,
    /// The writer that all writes under way share.
    pub(super) writer: Mutex<Weak<Writer>>,
    pub(super) codecs: CodecPool,
}

impl Repository {
    /// The state shared by the writers of this process.
    pub(super) fn blobs(&self) -> &Blobs {
        self.memory.get()
    }
}
