//! Figures of capture and install on a block device, beside partclone with zstd, qemu-img and rsync; and of planning
//! for very many extents.

pub(crate) mod delta;
pub(crate) mod guest_io;

use std::path::{Path, PathBuf};
use std::process::Command;

use base::units::show_bytes;
use image::capture::LEVEL_DEFAULT;
use serde_json::json;

use crate::again::Loop;
use crate::context::{Context, json_line, said, timed};
use crate::figure::{Bar, Figure, median};
use crate::plain::Plain;
use crate::{Group, Result, install, load};

pub(crate) const GROUP: Group = Group {
    figures: &[
        (
            "disks.capture_rate",
            "time of the best of partclone | zstd and qemu-img over ours, on a block device, cold and warm, the \
                lesser; at least 2.5",
        ),
        ("disks.capture_size", "image bytes over those of partclone | zstd; at most 1.09"),
        (
            "disks.install_rate",
            "time of the best of zstd | partclone and qemu-img over ours, onto a block device, the lesser; at \
                least 1.5",
        ),
        (
            "disks.vs_limit",
            "rates of capture and install over the slowest of what device, codec and repository can do alone, the \
                least; at least 0.9",
        ),
        (
            "disks.vs_rsync",
            "time of rsync --checksum of the same tree, of which 1 % changed, over a whole install; shown",
        ),
    ],
    measure,
};

pub(crate) const PLANS: Group = Group {
    figures: &[
        ("disks.plan_10m", "peak MiB of a capture of 10 million extents; at most 1024"),
        (
            "disks.plan_linear",
            "seconds to plan for each of 10 million extents over each of 1 million; at most 2",
        ),
    ],
    measure: measure_plans,
};

const ROUNDS: usize = 3;
/// Where the partition of the system disk begins, in bytes.
const START: u64 = 1 << 20;
/// Its length: behind it lies the backup GPT.
const PART_BYTES: u64 = (4 << 30) - (2 << 20);
/// A changed file in so many, for rsync.
const CHANGED_EVERY: usize = 100;

/// The devices and folders of the measurement.
struct Site<'a> {
    context: &'a Context,
    source: Loop,
    target: Loop,
    folder: PathBuf,
    repo: PathBuf,
}

impl<'a> Site<'a> {
    fn new(context: &'a Context) -> Result<Self> {
        let disk = load::system_disk(context)?;
        let folder = context.folder()?;
        let target = folder.join("target.img");
        std::fs::copy(load::random_disk(context, 4 << 30)?, &target)?;
        let (source, target) =
            (Loop::part(&disk, START, PART_BYTES)?, Loop::part(&target, START, PART_BYTES)?);
        Ok(Self { context, source, target, repo: folder.join("repo"), folder })
    }

    /// Writes out what is dirty; and drops all clean pages if the next run is to find a cold cache, else reads the
    /// source.
    fn settle(&self, cold: bool) -> Result<()> {
        said(&mut Command::new("sync"))?;
        if cold {
            std::fs::write("/proc/sys/vm/drop_caches", "3")?;
        } else {
            said(
                Command::new("dd")
                    .arg(format!("if={}", self.source.0.display()))
                    .args(["of=/dev/null", "bs=4M"]),
            )?;
        }
        Ok(())
    }

    fn shell(&self, script: &str) -> Result<f64> {
        let mut command = Command::new("bash");
        command.args(["-o", "pipefail", "-c", script]).current_dir(&self.folder);
        command.env("S", &self.source.0).env("T", &self.target.0);
        Ok(timed(&mut command)?.seconds)
    }

    fn capture(&self) -> Result<(f64, u64, u64)> {
        let _ = std::fs::remove_dir_all(&self.repo);
        let usage = timed(self.context.diskcast(&self.repo).arg("capture").arg(&self.source.0).arg("bench"))?;
        let captured = json_line(&usage.output, "captured")?;
        if captured["allocated_bytes"].as_u64() >= Some(PART_BYTES) {
            return Err("the partition was captured whole".into());
        }
        let number = |name: &str| captured[name].as_u64().ok_or_else(|| format!("no {name} in the report"));
        Ok((usage.seconds, number("encoded_bytes")?, number("allocated_bytes")?))
    }

    fn install(&self, reuse: &str) -> Result<f64> {
        let mut command = self.context.diskcast(&self.repo);
        command.args(["install", "bench", "--yes", "--no-verify", "--reuse", reuse]).arg(&self.target.0);
        Ok(timed(&mut command)?.seconds)
    }
}

/// Their captures, and what restores them. The output is durable at the end.
const PARTCLONE: (&str, &str) = (
    "partclone.ext4 -c -a 0 -s $S -o - -L pc.log | zstd -q -T0 -2 -f -o pc.zst && sync -d pc.zst",
    "zstd -q -dc pc.zst | partclone.ext4 -r -s - -o $T -L pc.log && sync -d $T",
);
const QEMU: (&str, &str) = (
    "qemu-img convert -c -f raw -O qcow2 -m 16 -W $S q.qcow2 && sync -d q.qcow2",
    "qemu-img convert -n -f qcow2 -O raw -m 16 -W q.qcow2 $T && sync -d $T",
);

#[derive(Default)]
struct Times {
    ours: Vec<f64>,
    partclone: Vec<f64>,
    qemu: Vec<f64>,
    limits: Vec<f64>,
}

impl Times {
    /// The median of the best rival's time over ours.
    fn ratio(&self) -> f64 {
        let best = self.partclone.iter().zip(&self.qemu).map(|(a, b)| a.min(*b));
        median(&best.zip(&self.ours).map(|(theirs, ours)| theirs / ours).collect::<Vec<_>>())
    }

    /// The median of the limit's time over ours.
    fn share(&self) -> f64 {
        median(&self.limits.iter().zip(&self.ours).map(|(limit, ours)| limit / ours).collect::<Vec<_>>())
    }

    fn detail(&self, name: &str) -> serde_json::Value {
        json!({
            "work": name, "ratio": self.ratio(), "of the limit": self.share(), "diskcast s": median(&self.ours),
            "partclone and zstd s": median(&self.partclone), "qemu-img s": median(&self.qemu),
            "limit s": median(&self.limits),
        })
    }
}

/// What all rounds measured, with a cold and with a warm cache.
#[derive(Default)]
struct Measured {
    captures: [Times; 2],
    installs: [Times; 2],
    /// Bytes of the image, and of partclone's.
    sizes: (u64, u64),
    allocated: u64,
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    context.calm()?;
    let site = Site::new(context)?;
    let plain = Plain::read(&site.source.0, base::limits::CHUNK_BYTES_DEFAULT)?;
    let mut measured = Measured::default();
    for _ in 0..ROUNDS {
        for index in [0, 1] {
            round(&site, &plain, index, &mut measured)?;
        }
    }
    Ok(figures(&measured, rsync(&site)?))
}

/// Measures each capture and install once, with a cold cache if `index` is 0.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn round(site: &Site<'_>, plain: &Plain, index: usize, measured: &mut Measured) -> Result<()> {
    let cold = index == 0;
    let encode = plain.encode_limit(LEVEL_DEFAULT)?;
    let times = &mut measured.captures[index];
    site.settle(cold)?;
    let (seconds, encoded, allocated) = site.capture()?;
    times.ours.push(seconds);
    site.settle(cold)?;
    times.partclone.push(site.shell(PARTCLONE.0)?);
    site.settle(cold)?;
    times.qemu.push(site.shell(QEMU.0)?);
    site.settle(cold)?;
    let count = format!("count={allocated} iflag=count_bytes");
    let read = site.shell(&format!("dd if=$S of=/dev/null bs=4M {count} status=none"))?;
    let kept = format!("count={encoded} iflag=count_bytes");
    let stored = site.shell(&format!("dd if=$S of=copy bs=4M {kept} conv=fdatasync status=none"))?;
    times.limits.push(read.max(stored).max(allocated as f64 / encode.0));

    let times = &mut measured.installs[index];
    site.settle(cold)?;
    times.ours.push(site.install("never")?);
    site.settle(cold)?;
    times.partclone.push(site.shell(PARTCLONE.1)?);
    site.settle(cold)?;
    times.qemu.push(site.shell(QEMU.1)?);
    site.settle(cold)?;
    let written = site.shell(&format!("dd if=$S of=$T bs=4M {count} conv=fdatasync status=none"))?;
    times.limits.push(written.max(allocated as f64 / encode.1.decode_limit()?));
    measured.allocated = allocated;
    measured.sizes = (encoded, std::fs::metadata(site.folder.join("pc.zst"))?.len());
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn figures(measured: &Measured, rsync: (f64, f64)) -> Vec<Figure> {
    let Measured { captures, installs, sizes, allocated } = measured;
    let least = |times: &[Times; 2], of: fn(&Times) -> f64| of(&times[0]).min(of(&times[1]));
    let detail = json!([
        captures[0].detail("capture, cold"),
        captures[1].detail("capture, warm"),
        installs[0].detail("install, cold"),
        installs[1].detail("install, warm"),
    ]);
    let workload = format!("ext4 of system files on a loop device, {} in use", show_bytes(*allocated));
    let (into, onto) = ("local disk, durable, not read back", "loop device, synced, not read back");
    let vs_limit = least(captures, Times::share).min(least(installs, Times::share));
    let ratio = |name: &'static str, times: &[Times; 2], bar| {
        let least_of =
            |of: fn(&Times) -> &Vec<f64>| times.iter().map(|t| median(of(t))).fold(f64::MAX, f64::min);
        Figure::new(name, &[least(times, Times::ratio)], "ratio", Bar::AtLeast(bar))
            .peer("partclone + zstd", "-a 0; -T0 -2", least_of(|times| &times.partclone), "s")
            .peer("qemu-img", "convert -c -m 16 -W", least_of(|times| &times.qemu), "s")
            .peer("diskcast", "", least_of(|times| &times.ours), "s")
            .with(detail.clone())
    };
    vec![
        ratio("disks.capture_rate", captures, 2.5).on(&workload, into),
        Figure::new("disks.capture_size", &[sizes.0 as f64 / sizes.1 as f64], "ratio", Bar::AtMost(1.09))
            .peer("partclone + zstd", "-a 0; -T0 -2", sizes.1 as f64 / 1e6, "MB")
            .on(&workload, into),
        ratio("disks.install_rate", installs, 1.5).on(&workload, onto),
        Figure::new("disks.vs_limit", &[vs_limit], "ratio", Bar::AtLeast(0.9))
            .peer("dd, zstd + 2 x BLAKE3", "the slowest part alone", 1.0, "ratio")
            .on(&workload, "as the rows above")
            .with(detail.clone()),
        Figure::new("disks.vs_rsync", &[rsync.0 / rsync.1], "ratio", Bar::Shown)
            .peer("rsync", "-aHAX --checksum --delete", rsync.0, "s")
            .peer("diskcast", "install --no-verify", rsync.1, "s")
            .on(&workload, "ext4 with the same files, one in 100 changed; cold"),
    ]
}

/// Times of rsync and of an install that make the target's files those of the source.
fn rsync(site: &Site<'_>) -> Result<(f64, f64)> {
    let [from, to] = ["from", "to"].map(|name| site.folder.join(name));
    std::fs::create_dir_all(&from)?;
    std::fs::create_dir_all(&to)?;
    let (mut theirs, mut ours) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        site.settle(true)?;
        ours.push(site.install("auto")?);
        said(Command::new("mount").args(["-o", "ro"]).arg(&site.source.0).arg(&from))?;
        said(Command::new("mount").arg(&site.target.0).arg(&to))?;
        let done = change_some(&to)
            .and_then(|()| site.settle(true))
            .and_then(|()| site.shell("rsync -aHAX --checksum --delete from/ to/ && sync -f to"));
        said(Command::new("umount").arg(&from))?;
        said(Command::new("umount").arg(&to))?;
        theirs.push(done?);
    }
    Ok((median(&theirs), median(&ours)))
}

/// Changes the first byte of one file in a hundred.
fn change_some(root: &Path) -> Result<()> {
    let files = said(Command::new("find").arg(root).args(["-type", "f", "-size", "+0"]))?;
    for path in files.lines().step_by(CHANGED_EVERY) {
        let file = std::fs::File::options().write(true).open(path)?;
        std::os::unix::fs::FileExt::write_all_at(&file, b"changed", 0)?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn measure_plans(context: &Context) -> Result<Vec<Figure>> {
    let (mut peak, mut costs) = (0.0, Vec::new());
    for runs in [1_000_000, 10_000_000] {
        let disk = install::zeros_in_runs(context, runs)?;
        let repo = context.folder()?;
        let plan = |_| {
            Ok(timed(context.diskcast(&repo).args(["--dry-run", "capture"]).arg(&disk).arg("x"))?.seconds)
        };
        let seconds = (0..ROUNDS).map(plan).collect::<Result<Vec<f64>>>()?;
        costs.push(median(&seconds) / runs as f64 * 1e9);
        if runs == 10_000_000 {
            let captured = timed(context.diskcast(&repo).arg("capture").arg(&disk).arg("x"))?;
            let allocated =
                json_line(&captured.output, "captured")?["allocated_bytes"].as_u64().unwrap_or(u64::MAX);
            if allocated > std::fs::metadata(&disk)?.len() / 8 * 5 {
                return Err("the free clusters between the others were captured, too".into());
            }
            peak = captured.peak_bytes as f64 / f64::from(1 << 20);
        }
        std::fs::remove_file(&disk)?;
    }
    let workload = "FAT32 with every other cluster of 1 KiB in use, all holes";
    Ok(vec![
        Figure::new("disks.plan_10m", &[peak], "MiB", Bar::AtMost(1024.0)).on(workload, "capture, whole"),
        Figure::new("disks.plan_linear", &[costs[1] / costs[0]], "ratio", Bar::AtMost(2.0))
            .peer("diskcast", "1 million extents", costs[0], "ns each")
            .peer("diskcast", "10 million extents", costs[1], "ns each")
            .on(workload, "capture --dry-run"),
    ])
}
