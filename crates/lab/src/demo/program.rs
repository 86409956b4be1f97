//! Runs the `diskcast` binary as a user would, and reads its `--json` output.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::Failure;
use crate::place::Place;

/// Seconds after which `timeout` (coreutils) ends a program, which then counts as hanging. `timeout` also passes on the
/// signals that it receives.
const PATIENCE: &str = "300";

/// The result of a capture.
pub(crate) struct Captured {
    /// Time from the start of the program to its end.
    pub took: Duration,
    /// Bytes of the image's encoded chunks.
    pub image_bytes: u64,
}

/// The result of a fetch.
pub(crate) struct Fetched {
    /// When the program was started.
    pub began: Instant,
    /// Time from `began` until everything was received and verified.
    pub received: Duration,
    /// Time from `began` until everything was written and read back, and the program had ended.
    pub installed: Duration,
    /// The transport: how the bytes arrived.
    pub transport: String,
}

/// The server's statistics of a multicast session that has ended.
pub(crate) struct Statistics {
    /// Payload bytes of all blocks, including blocks sent again.
    pub payload_bytes: u64,
    /// Bytes of all objects of the image, each counted once.
    pub image_bytes: u64,
    /// Blocks sent again: for receivers that joined late, that had no buffer, and that lost packets.
    pub resent_blocks: [u64; 3],
}

/// Captures `source` as a version of `image` into the repository in `folder`.
pub(crate) fn capture(source: &Path, image: &str, folder: &Path) -> Result<Captured, Failure> {
    let mut command = Command::new("timeout");
    command
        .arg(PATIENCE)
        .arg(program()?)
        .args(["capture", "--json", "--repo"])
        .arg(repository(folder))
        .arg(source)
        .arg(image)
        .env("XDG_CACHE_HOME", folder.join("cache"));
    let (output, took) = Job::start(&mut command)?.finish()?;
    let said = record(&output, "captured")?;
    Ok(Captured { took, image_bytes: number(&said, "encoded_bytes")? })
}

/// A running server on host 0.
pub(crate) struct Server {
    child: Child,
    lines: BufReader<ChildStdout>,
    url: String,
    token: PathBuf,
}

impl Server {
    /// Starts the server and waits until it reports that it serves.
    pub(crate) fn start(place: &Place, folder: &Path) -> Result<Self, Failure> {
        let (program, token) = (program()?, folder.join("join.token"));
        let mut command = place.command(0, &program.to_string_lossy());
        command.args(["serve", "--json", "--listen", &place.server(), "--token-out"]).arg(&token);
        command.arg("--repo").arg(repository(folder)).arg("--state").arg(folder.join("state"));
        command.args(place.interface());
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut first = String::new();
        lines.read_line(&mut first)?;
        let said = record(&first, "serving")?;
        let url = said["url"].as_str().ok_or("`serving` has no url")?.to_owned();
        Ok(Self { child, lines, url, token })
    }

    /// Starts a fetch of `image` to `target` on `host`.
    pub(crate) fn fetch(&self, place: &Place, host: u32, image: &str, target: &Path) -> Result<Job, Failure> {
        let mut command = place.command(host, "timeout");
        command.arg(PATIENCE).arg(program()?).args([
            "fetch",
            "--json",
            "--yes",
            "--receiver",
            &format!("host-{host}"),
            "--token-file",
        ]);
        Job::start(command.arg(&self.token).args([&self.url, image]).arg(target))
    }

    /// Stops the server and returns the statistics of its multicast session, if there was one.
    pub(crate) fn stop(mut self) -> Result<Option<Statistics>, Failure> {
        // If the server has already ended by itself, `wait` below reports its status.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let mut said = String::new();
        self.lines.read_to_string(&mut said)?;
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("the server ended with {status}").into());
        }
        record(&said, "session_ended").ok().map(|ended| statistics(&ended["statistics"])).transpose()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After `stop`, the process has already ended, and these calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The disk of a machine, attached on a host until it is detached.
pub(crate) struct Machine {
    child: Child,
    name: String,
    /// The folder of all disks.
    disks: PathBuf,
    socket: PathBuf,
}

impl Machine {
    /// Attaches a disk of `image` on `host` and waits until it is served.
    pub(crate) fn attach(
        place: &Place,
        server: &Server,
        host: u32,
        image: &str,
        folder: &Path,
    ) -> Result<Self, Failure> {
        let (name, disks) = (format!("machine-{host}"), folder.join("disks"));
        let mut command = place.command(host, &program()?.to_string_lossy());
        command.args([
            "attach",
            "--json",
            "--quiet",
            image,
            "--name",
            &name,
            "--from",
            &server.url,
            "--folder",
        ]);
        command.arg(&disks).arg("--token-file").arg(&server.token).env_remove("DISKCAST_REPO");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut first = String::new();
        lines.read_line(&mut first)?;
        record(&first, "attached")?;
        let socket = disks.join(&name).join("nbd.sock");
        // Nothing reads the later output, but a full pipe would block the process.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Ok(Self { child, name, disks, socket })
    }

    /// The Unix socket on which it serves NBD.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The name of the disk, which is also the name of the NBD export.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of objects that the disk has received, whether the machine read them or they came in advance.
    pub(crate) fn moved_bytes(&self) -> Result<u64, Failure> {
        let (said, _) = Job::start(&mut self.command("disks")?)?.finish()?;
        let disk = record(&said, "disk")?;
        let counters = ["demanded_bytes", "prefetched_bytes", "background_bytes", "node_bytes"];
        counters.iter().map(|name| number(&disk, name)).sum()
    }

    /// Detaches the disk and waits until its process has ended.
    pub(crate) fn detach(mut self) -> Result<(), Failure> {
        Job::start(&mut self.command("detach")?)?.finish()?;
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the disk ended with {status}").into()) }
    }

    fn command(&self, verb: &str) -> Result<Command, Failure> {
        let mut command = Command::new("timeout");
        command.arg(PATIENCE).arg(program()?).args([verb, "--json", &self.name, "--folder"]).arg(&self.disks);
        Ok(command)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // After `detach`, the process has already ended, and these calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn statistics(said: &Value) -> Result<Statistics, Failure> {
    let [late, full, lost] =
        ["resent_late", "resent_buffer_full", "resent_lost"].map(|name| number(said, name));
    Ok(Statistics {
        payload_bytes: number(said, "payload_bytes")?,
        image_bytes: number(said, "image_bytes")?,
        resent_blocks: [late?, full?, lost?],
    })
}

/// Waits for the end of a fetch and reads its result.
pub(crate) fn finish_fetch(job: Job) -> Result<Fetched, Failure> {
    let began = job.began;
    let (output, installed) = job.finish()?;
    let said = record(&output, "fetched")?;
    let received = said["received_seconds"].as_f64().ok_or("`fetched` has no received_seconds")?;
    let transport = said["transport"].as_str().ok_or("`fetched` has no transport")?.to_owned();
    Ok(Fetched { began, received: Duration::from_secs_f64(received), installed, transport })
}

/// A running program. Dropping this value without `finish` ends the program.
pub(crate) struct Job {
    name: String,
    pid: Pid,
    began: Instant,
    /// Returns the output and the time of the end; `None` after `finish`.
    waiter: Option<JoinHandle<(std::io::Result<Output>, Instant)>>,
}

impl Job {
    fn start(command: &mut Command) -> Result<Self, Failure> {
        let arguments = command.get_args().map(|argument| argument.to_string_lossy());
        let words = std::iter::once(command.get_program().to_string_lossy()).chain(arguments);
        let name = words.collect::<Vec<_>>().join(" ");
        let began = now();
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let pid = Pid::from_child(&child);
        let waiter = std::thread::spawn(move || (child.wait_with_output(), now()));
        Ok(Self { name, pid, began, waiter: Some(waiter) })
    }

    /// Whether the program has ended.
    pub(crate) fn is_done(&self) -> bool {
        self.waiter.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end of the program. Returns its standard output and how long it ran, or an error with its standard
    /// error.
    fn finish(mut self) -> Result<(String, Duration), Failure> {
        let waiter = self.waiter.take().expect("only this takes it");
        let (output, ended) = waiter.join().expect("waiting does not panic");
        let output = output?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(format!("`{}`: {}: {said}", self.name, output.status).into());
        }
        Ok((String::from_utf8_lossy(&output.stdout).into_owned(), ended - self.began))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.is_done() {
            // An error means that the program has just ended by itself.
            let _ = kill_process(self.pid, Signal::TERM);
        }
    }
}

/// The `diskcast` binary, in the same folder as this program.
fn program() -> Result<PathBuf, Failure> {
    Ok(std::env::current_exe()?.with_file_name("diskcast"))
}

fn repository(folder: &Path) -> PathBuf {
    folder.join("repository")
}

/// The last JSON line of `lines` whose `type` is `kind`.
fn record(lines: &str, kind: &str) -> Result<Value, Failure> {
    let mut records = lines.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let found = records.find(|record| record["type"] == kind);
    found
        .ok_or_else(|| format!("expected a line of JSON with type `{kind}` and got: {}", lines.trim()).into())
}

fn number(record: &Value, name: &str) -> Result<u64, Failure> {
    record[name].as_u64().ok_or_else(|| format!("no number `{name}` in {record}").into())
}

#[expect(clippy::disallowed_methods, reason = "what a person waits for is real time")]
fn now() -> Instant {
    Instant::now()
}
