//! One program on a host: it gets its job, and says how far it is.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::api::{GO, HostJob, HostWord};
use crate::clock::Stop;
use parking_lot::Mutex;
use proto::deploy::Said;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::meeting::{Meeting, OnTheWay};

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

/// An attempt that runs.
pub(super) struct Attempt(Arc<Running>);

struct Running {
    /// Closed to call the work off.
    stdin: Mutex<Option<ChildStdin>>,
    called_off: Stop,
    /// The others that bring the same image to hosts, until the host has arrived.
    meeting: Mutex<Option<(OnTheWay, Meeting)>>,
    /// The client here; `None` once it has ended, since its number may be another's then.
    client: Mutex<Option<Pid>>,
}

impl Attempt {
    /// Starts it. `say` gets what it says; the last word comes when the program has ended. `None` if it could not be
    /// started, and `say` got that.
    pub(super) fn start(
        mut command: Command,
        mut job: HostJob,
        meeting: Option<Meeting>,
        say: impl Fn(Said) + Send + Sync + 'static,
    ) -> Option<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for the deployment, which lets hosts end what they do.
        let piped = piped.process_group(0);
        let mut child = match piped.spawn() {
            Ok(child) => child,
            Err(error) => {
                say(Said::Failed { why: format!("`{name}` can't be started: {error}"), again: false });
                return None;
            }
        };
        // Where no meeting is possible, its host fetches when it has arrived.
        let meeting = meeting.and_then(|meeting| Some((meeting.set_out().ok()?, meeting)));
        job.meets = meeting.is_some();
        let running = Arc::new(Running {
            stdin: Mutex::new(child.stdin.take()),
            called_off: Stop::new(),
            meeting: Mutex::new(meeting),
            client: Mutex::new(Some(Pid::from_child(&child))),
        });
        let mut line = serde_json::to_vec(&job).expect("jobs are plain data");
        line.push(b'\n');
        let (attempt, say) = (Self(Arc::clone(&running)), Arc::new(say));
        std::thread::spawn(move || {
            let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
            let complaint = aside(move || stderr.map(end_of).unwrap_or_default());
            // A client that is gone already says why.
            let _ = running.stdin.lock().as_mut().map(|stdin| stdin.write_all(&line));
            let (listening, told) = (Arc::clone(&running), Arc::clone(&say));
            let last = aside(move || {
                let last = stdout.and_then(|stdout| listen(stdout, &*told, &listening));
                // Whoever said its last word, or too much, has nothing to do any more.
                *listening.stdin.lock() = None;
                last
            });
            let code = running.wait(&mut child);
            drop(running.meeting.lock().take());
            // A connection that stays holds the pipes of a client that was killed, until the host has ended the work.
            let last = last.recv_timeout(LAST_WORD_TIME).ok().flatten();
            let complaint = complaint.recv_timeout(LAST_WORD_TIME).unwrap_or_default();
            say(outcome(last, code, &complaint));
        });
        Some(attempt)
    }

    /// Calls the work off: the host ends it and says so.
    pub(super) fn call_off(&self) {
        self.0.called_off.stop();
        *self.0.stdin.lock() = None;
    }

    /// Ends the client here, whatever the host does.
    pub(super) fn kill(&self) {
        if let Some(client) = *self.0.client.lock() {
            let _ = kill_process(client, Signal::KILL);
        }
    }
}

impl Running {
    fn wait(&self, child: &mut Child) -> Option<i32> {
        let _ = waitid(WaitId::Pid(Pid::from_child(child)), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        *self.client.lock() = None;
        child.wait().ok().and_then(|status| status.code())
    }

    /// The host has arrived. If it waits, it goes on as soon as the others are there, too.
    fn arrived(&self, waits: bool) {
        let meeting = self.meeting.lock().take().map(|(_, meeting)| meeting);
        if !waits {
            return;
        }
        meeting.into_iter().for_each(|meeting| meeting.wait(&self.called_off));
        // A client that is gone already says why.
        let _ = self.stdin.lock().as_mut().map(|stdin| writeln!(stdin, "{GO}"));
    }
}

/// Does `work` in a thread of its own, and tells what comes of it.
fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || drop(sender.send(work())));
    receiver
}

/// Tells what is said, and returns the last word.
fn listen(stdout: ChildStdout, say: &impl Fn(Said), running: &Running) -> Option<HostWord> {
    let mut stdout = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = stdout.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if read.unwrap_or(0) == 0 {
            return None;
        }
        if line.len() as u64 == LINE_BYTES_MAX {
            let message = "it says more than a host has to say".to_owned();
            return Some(HostWord::Failed { exit: 1, message, hint: None });
        }
        // What a login prints is none of this.
        match serde_json::from_slice(&line) {
            Ok(HostWord::Alive { .. }) => say(Said::Alive),
            Ok(HostWord::Arrived { waits }) => {
                say(Said::Alive);
                running.arrived(waits);
                say(Said::Alive);
            }
            Ok(HostWord::Progress { step, done_bytes, total_bytes }) => {
                say(Said::Progress { step: number_of(&step), done: done_bytes, total: total_bytes });
            }
            Ok(last) => return Some(last),
            Err(_) => {}
        }
    }
}

/// The steps of an install in their order.
fn number_of(step: &str) -> u8 {
    match step {
        "compare" => 1,
        "install" => 2,
        "verify" => 3,
        _ => 0,
    }
}

/// What became of an attempt.
fn outcome(last: Option<HostWord>, code: Option<i32>, complaint: &str) -> Said {
    let said = complaint.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    let because = |what: &str| if said.is_empty() { what.to_owned() } else { format!("{what}: {said}") };
    let failed = |why: String, again: bool| Said::Failed { why, again };
    match last {
        Some(HostWord::Ready { root, .. }) => match root.parse() {
            Ok(root) => Said::Ready { root },
            Err(_) => failed("it says that it is ready, but not with what".to_owned(), false),
        },
        Some(HostWord::Failed { exit, message, hint }) => {
            let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
            failed(format!("{message}{hint}"), !LASTING.contains(&exit))
        }
        _ => match code {
            Some(126 | 127) => failed(because("it has no such program"), false),
            Some(255) => {
                failed(because("ssh failed"), !HOPELESS.iter().any(|words| complaint.contains(words)))
            }
            Some(2) => failed(because("its diskcast does not know `work`"), false),
            _ => failed(because("its program ended without a word"), true),
        },
    }
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
