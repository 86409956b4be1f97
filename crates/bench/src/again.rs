//! Figures of repeated captures of a disk, unchanged and with 1 % changed: `diskcast capture` compared with restic
//! and borg, and `diskcast commit` compared with the capture. All read every byte of one loop device into a folder of
//! the same disk, as separate processes; each time includes a flush of that disk.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use base::Chance;

use crate::context::{Context, json_line, said};
use crate::figure::{Bar, Figure, median};
use crate::plain::Plain;
use crate::{Group, Result, load};

pub(crate) const GROUP: Group = Group {
    figures: &[
        (
            "capture.unchanged",
            "s to capture an unchanged 1 GiB disk once more, over the faster of restic and borg; at most 1",
        ),
        ("capture.changed", "the faster of restic and borg over capture where 1 % changed; at least 5"),
        (
            "versions.commit_1_percent",
            "s to commit what changed of that disk, 1 %, over those to capture it; at most 0.8",
        ),
    ],
    measure,
};

const DISK_BYTES: u64 = 1 << 30;
const ROUNDS: u64 = 5;
/// The runs of bytes that change between two captures: 1 % of the disk.
const CHANGES: u64 = 40;
const CHANGE_BYTES: usize = 256 << 10;

/// A loop device, detached when this is dropped.
pub(crate) struct Loop(pub(crate) PathBuf);

impl Loop {
    /// Attaches `file`.
    pub(crate) fn over(file: &Path) -> Result<Self> {
        Ok(Self(said(Command::new("losetup").args(["--find", "--show"]).arg(file))?.into()))
    }

    /// Attaches `len` bytes of `file` from `offset` on.
    pub(crate) fn part(file: &Path, offset: u64, len: u64) -> Result<Self> {
        let part = [format!("--offset={offset}"), format!("--sizelimit={len}")];
        Ok(Self(said(Command::new("losetup").args(["--find", "--show"]).args(part).arg(file))?.into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // A device that is left does no harm.
        let _ = said(Command::new("losetup").arg("--detach").arg(&self.0));
    }
}

/// The disk, and a repository for each program.
struct Rivals<'a> {
    context: &'a Context,
    disk: Loop,
    captures: PathBuf,
    compares: PathBuf,
    commits: PathBuf,
    restic: PathBuf,
    borg: PathBuf,
}

/// Times of each program for the same disk, in seconds.
#[derive(Default)]
struct Times {
    capture: Vec<f64>,
    /// A commit that compares the whole disk, which it reads like a capture.
    compare: Vec<f64>,
    /// A commit of the known changes, if there are any.
    commit: Vec<f64>,
    restic: Vec<f64>,
    borg: Vec<f64>,
}

impl<'a> Rivals<'a> {
    fn begin(context: &'a Context) -> Result<Self> {
        let folder = context.folder()?;
        let file = folder.join("disk.img");
        let content = Plain::read(&load::system_disk(context)?, base::limits::CHUNK_BYTES_DEFAULT)?;
        std::fs::write(&file, content.front(DISK_BYTES)?)?;
        let place = |name: &str| folder.join(name);
        let (captures, compares, commits) = (place("captures"), place("compares"), place("commits"));
        let (restic, borg, disk) = (place("restic"), place("borg"), Loop::over(&file)?);
        let rivals = Self { context, disk, captures, compares, commits, restic, borg };
        said(&mut rivals.restic(&["init"]))?;
        said(rivals.borg(&["init", "--encryption=none"]).arg(&rivals.borg))?;
        said(&mut rivals.capture(&rivals.compares))?;
        said(&mut rivals.capture(&rivals.commits))?;
        Ok(rivals)
    }

    fn capture(&self, repository: &Path) -> Command {
        let mut command = self.context.diskcast(repository);
        command.arg("capture").arg(&self.disk.0).args(["disk", "--raw"]).stdin(Stdio::null());
        command
    }

    /// A commit of the changes at `offsets`; if there are none, a commit that compares the whole disk.
    fn commit(&self, repository: &Path, offsets: &[u64]) -> Command {
        let mut command = self.context.diskcast(repository);
        command.args(["commit", "disk"]).arg(&self.disk.0).stdin(Stdio::null());
        for offset in offsets {
            command.arg("--range").arg(format!("{offset}+{CHANGE_BYTES}"));
        }
        command
    }

    fn restic(&self, words: &[&str]) -> Command {
        let mut command = Command::new("restic");
        command.env("RESTIC_PASSWORD", "bench").env("RESTIC_CACHE_DIR", self.restic.with_extension("cache"));
        command.arg("--repo").arg(&self.restic).args(words);
        command
    }

    fn borg(&self, words: &[&str]) -> Command {
        let mut command = Command::new("borg");
        command.env("BORG_BASE_DIR", self.borg.with_extension("base"));
        command.env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes").args(words);
        command
    }

    /// Seconds until `command` has ended and its output is durable.
    fn time(&self, command: &mut Command) -> Result<f64> {
        said(Command::new("sync").arg("-f").arg(&self.context.scratch))?;
        let start = Instant::now();
        let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
        said(Command::new("sync").arg("-f").arg(&self.context.scratch))?;
        let seconds = start.elapsed().as_secs_f64();
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("{command:?}: {}: {}", output.status, words.trim()).into());
        }
        Ok(seconds)
    }

    /// Runs all programs, one after the other, on the present disk.
    fn take(&self, round: &str, changed: &[u64], times: &mut Times) -> Result<()> {
        times.capture.push(self.time(&mut self.capture(&self.captures))?);
        times.compare.push(self.time(&mut self.commit(&self.compares, &[]))?);
        if !changed.is_empty() {
            times.commit.push(self.time(&mut self.commit(&self.commits, changed))?);
        }
        let backup = &mut self.restic(&["backup", "--stdin", "--stdin-filename", "disk"]);
        times.restic.push(self.time(backup.stdin(std::fs::File::open(&self.disk.0)?))?);
        let archive = format!("{}::{round}", self.borg.display());
        let create = &mut self.borg(&["create", "--read-special", &archive]);
        times.borg.push(self.time(create.arg(&self.disk.0).stdin(Stdio::null()))?);
        Ok(())
    }

    /// Overwrites 1 % of the disk with other bytes; returns the offsets.
    fn change(&self, round: u64) -> Result<Vec<u64>> {
        let device = std::fs::File::options().write(true).open(&self.disk.0)?;
        let (mut chance, mut noise) = (Chance::from_seed(round), vec![0; CHANGE_BYTES]);
        let mut offsets = Vec::new();
        for _ in 0..CHANGES {
            chance.fill(&mut noise);
            let offset = chance.below((DISK_BYTES - CHANGE_BYTES as u64) / 4096) * 4096;
            device.write_all_at(&noise, offset)?;
            offsets.push(offset);
        }
        device.sync_all()?;
        Ok(offsets)
    }

    /// Checks that the last version of each of diskcast's repositories equals the disk.
    fn check(&self) -> Result<()> {
        for repository in [&self.captures, &self.compares, &self.commits] {
            let found = said(&mut self.commit(repository, &[]))?;
            if json_line(&found, "plan").is_err() {
                return Err(format!("`{}` holds another disk: {found}", repository.display()).into());
            }
        }
        Ok(())
    }
}

fn version(program: &str) -> String {
    said(Command::new(program).arg(if program == "borg" { "--version" } else { "version" })).map_or_else(
        |_| program.to_owned(),
        |words| words.split(" compiled").next().unwrap_or_default().to_owned(),
    )
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    context.calm()?;
    let rivals = Rivals::begin(context)?;
    let (mut first, mut same, mut changed) = (Times::default(), Times::default(), Times::default());
    rivals.take("first", &[], &mut first)?;
    for round in 1..=ROUNDS {
        rivals.take(&format!("same-{round}"), &[], &mut same)?;
        let offsets = rivals.change(round)?;
        rivals.take(&format!("changed-{round}"), &offsets, &mut changed)?;
    }
    rivals.check()?;
    let over = |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a / b).collect() };
    let best = |times: &Times| -> Vec<f64> {
        times.restic.iter().zip(&times.borg).map(|(restic, borg)| restic.min(*borg)).collect()
    };
    let sink = "repository in a folder of the local disk, durable";
    let peers = |figure: Figure, times: &Times| {
        figure
            .peer("diskcast", "capture", median(&times.capture), "s")
            .peer(&version("restic"), "backup --stdin", median(&times.restic), "s")
            .peer(&version("borg"), "create --read-special", median(&times.borg), "s")
    };
    let bytes = "1 GiB of system files as a loop device, page cache, read whole by each";
    let share = over(&same.capture, &best(&same));
    let unchanged = Figure::new("capture.unchanged", &share, "ratio", Bar::AtMost(1.0));
    let gain = over(&best(&changed), &changed.capture);
    let some = format!("{bytes}; {CHANGES} runs of 256 KiB of random bytes changed");
    let commit = over(&changed.commit, &changed.capture);
    Ok(vec![
        peers(unchanged, &same).on(bytes, sink),
        peers(Figure::new("capture.changed", &gain, "ratio", Bar::AtLeast(5.0)), &changed).on(&some, sink),
        Figure::new("versions.commit_1_percent", &commit, "ratio", Bar::AtMost(0.8))
            .peer("diskcast", "commit --range", median(&changed.commit), "s")
            .peer("diskcast", "commit of the whole disk", median(&changed.compare), "s")
            .peer("diskcast", "capture", median(&changed.capture), "s")
            .on(&some, sink),
    ])
}
