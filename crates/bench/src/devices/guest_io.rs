//! Figures of the disks that a machine has afterwards: what a guest reads and writes on raw files, QCOW2, overlays and
//! logical volumes that we installed, beside those that qemu-img and dd made (the thesis's table 6.3 and figure 6.4).

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base::Chance;
use lab::boot::Disk;
use lab::guest;
use serde_json::json;

use crate::context::{Context, said, timed};
use crate::figure::{Bar, Figure, median};
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[(
        "disks.guest_io",
        "throughput of a guest on disks that we installed over that on disks that qemu-img or dd made, the least of \
            four formats and four kinds of requests; shown",
    )],
    measure,
};

const FILE_BYTES: usize = 256 << 20;
const PACKAGES: &str = "fio lvm2";
/// Disks of the guest in their order, from `/dev/vdb`: the format, and who made it.
const DISKS: &[(&str, &str)] = &[
    ("raw", "ours"),
    ("raw", "theirs"),
    ("qcow2", "ours"),
    ("qcow2", "theirs"),
    ("overlay", "ours"),
    ("overlay", "theirs"),
    ("lv", "ours"),
    ("lv", "theirs"),
];
/// Kinds of requests, as fio calls them, and their sizes.
const JOBS: &str = "read:1M write:1M randread:4k randwrite:4k";
/// All disks: the format, who made it, and the device.
const ALL: &str = "raw:ours:vdb raw:theirs:vdc qcow2:ours:vdd qcow2:theirs:vde overlay:ours:vdf overlay:theirs:vdg \
    lv:ours:ours/lv lv:theirs:theirs/lv";
/// Those that we made.
pub(crate) const OURS: &str = "raw:ours:vdb qcow2:ours:vdd overlay:ours:vdf lv:ours:ours/lv";
const RUN_JOBS: &str = r"
        for job in JOBS; do
            measure ${job%:*} --filename=/m/file --rw=${job%:*} --bs=${job#*:} --runtime=2 --time_based --ramp_time=1
        done
";

/// What the guest does: logical volumes first, then all disks in turn, three times.
const GUEST: &str = r#"
for pair in ours:h theirs:i; do
    pvcreate -q /dev/vd${pair#*:}
    vgcreate -q ${pair%:*} /dev/vd${pair#*:}
done
diskcast install guest /dev/ours/lv --create-volume --yes -q
lvcreate -q -y -L MEBIBYTESM -n lv theirs
dd if=/dev/vdc of=/dev/theirs/lv bs=4M conv=fsync status=none
mkdir -p /m
measure() {
    name=$1
    shift
    rate=$(fio --name=job --direct=1 --ioengine=libaio --iodepth=8 --minimal "$@" | awk -F';' '{print $7 + $48}')
    echo "fio ${disk%:*} $name $rate"
}
for round in 1 2 3; do
    for disk in EACH; do
        mount /dev/${disk##*:} /m
        WORK
        umount /m
    done
done
finish
"#;

/// What a guest measures.
pub(crate) struct Guest<'a> {
    /// Size of its disks, whose filesystem holds a file of 256 MiB.
    pub mebibytes: u64,
    /// The disks that are measured: [`OURS`], or all.
    pub each: &'a str,
    /// Lines of bash for a disk, which is mounted at `/m`: `measure NAME OPTIONS` runs fio. `round` is 1 to 3.
    pub work: &'a str,
}

/// Rates in MB/s by format, maker and name of the measurement.
pub(crate) struct Rates(BTreeMap<(String, String, String), Vec<f64>>);

/// Makes the disks in `folder`, and returns those of the guest in their order.
fn disks(context: &Context, folder: &Path, mebibytes: u64) -> Result<Vec<Disk>> {
    let disk_bytes = mebibytes << 20;
    let (tree, original, repo) = (folder.join("tree"), folder.join("original.img"), folder.join("repo"));
    std::fs::create_dir(&tree)?;
    let mut bytes = vec![0; FILE_BYTES];
    Chance::from_seed(17).fill(&mut bytes);
    std::fs::write(tree.join("file"), bytes)?;
    File::create(&original)?.set_len(disk_bytes)?;
    said(Command::new("mke2fs").args(["-q", "-t", "ext4", "-d"]).args([&tree, &original]))?;
    timed(context.diskcast(&repo).arg("capture").arg(&original).arg("guest"))?;
    let mut all = Vec::new();
    for (format, maker) in DISKS {
        let path = folder.join(format!("{maker}-{format}.img"));
        let base = folder.join(format!("{maker}-raw.img"));
        let mut install = context.diskcast(&repo);
        install.arg("install").arg("guest").arg(&path);
        let mut qemu = Command::new("qemu-img");
        match (*format, *maker) {
            ("raw", "ours") => drop(timed(&mut install)?),
            ("raw", _) => {
                drop(said(qemu.args(["convert", "-f", "raw", "-O", "raw"]).args([&original, &path]))?)
            }
            ("qcow2", "ours") => drop(timed(install.args(["--as", "qcow2"]))?),
            ("qcow2", _) => {
                drop(said(qemu.args(["convert", "-f", "raw", "-O", "qcow2"]).args([&original, &path]))?)
            }
            ("overlay", "ours") => {
                drop(timed(install.args(["--as", "qcow2", "--copy-of"]).arg(&base))?);
            }
            ("overlay", _) => {
                qemu.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]);
                drop(said(qemu.args([&base, &path]))?);
            }
            // The guest makes the volume.
            _ => File::create(&path)?.set_len(disk_bytes + (64 << 20))?,
        }
        let format = if ["qcow2", "overlay"].contains(format) { "qcow2" } else { "raw" };
        all.push(Disk { path, format, direct: true });
    }
    // The guest writes to the raw files, which are the bases of overlays: these get their own.
    for (index, maker) in [(4, "ours"), (5, "theirs")] {
        let (raw, own) = (folder.join(format!("{maker}-raw.img")), folder.join(format!("{maker}-base.img")));
        said(Command::new("cp").arg("--sparse=always").args([&raw, &own]))?;
        let mut rebase = Command::new("qemu-img");
        rebase.args(["rebase", "-u", "-f", "qcow2", "-F", "raw", "-b"]);
        said(rebase.args([&own, &all[index].path]))?;
    }
    Ok(all)
}

impl Rates {
    /// What the guest said.
    fn parse(console: &str) -> Result<Self> {
        let mut rates: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for line in console.lines() {
            let Some((_, words)) = line.split_once("fio ") else { continue };
            let [disk, job, rate] = words.split_whitespace().collect::<Vec<_>>()[..] else { continue };
            let Some((format, maker)) = disk.split_once(':') else { continue };
            let rate = rate.parse::<f64>()? * 1024.0 / 1e6;
            rates.entry((format.to_owned(), maker.to_owned(), job.to_owned())).or_default().push(rate);
        }
        Ok(Self(rates))
    }

    /// The median of all rounds.
    pub(crate) fn of(&self, format: &str, maker: &str, job: &str) -> Result<f64> {
        let found = self.0.get(&(format.to_owned(), maker.to_owned(), job.to_owned()));
        Ok(median(found.ok_or_else(|| format!("the guest did not say the rate of {format}, {job}"))?))
    }
}

impl Guest<'_> {
    /// Starts the guest, and returns what it measured.
    pub(crate) fn run(&self, context: &Context) -> Result<Rates> {
        let folder = context.folder()?;
        let debian: PathBuf = context.scratch.join("fio.img");
        let mut make = Command::new(context.root.join("tools/debian-disk.sh"));
        said(make.args(["--packages", PACKAGES]).arg(&debian))?;
        let system = folder.join("system.img");
        said(Command::new("cp").arg("--sparse=always").args([&debian, &system]))?;
        let more_disks = disks(context, &folder, self.mebibytes)?;
        let program = context.diskcast(&folder);
        let script = GUEST.replace("MEBIBYTES", &self.mebibytes.to_string());
        let script = script.replace("EACH", self.each).replace("WORK", self.work);
        guest::prepare(&system, Path::new(program.get_program()), &script, &[&folder.join("repo")])?;
        Rates::parse(&guest::run(&system, more_disks, Duration::from_mins(15))?.console)
    }
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let work = RUN_JOBS.replace("JOBS", JOBS);
    let rates = Guest { mebibytes: 400, each: ALL, work: &work }.run(context)?;
    let of = |format: &str, maker: &str, job: &str| rates.of(format, maker, job);
    let (mut ratios, mut table) = (Vec::new(), Vec::new());
    for format in ["raw", "qcow2", "overlay", "lv"] {
        for job in JOBS.split(' ').filter_map(|job| job.split(':').next()) {
            let (ours, theirs, raw) =
                (of(format, "ours", job)?, of(format, "theirs", job)?, of("raw", "theirs", job)?);
            ratios.push(ours / theirs);
            table.push(json!({
                "format": format, "job": job, "diskcast MB/s": ours, "peer MB/s": theirs,
                "diskcast over raw": ours / raw, "peer over raw": theirs / raw,
            }));
        }
    }
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(vec![
        Figure::new("disks.guest_io", &[least], "ratio", Bar::Shown)
            .peer("median", "of all sixteen", median(&ratios), "ratio")
            .with(table.into())
            .on("fio, depth 8: 1 MiB in turn, 4 KiB at random; QEMU's emulation", "direct in guest and host"),
    ])
}
