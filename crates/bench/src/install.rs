//! Figures of `diskcast install`: into a null target, compared with the decoder's limit and with imageunzip, and into a
//! file, compared with dd.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use image::capture::LEVEL_DEFAULT;

use crate::context::{Context, json_line, said, timed};
use crate::figure::{Bar, Figure, median};
use crate::plain::{Plain, inflate_rate};
use crate::{Group, Result, load};

pub(crate) const GROUP: Group = Group {
    figures: &[
        (
            "install.rate_null",
            "plain MB/s into a null target; at least 7 x zlib on one core in this run, as imageunzip",
        ),
        ("install.vs_limit", "install.rate_null over what zstd and BLAKE3 reach on all cores; at least 0.85"),
        (
            "install.rate_file",
            "MB/s into a file, durable, over the lesser of dd with fdatasync and the decoder; at least 0.8",
        ),
        ("install.memory", "peak MiB; at most 256"),
    ],
    measure,
};

pub(crate) const ZEROS: Group = Group {
    figures: &[
        (
            "install.zero_runs",
            "time to install a million runs of 1 KiB of zeros onto a new file, over dd with fdatasync of the \
                same bytes; at most 3",
        ),
        (
            "install.zero_runs_over",
            "time to install a million runs of 1 KiB of zeros onto a file of other bytes, over dd; shown",
        ),
    ],
    measure: measure_zeros,
};

/// Number of runs of zeros. Each is a FAT cluster of two sectors, followed by a free cluster.
const ZERO_RUNS: usize = 1_000_000;

const RUNS: usize = 5;
/// How often the rate is that of zlib's decoder on one core, which is what Frisbee's imageunzip waits for.
const TIMES_INFLATE: f64 = 7.0;

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn measure(context: &Context) -> Result<Vec<Figure>> {
    let disk = load::system_disk(context)?;
    let repo = context.folder()?;
    timed(context.diskcast(&repo).arg("capture").arg(&disk).arg("bench"))?;
    let target = repo.join("target.img");
    let into_null = timed(context.diskcast(&repo).args(["install", "bench", "null:"]))?;
    let into_file = timed(context.diskcast(&repo).args(["install", "bench", "--yes"]).arg(&target))?;
    std::fs::remove_file(&target)?;
    let memory = into_null.peak_bytes.max(into_file.peak_bytes) as f64 / f64::from(1 << 20);
    let plain = Plain::read(&disk, base::limits::CHUNK_BYTES_DEFAULT)?;
    let encoded = plain.encode_limit(LEVEL_DEFAULT)?.1;
    let bytes = plain.bytes() as f64;
    let deflated = plain.deflate().1;
    drop(plain);
    let mut inflate = vec![];
    let (mut null, mut shares, mut file, mut limits, mut dd) = (vec![], vec![], vec![], vec![], vec![]);
    // All are measured in each round, so that other load on the machine affects all alike.
    for _ in 0..RUNS {
        let limit = encoded.decode_limit()? / 1e6;
        inflate.push(inflate_rate(&deflated) / 1e6);
        let into_null = timed(context.diskcast(&repo).args(["install", "bench", "null:"]))?;
        let copied = bytes / dd_seconds(&disk, &target)? / 1e6;
        let into_file = timed(
            context
                .diskcast(&repo)
                .args(["install", "bench", "--yes", "--no-verify", "--reuse", "never"])
                .arg(&target),
        )?;
        std::fs::remove_file(&target)?;
        let rate = bytes / into_null.seconds / 1e6;
        null.push(rate);
        shares.push(rate / limit);
        file.push(bytes / into_file.seconds / 1e6 / copied.min(limit));
        limits.push(limit);
        dd.push(copied);
    }
    let workload = "image of the ext4 disk of system files, repository in a folder, page cache";
    let level = "256 KiB, all cores, in memory";
    Ok(vec![
        Figure::new("install.rate_null", &null, "MB/s", Bar::AtLeast(TIMES_INFLATE * median(&inflate)))
            .peer("zlib", "inflate of 1 MiB pieces, one core, in memory", median(&inflate), "MB/s")
            .on(workload, "null, verifying"),
        Figure::new("install.vs_limit", &shares, "ratio", Bar::AtLeast(0.85))
            .peer("zstd + 2 x BLAKE3", level, median(&limits), "MB/s")
            .on(workload, "null, verifying"),
        Figure::new("install.rate_file", &file, "ratio", Bar::AtLeast(0.8))
            .peer("dd", "bs=4M conv=fdatasync, the same bytes", median(&dd), "MB/s")
            .peer("zstd + 2 x BLAKE3", level, median(&limits), "MB/s")
            .on(workload, "sparse file on the local disk, synced, not read back"),
        Figure::new("install.memory", &[memory], "MiB", Bar::AtMost(256.0)).on(workload, "null, and file"),
    ])
}

/// Seconds that dd takes to write as many bytes as the disk has allocated onto a new file, durably.
fn dd_seconds(disk: &Path, target: &Path) -> Result<f64> {
    let _ = std::fs::remove_file(target);
    said(Command::new("sync").arg("-f").arg(target.parent().unwrap_or(target)))?;
    let allocated = {
        let source = disk::open_source(disk)?;
        disk::survey(&source, &disk::SurveyOptions::default())?.allocated.sectors()
            * base::limits::SECTOR_BYTES
    };
    let flags = ["bs=4M", "conv=fdatasync", "iflag=count_bytes,fullblock"];
    let usage = timed(
        Command::new("dd")
            .arg(format!("if={}", disk.display()))
            .arg(format!("of={}", target.display()))
            .arg(format!("count={allocated}"))
            .args(flags),
    )?;
    std::fs::remove_file(target)?;
    Ok(usage.seconds)
}

/// Measures installs of zeros onto a new file and onto a file of random bytes, each compared with dd.
fn measure_zeros(context: &Context) -> Result<Vec<Figure>> {
    let disk = zeros_in_runs(context, ZERO_RUNS)?;
    let repo = context.folder()?;
    let captured = timed(context.diskcast(&repo).arg("capture").arg(&disk).arg("zeros"))?;
    let size = std::fs::metadata(&disk)?.len();
    let bytes = json_line(&captured.output, "captured")?["allocated_bytes"].as_u64().unwrap_or(size);
    let old = load::random_disk(context, size)?;
    let target = repo.join("target.img");
    let sync = || said(Command::new("sync").arg("-f").arg(&repo)).map(drop);
    let other_bytes = || -> Result<()> {
        std::fs::copy(&old, &target)?;
        sync()
    };
    let dd = || -> Result<f64> {
        let words = ["if=/dev/zero", "bs=4M", "conv=fdatasync,notrunc", "iflag=count_bytes"];
        let of = format!("of={}", target.display());
        let copied = timed(Command::new("dd").args(words).arg(of).arg(format!("count={bytes}")))?;
        std::fs::remove_file(&target)?;
        sync()?;
        Ok(copied.seconds)
    };
    let install = || -> Result<f64> {
        let installed = timed(context.diskcast(&repo).args(["install", "zeros", "--yes"]).arg(&target))?;
        std::fs::remove_file(&target)?;
        sync()?;
        Ok(installed.seconds)
    };
    let (mut new, mut over) = ((vec![], vec![]), (vec![], vec![]));
    for _ in 0..RUNS {
        new.0.push(install()?);
        new.1.push(dd()?);
        other_bytes()?;
        over.0.push(install()?);
        other_bytes()?;
        over.1.push(dd()?);
    }
    let figure = |name, (ours, dd): &(Vec<f64>, Vec<f64>), bar, target| {
        let ratios: Vec<f64> = ours.iter().zip(dd).map(|(ours, dd)| ours / dd).collect();
        Figure::new(name, &ratios, "ratio", bar)
            .peer("dd", "if=/dev/zero bs=4M conv=fdatasync,notrunc, as many bytes", median(dd), "s")
            .peer("diskcast", "install --yes", median(ours), "s")
            .on("FAT32 with every other cluster of 1 KiB in use, all zeros", target)
    };
    Ok(vec![
        figure("install.zero_runs", &new, Bar::AtMost(3.0), "new file, synced, read back"),
        figure("install.zero_runs_over", &over, Bar::Shown, "file of random bytes, synced, read back"),
    ])
}

/// A disk with a FAT32 filesystem with clusters of 1 KiB, of which every other is in use and all zeros, `runs` in all.
/// FAT, because its allocation map is easy to write.
pub(crate) fn zeros_in_runs(context: &Context, runs: usize) -> Result<PathBuf> {
    let path = context.folder()?.join("zeros.img");
    let file = std::fs::File::create_new(&path)?;
    file.set_len((2 << 10) * runs as u64 + (16 << 20) + 9 * runs as u64)?;
    said(Command::new("mkfs.fat").args(["-F", "32", "-s", "2", "-f", "1"]).arg(&path))?;
    let file = std::fs::File::options().read(true).write(true).open(&path)?;
    // The FAT begins after the reserved sectors; the boot sector has their number at offset 14.
    let mut reserved = [0; 2];
    file.read_exact_at(&mut reserved, 14)?;
    // Entries of 4 bytes: the end of a chain, that is, a cluster in use; then a free cluster. Entries 0 and 1 are
    // reserved and entry 2 is the root directory; these are written from entry 4 (byte 16) on.
    let map = [0xFF, 0xFF, 0xFF, 0x0F, 0, 0, 0, 0].repeat(runs);
    file.write_all_at(&map, u64::from(u16::from_le_bytes(reserved)) * 512 + 16)?;
    file.sync_all()?;
    Ok(path)
}
