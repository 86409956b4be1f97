//! Figures of complete machines in software emulation. They boot from a disk whose data is still at the server, do a
//! small job, and are committed. The programs run as users run them: `diskcast serve` at the other end of the link,
//! `diskcast attach` and `diskcast commit` on the machine's host.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use store::{Location, Repository};

use crate::context::{Context, keep_secret, said};
use crate::figure::{Bar, Figure, median};
use crate::machine::{BLOB_BYTES, Machine, Running};
use crate::site::{DISK, Site, repository};
use crate::way::{Had, Place, Way};
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[
        ("mirror.real_boot", "s until a machine's login prompt in software emulation, nothing here; shown"),
        ("mirror.commit_job", "MiB beyond a job's blob that a commit after boot and job stores; at most 10"),
    ],
    measure,
};

const MIB: f64 = 1048576.0;
/// Number of boots from each kind of disk. Machines do the job only in the first round.
const ROUNDS: usize = 2;
/// Time limit after a boot and a job until the boot's profile is stored: `diskcast attach` ends its recording two
/// minutes after the first read at the latest.
const PROFILE_TIME_MAX: Duration = Duration::from_secs(150);
/// How often the profile is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// The disk from which a machine starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// A local copy of the machine's disk.
    Copy,
    /// A new attached disk, without a boot profile.
    New,
    /// A new attached disk, with the profile of the first machine's boot.
    Known,
    /// A new attached disk of the version that the machine before was committed as.
    Commit,
    /// A disk served by another program.
    Other(Way),
}

impl Start {
    /// In the order of their dependencies: `New` records the profile that `Known` uses, `Known` commits what `Commit`
    /// starts from.
    const ALL: [Self; 6] = [
        Self::Copy,
        Self::New,
        Self::Known,
        Self::Commit,
        Self::Other(Way::Qemu),
        Self::Other(Way::Curl(&["cow"])),
    ];

    fn name(self) -> String {
        match self {
            Self::Copy => Way::Local.name(),
            Self::New => "diskcast".to_owned(),
            Self::Known => "diskcast, order known".to_owned(),
            Self::Commit => "diskcast, from a commit".to_owned(),
            Self::Other(way) => way.name(),
        }
    }

    /// Whether `diskcast attach` serves it.
    fn is_attached(self) -> bool {
        matches!(self, Self::New | Self::Known | Self::Commit)
    }

    fn flags(self) -> &'static str {
        match self {
            Self::Copy => "a copy in the page cache",
            Self::New => "",
            Self::Known => "by the first boot, at the server",
            Self::Commit => "of a machine that did its job, order known",
            Self::Other(way) => way.flags(),
        }
    }
}

/// A server with the machine's disk, and a host on which machines run.
struct Stage<'a> {
    context: &'a Context,
    machine: Arc<Machine>,
    repository: PathBuf,
    site: Site,
    /// A file with a token that permits commits.
    token: PathBuf,
}

/// A machine at its login prompt, which is switched off when this is dropped.
struct Booted {
    machine: Running,
    disk: Had,
    /// Seconds from the emulator's start.
    login: f64,
    /// Bytes that the server had sent before the start, and at the login prompt.
    sent: [u64; 2],
}

impl<'a> Stage<'a> {
    fn open(context: &'a Context) -> Result<Self> {
        let machine = Arc::new(Machine::new(context)?);
        let repository = repository(context, &machine)?;
        let site = Site::open(context, &machine, &repository, Duration::ZERO, true)?;
        let token = context.folder()?.join("write.token");
        let mut mint = Command::new(&context.diskcast);
        let state = repository.join("state-0");
        keep_secret(&token, &said(mint.args(["token", "--write", "--state"]).arg(state))?)?;
        Ok(Self { context, machine, repository, site, token })
    }

    /// Provides the disk for `start`. The host has none of its data, except for [`Start::Copy`].
    fn have(&self, start: Start, is_first: bool) -> Result<Had> {
        let commit = format!("{DISK}@2");
        let image = match start {
            Start::Copy => return Ok(Had::file(self.machine.copy(self.context)?, 0.0)),
            Start::Other(way) => return self.site.have(self.context, way),
            Start::New | Start::Known => &format!("{DISK}@1"),
            Start::Commit => &commit,
        };
        let token = self.token.to_string_lossy();
        let mut words = vec![image.as_str(), "--token-file", &token];
        // In later rounds the repository has a profile, which this start must not use.
        if start == Start::New && !is_first {
            words.push("--no-profile");
        }
        self.site.run(self.context, &self.context.folder()?, &words)
    }

    /// Starts a machine and waits for its login prompt.
    fn boot(&self, start: Start, is_first: bool) -> Result<Booted> {
        // Flushes the writes of the machine before, which would slow down this one.
        said(&mut Command::new("sync"))?;
        let before = self.site.sent()?;
        let disk = self.have(start, is_first)?;
        let mut machine = self.machine.start(&disk.place)?;
        let login = machine.log_in()?;
        Ok(Booted { machine, disk, login, sent: [before, self.site.sent()?] })
    }

    /// Waits until the profile of the machine's boot is stored; returns the number of its chunks.
    fn until_profile(&self) -> Result<usize> {
        let repository = Repository::open(&Location::Folder(self.repository.clone()))?;
        let (began, image) = (Instant::now(), DISK.parse()?);
        while began.elapsed() < PROFILE_TIME_MAX {
            if let Some(profile) = repository.profile(&image, 1)? {
                return Ok(profile.order().len());
            }
            std::thread::park_timeout(LOOK);
        }
        Err("a machine booted, but no profile of its boot was stored".into())
    }

    /// A row of the table. `job` is the time in seconds at which the machine had done its job.
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    fn row(&self, start: Start, booted: &Booted, job: Option<f64>) -> Result<Value> {
        let counters = match start.is_attached() {
            false => Value::Null,
            true => booted.disk.ask(self.context, &["disks", DISK], "disk")?,
        };
        let or_dash = |number: Option<f64>| number.map_or(json!("–"), |number| json!(number));
        let mebibytes = |field: &str| or_dash(counters[field].as_f64().map(|bytes| bytes / MIB));
        let [before, at_login] = booted.sent;
        Ok(json!({
            "disk": start.name(), "login s": booted.login, "job s": or_dash(job),
            "MiB at login": (at_login - before) as f64 / MIB,
            "MiB over the link": (self.site.sent()? - before) as f64 / MIB,
            "waited for": mebibytes("demanded_bytes"), "prefetched": mebibytes("prefetched_bytes"),
            "unread": mebibytes("prefetched_unused_bytes"),
        }))
    }
}

/// Results of the first round other than login times.
#[derive(Default)]
struct Found {
    rows: Vec<Value>,
    /// Number of chunks that a machine reads when it boots.
    chunks: usize,
    /// Checksum of the job's blob in the machine that was committed.
    sum: String,
    /// The JSON line of `diskcast commit`.
    committed: Value,
    /// Length of qemu-nbd's qcow2 overlay after the job.
    overlay_bytes: u64,
}

impl Found {
    /// The rest of the first round for a booted machine: its job, and what follows for this kind of disk.
    fn go_on(&mut self, stage: &Stage<'_>, start: Start, booted: &mut Booted) -> Result<()> {
        if start == Start::Commit {
            self.rows.push(stage.row(start, booted, None)?);
            let is_same = booted.machine.sum()? == self.sum;
            return if is_same { Ok(()) } else { Err("the commit differs from what was written".into()) };
        }
        let job = booted.machine.work()?;
        self.rows.push(stage.row(start, booted, Some(job))?);
        match (start, &booted.disk.place) {
            (Start::New, _) => self.chunks = stage.until_profile()?,
            (Start::Known, _) => {
                self.committed = booted.disk.ask(stage.context, &["commit", "--disk", DISK], "committed")?;
                self.sum = booted.machine.sum()?;
            }
            (Start::Other(Way::Qemu), Place::Socket(socket)) => {
                self.overlay_bytes = std::fs::metadata(socket.with_file_name("overlay"))?.len();
            }
            _ => {}
        }
        Ok(())
    }

    /// The figure of the bytes that a commit stored in addition to the job's blob.
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    fn commit(&self) -> Result<Figure> {
        let number = |field: &str| {
            self.committed[field].as_f64().ok_or_else(|| format!("no {field} in {}", self.committed))
        };
        let (dirty, stored) = (number("bytes")?, number("stored_bytes")?);
        let beyond = |bytes: f64| (bytes - BLOB_BYTES as f64) / MIB;
        let details = json!([{
            "blob MiB": BLOB_BYTES as f64 / MIB, "sectors written, MiB": dirty / MIB, "stored, MiB": stored / MIB,
            "s": number("seconds")?, "pause ms": 1e3 * number("moment_seconds")?,
        }]);
        let work = "boot of Debian 12, then a compiler, some Python, 64 MiB of noise into a file, sync; while it runs";
        Ok(Figure::new("mirror.commit_job", &[beyond(stored)], "MiB", Bar::AtMost(10.0))
            .peer("sectors written", "raw", beyond(dirty), "MiB")
            .peer("qemu-nbd", "its qcow2 overlay", beyond(self.overlay_bytes as f64), "MiB")
            .on(work, "diskcast commit --disk through the server, 1 Gbit/s")
            .with(details))
    }
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let stage = Stage::open(context)?;
    let mut logins = vec![vec![]; Start::ALL.len()];
    let mut found = Found::default();
    for round in 0..ROUNDS {
        for (start, logins) in Start::ALL.into_iter().zip(&mut logins) {
            let mut booted = stage.boot(start, round == 0)?;
            logins.push(booted.login);
            if round == 0 {
                found.go_on(&stage, start, &mut booted)?;
            }
            drop(booted.machine);
            if start.is_attached() {
                booted.disk.detach(context)?;
            }
        }
    }
    let ours = Start::ALL.iter().position(|start| *start == Start::New).ok_or("all ways are measured")?;
    let mut boot = Figure::new("mirror.real_boot", &logins[ours], "s", Bar::Shown);
    for (start, logins) in Start::ALL.into_iter().zip(&logins).filter(|(start, _)| *start != Start::New) {
        boot = boot.peer(&start.name(), start.flags(), median(logins), "s");
    }
    let work = format!(
        "Debian 12 in QEMU's software emulation, one processor, kernel and initrd given to it; a boot and a job \
            read {} chunks",
        found.chunks
    );
    let sink = "1 Gbit/s, the server's page cache warm, nothing on the host";
    Ok(vec![boot.on(&work, sink).with(json!(found.rows)), found.commit()?])
}
