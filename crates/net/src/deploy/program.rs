//! A program that runs on a host, by its client here.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest line that a host says, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// What is kept of what it says on standard error, in bytes: the end.
const COMPLAINT_BYTES_MAX: usize = 2000;
/// How long what a client said may still come when it has ended.
const LAST_WORD_TIME: Duration = Duration::from_secs(1);
/// What ssh says when another attempt is of no use.
const HOPELESS: &[&str] =
    &["Permission denied", "Host key verification failed", "Could not resolve hostname", "Bad configuration"];
/// Exit codes of `diskcast` that another attempt would give again: wrong usage, not found, refused, unauthorized.
const LASTING: &[u8] = &[2, 10, 11, 13];

/// See the module. Clones are the same program.
#[derive(Clone)]
pub(super) struct Program(Arc<Running>);

struct Running {
    /// Closed to call the work off.
    stdin: Mutex<Option<ChildStdin>>,
    /// The client here; `None` once it has ended, since its number may be another's then.
    client: Mutex<Option<Pid>>,
}

/// How a program ended that did not say a last word.
pub(super) struct End {
    code: Option<i32>,
    complaint: String,
}

impl Program {
    /// Starts it with `first` as the first line of its input. `talk` listens to what it says, on a thread of its own,
    /// until it has said enough; then its input ends. `ended` gets what `talk` returned when the program has ended.
    ///
    /// # Errors
    /// Why it can't be started, for people.
    pub(super) fn start<T: Send + 'static>(
        mut command: Command,
        first: &impl Serialize,
        talk: impl FnOnce(&Self, Listener) -> T + Send + 'static,
        ended: impl FnOnce(Option<T>, End) + Send + 'static,
    ) -> Result<Self, String> {
        let name = command.get_program().to_string_lossy().into_owned();
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for the deployment, which lets hosts end what they do.
        let piped = piped.process_group(0);
        let mut child = piped.spawn().map_err(|error| format!("`{name}` can't be started: {error}"))?;
        let program = Self(Arc::new(Running {
            stdin: Mutex::new(child.stdin.take()),
            client: Mutex::new(Some(Pid::from_child(&child))),
        }));
        let line = line_of(first);
        let running = program.clone();
        std::thread::spawn(move || {
            let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
            let complaint = aside(move || stderr.map(end_of).unwrap_or_default());
            running.send(&line);
            let listening = running.clone();
            let said = aside(move || {
                let said = talk(&listening, Listener { stdout: stdout.map(BufReader::new) });
                // Whoever said its last word, or too much, has nothing to do any more.
                listening.call_off();
                said
            });
            let code = running.wait(&mut child);
            // A connection that stays holds the pipes of a client that was killed, until the host has ended the work.
            let said = said.recv_timeout(LAST_WORD_TIME).ok();
            let complaint = complaint.recv_timeout(LAST_WORD_TIME).unwrap_or_default();
            ended(said, End { code, complaint });
        });
        Ok(program)
    }

    /// Passes a line to it.
    pub(super) fn tell(&self, what: &impl Serialize) {
        self.send(&line_of(what));
    }

    /// Passes on what is a line.
    pub(super) fn send(&self, line: &[u8]) {
        // A client that is gone says why.
        let _ = self.0.stdin.lock().as_mut().map(|stdin| stdin.write_all(line));
    }

    /// Calls the work off: the host ends it and says so.
    pub(super) fn call_off(&self) {
        *self.0.stdin.lock() = None;
    }

    /// Ends the client here, whatever the host does.
    pub(super) fn kill(&self) {
        if let Some(client) = *self.0.client.lock() {
            let _ = kill_process(client, Signal::KILL);
        }
    }

    fn wait(&self, child: &mut Child) -> Option<i32> {
        let _ = waitid(WaitId::Pid(Pid::from_child(child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        *self.0.client.lock() = None;
        child.wait().ok().and_then(|status| status.code())
    }
}

fn line_of(what: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(what).expect("jobs and orders are plain data");
    line.push(b'\n');
    line
}

/// What a program says.
pub(super) struct Listener {
    stdout: Option<BufReader<ChildStdout>>,
}

/// A line, or the reason for which there is no other one.
pub(super) enum Line<W> {
    Word(W),
    TooLong,
    End,
}

impl Listener {
    /// The next word. What is none, such as what a login prints, is left out.
    pub(super) fn next<W: DeserializeOwned>(&mut self) -> Line<W> {
        let Some(stdout) = &mut self.stdout else { return Line::End };
        loop {
            let mut line = Vec::new();
            let read = stdout.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
            if read.unwrap_or(0) == 0 {
                return Line::End;
            }
            if line.len() as u64 == LINE_BYTES_MAX {
                return Line::TooLong;
            }
            if let Ok(word) = serde_json::from_slice(&line) {
                return Line::Word(word);
            }
        }
    }
}

/// Whether another attempt may help after this exit code of `diskcast`.
pub(super) fn may_help(exit: u8) -> bool {
    !LASTING.contains(&exit)
}

impl End {
    /// Why it ended without a last word, and whether another attempt may help.
    pub(super) fn explain(&self) -> (String, bool) {
        let said = self.complaint.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        let because = |what: &str| if said.is_empty() { what.to_owned() } else { format!("{what}: {said}") };
        match self.code {
            Some(126 | 127) => (because("it has no such program"), false),
            Some(255) => {
                let hopeless = HOPELESS.iter().any(|words| self.complaint.contains(words));
                (because("ssh failed"), !hopeless)
            }
            Some(2) => (because("its diskcast does not know `work`"), false),
            _ => (because("its program ended without a word"), true),
        }
    }
}

/// Runs `work` on a thread of its own, whose result comes when it is there.
fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = channel();
    // Nobody waits for it any more if that fails.
    std::thread::spawn(move || drop(sender.send(work())));
    receiver
}

/// The end of what is said there.
fn end_of(stderr: ChildStderr) -> String {
    let mut kept = Vec::new();
    let mut stderr = BufReader::new(stderr);
    while let Ok(read @ 1..) = stderr.fill_buf().map(|some| {
        kept.extend_from_slice(some);
        some.len()
    }) {
        stderr.consume(read);
        let excess = kept.len().saturating_sub(COMPLAINT_BYTES_MAX);
        kept.drain(..excess);
    }
    String::from_utf8_lossy(&kept).into_owned()
}
