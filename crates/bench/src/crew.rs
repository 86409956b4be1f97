//! Programs that run at the same time. A crew starts them, notices when each ends, and kills those that still run
//! when it is dropped.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Result;

/// Index of a program in its crew, in the order of their starts.
pub(crate) type Member = usize;

/// How a program ended.
pub(crate) struct Ended {
    pub member: Member,
    /// Seconds on the crew's clock when this program was started; 0 if that was before the clock was started.
    pub began: f64,
    /// Seconds on the crew's clock when it had ended.
    pub ended: f64,
    pub status: ExitStatus,
    /// Its standard output.
    pub output: String,
    /// Its standard error.
    pub errors: String,
}

impl Ended {
    /// An error with the program's own message if it failed.
    pub(crate) fn check(&self) -> Result<()> {
        if self.status.success() {
            return Ok(());
        }
        let words: String = self.errors.trim().chars().take(400).collect();
        Err(format!("{}: {words}", self.status).into())
    }
}

/// Programs that run at the same time.
pub(crate) struct Crew {
    start: Instant,
    /// Process ids of the running programs; `None` for those that have ended.
    running: Vec<Option<Pid>>,
    ended: Receiver<Watched>,
    teller: Sender<Watched>,
}

/// The message of the thread that waits for a program.
struct Watched {
    member: Member,
    began: Instant,
    ended: Instant,
    status: ExitStatus,
    output: File,
    errors: File,
}

impl Crew {
    /// A crew whose clock starts now.
    pub(crate) fn new() -> Self {
        let (teller, ended) = channel();
        Self { start: Instant::now(), running: Vec::new(), ended, teller }
    }

    /// Restarts the crew's clock.
    pub(crate) fn restart_clock(&mut self) {
        self.start = Instant::now();
    }

    /// Seconds on the crew's clock.
    pub(crate) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Waits until the crew's clock shows `at`.
    pub(crate) fn wait_until(&self, at: Duration) {
        while let Some(left) = at.checked_sub(self.start.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
    }

    /// Starts a program. Its output goes to files, since a child process that it leaves behind would keep pipes open.
    pub(crate) fn start(&mut self, command: &mut Command) -> Result<Member> {
        let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(errors.try_clone()?)
            .spawn()
            .map_err(|error| format!("{command:?}: {error}"))?;
        let member = self.running.len();
        self.running.push(Pid::from_raw(child.id().cast_signed()));
        let (teller, began) = (self.teller.clone(), Instant::now());
        std::thread::spawn(move || watch(child, member, began, (output, errors), &teller));
        Ok(member)
    }

    /// The program that ends next; `None` if none ends until the crew's clock shows `until`.
    pub(crate) fn next(&mut self, until: Duration) -> Option<Ended> {
        let left = until.saturating_sub(self.start.elapsed());
        let told = self.ended.recv_timeout(left).ok()?;
        self.running[told.member] = None;
        let shows = |at: Instant| at.saturating_duration_since(self.start).as_secs_f64();
        Some(Ended {
            member: told.member,
            began: shows(told.began),
            ended: shows(told.ended),
            status: told.status,
            output: text_of(told.output),
            errors: text_of(told.errors),
        })
    }

    /// The ends of `members`, in their order in time; those that still run when the crew's clock shows `until` are
    /// missing. If another program of the crew fails meanwhile, that is an error at once.
    pub(crate) fn wait(&mut self, members: &[Member], until: Duration) -> Result<Vec<Ended>> {
        let mut ended = Vec::new();
        while ended.len() < members.len() {
            let Some(one) = self.next(until) else { break };
            if members.contains(&one.member) {
                ended.push(one);
            } else {
                one.check()?;
            }
        }
        Ok(ended)
    }

    /// Ends a program at once.
    pub(crate) fn kill(&self, member: Member) {
        if let Some(pid) = self.running[member] {
            // An error means that it has just ended by itself. The id cannot belong to another process yet: it
            // becomes free only when the program was waited for, just before its end is reported here.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        (0..self.running.len()).for_each(|member| self.kill(member));
        while self.running.iter().any(Option::is_some) {
            let Ok(ended) = self.ended.recv_timeout(Duration::from_secs(5)) else { break };
            self.running[ended.member] = None;
        }
    }
}

fn watch(mut child: Child, member: Member, began: Instant, files: (File, File), teller: &Sender<Watched>) {
    let Ok(status) = child.wait() else { return };
    let (output, errors) = files;
    // The crew may have been dropped.
    let _ = teller.send(Watched { member, began, ended: Instant::now(), status, output, errors });
}

fn text_of(mut file: File) -> String {
    let mut bytes = Vec::new();
    let read = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_and_the_rest_is_killed() {
        let mut crew = Crew::new();
        let quick = crew.start(Command::new("sh").args(["-c", "echo done; exit 3"])).unwrap();
        let slow = crew.start(Command::new("sleep").arg("1000")).unwrap();
        let ended = crew.wait(&[quick, slow], Duration::from_secs(1)).unwrap();
        assert_eq!(ended.len(), 1);
        assert_eq!((ended[0].member, ended[0].output.as_str()), (quick, "done\n"));
        assert!(ended[0].check().is_err());
        drop(crew);
    }
}
