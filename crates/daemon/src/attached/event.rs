//! Events of an attached disk, for its log. The program that attaches the disk decides where the log goes.

use std::fmt;
use std::sync::Arc;

use base::units::show_bytes;
use serde::Serialize;

use super::protocol::Committed;
use crate::auth::tokens::News;

/// Advice for a token that is no longer accepted.
const NEEDED: &str = "a new one is needed in its file, which is read again";

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// An NBD client opened the disk.
    ClientConnected {
        /// Address of the client.
        peer: String,
    },
    /// An NBD client closed the disk, or its connection broke.
    ClientLeft {
        /// Address of the client.
        peer: String,
    },
    /// A client was rejected, or its connection broke in the middle of a message.
    ClientDropped {
        /// Address of the client.
        peer: String,
        /// The whole chain of causes.
        error: String,
    },
    /// A commit made a version.
    Committed {
        /// `image@version`.
        reference: String,
        /// Bytes written since the base.
        dirty_bytes: u64,
        /// Bytes sent to the repository or server.
        stored_bytes: u64,
    },
    /// A commit was cancelled, because the client that requested it disconnected. The disk runs on unchanged.
    CommitCalledOff,
    /// A commit failed; the disk runs on unchanged.
    CommitFailed {
        /// The whole chain of causes.
        error: String,
    },
    /// A request of an NBD client failed, and not because of the client.
    RequestFailed {
        /// The whole chain of causes.
        error: String,
    },
    /// Reads wait for a source that cannot be reached.
    ReadsWait {
        /// What the longest read waits for: a chunk, or a node above it.
        what: String,
        /// How long it has waited.
        seconds: u64,
        /// The last failure.
        why: Option<String>,
    },
    /// Reads no longer wait.
    ReadsGoOn {
        /// How long the longest read had waited.
        seconds: u64,
    },
    /// A source has a chunk or node damaged, or lacks it. Logged once for each source; if no source has it undamaged,
    /// reads of it fail.
    Damaged {
        /// The chunk or node.
        what: String,
        /// The source.
        source: String,
        /// The whole chain of causes.
        error: String,
    },
    /// The token for a server is valid again: it was renewed late, or replaced.
    TokenGood {
        /// Name of the server.
        server: String,
        /// When it expires, as in RFC 3339.
        expires: String,
    },
    /// The token for a server expires within a day, and was not renewed.
    TokenEnding {
        /// Name of the server.
        server: String,
        /// When it expires, and why it was not renewed if that was tried.
        expires: String,
    },
    /// The token for a server has expired: the server rejects all requests until there is another one.
    TokenExpired {
        /// Name of the server.
        server: String,
        /// When it expired, as in RFC 3339.
        expires: String,
    },
    /// The server rejects the token.
    TokenRejected {
        /// Name of the server.
        server: String,
        /// The whole chain of causes.
        error: String,
    },
}

impl Event {
    /// The event for a change of the token for `server`.
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
            Self::CommitCalledOff => {
                f.write_str("a commit was called off: the client that requested it has disconnected")
            }
            Self::CommitFailed { error } => write!(f, "a commit failed: {error}"),
            Self::RequestFailed { error } => write!(f, "a request failed: {error}"),
            Self::ReadsWait { what, seconds, why } => {
                let why = why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
                write!(f, "reads have waited for {what} for {seconds} s{why}")
            }
            Self::ReadsGoOn { seconds } => write!(f, "reads go on after {seconds} s"),
            Self::Damaged { what, source, error } => write!(f, "{source} has no undamaged {what}: {error}"),
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
                write!(f, "{server} rejects the token: {error}; {NEEDED}")
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

/// Receives the events. Called from many threads; must not block for long.
pub type Log = Arc<dyn Fn(&Event) + Send + Sync>;
