//! Figures of the disks that people have, beside the tools that they use today.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use base::Chance;
use serde_json::json;

use crate::again::Loop;
use crate::context::{Context, said};
use crate::figure::{Bar, Figure};
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[(
        "disks.range_vs_partclone",
        "captured range less 4 MiB over partclone's, six filesystems, empty and used, the most; at most 1.02",
    )],
    measure,
};

pub(crate) const COMMITS: Group = Group {
    figures: &[(
        "disks.commit_seeds",
        "2,000 seeds of capture, change, commit of the whole disk, install over an old disk: wrong ones; at most 0",
    )],
    measure: commit_seeds,
};

/// Seeds of commits of whole disks.
const COMMIT_SEEDS: u64 = 2000;

const DISK_BYTES: u64 = 1 << 30;
/// The captured range may be so much larger, for all filesystems: both ends of a disk are always captured.
const MORE_BYTES: u64 = 4 << 20;
/// Files that are written, of which every third is removed again.
const FILES: usize = 4000;
const FILE_BYTES_MAX: u64 = 150 << 10;
const FOLDERS: usize = 40;

/// What makes a filesystem, what mounts it (nothing where files are copied into it), and partclone's program for it.
const FILESYSTEMS: &[(&str, &[&str], &[&str], &str)] = &[
    ("ext4", &["mkfs.ext4", "-q", "-F"], &["mount", "-t", "ext4"], "partclone.ext4"),
    ("xfs", &["mkfs.xfs", "-q", "-f"], &["mount", "-t", "xfs"], "partclone.xfs"),
    ("btrfs", &["mkfs.btrfs", "-q", "-f"], &["mount", "-t", "btrfs"], "partclone.btrfs"),
    ("ntfs", &["mkntfs", "-Q", "-F", "-q"], &["ntfs-3g"], "partclone.ntfs"),
    ("exfat", &["mkfs.exfat"], &["mount.exfat-fuse"], "partclone.exfat"),
    ("fat", &["mkfs.fat", "-F", "32"], &[], "partclone.fat32"),
];

/// Versions by commits of whole disks that differ from a capture, or that do not install well over an old disk.
fn commit_seeds(context: &Context) -> Result<Vec<Figure>> {
    let folder = context.folder()?;
    let seeds = lab::CommitSeeds { program: &context.diskcast, folder: &folder };
    let wrong: Vec<String> = (0..COMMIT_SEEDS).filter_map(|seed| seeds.run(seed).err()).collect();
    let figure = Figure::new("disks.commit_seeds", &[wrong.len() as f64], "seeds", Bar::AtMost(0.0))
        .on("ext4, XFS, btrfs, NTFS, FAT and none; no table, MBR, GPT; raw, QCOW2, overlay", "files")
        .with(json!(wrong));
    Ok(vec![figure])
}

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let folder = context.folder()?;
    let (mut worst, mut details) = (0.0_f64, Vec::new());
    for (name, make, mount, partclone) in FILESYSTEMS {
        let image = folder.join(name);
        std::fs::File::create(&image)?.set_len(DISK_BYTES)?;
        said(Command::new(make[0]).args(&make[1..]).arg(&image))?;
        for state in ["empty", "used"] {
            if state == "used" {
                use_it(&image, mount, &folder.join("mounted"))?;
            }
            let (ours, theirs) = (range(&image)?, range_of_partclone(partclone, &image, &folder)?);
            let ratio = ours.saturating_sub(MORE_BYTES) as f64 / theirs as f64;
            worst = worst.max(ratio);
            details.push(json!({
                "filesystem": name, "state": state, "ratio": ratio,
                "diskcast bytes": ours, "partclone bytes": theirs,
            }));
        }
        std::fs::remove_file(&image)?;
    }
    let version = said(Command::new("dpkg-query").args(["-W", "-f", "${Version}", "partclone"]))?;
    let figure = Figure::new("disks.range_vs_partclone", &[worst], "ratio", Bar::AtMost(1.02))
        .peer(&format!("partclone {version}"), "-c", 1.0, "ratio")
        .on("1 GiB; empty, and 4000 files of up to 150 KiB, every third removed", "none: the ranges alone")
        .with(json!(details));
    Ok(vec![figure])
}

/// Bytes that a capture of `image` takes.
fn range(image: &Path) -> Result<u64> {
    let map = disk::survey(&disk::open_source(image)?, &disk::SurveyOptions::default())?;
    if let Some(warning) = map.warnings.first() {
        return Err(format!("{}: {warning}", image.display()).into());
    }
    Ok(map.allocated.sectors() * base::limits::SECTOR_BYTES)
}

/// Bytes that partclone takes: blocks in use, times their size.
fn range_of_partclone(program: &str, image: &Path, folder: &Path) -> Result<u64> {
    let target: PathBuf = folder.join("partclone.img");
    let mut command = Command::new(program);
    command.args(["-c", "-s"]).arg(image).arg("-o").arg(&target).arg("-L").arg(folder.join("partclone.log"));
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!("{program}: {text}").into());
    }
    std::fs::remove_file(&target)?;
    let number = |line: &str, after: &str| -> Option<u64> {
        let line = text.lines().find(|found| found.starts_with(line))?;
        line.split_once(after)?.1.split_whitespace().next()?.parse().ok()
    };
    let used = number("Space in use:", "= ").zip(number("Block size:", ":"));
    used.map(|(blocks, bytes)| blocks * bytes).ok_or_else(|| format!("{program} said: {text}").into())
}

/// Writes files into the filesystem, and removes some of them.
fn use_it(image: &Path, mount: &[&str], folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    if mount.is_empty() {
        fill(folder)?;
        let mut copy = Command::new("mcopy");
        copy.args(["-Q", "-s", "-i"]).arg(image);
        for entry in std::fs::read_dir(folder)? {
            copy.arg(entry?.path());
        }
        said(copy.arg("::"))?;
        return Ok(std::fs::remove_dir_all(folder)?);
    }
    let device = Loop::over(image)?;
    said(Command::new(mount[0]).args(&mount[1..]).arg(&device.0).arg(folder))?;
    let filled = fill(folder);
    said(Command::new("umount").arg(folder))?;
    filled
}

fn fill(root: &Path) -> Result<()> {
    let mut chance = Chance::from_seed(17);
    let path = |number: usize| root.join(format!("folder {}/file {number}", number % FOLDERS));
    for number in 0..FOLDERS {
        std::fs::create_dir(root.join(format!("folder {number}")))?;
    }
    for number in 0..FILES {
        let mut bytes = vec![0; usize::try_from(chance.below(FILE_BYTES_MAX))?];
        chance.fill(&mut bytes);
        std::fs::File::create(path(number))?.write_all(&bytes)?;
    }
    (0..FILES).step_by(3).try_for_each(|number| std::fs::remove_file(path(number)))?;
    Ok(())
}
