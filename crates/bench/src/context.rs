//! The environment of a benchmark: the binary under test, a folder for its files, the commit and the machine, and the
//! notebook of results.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Result;
use crate::figure::Figure;

/// Time for which ext4 does not reuse a freed inode: `recently_deleted` in fs/ext4/ialloc.c, if the inode's block of
/// the inode table is dirty.
const FORGOTTEN: Duration = Duration::from_secs(6 * 60);
/// Disk space that the folders of a run of all headline figures need.
const ROOM_BYTES: u64 = 20 << 30;
/// A file of so many bytes is removed when its figure is measured: there are few of them, so that this does not slow
/// down what creates files afterwards.
const LARGE_BYTES: u64 = 16 << 20;
/// For so long it is looked whether the machine does something else.
const LOOK: Duration = Duration::from_secs(5);
/// The share of the processors' time that something else may take.
const BUSY_MAX: f64 = 0.1;
/// A file in the scratch folder whose time of change is when the last run removed its folders.
const ENDED: &str = "ended";

/// The environment of a run.
pub(crate) struct Context {
    /// The project's root.
    pub root: PathBuf,
    /// Scratch folder on the disk below `target/`, kept between runs for prepared disks.
    pub scratch: PathBuf,
    /// The binary under test, of the profile `dist`.
    pub diskcast: PathBuf,
    /// Removed only when the run ends: after many files were removed, ext4 searches long for a new inode, which would
    /// slow down the next measurement.
    folders: Option<tempfile::TempDir>,
    commit: String,
    machine: String,
    /// When the run of all headline figures began, if this is one.
    run: Option<String>,
}

impl Drop for Context {
    fn drop(&mut self) {
        let is_used = std::fs::read_dir(self.folders()).is_ok_and(|mut entries| entries.next().is_some());
        drop(self.folders.take());
        if is_used {
            // If this fails, the next run does not wait.
            let _ = std::fs::write(self.scratch.join(ENDED), b"");
        }
    }
}

/// A line of the notebook.
#[derive(Serialize)]
struct Entry<'a> {
    #[serde(flatten)]
    figure: &'a Figure,
    commit: &'a str,
    machine: &'a str,
    date: String,
    /// When the run of all headline figures began that this is of.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a str>,
}

/// The time and memory of a finished program.
pub(crate) struct Usage {
    /// Wall-clock seconds from start to end.
    pub seconds: f64,
    /// Peak resident memory in bytes, from the last read of its own `VmHWM`; the value of `wait4` would include the
    /// parent's memory.
    pub peak_bytes: u64,
    /// Its standard output.
    pub output: String,
}

/// The project's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/bench lies two down")
}

/// The file of all results, one line for each figure of each run.
pub(crate) fn notebook() -> PathBuf {
    root().join("bench/results.jsonl")
}

impl Context {
    /// Makes the folders of a run; an error if that binary is not built.
    pub(crate) fn new() -> Result<Self> {
        let root = root();
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let diskcast = target.join("dist/diskcast");
        if !diskcast.exists() {
            return Err("target/dist/diskcast is not built; `make bench` builds it".into());
        }
        let scratch = target.join("bench");
        std::fs::create_dir_all(&scratch)?;
        std::fs::create_dir_all(root.join("bench"))?;
        let commit = commit(root)?;
        let folders = Some(tempfile::tempdir_in(&scratch)?);
        Ok(Self { root: root.to_owned(), scratch, diskcast, folders, commit, machine: machine()?, run: None })
    }

    /// As [`Self::new`], for a run of all headline figures. Says on what they are measured; an error if files differ
    /// from the commit, the disk has too little room, or the machine does something else.
    pub(crate) fn of_headlines() -> Result<Self> {
        let mut context = Self::new()?;
        context.run = Some(now()?);
        if context.commit.ends_with("-dirty") {
            return Err("files differ from the commit: a run of all headline figures is of a commit".into());
        }
        context.check_room()?;
        let busy = busy()?;
        if busy > BUSY_MAX {
            return Err(format!(
                "other programs take {:.0} % of the processors' time: end them first, or measure single figures by \
                 ONLY='NAME …'",
                busy * 100.0
            )
            .into());
        }
        let load = std::fs::read_to_string("/proc/loadavg")?;
        let load = load.split_whitespace().next().unwrap_or_default();
        println!("{}, {}, load {load}", context.commit, context.machine);
        Ok(context)
    }

    /// A new folder on the local disk, kept until the run ends.
    pub(crate) fn folder(&self) -> Result<PathBuf> {
        Ok(tempfile::Builder::new().disable_cleanup(true).tempdir_in(self.folders())?.keep())
    }

    fn folders(&self) -> &Path {
        self.folders.as_ref().expect("they are removed when this is dropped").path()
    }

    /// Removes the large files of what was measured.
    pub(crate) fn free_room(&self) -> Result<()> {
        let size = format!("+{LARGE_BYTES}c");
        said(Command::new("find").arg(self.folders()).args(["-type", "f", "-size", &size, "-delete"]))
            .map(drop)
    }

    /// An error unless the disk has enough space for a run of all headline figures.
    fn check_room(&self) -> Result<()> {
        let line = said(Command::new("df").args(["--output=avail", "-B1"]).arg(&self.scratch))?;
        let free: u64 = line.lines().last().unwrap_or_default().trim().parse()?;
        if free < ROOM_BYTES {
            let (need, free) = (ROOM_BYTES >> 30, free >> 30);
            return Err(format!(
                "a run of all headline figures needs {need} GiB below target/bench, {free} GiB are free"
            )
            .into());
        }
        Ok(())
    }

    /// Waits until ext4 reuses the inodes that the last run freed. For figures that write many files.
    pub(crate) fn calm(&self) -> Result<()> {
        let Ok(ended) = std::fs::metadata(self.scratch.join(ENDED)) else { return Ok(()) };
        let rest = FORGOTTEN.saturating_sub(ended.modified()?.elapsed().unwrap_or_default());
        if !rest.is_zero() {
            println!(
                "waiting {} s: ext4 is slow at new files after the last run removed its own",
                rest.as_secs()
            );
            std::thread::sleep(rest);
        }
        Ok(())
    }

    /// The binary under test, on the repository `repo`, printing JSON lines.
    pub(crate) fn diskcast(&self, repo: &Path) -> Command {
        let mut command = Command::new(&self.diskcast);
        command.env("XDG_CACHE_HOME", self.folders());
        command.arg("--repo").arg(repo).arg("--json");
        command
    }

    /// Appends a figure to the notebook.
    pub(crate) fn record(&self, figure: &Figure) -> Result<()> {
        let (commit, machine, run) = (&self.commit, &self.machine, self.run.as_deref());
        let entry = Entry { figure, commit, machine, date: now()?, run };
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(notebook())?;
        writeln!(file, "{}", serde_json::to_string(&entry)?)?;
        Ok(())
    }
}

/// The current commit, with `-dirty` if any file differs from it, except those that a benchmark writes itself.
fn commit(root: &Path) -> Result<String> {
    let git = |words: &[&str]| said(Command::new("git").args(words).current_dir(root));
    let own = [":!bench/results.jsonl", ":!docs/measurements.md", ":!docs/plots"];
    let changed = git(&[&["status", "--porcelain", "--", "."][..], &own].concat())?;
    let dirty = if changed.is_empty() { "" } else { "-dirty" };
    Ok(git(&["rev-parse", "--short", "HEAD"])? + dirty)
}

/// The time of day, in UTC.
fn now() -> Result<String> {
    said(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]))
}

/// The share of the processors' time that is taken while this waits.
#[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
fn busy() -> Result<f64> {
    // Of the time since the start, what is idle and what there is, in ticks: proc(5).
    let ticks = || -> Result<(u64, u64)> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let line = text.lines().next().unwrap_or_default();
        let all: Vec<u64> =
            line.split_whitespace().skip(1).map(str::parse).collect::<std::result::Result<_, _>>()?;
        Ok((all.iter().skip(3).take(2).sum(), all.iter().take(8).sum()))
    };
    let before = ticks()?;
    std::thread::sleep(LOOK);
    let after = ticks()?;
    Ok(1.0 - (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64)
}

fn machine() -> Result<String> {
    let cpu = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let memory = std::fs::read_to_string("/proc/meminfo")?;
    let kib: u64 = memory.split_whitespace().nth(1).unwrap_or("0").parse()?;
    let kernel = said(Command::new("uname").arg("-r"))?;
    let cores = std::thread::available_parallelism()?;
    Ok(format!("{cores} x {}, {} GiB, Linux {kernel}", model.trim_start_matches([':', ' ', '\t']), kib >> 20))
}

/// Runs `command` and returns its output, trimmed; an error with its message if it failed.
pub(crate) fn said(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{command:?}: {}: {}", output.status, words.trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Writes a token to a file that only its owner can read.
pub(crate) fn keep_secret(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(std::io::Write::write_all(&mut file, text.as_bytes())?)
}

/// Runs `command` and returns its time and memory; an error with its message if it failed.
pub(crate) fn timed(command: &mut Command) -> Result<Usage> {
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{command:?}: {error}"))?;
    let mut output = String::new();
    let mut errors = child.stderr.take().expect("piped");
    let words = std::thread::spawn(move || std::io::read_to_string(&mut errors).unwrap_or_default());
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let watcher = std::thread::spawn(move || last_peak(&status));
    std::io::Read::read_to_string(&mut child.stdout.take().expect("piped"), &mut output)?;
    let ended = child.wait()?;
    let seconds = start.elapsed().as_secs_f64();
    if !ended.success() {
        let words = words.join().unwrap_or_default();
        return Err(format!("{command:?}: {}: {}", ended, words.trim()).into());
    }
    Ok(Usage { seconds, peak_bytes: watcher.join().unwrap_or_default(), output })
}

/// The last `VmHWM` of a process before it ended, in bytes, read every 10 ms.
fn last_peak(status: &Path) -> u64 {
    let mut peak = 0;
    while let Ok(text) = std::fs::read_to_string(status) {
        let Some(line) = text.lines().find_map(|line| line.strip_prefix("VmHWM:")) else { break };
        peak = line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10;
        std::thread::park_timeout(Duration::from_millis(10));
    }
    peak
}

/// The last JSON line of type `kind` in `output`.
pub(crate) fn json_line(output: &str, kind: &str) -> Result<serde_json::Value> {
    let lines = output.lines().rev().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    lines
        .into_iter()
        .find(|line| line["type"] == kind)
        .ok_or_else(|| format!("no line of type `{kind}` in: {output}").into())
}
