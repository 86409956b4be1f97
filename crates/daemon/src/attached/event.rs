//! What happens to an attached disk, for its log. Who attaches it decides where that goes.

use std::fmt;
use std::sync::Arc;

use base::units::show_bytes;
use serde::Serialize;

use super::protocol::Committed;
use crate::tokens::News;

/// What helps where a token does not.
const NEEDED: &str = "a new one is needed in its file, which is read again";

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
    /// Who asked for a commit went before it was made, and it was called off; the disk runs on as it was.
    CommitCalledOff,
    /// A commit failed; the disk runs on as it was.
    CommitFailed {
        /// The whole chain of causes.
        error: String,
    },
    /// A request of a client failed through no fault of its own.
    RequestFailed {
        /// The whole chain of causes.
        error: String,
    },
    /// Reads wait for a source that is away.
    ReadsWait {
        /// What has been waited for longest: a chunk, or a node above it.
        what: String,
        /// For how long.
        seconds: u64,
        /// What went wrong last.
        why: Option<String>,
    },
    /// They are answered again.
    ReadsGoOn {
        /// How long the longest of them had waited.
        seconds: u64,
    },
    /// A source has something damaged, or lacks it. Said once for each; if no source has it undamaged, reads of it
    /// fail.
    Damaged {
        /// The chunk or node.
        what: String,
        /// The source.
        source: String,
        /// The whole chain of causes.
        error: String,
    },
    /// The token for a server is good again: it was renewed late, or another was given.
    TokenGood {
        /// The server.
        server: String,
        /// Until when, as RFC 3339 has it.
        expires: String,
    },
    /// It ends within a day, and was not renewed.
    TokenEnding {
        /// The server.
        server: String,
        /// When, and why it was not renewed if that was tried.
        expires: String,
    },
    /// It has ended: the server answers nothing until there is another.
    TokenExpired {
        /// The server.
        server: String,
        /// Since when, as RFC 3339 has it.
        expires: String,
    },
    /// The server does not take it.
    TokenRejected {
        /// The server.
        server: String,
        /// The whole chain of causes.
        error: String,
    },
}

impl Event {
    /// News of the token for `server`.
    #[must_use]
    pub fn of_token(server: &str, news: News) -> Self {
        let server = server.to_owned();
        match news {
            News::Good(expires) => Self::TokenGood { server, expires },
            News::Ending(expires) => Self::TokenEnding { server, expires },
            News::Expired(expires) => Self::TokenExpired { server, expires },
            News::Rejected(error) => Self::TokenRejected { server, error },
        }
    }
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
            Self::CommitCalledOff => f.write_str("a commit was called off: who asked for it has gone"),
            Self::CommitFailed { error } => write!(f, "a commit failed: {error}"),
            Self::RequestFailed { error } => write!(f, "a request failed: {error}"),
            Self::ReadsWait { what, seconds, why } => {
                let why = why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
                write!(f, "reads have waited for {what} for {seconds} s{why}")
            }
            Self::ReadsGoOn { seconds } => write!(f, "reads go on after {seconds} s"),
            Self::Damaged { what, source, error } => write!(f, "{source} has no good {what}: {error}"),
            Self::TokenGood { server, expires } => {
                write!(f, "the token for {server} is good until {expires}")
            }
            Self::TokenEnding { server, expires } => {
                write!(f, "the token for {server} was not renewed, and ends at {expires}")
            }
            Self::TokenExpired { server, expires } => {
                write!(f, "the token for {server} has expired at {expires}: {NEEDED}")
            }
            Self::TokenRejected { server, error } => {
                write!(f, "{server} does not take the token: {error}; {NEEDED}")
            }
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
