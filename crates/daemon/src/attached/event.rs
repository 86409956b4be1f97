//! What happens to an attached disk, for its log. Who attaches it decides where that goes.

use std::fmt;
use std::sync::Arc;

use base::units::show_bytes;
use serde::Serialize;

use super::commit::Committed;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// An NBD client has the disk.
    ClientConnected {
        /// Where it comes from.
        peer: String,
    },
    /// It went, or its connection broke.
    ClientLeft {
        /// Where it came from.
        peer: String,
    },
    /// A client was sent away, or broke off in the middle of something.
    ClientDropped {
        /// Where it came from.
        peer: String,
        /// The whole chain of causes.
        error: String,
    },
    /// A version was made of what had been written.
    Committed {
        /// `image@version`.
        reference: String,
        /// Bytes that had been written.
        dirty_bytes: u64,
        /// Bytes that were sent.
        stored_bytes: u64,
    },
    /// That failed; the disk runs on as it was.
    CommitFailed {
        /// The whole chain of causes.
        error: String,
    },
    /// A request of a client failed through no fault of its own.
    RequestFailed {
        /// The whole chain of causes.
        error: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientConnected { peer } => write!(f, "NBD client {peer} connected"),
            Self::ClientLeft { peer } => write!(f, "NBD client {peer} left"),
            Self::ClientDropped { peer, error } => write!(f, "NBD client {peer} dropped: {error}"),
            Self::Committed { reference, dirty_bytes, stored_bytes } => {
                let (dirty, stored) = (show_bytes(*dirty_bytes), show_bytes(*stored_bytes));
                write!(f, "committed {dirty} as {reference}, {stored} stored")
            }
            Self::CommitFailed { error } => write!(f, "a commit failed: {error}"),
            Self::RequestFailed { error } => write!(f, "a request failed: {error}"),
        }
    }
}

impl From<&mirror::nbd::Event> for Event {
    fn from(event: &mirror::nbd::Event) -> Self {
        use mirror::nbd::Event as Nbd;
        match event.clone() {
            Nbd::Connected { peer, .. } => Self::ClientConnected { peer },
            Nbd::Disconnected { peer, .. } => Self::ClientLeft { peer },
            Nbd::Dropped { peer, error } => Self::ClientDropped { peer, error },
            Nbd::Failed { error, .. } => Self::RequestFailed { error },
        }
    }
}

impl From<&Committed> for Event {
    fn from(done: &Committed) -> Self {
        let reference = format!("{}@{}", done.image, done.number);
        Self::Committed { reference, dirty_bytes: done.dirty_bytes, stored_bytes: done.stored_bytes }
    }
}

/// Where events go. Called from many threads; it must not block for long.
pub type Log = Arc<dyn Fn(&Event) + Send + Sync>;
