//! Figure of warm disks through FUSE under fio: a writable clone and a complete version, compared with the
//! passthrough example of libfuse (`passthrough_ll.c` of package libfuse3-dev, compiled here) on a file of the same
//! bytes.
//!
//! Every request must reach the file systems, but none may reach a disk. So the clone is opened with O_DIRECT. The
//! example is mounted with `cache=never` instead, since it would pass O_DIRECT on to its file; the kernel does the same
//! with the complete version, which it reads without diskcast. All answer from the page cache of their own file. fio
//! uses one thread for each request in flight, which waits for its answer. Rounds alternate.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mirror::fuse::{Content, DiskSettings, MountOptions, Mounted, Origin, mount};
use mirror::{MirrorOptions, Source};
use serde_json::{Value, json};

use crate::context::{Context, said};
use crate::figure::{Bar, Figure, median};
use crate::nbd::{DISK_BYTES, Images, fill, stamp};
use crate::{Group, Result, load};

pub(crate) const GROUP: Group = Group {
    figures: &[(
        "mirror.warm_fuse",
        "warm reads and writes by FUSE over libfuse's passthrough example, the worst cell of clone and version; \
            at least 0.8",
    )],
    measure,
};

const ROUNDS: usize = 3;
const SECONDS: u32 = 2;
/// Time limit for the example to mount.
const START_TIME_MAX: Duration = Duration::from_secs(10);
/// A file in its source, which shows that it is mounted.
const MARKER: &str = "mounted";
const EXAMPLE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";

/// fio's pattern, block size and requests in flight.
const CELLS: [(&str, &str, u32); 6] = [
    ("randread", "4k", 1),
    ("randwrite", "4k", 1),
    ("randread", "4k", 32),
    ("randwrite", "4k", 32),
    ("read", "1m", 1),
    ("write", "1m", 1),
];

/// A file to be read and written.
struct Candidate {
    name: &'static str,
    file: PathBuf,
    direct: bool,
    writes: bool,
}

/// Rates of each candidate in MB/s, by round; empty if it is read-only.
struct Cell {
    pattern: (&'static str, &'static str, u32),
    rates: Vec<Vec<f64>>,
}

impl Cell {
    /// The rates of the slowest candidate, divided by those of the last one, by round.
    fn worst(&self) -> Vec<f64> {
        let (peer, ours) = self.rates.split_last().expect("there is a peer");
        let ratios = ours.iter().filter(|rates| !rates.is_empty());
        let ratios = ratios.map(|rates| rates.iter().zip(peer).map(|(one, other)| one / other).collect());
        ratios.min_by(|one: &Vec<f64>, other| median(one).total_cmp(&median(other))).expect("one is ours")
    }

    fn row(&self, candidates: &[Candidate]) -> Value {
        let (pattern, block, depth) = self.pattern;
        let mut row = json!({ "pattern": pattern, "block": block, "in flight": depth });
        for (candidate, rates) in candidates.iter().zip(&self.rates) {
            row[format!("{} MB/s", candidate.name)] =
                if rates.is_empty() { Value::Null } else { json!(median(rates)) };
        }
        row["ratio"] = json!(median(&self.worst()));
        row
    }
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let folder = context.folder()?;
    let raw = folder.join("disk.raw");
    fill(&raw)?;
    let images = Images::new(&folder, &raw)?;
    let (mounted, example) = (mount_images(&folder, &images)?, Example::start(&folder)?);
    std::fs::write(mounted.1.join("_control"), "clone clone disk")?;
    let (version, clone) = (mounted.1.join("disk/latest"), mounted.1.join("_clones/clone"));
    for file in [&version, &clone, &example.at.join("disk.raw")] {
        std::io::copy(&mut File::open(file)?, &mut std::io::sink())?;
    }
    let candidates = [
        Candidate { name: "clone", file: clone, direct: true, writes: true },
        Candidate { name: "version", file: version, direct: false, writes: false },
        Candidate { name: "passthrough_ll", file: example.at.join("disk.raw"), direct: false, writes: true },
    ];
    let cells = CELLS.iter().map(|cell| measure_cell(&candidates, *cell)).collect::<Result<Vec<_>>>()?;
    let passed = mounted.0.counters().passthrough > 0;
    let at = cells.iter().min_by(|one, other| median(&one.worst()).total_cmp(&median(&other.worst())));
    let at = at.ok_or("no cell")?;
    let (pattern, block, depth) = at.pattern;
    let peer = at.rates.last().expect("there is a peer");
    let fuse = said(Command::new("fusermount3").arg("--version"))?;
    let name = format!("passthrough_ll {}", fuse.split_whitespace().last().unwrap_or("?"));
    let kernel = if passed { "read by the kernel alone" } else { "read by the mount" };
    let figure = Figure::new("mirror.warm_fuse", &at.worst(), "ratio", Bar::AtLeast(0.8))
        .peer(&name, "-o cache=never, in the worst cell", median(peer), "MB/s")
        .on(
            &format!("fio, {SECONDS} s a run; the worst cell is {pattern} {block}, {depth} in flight"),
            &format!("512 MiB in the page cache: a clone that is all here, and a version, {kernel}"),
        )
        .with(cells.iter().map(|cell| cell.row(&candidates)).collect());
    Ok(vec![figure])
}

fn measure_cell(candidates: &[Candidate], pattern: (&'static str, &'static str, u32)) -> Result<Cell> {
    let mut rates = vec![vec![]; candidates.len()];
    for _ in 0..ROUNDS {
        for (candidate, rates) in candidates.iter().zip(&mut rates) {
            if candidate.writes || !pattern.0.contains("write") {
                rates.push(fio(candidate, pattern)?);
            }
        }
    }
    Ok(Cell { pattern, rates })
}

fn mount_images(folder: &Path, images: &Images) -> Result<(Mounted, PathBuf)> {
    let at = folder.join("ours");
    std::fs::create_dir(&at)?;
    let repository = &images.repository;
    let origin = Origin::new(vec![Arc::clone(repository) as Arc<dyn mirror::Images>], stamp);
    let sources = vec![Source::repository(Arc::clone(repository))];
    let disks = DiskSettings {
        folder: folder.join("cache"),
        bytes_max: u64::MAX,
        mirror: MirrorOptions::default(),
        passthrough: true,
    };
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let options = MountOptions { disks, owner, now: SystemTime::UNIX_EPOCH, log: Arc::new(|_| {}) };
    Ok((mount(&at, Content { origin, sources, sharing: None }, options)?, at))
}

/// The running example; unmounted when this is dropped.
pub(crate) struct Example {
    child: Child,
    /// The mount point, at which the source folder appears.
    pub at: PathBuf,
}

impl Example {
    /// Compiles the example and mounts `folder` at a new folder inside it.
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        let (program, at) = (folder.join("passthrough_ll"), folder.join("example"));
        let flags = said(Command::new("pkg-config").args(["--cflags", "--libs", "fuse3"]))?;
        said(
            Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(EXAMPLE).args(flags.split_whitespace()),
        )?;
        std::fs::create_dir(&at)?;
        std::fs::write(folder.join(MARKER), "")?;
        let mut child = Command::new(program)
            .args(["-f", "-o", "cache=never", "-o"])
            .arg(format!("source={}", folder.display()))
            .arg(&at)
            .stdin(Stdio::null())
            .spawn()?;
        let clock = std::time::Instant::now();
        // Not the folder that it is mounted at, which lies in its source too: it would hold itself open.
        while !at.join(MARKER).exists() {
            if clock.elapsed() > START_TIME_MAX || child.try_wait()?.is_some() {
                return Err("libfuse's example does not mount".into());
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        Ok(Self { child, at })
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // The example ends when it is unmounted and the last file is closed; fails if it has already ended.
        let _ = Command::new("fusermount3").arg("-uz").arg(&self.at).status();
        let clock = std::time::Instant::now();
        while clock.elapsed() < START_TIME_MAX && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::park_timeout(Duration::from_millis(10));
        }
        // Sometimes a thread of the example misses the unmount, and the process does not end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs fio on the candidate's file; returns MB/s (10^6 bytes), read and written.
fn fio(candidate: &Candidate, (pattern, block, depth): (&str, &str, u32)) -> Result<f64> {
    load::fio(&[
        "--ioengine=psync".to_owned(),
        "--thread".to_owned(),
        "--group_reporting".to_owned(),
        "--allow_file_create=0".to_owned(),
        format!("--filename={}", candidate.file.display()),
        format!("--rw={pattern}"),
        format!("--bs={block}"),
        format!("--numjobs={depth}"),
        format!("--direct={}", u8::from(candidate.direct)),
        format!("--size={DISK_BYTES}"),
        format!("--runtime={SECONDS}"),
    ])
}
