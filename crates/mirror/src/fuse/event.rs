//! What happens in a mount, for a log. Who mounts decides where it goes.

use std::fmt;
use std::sync::Arc;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A disk is in use from now on.
    Opened {
        /// Its name in the mount.
        disk: String,
        /// The kernel reads its local file by itself.
        passthrough: bool,
    },
    /// Nobody uses it any more; what was written is durable.
    Closed {
        /// Its name in the mount.
        disk: String,
    },
    /// Something was asked of the control file, and done.
    Done {
        /// What was answered.
        answer: String,
    },
    /// A request failed through no fault of whoever made it.
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
