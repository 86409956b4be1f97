//! Quiesces a guest or a file system around the moment of a commit, so that its cached writes are on the disk:
//! through QEMU's guest agent, by QEMU's monitor, which stops the machine, or by freezing a file system that is mounted
//! on this host. Whatever was frozen is thawed, also after errors.
//!
//! Source: QEMU's `qga/qapi-schema.json` (guest-sync-delimited, guest-fsfreeze-freeze, guest-fsfreeze-thaw) and
//! `docs/interop/qmp-spec.rst` (qmp_capabilities, query-status, stop, cont, quit), `fsfreeze(8)`.

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use net::clock::Clock;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Maximum length of a guest agent's answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// In an error's message: what was frozen could not be thawed.
pub const MAY_BE_FROZEN: &str = "which may be frozen";
/// Maximum number of attempts to thaw, each with the time limit of freezing.
const THAWS_MAX: u32 = 3;
/// Precedes a request and the answer to it; everything received before it belongs to older requests and is dropped.
const DELIMITER: u8 = 0xff;
/// Program of util-linux. It is searched in `FOLDERS`, since the `PATH` of a service may lack `/sbin`.
const FSFREEZE: &str = "fsfreeze";
/// See [`FSFREEZE`].
const FOLDERS: &str = "/usr/sbin:/sbin:/usr/bin:/bin";

/// What to quiesce for a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quiesce {
    /// The guest whose QEMU guest agent answers at this Unix socket.
    Agent(PathBuf),
    /// The file system that is mounted at this path.
    Mount(PathBuf),
    /// The machine whose QEMU has its monitor (QMP) at this Unix socket.
    Monitor(PathBuf),
}

impl Quiesce {
    /// Checks that it can be frozen. A file system that contains the disk's own `folder` cannot: the commit writes to
    /// the journal there, which would block until the commit thaws it.
    ///
    /// # Errors
    /// `Refused`; `Io`.
    pub fn check(&self, folder: &Path) -> Result<()> {
        let Self::Mount(path) = self else { return Ok(()) };
        let device = |path: &Path| {
            let found = std::fs::metadata(path).map(|found| found.dev());
            found.map_err(|error| {
                Error::from_source(ErrorKind::Io, format!("look at `{}`", path.display()), error)
            })
        };
        let refused = |why: &str| Err(Error::new(ErrorKind::Refused, format!("`{}` {why}", path.display())));
        let here = device(path)?;
        if here == device(&path.join(".."))? {
            return refused("is not a mount point");
        }
        if here == device(folder)? {
            return refused("holds the disk's own folder, which could not be written while it is frozen");
        }
        Ok(())
    }

    /// Calls `moment` while it is frozen. Freezing may take at most `limit`.
    ///
    /// # Errors
    /// Those of `moment`; `Refused` if freezing was refused or failed; `Unreachable` if it did not finish in time;
    /// `Io` if thawing failed, since then it may still be frozen.
    pub fn around(&self, limit: Duration, moment: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let mut frozen = self.freeze(limit)?;
        let done = moment();
        let thawed = frozen.thaw();
        done.and(thawed)
    }

    /// Freezes it until the result is thawed or dropped. Errors are those of [`Self::around`].
    pub(super) fn freeze(&self, limit: Duration) -> Result<Frozen<'_>> {
        // Somebody else stopped that machine, and may want it so.
        let stands = match self {
            Self::Monitor(socket) => !Guest::runs(socket, limit)?,
            _ => false,
        };
        // From here on it may be frozen, whatever the answer says, or become frozen later: it must be thawed.
        let frozen = Frozen { what: self, limit, over: stands };
        if stands {
            return Ok(frozen);
        }
        let done = match self {
            Self::Agent(socket) => Guest::ask(socket, "guest-fsfreeze-freeze", limit),
            Self::Mount(path) => fsfreeze("--freeze", path, limit),
            Self::Monitor(socket) => Guest::command(socket, "stop", limit).map(drop),
        };
        match done {
            Ok(()) => Ok(frozen),
            Err(error) if error.kind() == ErrorKind::Refused => {
                // Freezing was refused, so this process has frozen nothing. If it is frozen, another program did that
                // and will thaw it.
                frozen.forget();
                Err(error)
            }
            Err(error) => Err(error),
        }
    }
}

/// Something that may be frozen; thawed when this is dropped, if not before.
pub(super) struct Frozen<'a> {
    what: &'a Quiesce,
    limit: Duration,
    over: bool,
}

impl Frozen<'_> {
    fn forget(mut self) {
        self.over = true;
    }

    /// Ends a machine that was stopped; whatever else is frozen is thawed.
    pub(super) fn end(mut self) -> Result<()> {
        match self.what {
            Quiesce::Monitor(socket) => {
                self.over = true;
                Guest::command(socket, "quit", self.limit).map(drop)
            }
            _ => self.thaw(),
        }
    }

    pub(super) fn thaw(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.over, true) {
            return Ok(());
        }
        let once = || match self.what {
            Quiesce::Agent(socket) => Guest::ask(socket, "guest-fsfreeze-thaw", self.limit),
            Quiesce::Mount(path) => fsfreeze("--unfreeze", path, self.limit),
            Quiesce::Monitor(socket) => Guest::command(socket, "cont", self.limit).map(drop),
        };
        let mut last = once();
        for _ in 1..THAWS_MAX {
            if last.is_ok() {
                break;
            }
            last = once();
        }
        let what = match self.what {
            Quiesce::Agent(socket) => format!("the guest behind `{}`", socket.display()),
            Quiesce::Mount(path) => format!("the file system at `{}`", path.display()),
            Quiesce::Monitor(socket) => format!("the machine behind `{}`", socket.display()),
        };
        last.map_err(|error| {
            Error::from_source(ErrorKind::Io, format!("thaw {what}, {MAY_BE_FROZEN}"), error)
        })
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if !self.over {
            // The first error is already on its way to the client, so this one is dropped.
            let _ = self.thaw();
        }
    }
}

/// One connection to a guest agent or a monitor, with a time limit for all of it.
struct Guest<'a> {
    stream: UnixStream,
    socket: &'a Path,
    clock: Clock,
    limit: Duration,
    received: Vec<u8>,
}

impl<'a> Guest<'a> {
    /// Executes one command. `Refused` if the agent answers with an error, `Unreachable` if it does not answer in
    /// time.
    fn ask(socket: &'a Path, command: &str, limit: Duration) -> Result<()> {
        let mut guest = Self::reach(socket, limit)?;
        guest.synchronize()?;
        guest.execute(command).map(drop)
    }

    /// The same with QEMU's monitor. Returns what it answers.
    fn command(socket: &'a Path, command: &str, limit: Duration) -> Result<Value> {
        let mut monitor = Self::reach(socket, limit)?;
        monitor.execute("qmp_capabilities")?;
        monitor.execute(command)
    }

    /// Whether the machine behind a monitor runs. `Refused` if that is not known: then nothing was stopped.
    fn runs(socket: &'a Path, limit: Duration) -> Result<bool> {
        let status = Self::command(socket, "query-status", limit).map_err(|error| {
            Error::from_source(
                ErrorKind::Refused,
                format!("ask the monitor at `{}`", socket.display()),
                error,
            )
        })?;
        Ok(status["running"] == true)
    }

    fn reach(socket: &'a Path, limit: Duration) -> Result<Self> {
        let stream = UnixStream::connect(socket).map_err(|error| {
            // No command was sent, so nothing is frozen.
            Error::from_source(
                ErrorKind::Refused,
                format!("reach the agent at `{}`", socket.display()),
                error,
            )
        })?;
        Ok(Self { stream, socket, clock: Clock::start(), limit, received: Vec::new() })
    }

    /// Executes a command, and returns what is answered. Greetings and events of a monitor are no answers.
    fn execute(&mut self, command: &str) -> Result<Value> {
        self.send(&[], &json!({ "execute": command }))?;
        loop {
            let mut answer = self.receive()?;
            if let Some(error) = answer.get("error") {
                let words = error["desc"].as_str().unwrap_or("it does not say why").to_owned();
                let text = format!("{command} of the agent at `{}`: {words}", self.socket.display());
                return Err(Error::new(ErrorKind::Refused, text));
            }
            if answer.get("return").is_some() {
                return Ok(answer["return"].take());
            }
        }
    }

    /// Drops answers that the agent still sends to earlier clients.
    fn synchronize(&mut self) -> Result<()> {
        let id = std::process::id();
        self.send(&[DELIMITER], &json!({ "execute": "guest-sync-delimited", "arguments": { "id": id } }))?;
        loop {
            while !self.received.contains(&DELIMITER) {
                // Bytes before the delimiter are of no use.
                self.received.clear();
                self.fill()?;
            }
            let behind = self.received.iter().rposition(|&byte| byte == DELIMITER).map_or(0, |at| at + 1);
            self.received.drain(..behind);
            if self.receive()?["return"] == id {
                return Ok(());
            }
        }
    }

    fn send(&mut self, before: &[u8], request: &Value) -> Result<()> {
        let bytes = [before, request.to_string().as_bytes(), b"\n"].concat();
        let left = self.left()?;
        let sent = self.stream.set_write_timeout(Some(left)).and_then(|()| self.stream.write_all(&bytes));
        sent.map_err(|error| self.silent(error))
    }

    /// Receives a line and parses it.
    fn receive(&mut self) -> Result<Value> {
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                let parsed = serde_json::from_slice(&line);
                return parsed.map_err(|error| self.silent(std::io::Error::other(error)));
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> Result<()> {
        if self.received.len() > ANSWER_BYTES_MAX {
            return Err(self.silent(std::io::Error::other("its answer is too long")));
        }
        let mut piece = [0; 4096];
        let left = self.left()?;
        let read = self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(&mut piece));
        match read {
            Ok(0) => Err(self.silent(std::io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => {
                self.received.extend_from_slice(&piece[..count]);
                Ok(())
            }
            // By a signal: with a time limit, the kernel does not begin again by itself.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(self.silent(error)),
        }
    }

    /// Time left, as an error if there is none.
    fn left(&self) -> Result<Duration> {
        let left = self.limit.saturating_sub(self.clock.elapsed());
        if left.is_zero() { Err(self.silent(std::io::ErrorKind::TimedOut.into())) } else { Ok(left) }
    }

    fn silent(&self, error: std::io::Error) -> Error {
        let text = format!("no answer within {:?} of the agent at `{}`", self.limit, self.socket.display());
        Error::from_source(ErrorKind::Unreachable, text, error)
    }
}

/// Freezes or thaws a file system. `Refused` if the program fails, `Unreachable` if it takes longer than `limit`.
fn fsfreeze(action: &str, path: &Path, limit: Duration) -> Result<()> {
    let what = || format!("{FSFREEZE} {action} {}", path.display());
    let mut command = Command::new(FSFREEZE);
    command.env("PATH", FOLDERS);
    command.arg(action).arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| Error::from_source(ErrorKind::Refused, what(), error))?;
    let (sender, receiver) = mpsc::sync_channel(1);
    // A thread of its own, since nothing can interrupt a freeze that hangs in the kernel.
    std::thread::spawn(move || {
        // The receiver may have timed out and be gone.
        let _ = sender.send(child.wait_with_output());
    });
    let output = match receiver.recv_timeout(limit) {
        Ok(output) => output.map_err(|error| Error::from_source(ErrorKind::Refused, what(), error))?,
        Err(_) => {
            return Err(Error::new(ErrorKind::Unreachable, format!("{} takes more than {limit:?}", what())));
        }
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::new(ErrorKind::Refused, format!("{}: {said}", what())))
}

#[cfg(test)]
mod tests {
    use std::io::BufRead as _;
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;

    use super::*;
    use parking_lot::Mutex;

    /// A mock agent that answers with `answer` (`None`: never), and the list of commands that it received.
    fn agent(path: &Path, answer: fn(&str) -> Option<Value>) -> Arc<Mutex<Vec<String>>> {
        let listener = UnixListener::bind(path).unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // A late answer for an earlier client.
                stream.write_all(b"{\"return\": 12}\n").unwrap();
                let lines = std::io::BufReader::new(stream.try_clone().unwrap());
                for line in lines.split(b'\n').map_while(std::result::Result::ok) {
                    let line: Vec<u8> = line.into_iter().filter(|&byte| byte != DELIMITER).collect();
                    let request: Value = serde_json::from_slice(&line).unwrap();
                    let command = request["execute"].as_str().unwrap();
                    let reply = match command {
                        "guest-sync-delimited" => Some(json!({ "return": request["arguments"]["id"] })),
                        command => {
                            log.lock().push(command.to_owned());
                            answer(command)
                        }
                    };
                    let before: &[u8] = if command.contains("sync") { &[DELIMITER] } else { &[] };
                    if let Some(reply) = reply {
                        let bytes = [before, reply.to_string().as_bytes(), b"\n"].concat();
                        let _ = stream.write_all(&bytes);
                    }
                }
            }
        });
        heard
    }

    const FREEZE: &str = "guest-fsfreeze-freeze";
    const THAW: &str = "guest-fsfreeze-thaw";
    /// Nobody waits for so long.
    const LIMIT: Duration = Duration::from_secs(60);
    /// Long enough for a busy machine; the test of an agent that says nothing takes this time.
    const SILENCE: Duration = Duration::from_secs(10);

    #[test]
    fn the_moment_is_between_freezing_and_thawing_and_its_failure_thaws_too() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent");
        let heard = agent(&socket, |_| Some(json!({ "return": 1 })));
        let quiesce = Quiesce::Agent(socket);
        let mut moment = || {
            heard.lock().push("moment".into());
            Ok(())
        };
        quiesce.around(LIMIT, &mut moment).unwrap();
        assert_eq!(*heard.lock(), [FREEZE, "moment", THAW]);

        heard.lock().clear();
        let failed = Error::new(ErrorKind::Io, "no room");
        let mut failed = Some(failed);
        let error = quiesce.around(LIMIT, &mut || Err(failed.take().unwrap())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(*heard.lock(), [FREEZE, THAW]);

        heard.lock().clear();
        let panics = std::panic::AssertUnwindSafe(|| quiesce.around(LIMIT, &mut || panic!("on purpose")));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(*heard.lock(), [FREEZE, THAW]);
    }

    #[test]
    fn an_agent_that_says_no_is_left_alone_and_one_that_says_nothing_is_thawed() {
        let folder = tempfile::tempdir().unwrap();
        let never = &mut || panic!("there is no moment");
        let socket = folder.path().join("no");
        let heard =
            agent(&socket, |_| Some(json!({ "error": { "class": "GenericError", "desc": "disabled" } })));
        let error = Quiesce::Agent(socket).around(LIMIT, never).unwrap_err();
        assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("disabled"), "{error}");
        assert_eq!(*heard.lock(), [FREEZE]);

        let socket = folder.path().join("silent");
        let heard = agent(&socket, |command| (command == THAW).then(|| json!({ "return": 1 })));
        let error = Quiesce::Agent(socket).around(SILENCE, never).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert_eq!(*heard.lock(), [FREEZE, THAW]);

        let error = Quiesce::Agent(folder.path().join("nobody")).around(LIMIT, never).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
    }

    #[test]
    fn a_guest_that_can_not_be_thawed_is_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent");
        let heard = agent(&socket, |command| {
            let error = json!({ "error": { "class": "GenericError", "desc": "still frozen" } });
            Some(if command == FREEZE { json!({ "return": 1 }) } else { error })
        });
        let error = Quiesce::Agent(socket).around(LIMIT, &mut || Ok(())).unwrap_err();
        assert!(error.to_string().contains("may be frozen"), "{error}");
        assert_eq!(*heard.lock(), [FREEZE, THAW, THAW, THAW]);
    }

    #[test]
    fn what_is_no_mount_point_is_not_frozen() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("below");
        std::fs::create_dir(&below).unwrap();
        for path in [&below, Path::new("/")] {
            let error = Quiesce::Mount(path.to_owned()).check(folder.path()).unwrap_err();
            assert!(error.to_string().contains("not a mount point"), "{error}");
        }
    }
}
