//! The events of a server, for a log. The program that starts the server decides where they go.

use std::fmt;
use std::sync::Arc;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client chose a disk.
    Connected {
        /// Its address.
        peer: String,
        /// The disk's name.
        export: String,
    },
    /// The client left, or its connection broke; all its requests are finished.
    Disconnected {
        /// Its address.
        peer: String,
        /// The disk's name.
        export: String,
    },
    /// A client was disconnected, or left, before it chose a disk or because of what it sent.
    Dropped {
        /// Where it came from.
        peer: String,
        /// The whole chain of causes.
        error: String,
    },
    /// A request failed through no fault of its client.
    Failed {
        /// The disk's name.
        export: String,
        /// The whole chain of causes.
        error: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected { peer, export } => write!(f, "NBD client {peer} has disk `{export}`"),
            Self::Disconnected { peer, export } => write!(f, "NBD client {peer} left disk `{export}`"),
            Self::Dropped { peer, error } => write!(f, "NBD client {peer} dropped: {error}"),
            Self::Failed { export, error } => write!(f, "disk `{export}`: {error}"),
        }
    }
}

/// Where events go. Called from many threads; it must not block for long.
pub type Log = Arc<dyn Fn(&Event) + Send + Sync>;
