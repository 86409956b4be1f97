//! Figures of a machine that gets an image again while its disk differs in 1 % of the chunks: what is fetched, and how
//! long it takes, against one reading of the disk and a fetch of as much.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use base::{Chance, is_zero};

use crate::again::Loop;
use crate::context::{Context, json_line, said, timed};
use crate::crew::Crew;
use crate::figure::{Bar, Figure, median};
use crate::room::{Room, collect};
use crate::{Group, Result, load};

pub(crate) const GROUP: Group = Group {
    figures: &[
        (
            "disks.delta",
            "s to fetch an image onto a disk that differs in 1 % of the chunks, over those to read the disk once and \
                to fetch as much; at most 1",
        ),
        ("disks.delta_bytes", "% of the bytes that such a fetch transfers; at most 1.2"),
    ],
    measure,
};

const ROUNDS: usize = 5;
const RATE: u64 = 1_000_000_000;
const CHUNK: usize = base::limits::CHUNK_BYTES_DEFAULT as usize;
/// One chunk in so many differs.
const EVERY: usize = 100;
/// The first port of rsync's own server.
const RSYNC_PORT: u16 = 8730;

/// The disks and the library.
struct Site<'a> {
    context: &'a Context,
    folder: PathBuf,
    target: Loop,
    /// The image as a file, for rsync.
    original: PathBuf,
    repo: PathBuf,
    /// Offsets of the chunks that are changed, and of all that hold anything.
    changed: Vec<u64>,
    used: Vec<u64>,
    allocated: u64,
    encoded: u64,
}

impl<'a> Site<'a> {
    /// Captures a partition of system files as `whole`, and its chunks that will be changed as `part`.
    fn new(context: &'a Context) -> Result<Self> {
        let folder = context.folder()?;
        let (original, repo) = (folder.join("original.img"), folder.join("repo"));
        said(
            Command::new("dd")
                .arg(format!("if={}", load::system_disk(context)?.display()))
                .arg(format!("of={}", original.display()))
                .args(["bs=1M", "conv=sparse", "iflag=skip_bytes,count_bytes"])
                .arg(format!("skip={}", super::START))
                .arg(format!("count={}", super::PART_BYTES)),
        )?;
        File::options().write(true).open(&original)?.set_len(super::PART_BYTES)?;
        let captured = timed(context.diskcast(&repo).arg("capture").arg(&original).arg("whole"))?;
        let captured = json_line(&captured.output, "captured")?;
        let number = |name: &str| captured[name].as_u64().ok_or_else(|| format!("no {name} in the report"));
        let (allocated, encoded) = (number("allocated_bytes")?, number("encoded_bytes")?);
        let (changed, used) = one_in_a_hundred(&original, allocated)?;
        let part = folder.join("part.img");
        let (from, to) = (File::open(&original)?, File::create(&part)?);
        let mut chunk = vec![0; CHUNK];
        for (index, offset) in changed.iter().enumerate() {
            from.read_exact_at(&mut chunk, *offset)?;
            to.write_all_at(&chunk, (index * CHUNK) as u64)?;
        }
        // A file that is open for writing is not captured.
        drop(to);
        timed(context.diskcast(&repo).arg("capture").arg("--raw").arg(&part).arg("part"))?;
        let disk = folder.join("disk.img");
        said(Command::new("cp").arg("--sparse=always").arg(&original).arg(&disk))?;
        let target = Loop::over(&disk)?;
        Ok(Self { context, folder, target, original, repo, changed, used, allocated, encoded })
    }

    /// Makes the target differ, and drops all caches.
    fn differ(&self, round: u64) -> Result<()> {
        let disk = File::options().write(true).open(&self.target.0)?;
        let mut noise = vec![0; 4096];
        for offset in &self.changed {
            Chance::from_seed(*offset + round).fill(&mut noise);
            disk.write_all_at(&noise, *offset)?;
        }
        disk.sync_all()?;
        self.settle()
    }

    /// Reads the target once, so that the medium's own caches are alike for all, and drops the caches here.
    fn settle(&self) -> Result<()> {
        read_once(&self.target.0, &self.used)?;
        said(&mut Command::new("sync"))?;
        Ok(std::fs::write("/proc/sys/vm/drop_caches", "3")?)
    }

    /// Seconds, and bytes that were transferred and written, of a fetch of `name` into `target`.
    fn fetch(&self, name: &str, target: &Path) -> Result<(f64, u64, u64)> {
        let room = Room::open(self.context, &self.repo, 1, RATE)?;
        let target = target.to_string_lossy().into_owned();
        let mut crew = Crew::new();
        let member = crew.start(&mut room.fetch_with_peers(1, name, &target))?;
        let fetched = collect(&mut crew, &[member])?;
        let fetched = fetched.first().ok_or("one host fetches")?;
        let number = |name: &str| fetched.report[name].as_u64().unwrap_or(0);
        let bytes = number("multicast_bytes") + number("peer_bytes") + number("unicast_bytes");
        let written = fetched.report["report"]["written_bytes"].as_u64().unwrap_or(0);
        Ok((fetched.ended, bytes, written))
    }

    /// Seconds that rsync takes for the same.
    fn rsync(&self, port: u16) -> Result<f64> {
        let room = Room::open(self.context, &self.repo, 1, RATE)?;
        let conf = self.folder.join("rsyncd.conf");
        let folder = self.folder.display();
        std::fs::write(&conf, format!("use chroot = no\nuid = 0\ngid = 0\n[disks]\npath = {folder}\n"))?;
        let server = room.star.host(0);
        let mut daemon = server.command("rsync");
        daemon.args(["--daemon", "--no-detach", &format!("--port={port}"), "--config"]).arg(&conf);
        let mut daemon = daemon.stdin(Stdio::null()).spawn()?;
        let name = self.original.file_name().unwrap_or_default().to_string_lossy();
        let url = format!("rsync://{}:{port}/disks/{name}", server.ipv4());
        let mut ready = room.star.host(1).command("bash");
        let script = "until rsync \"$1\" > /dev/null 2>&1; do :; done";
        let ready = said(ready.args(["-c", script, "-", &url]));
        let mut command = room.star.host(1).command("bash");
        let script =
            "rsync --no-whole-file --write-devices -z --compress-choice=zstd \"$1\" \"$2\" && sync -d \"$2\"";
        let done = ready.and_then(|_| timed(command.args(["-c", script, "-", &url]).arg(&self.target.0)));
        daemon.kill()?;
        daemon.wait()?;
        Ok(done?.seconds)
    }
}

/// Offsets of one in a hundred of the chunks, of those that have no page of zeros; and of what is in use, `allocated`
/// bytes: all chunks that are no zeros, and as many others as the filesystem has filled with zeros.
fn one_in_a_hundred(disk: &Path, allocated: u64) -> Result<(Vec<u64>, Vec<u64>)> {
    let file = File::open(disk)?;
    let mut chunk = vec![0; CHUNK];
    let (mut full, mut used, mut zero) = (Vec::new(), Vec::new(), Vec::new());
    for offset in (0..super::PART_BYTES / CHUNK as u64).map(|index| index * CHUNK as u64) {
        file.read_exact_at(&mut chunk, offset)?;
        if is_zero(&chunk) {
            zero.push(offset);
        } else {
            used.push(offset);
            full.extend((!chunk.chunks(4096).any(is_zero)).then_some(offset));
        }
    }
    let step = full.len() * EVERY / used.len();
    let changed = full.into_iter().skip(step / 2).step_by(step).collect();
    let zeros = usize::try_from(allocated)?.div_ceil(CHUNK).saturating_sub(used.len());
    used.extend(zero.into_iter().take(zeros));
    used.sort_unstable();
    Ok((changed, used))
}

/// Seconds to read these chunks of a disk one after the other, as `dd` does with a whole disk.
fn read_once(disk: &Path, chunks: &[u64]) -> Result<f64> {
    let file = File::open(disk)?;
    let mut chunk = vec![0; CHUNK];
    let start = Instant::now();
    for offset in chunks {
        file.read_exact_at(&mut chunk, *offset)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn measure(context: &Context) -> Result<Vec<Figure>> {
    let site = Site::new(context)?;
    let (mut ours, mut shares, mut reads, mut parts, mut ratios) = (vec![], vec![], vec![], vec![], vec![]);
    let mut theirs = Vec::new();
    let part = site.folder.join("fetched.img");
    for round in 0..ROUNDS as u64 {
        site.differ(3 * round)?;
        let (seconds, bytes, written) = site.fetch("whole", &site.target.0)?;
        let written = written as f64 / site.allocated as f64;
        if !(0.009..0.0115).contains(&written) {
            return Err(format!("{written:.4} of the image was written").into());
        }
        let _ = std::fs::remove_file(&part);
        site.settle()?;
        let fetch = site.fetch("part", &part)?.0;
        site.settle()?;
        let read = read_once(&site.target.0, &site.used)?;
        site.differ(3 * round + 1)?;
        theirs.push(site.rsync(RSYNC_PORT + u16::try_from(round)?)?);
        said(Command::new("cmp").arg(&site.original).arg(&site.target.0))?;
        ratios.push(seconds / (read + fetch));
        ours.push(seconds);
        reads.push(read);
        parts.push(fetch);
        shares.push(100.0 * bytes as f64 / site.encoded as f64);
    }
    site.differ(2)?;
    let whole = site.folder.join("whole.img");
    let afresh = site.fetch("whole", &whole)?.0;
    let workload = "ext4 of system files on a loop device, 1 % of the chunks differ; 1 Gbit/s";
    Ok(vec![
        Figure::new("disks.delta", &ratios, "ratio", Bar::AtMost(1.0))
            .peer("pread", "reads what is in use once", median(&reads), "s")
            .peer("diskcast", "fetches as much into a file", median(&parts), "s")
            .peer("diskcast", "this fetch", median(&ours), "s")
            .peer("diskcast", "into an empty file", afresh, "s")
            .peer("rsync", "--no-whole-file --write-devices -z", median(&theirs), "s")
            .on(workload, "cold, synced, read back"),
        Figure::new("disks.delta_bytes", &shares, "%", Bar::AtMost(1.2)).on(workload, "of the image's bytes"),
    ])
}
