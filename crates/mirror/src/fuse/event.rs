//! The events of a mount, for a log. The program that mounts decides where they go.

use std::fmt;
use std::sync::Arc;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A disk was opened by its first user.
    Opened {
        /// Its name in the mount.
        disk: String,
        /// The kernel reads its local file by itself.
        passthrough: bool,
    },
    /// The disk was closed after its last user left; all writes are durable.
    Closed {
        /// Its name in the mount.
        disk: String,
    },
    /// A command was executed.
    Done {
        /// The answer.
        answer: String,
    },
    /// A request failed through no fault of the program that made it.
    Failed {
        /// The disk, file or folder.
        name: String,
        /// The whole chain of causes.
        error: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opened { disk, passthrough: false } => write!(f, "disk `{disk}` is in use"),
            Self::Opened { disk, passthrough: true } => {
                write!(f, "disk `{disk}` is in use, read by the kernel alone")
            }
            Self::Closed { disk } => write!(f, "disk `{disk}` is closed"),
            Self::Done { answer } => f.write_str(answer),
            Self::Failed { name, error } => write!(f, "`{name}`: {error}"),
        }
    }
}

/// Where events go. Called from many threads; it must not block for long.
pub type Log = Arc<dyn Fn(&Event) + Send + Sync>;
