//! Figures of `diskcast capture` on a disk of system files: rate, size and memory, compared with zlib as imagezip
//! uses it, and with the limit of zstd and BLAKE3.

use std::path::Path;
use std::process::Command;

use base::units::show_bytes;
use image::capture::LEVEL_DEFAULT;

use crate::context::{Context, Usage, json_line, said, timed};
use crate::figure::{Bar, Figure, median};
use crate::plain::Plain;
use crate::{Group, Result, load};

pub(crate) const GROUP: Group = Group {
    figures: &[
        ("capture.rate", "allocated MB/s; at least 8 x zlib -4 on one core in this run, as imagezip uses it"),
        ("capture.size_vs_zlib4", "image bytes over those of zlib level 4 in 1 MiB pieces; at most 1"),
        ("capture.vs_limit", "capture.rate over what zstd and BLAKE3 reach on all cores; at least 0.85"),
        ("capture.memory", "peak MiB; at most 256"),
    ],
    measure,
};

const RUNS: usize = 5;

/// Runs `diskcast capture`; returns its time and memory, and the bytes of the image.
fn capture(context: &Context, disk: &Path, repo: &Path) -> Result<(Usage, u64)> {
    said(Command::new("sync").arg("-f").arg(&context.scratch))?;
    let usage = timed(context.diskcast(repo).arg("capture").arg(disk).arg("bench"))?;
    let captured = json_line(&usage.output, "captured")?;
    let bytes = captured["encoded_bytes"].as_u64().ok_or("no encoded_bytes in the capture's report")?;
    Ok((usage, bytes))
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn measure(context: &Context) -> Result<Vec<Figure>> {
    context.calm()?;
    let disk = load::system_disk(context)?;
    let (usage, image_bytes) = capture(context, &disk, &context.folder()?)?;
    let memory = usage.peak_bytes as f64 / f64::from(1 << 20);
    let plain = Plain::read(&disk, base::limits::CHUNK_BYTES_DEFAULT)?;
    let (zlib_rate, deflated) = plain.deflate();
    let zlib_bytes = deflated.iter().map(|piece| piece.len() as u64).sum::<u64>();
    drop(deflated);
    let (mut rates, mut limits, mut shares) = (vec![], vec![], vec![]);
    for _ in 0..RUNS {
        let limit = plain.encode_limit(LEVEL_DEFAULT)?.0 / 1e6;
        let rate = plain.bytes() as f64 / capture(context, &disk, &context.folder()?)?.0.seconds / 1e6;
        rates.push(rate);
        limits.push(limit);
        shares.push(rate / limit);
    }
    let workload = format!("ext4 disk of system files, {} allocated, page cache", show_bytes(plain.bytes()));
    let sink = "repository in a folder of the local disk, durable";
    let bar = 8.0 * zlib_rate / 1e6;
    let level = format!("level {LEVEL_DEFAULT}, 256 KiB, all cores, in memory");
    Ok(vec![
        Figure::new("capture.rate", &rates, "MB/s", Bar::AtLeast(bar))
            .peer("zlib", "level 4, 1 MiB pieces, one core", zlib_rate / 1e6, "MB/s")
            .on(&workload, sink),
        Figure::new(
            "capture.size_vs_zlib4",
            &[image_bytes as f64 / zlib_bytes as f64],
            "ratio",
            Bar::AtMost(1.0),
        )
        .peer("zlib", "level 4, 1 MiB pieces", zlib_bytes as f64 / 1e6, "MB")
        .on(&workload, sink),
        Figure::new("capture.vs_limit", &shares, "ratio", Bar::AtLeast(0.85))
            .peer("zstd + 2 x BLAKE3", &level, median(&limits), "MB/s")
            .on(&workload, sink),
        Figure::new("capture.memory", &[memory], "MiB", Bar::AtMost(256.0)).on(&workload, sink),
    ])
}
