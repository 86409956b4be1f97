//! The work itself: commands, one after the other, of which one may have to be ended.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base::Digest;
use net::api::{Copies, HostJob, HostWord, JobProgress};
use net::clock::Stop;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use serde_json::Value;
use tempfile::NamedTempFile;

use super::speaker::Speaker;
use super::token::JobToken;
use super::{attach, copy, options, volume};
use crate::args::{DisksFolder, Keeping};
use crate::commands::job_log::progress_of;
use crate::exit::{Exit, Failure, Result};
use crate::{runtime, target};

/// How often a lock that another holds is tried.
const LOCK_PAUSE: Duration = Duration::from_millis(200);
/// What is kept of what a command says on standard error, in bytes: the end.
const COMPLAINT_BYTES_MAX: u64 = 64 << 10;
/// How long a command may take to end when the work was called off.
const LAST_TIME_MAX: Duration = Duration::from_secs(20);

/// Work that may be called off at any time.
#[derive(Default)]
pub(super) struct Work {
    stop: Stop,
    /// Set when a job that meets others may fetch.
    go: Stop,
    child: Mutex<Option<Running>>,
}

/// A command that runs.
#[derive(Clone, Copy)]
enum Running {
    /// One process, which ends what it started.
    Program(Pid),
    /// A shell, whose commands are a process group with it.
    Shell(Pid),
}

impl Work {
    /// Ends it: the command that runs is asked to stop, and killed if it does not.
    pub(super) fn call_off(&self) {
        if self.stop.is_stopped() {
            return;
        }
        self.stop.stop();
        self.go.stop();
        // What a shell starts in the background does not hear INT.
        self.signal(Signal::INT, Signal::TERM);
        std::thread::park_timeout(LAST_TIME_MAX);
        self.signal(Signal::KILL, Signal::KILL);
    }

    /// The others have arrived, too.
    pub(super) fn go(&self) {
        self.go.stop();
    }

    fn signal(&self, of_program: Signal, of_shell: Signal) {
        // Held, so that it is not reaped meanwhile: its number could be another's.
        let _ = match *self.child.lock() {
            Some(Running::Program(pid)) => kill_process(pid, of_program),
            Some(Running::Shell(group)) => kill_process_group(group, of_shell),
            None => Ok(()),
        };
    }

    /// Does it. Returns the root of the version that is there now, and what the fetch reported.
    pub(super) fn run(
        &self,
        job: &HostJob,
        server: &str,
        (keeping, place): (&Keeping, &DisksFolder),
        speaker: &Speaker,
    ) -> Result<(String, Value)> {
        let token = JobToken::of(job, server);
        let _lock = self.lock(&job.target, speaker)?;
        if let Some(command) = &job.put.before {
            speaker.doing("runs the command before");
            let refused = |failure: Failure| match failure.exit {
                Exit::Interrupted => failure,
                _ => Failure::new(Exit::Refused, failure.message).hint("nothing was written"),
            };
            self.shell(command, job, "the command before the image failed").map_err(refused)?;
        }
        speaker.doing("asks the server");
        let fetch = |job: &HostJob| self.fetch(job, server, &token, speaker);
        let done = match job.put.copy {
            None => fetch(job),
            Some(Copies::Snapshot) => volume::make(job, keeping, (&self.stop, speaker), fetch),
            Some(Copies::Demand) => copy::on_demand(job, speaker),
            Some(Copies::Attach) => attach::make(job, server, place, (&self.stop, speaker)),
            Some(copies) => copy::make(job, copies, keeping, (&self.stop, speaker), fetch),
        }?;
        if let Some(size) = job.size_bytes.filter(|_| job.put.copy.is_none()) {
            extend(Path::new(&job.target), size)?;
        }
        if let Some(command) = &job.put.after {
            speaker.doing("runs the command after");
            speaker.say(&HostWord::Progress { step: "after".to_owned(), done_bytes: 0, total_bytes: 0 });
            self.shell(command, job, "the image is there, but the command after it failed")?;
        }
        Ok(done)
    }

    /// Waits until no other work of this user writes to `target`: an attempt that was given up may still be at it. Of
    /// another user's the target itself is locked while it is written (`TargetOptions::alone`), and a device claimed.
    fn lock(&self, target: &str, speaker: &Speaker) -> Result<File> {
        let path = std::fs::canonicalize(target).unwrap_or_else(|_| PathBuf::from(target));
        let name = Digest::of(path.as_os_str().as_encoded_bytes()).to_hex();
        let (file, failed) = lock_file(&name[..32])?;
        let mut told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(std::fs::TryLockError::WouldBlock) => {}
                Err(std::fs::TryLockError::Error(error)) => return Err(failed(error).into()),
            }
            if !std::mem::replace(&mut told, true) {
                speaker.doing("waits for other work on this target");
            }
            if !self.stop.pause(LOCK_PAUSE) {
                return Err(called_off());
            }
        }
    }

    fn fetch(
        &self,
        job: &HostJob,
        server: &str,
        token: &JobToken,
        speaker: &Speaker,
    ) -> Result<(String, Value)> {
        if job.meets {
            speaker.say(&HostWord::Arrived { waits: true });
            speaker.doing("waits for other hosts");
            while self.go.pause(LOCK_PAUSE) {}
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.args(options::fetch(&job.put, &job.target, server));
        if job.resume && target::is_begun(Path::new(&job.target)) {
            command.arg("--resume");
        }
        let script = job.put.written.as_deref().map(script).transpose()?;
        if let Some(script) = &script {
            command.arg("--run").arg(script.path());
        }
        let serves = serving(job)?;
        if let Some(lock) = &serves {
            // Whoever started this program waits for the end of all that has its standard error, and would end those
            // of its group.
            command.args(["--serve-for", &format!("{}s", job.put.serve_seconds)]);
            command.stderr(lock.try_clone()?).process_group(0);
        }
        match (&serves, job.put.copy) {
            // What is kept gets another name, and is to be let go of at any time.
            (Some(_), Some(_)) => _ = command.arg("--memory-only"),
            // A host gets copy after copy; or another program serves the image.
            (None, Some(_)) => _ = command.args(["--serve-for", "0"]),
            (None, None) if job.put.serve_seconds > 0 => _ = command.args(["--serve-for", "0"]),
            (_, None) => {}
        }
        command.args(&job.put.options).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = self.start(&mut command, Running::Program)?;
        // It is gone if that fails, and says why.
        let _ = child.stdin.take().expect("it is piped").write_all(token.text().as_bytes());
        let (mut done, mut failure) = (None, None);
        for line in BufReader::new(child.stdout.take().expect("it is piped")).lines() {
            let Ok(record) = serde_json::from_str::<Value>(&line?) else { continue };
            if let Some(JobProgress { step, done_bytes, total_bytes }) = progress_of(&record) {
                speaker.say(&HostWord::Progress { step, done_bytes, total_bytes });
            }
            match record["type"].as_str() {
                Some("fetched") => {
                    let root = record["root"].as_str().unwrap_or_default().to_owned();
                    done = Some((root, record));
                }
                // All is done, and it goes on by itself.
                Some("serving") if serves.is_some() => {
                    *self.child.lock() = None;
                    return done
                        .ok_or_else(|| Failure::new(Exit::Failed, "`diskcast fetch` serves too early"));
                }
                Some("error") => failure = Some(Failure::of_record(&record)),
                _ => {}
            }
        }
        let status = self.wait(child)?;
        match (done, failure) {
            (Some(done), None) if status.success() => Ok(done),
            (_, Some(failure)) if !self.stop.is_stopped() => Err(failure),
            _ if self.stop.is_stopped() => Err(called_off()),
            _ => Err(Failure::new(Exit::Failed, format!("`diskcast fetch` ended without a word: {status}"))),
        }
    }

    /// Lets a shell run `command` to its end, which knows what the job is about.
    fn shell(&self, command: &str, job: &HostJob, failed: &str) -> Result<()> {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command])
            .env("DISKCAST_TARGET", &job.target)
            .env("DISKCAST_IMAGE", &job.put.reference);
        // What it prints is for people: standard output has words for a program. A file, since what it leaves behind
        // may go on writing there.
        let mut said = tempfile::tempfile()?;
        shell.stdin(Stdio::null()).stdout(std::io::stderr()).stderr(said.try_clone()?);
        let child = self.start(shell.process_group(0), Running::Shell)?;
        let status = self.wait(child)?;
        let begin = said.seek(SeekFrom::End(0))?.saturating_sub(COMPLAINT_BYTES_MAX);
        said.seek(SeekFrom::Start(begin))?;
        let mut text = Vec::new();
        said.take(COMPLAINT_BYTES_MAX).read_to_end(&mut text)?;
        // Nobody may listen to it.
        let _ = std::io::stderr().write_all(&text);
        match status.success() {
            true => Ok(()),
            false if self.stop.is_stopped() => Err(called_off()),
            false => {
                let text = String::from_utf8_lossy(&text);
                let why = text.lines().rfind(|line| !line.trim().is_empty());
                let why = why.map_or_else(|| status.to_string(), |line| format!("{status}: {}", line.trim()));
                Err(Failure::new(Exit::Failed, format!("{failed}: {why}")))
            }
        }
    }

    fn start(&self, command: &mut Command, running: fn(Pid) -> Running) -> Result<Child> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child_now = self.child.lock();
        if self.stop.is_stopped() {
            return Err(called_off());
        }
        let child = command.spawn().map_err(|error| base::Error::from_io(format!("run `{name}`"), error))?;
        *child_now = Some(running(Pid::from_child(&child)));
        Ok(child)
    }

    fn wait(&self, mut child: Child) -> Result<std::process::ExitStatus> {
        // It is reaped only under the lock.
        let exited = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::Pid(Pid::from_child(&child)), exited);
        let running = self.child.lock().take();
        if let (Some(Running::Shell(group)), true) = (running, self.stop.is_stopped()) {
            // Whatever the shell left behind. The group has its number until the shell is reaped.
            let _ = kill_process_group(group, Signal::KILL);
        }
        ended.map_err(|error| base::Error::from_io("wait for a command", std::io::Error::from(error)))?;
        Ok(child.wait()?)
    }
}

/// The file that the program locks, and complains to, which serves the image of `job` when it has it: one for each
/// image. `None` if it is not to be served, or another program does.
fn serving(job: &HostJob) -> Result<Option<File>> {
    if job.put.serve_seconds == 0 {
        return Ok(None);
    }
    let root = copy::root(job)?.to_hex();
    let name = format!("serve-{}", &root[..32]);
    let (file, failed) = lock_file(&name)?;
    match file.try_lock() {
        Ok(()) => file.set_len(0).map_err(failed).map(|()| Some(file)).map_err(Failure::from),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(error)) => Err(failed(error).into()),
    }
}

/// The file of a lock of this user; and what an error with it is.
fn lock_file(name: &str) -> Result<(File, impl Fn(std::io::Error) -> base::Error)> {
    let path = runtime::folder_for("locks")?.join(name);
    let mut options = File::options();
    options.create(true).truncate(false).write(true).mode(0o600);
    let opened = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(&path);
    let failed = move |error| base::Error::from_io(format!("lock `{}`", path.display()), error);
    Ok((opened.map_err(&failed)?, failed))
}

/// Lets a file be `size` bytes long, if it is shorter. A device has the size that it has.
fn extend(target: &Path, size: u64) -> Result<()> {
    let failed = |error| base::Error::from_io(format!("extend `{}`", target.display()), error);
    let found = std::fs::metadata(target).map_err(failed)?;
    if found.is_file() && found.len() < size {
        let file = File::options().write(true).open(target).map_err(failed)?;
        file.set_len(size).and_then(|()| file.sync_all()).map_err(failed)?;
    }
    Ok(())
}

fn called_off() -> Failure {
    Failure::new(Exit::Interrupted, "it was called off")
}

/// A file with a script that others cannot read.
fn script(text: &str) -> Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    file.write_all(text.as_bytes())?;
    Ok(file)
}
