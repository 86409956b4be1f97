//! The protocol of a disk's control socket: a request and its answers, each a line of JSON. `formats/attached.md`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use net::api::SetOrder;
use serde::{Deserialize, Serialize};

use super::quiesce::Quiesce;
use crate::auth::tokens::TokenStatus;

/// Name of the socket in the disk's folder.
pub(super) const SOCKET: &str = "control.sock";
/// Time limit for the answer to a status request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum length of a line in both directions, in bytes.
pub(super) const LINE_BYTES_MAX: u64 = 64 << 10;

/// Default time limit for freezing, in seconds.
const LIMIT_SECONDS: u64 = 10;

/// A request for a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitRequest {
    /// Image that gets the version; `None`: the image of the base.
    #[serde(default)]
    pub image: Option<String>,
    /// Whether the image must not exist yet: it then begins as the disk's present content.
    #[serde(default)]
    pub new: bool,
    /// Whether the commit may follow a version that other writers published meanwhile, if they changed other sectors.
    #[serde(default)]
    pub merge: bool,
    /// What to freeze around the moment.
    #[serde(default)]
    pub quiesce: Option<Quiesce>,
    /// Time limit for freezing it, in seconds. With orders: the longest time that anything is frozen.
    #[serde(default = "limit_seconds")]
    pub limit_seconds: u64,
    /// Whether the moment is that of other disks, too: then the client gives orders ([`SetOrder`]), and the version
    /// follows whatever is the newest one of its image.
    #[serde(default)]
    pub orders: Option<Afterwards>,
}

/// What becomes of a disk after the moment of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Afterwards {
    /// It runs on.
    Runs,
    /// It stays frozen until the set is there, and is detached then.
    Ends,
}

fn limit_seconds() -> u64 {
    LIMIT_SECONDS
}

/// The result of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// Image of the version that has the disk's content of the moment.
    pub image: String,
    /// Number of the version.
    pub number: u64,
    /// Whether the commit made a version; false if nothing had been written: then this is the base.
    pub changed: bool,
    /// Bytes written since the base.
    pub dirty_bytes: u64,
    /// Bytes sent to the repository or server.
    pub stored_bytes: u64,
    /// Whether the disk is now based on the version.
    pub is_base: bool,
}

/// A request to a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Asks for its [`Status`].
    Status,
    /// Commits what was written.
    Commit(CommitRequest),
    /// Makes everything durable and ends the process.
    Detach {
        /// Whether to delete the disk too.
        #[serde(default)]
        discard: bool,
        /// Whether to delete even what was written since the last commit.
        #[serde(default)]
        force: bool,
    },
}

impl Request {
    /// Whether the disk ends with its answer.
    pub(super) fn detaches(&self) -> bool {
        match self {
            Self::Status => false,
            Self::Commit(request) => request.orders == Some(Afterwards::Ends),
            Self::Detach { .. } => true,
        }
    }
}

/// An answer of a disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Answer {
    /// The state of the disk.
    Status(Box<Status>),
    /// A commit with orders has done what it can before the freeze; more answers follow.
    Prepared,
    /// The disk stands still for a commit with orders; more answers follow.
    Frozen,
    /// The moment of a commit is over and the machine runs on; more answers follow.
    Moment {
        /// Whether something was frozen around it.
        quiesced: bool,
        /// How long freezing, the moment and thawing took together.
        seconds: f64,
    },
    /// What a commit waits for; more answers follow.
    Waits {
        /// Text for people.
        message: String,
    },
    /// The version is there, and the disk stays frozen; `detached` follows, or an error.
    Stored(Committed),
    /// The commit is done.
    Committed(Committed),
    /// The disk is durable and no longer served.
    Detached {
        /// Whether its folder was deleted.
        discarded: bool,
    },
    /// The request failed.
    Error {
        /// Kind of error, for programs.
        kind: Cause,
        /// The whole chain of causes.
        message: String,
    },
}

/// A kind of error, as the protocol names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A precondition does not hold.
    Refused,
    /// Files or objects are damaged.
    Corrupt,
    /// There is no such disk, image or version.
    NotFound,
    /// The request is not valid.
    Invalid,
    /// A server or a guest agent does not answer.
    Unreachable,
    /// The operating system failed; also any kind of a newer program.
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

/// The state of a disk now. Counters start at zero with its process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Name of the disk.
    pub name: String,
    /// Image of its base: the version that it began as, or that it was last committed as.
    pub image: String,
    /// Number of that version.
    pub number: u64,
    /// Id of the process that runs it.
    pub process: u32,
    /// Version of that program.
    pub program: String,
    /// URIs for NBD clients.
    pub nbd: Vec<String>,
    /// Sources of content that is not local, in the order in which they are asked.
    pub sources: Vec<String>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Connections of NBD clients.
    pub clients: u64,
    /// Size of the disk.
    pub size_bytes: u64,
    /// Bytes that are local, including known free space. When it equals the size, the disk needs no source.
    pub local_bytes: u64,
    /// Bytes written since the base.
    pub dirty_bytes: u64,
    /// Encoded bytes of chunks that a read waited for.
    pub demanded_bytes: u64,
    /// Chunks that a read waited for.
    pub demanded_chunks: u64,
    /// Encoded bytes prefetched before a read needed them.
    pub prefetched_bytes: u64,
    /// Of these, the bytes not read yet.
    pub prefetched_unused_bytes: u64,
    /// Encoded bytes fetched in the background while there was nothing more urgent.
    pub background_bytes: u64,
    /// Bytes of fetched tree nodes.
    pub node_bytes: u64,
    /// Of all these, the bytes received by multicast.
    #[serde(default)]
    pub multicast_bytes: u64,
    /// Of all these, the bytes received from other machines by a swarm.
    #[serde(default)]
    pub peer_bytes: u64,
    /// Bytes that other machines got from this disk.
    #[serde(default)]
    pub served_bytes: u64,
    /// Fetches that failed at a source and were retried.
    pub retries: u64,
    /// Fetched objects whose bytes did not match their digest.
    pub lies: u64,
    /// What reads wait for; `None` unless a read has waited for a second.
    #[serde(default)]
    pub waits: Option<Waits>,
    /// Chunks and nodes that a source has damaged or lacks, at most 16.
    #[serde(default)]
    pub damaged: Vec<Damaged>,
    /// Number of such chunks and nodes, including those not in the list.
    #[serde(default)]
    pub damaged_count: u64,
    /// State of the token of each server.
    #[serde(default)]
    pub tokens: Vec<TokenStatus>,
}

/// The longest wait of a read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// What the read waits for: a chunk, or a node above it.
    pub what: String,
    /// How long it has waited.
    pub seconds: u64,
    /// The last failure.
    pub why: Option<String>,
}

/// A chunk or node that a source has damaged or lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damaged {
    /// The chunk or node.
    pub what: String,
    /// The source.
    pub source: String,
    /// The whole chain of causes.
    pub why: String,
}

/// Sends a request to the process of the disk in `folder` and returns the last answer; earlier answers go to `hear`.
///
/// # Errors
/// `NotRunning` if no process runs the disk; the errors that the disk answers; `Io`.
pub fn ask(folder: &Path, request: &Request, hear: &mut dyn FnMut(&Answer)) -> Result<Answer> {
    Conversation::open(folder, request)?.listen(hear)
}

/// A request that was sent, and its answers.
pub struct Conversation {
    path: PathBuf,
    stream: UnixStream,
}

impl Conversation {
    /// Sends a request to the process of the disk in `folder`.
    ///
    /// # Errors
    /// `NotRunning` if no process runs the disk; `Io`.
    pub fn open(folder: &Path, request: &Request) -> Result<Self> {
        let path = folder.join(SOCKET);
        let stream = connect(&path, request)?;
        Ok(Self { path, stream })
    }

    /// Another way to the same disk, for orders.
    ///
    /// # Errors
    /// `Io`.
    pub fn orders(&self) -> Result<Orders> {
        let stream = self.stream.try_clone();
        stream.map(Orders).map_err(|error| Error::from_source(ErrorKind::Io, "give orders to a disk", error))
    }

    /// Returns the last answer; earlier ones go to `hear`.
    ///
    /// # Errors
    /// The errors that the disk answers; `Io`.
    pub fn listen(self, hear: &mut dyn FnMut(&Answer)) -> Result<Answer> {
        let mut lines = BufReader::new(self.stream);
        loop {
            let Some(answer) = receive::<Answer>(&mut lines)? else {
                let text = format!("the disk at `{}` ended before it answered", self.path.display());
                return Err(Error::new(ErrorKind::Io, text));
            };
            match answer {
                Answer::Error { kind, message } => return Err(Error::new(kind.into(), message)),
                answer if answer.is_last() => return Ok(answer),
                answer => hear(&answer),
            }
        }
    }
}

/// Gives orders for a commit that is under way.
pub struct Orders(UnixStream);

impl Orders {
    /// Gives one. A disk that ended is noticed by who listens.
    pub fn give(&mut self, order: SetOrder) {
        let _ = send(&mut self.0, &order);
    }

    /// Calls the commit off. The disk answers with an error when its machine runs on.
    pub fn call_off(&self) {
        // It is closed already if that fails.
        let _ = self.0.shutdown(std::net::Shutdown::Write);
    }

    /// Does not wait for that answer any more.
    pub fn hang_up(&self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

fn connect(path: &Path, request: &Request) -> Result<UnixStream> {
    let failed =
        |error| Error::from_source(ErrorKind::Io, format!("ask the disk at `{}`", path.display()), error);
    let mut stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) => {
            use std::io::ErrorKind as Kind;
            let nobody = matches!(error.kind(), Kind::NotFound | Kind::ConnectionRefused);
            let kind = if nobody { ErrorKind::NotRunning } else { ErrorKind::Io };
            let text = format!("ask the disk at `{}`", path.display());
            return Err(Error::from_source(kind, text, error));
        }
    };
    // Commits and detaching may take any time.
    let patience = (*request == Request::Status).then_some(PATIENCE);
    stream.set_read_timeout(patience).and_then(|()| send(&mut stream, request)).map_err(failed)?;
    Ok(stream)
}

impl Answer {
    /// Whether this answer ends the request.
    fn is_last(&self) -> bool {
        match self {
            Self::Prepared | Self::Frozen | Self::Moment { .. } | Self::Waits { .. } | Self::Stored(_) => {
                false
            }
            Self::Status(_) | Self::Committed(_) | Self::Detached { .. } | Self::Error { .. } => true,
        }
    }
}

/// Sends a request or an answer as a line.
pub(super) fn send(stream: &mut UnixStream, what: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(what).expect("requests and answers are plain data");
    line.push(b'\n');
    stream.write_all(&line)
}

/// Receives a line. `None` if the other side has closed the connection.
///
/// # Errors
/// `Invalid` if the line is too long, cut off or not understood; `Io`.
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
        Some(_) => Err(Error::new(ErrorKind::Invalid, "a line of the control socket is cut off or too long")),
    }
}
