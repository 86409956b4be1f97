//! What is said on a disk's control socket: lines of JSON, a request and its answers. `formats/attached.md`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::quiesce::Quiesce;
use crate::tokens::TokenStatus;

/// Name of the socket in the disk's folder.
pub(super) const SOCKET: &str = "control.sock";
/// How long a disk may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest line, either way.
pub(super) const LINE_BYTES_MAX: u64 = 64 << 10;

/// How long freezing may take if nobody says otherwise.
const LIMIT_SECONDS: u64 = 10;

/// A commit that is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitRequest {
    /// Image that gets the version; that of the base, if not said.
    #[serde(default)]
    pub image: Option<String>,
    /// Whether there must be no such image yet: it becomes the disk as it is now.
    #[serde(default)]
    pub new: bool,
    /// Whether it may go onto a version that others made meanwhile, if they changed other sectors.
    #[serde(default)]
    pub merge: bool,
    /// What is frozen around the moment.
    #[serde(default)]
    pub quiesce: Option<Quiesce>,
    /// How long freezing that may take.
    #[serde(default = "limit_seconds")]
    pub limit_seconds: u64,
}

fn limit_seconds() -> u64 {
    LIMIT_SECONDS
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Image of the version that holds the disk as it was at the moment.
    pub image: String,
    /// Its number.
    pub number: u64,
    /// Whether there was anything to be made a version of.
    pub changed: bool,
    /// Bytes that had been written.
    pub dirty_bytes: u64,
    /// Bytes that were sent.
    pub stored_bytes: u64,
    /// Whether the disk is based on it now.
    pub is_base: bool,
}

/// What a disk is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// How it is.
    Status,
    /// To make a version of what was written.
    Commit(CommitRequest),
    /// To become durable and to end.
    Detach {
        /// Whether all that it holds is to be deleted as well.
        #[serde(default)]
        discard: bool,
        /// Even what was written since the last commit.
        #[serde(default)]
        force: bool,
    },
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Answer {
    /// How it is.
    Status(Box<Status>),
    /// The moment of a commit is over, the machine runs on; more follows.
    Moment {
        /// Whether something was frozen around it.
        quiesced: bool,
        /// How long all of it took.
        seconds: f64,
    },
    /// What a commit waits for; more follows.
    Waits {
        /// In words for people.
        message: String,
    },
    /// A version holds the disk as it was at the moment.
    Committed(Committed),
    /// It is durable, and served no longer.
    Detached {
        /// Whether its folder is gone.
        discarded: bool,
    },
    /// What was asked for was not done.
    Error {
        /// Why, for control flow.
        kind: Cause,
        /// The whole chain of causes.
        message: String,
    },
}

/// A kind of error as a word of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A precondition refused.
    Refused,
    /// Files or objects are not what was written.
    Corrupt,
    /// There is no such disk, image or version.
    NotFound,
    /// A request that cannot be valid.
    Invalid,
    /// A server or a guest agent does not answer.
    Unreachable,
    /// The operating system refused or failed, or a word of a newer program.
    #[serde(other)]
    Io,
}

impl From<ErrorKind> for Cause {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Refused | ErrorKind::Exists | ErrorKind::Denied | ErrorKind::Untrusted => {
                Self::Refused
            }
            ErrorKind::Corrupt | ErrorKind::Malformed | ErrorKind::Verification | ErrorKind::Incomplete => {
                Self::Corrupt
            }
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::Invalid => Self::Invalid,
            ErrorKind::Unreachable => Self::Unreachable,
            _ => Self::Io,
        }
    }
}

impl From<Cause> for ErrorKind {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Refused => Self::Refused,
            Cause::Corrupt => Self::Corrupt,
            Cause::NotFound => Self::NotFound,
            Cause::Invalid => Self::Invalid,
            Cause::Unreachable => Self::Unreachable,
            Cause::Io => Self::Io,
        }
    }
}

/// A disk at one moment. Counters begin with its process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// What the disk is called.
    pub name: String,
    /// Image of its base: the version that it began as, or was last committed as.
    pub image: String,
    /// Number of that version.
    pub number: u64,
    /// Process that runs it.
    pub process: u32,
    /// Version of its program.
    pub program: String,
    /// Where NBD clients find it, as URIs.
    pub nbd: Vec<String>,
    /// Who is asked for what is not here, in this order.
    pub sources: Vec<String>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Connections of NBD clients.
    pub clients: u64,
    /// Size of the disk.
    pub size_bytes: u64,
    /// Bytes of it that are here; all of them once it needs nobody.
    pub local_bytes: u64,
    /// Bytes that were written since the base.
    pub dirty_bytes: u64,
    /// Encoded bytes that somebody waited for.
    pub demanded_bytes: u64,
    /// Chunks that somebody waited for.
    pub demanded_chunks: u64,
    /// Encoded bytes that were fetched ahead of who reads.
    pub prefetched_bytes: u64,
    /// Of these, what nobody has read yet.
    pub prefetched_unused_bytes: u64,
    /// Encoded bytes that were fetched because nothing else was to be done.
    pub background_bytes: u64,
    /// Bytes of tree nodes that were fetched.
    pub node_bytes: u64,
    /// Of all these, what came by multicast.
    #[serde(default)]
    pub multicast_bytes: u64,
    /// Fetches that failed at one source and were tried again.
    pub retries: u64,
    /// Objects that were not what their name says.
    pub lies: u64,
    /// What reads wait for, if they have waited for a second.
    #[serde(default)]
    pub waits: Option<Waits>,
    /// What sources have damaged, or lack: at most 16 pieces.
    #[serde(default)]
    pub damaged: Vec<Damaged>,
    /// How many pieces that are.
    #[serde(default)]
    pub damaged_count: u64,
    /// How the tokens for its servers stand.
    #[serde(default)]
    pub tokens: Vec<TokenStatus>,
}

/// What reads wait for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// What has been waited for longest: a chunk, or a node above it.
    pub what: String,
    /// For how long.
    pub seconds: u64,
    /// What went wrong last.
    pub why: Option<String>,
}

/// Something that a source has damaged, or lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damaged {
    /// The chunk or node.
    pub what: String,
    /// The source.
    pub source: String,
    /// The whole chain of causes.
    pub why: String,
}

/// Asks the disk in `folder`, and returns its last answer; those before it go to `hear`.
///
/// # Errors
/// `NotRunning` if no process runs the disk; those that the disk answers; `Io`.
pub fn ask(folder: &Path, request: &Request, hear: &mut dyn FnMut(&Answer)) -> Result<Answer> {
    let path = folder.join(SOCKET);
    let failed =
        |error| Error::from_source(ErrorKind::Io, format!("ask the disk at `{}`", path.display()), error);
    let mut stream = match UnixStream::connect(&path) {
        Ok(stream) => stream,
        Err(error) => {
            use std::io::ErrorKind as Kind;
            let nobody = matches!(error.kind(), Kind::NotFound | Kind::ConnectionRefused);
            let kind = if nobody { ErrorKind::NotRunning } else { ErrorKind::Io };
            let text = format!("ask the disk at `{}`", path.display());
            return Err(Error::from_source(kind, text, error));
        }
    };
    // Whatever else is asked for may take its time.
    let patience = (*request == Request::Status).then_some(PATIENCE);
    stream.set_read_timeout(patience).and_then(|()| send(&mut stream, request)).map_err(failed)?;
    let mut lines = BufReader::new(stream);
    loop {
        let Some(answer) = receive::<Answer>(&mut lines)? else {
            let text = format!("the disk at `{}` ended before it answered", path.display());
            return Err(Error::new(ErrorKind::Io, text));
        };
        match answer {
            Answer::Error { kind, message } => return Err(Error::new(kind.into(), message)),
            answer if answer.is_last() => return Ok(answer),
            answer => hear(&answer),
        }
    }
}

impl Answer {
    /// Whether no other follows.
    fn is_last(&self) -> bool {
        match self {
            Self::Moment { .. } | Self::Waits { .. } => false,
            Self::Status(_) | Self::Committed(_) | Self::Detached { .. } | Self::Error { .. } => true,
        }
    }
}

/// Sends a line.
pub(super) fn send(stream: &mut UnixStream, what: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(what).expect("requests and answers are plain data");
    line.push(b'\n');
    stream.write_all(&line)
}

/// Receives a line. `None` at the end.
///
/// # Errors
/// `Invalid` if it is too long or means nothing; `Io`.
pub(super) fn receive<T: serde::de::DeserializeOwned>(
    lines: &mut BufReader<UnixStream>,
) -> Result<Option<T>> {
    let mut line = Vec::new();
    let read = lines.take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
    read.map_err(|error| Error::from_source(ErrorKind::Io, "read a line of the control socket", error))?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => serde_json::from_slice(&line).map(Some).map_err(|error| {
            let text = "a line of the control socket that this program does not know";
            Error::from_source(ErrorKind::Invalid, text, error)
        }),
        Some(_) => Err(Error::new(ErrorKind::Invalid, "a line of the control socket is cut, or too long")),
    }
}
