//! The figure of a warm disk through NBD: the front end on a raw file beside qemu-nbd on the same file, both by Unix
//! socket under fio.
//!
//! Rounds alternate, so that a busy machine is busy for both. The file lies in the page cache: what is measured is the
//! way of requests, not a disk.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base::Chance;
use mirror::RawDisk;
use mirror::nbd::{Export, ExportTable, Server};
use serde_json::{Value, json};

use crate::context::{Context, said};
use crate::figure::{Bar, Figure, median};
use crate::{Group, Result};

pub const GROUP: Group = Group {
    figures: &[(
        "mirror.warm_nbd",
        "warm reads and writes by NBD over qemu-nbd on the raw file, the worst cell of sequential and random; at least 0.8",
    )],
    measure,
};

const ROUNDS: usize = 3;
const SECONDS: u32 = 3;
const DISK_BYTES: u64 = 512 << 20;
const CLIENTS_MAX: usize = 16;
/// How long qemu-nbd may take to listen.
const START_TIME_MAX: Duration = Duration::from_secs(10);

/// fio's pattern, block size and requests in flight.
const CELLS: [(&str, &str, u32); 7] = [
    ("read", "256k", 16),
    ("write", "256k", 16),
    ("randread", "4k", 1),
    ("randwrite", "4k", 1),
    ("randread", "4k", 32),
    ("randwrite", "4k", 32),
    ("randrw", "4k", 16),
];

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let folder = context.folder()?;
    let file = folder.join("disk.raw");
    fill(&file)?;
    let (mut rows, mut worst, mut peer_at_worst) = (vec![], (f64::INFINITY, vec![]), f64::NAN);
    for (pattern, block, depth) in CELLS {
        let (mut ratios, mut own, mut peer) = (vec![], vec![], vec![]);
        for _ in 0..ROUNDS {
            let theirs = by_qemu(&folder, &file, pattern, block, depth)?;
            let ours = by_diskcast(&folder, &file, pattern, block, depth)?;
            ratios.push(ours / theirs);
            own.push(ours);
            peer.push(theirs);
        }
        rows.push(json!({
            "pattern": pattern, "block": block, "in flight": depth, "diskcast MB/s": median(&own),
            "qemu-nbd MB/s": median(&peer), "ratio": median(&ratios),
        }));
        if median(&ratios) < worst.0 {
            (worst, peer_at_worst) = ((median(&ratios), ratios), median(&peer));
        }
    }
    std::fs::remove_file(&file)?;
    let version = said(Command::new("qemu-nbd").arg("--version"))?;
    let version = version.split_whitespace().nth(1).unwrap_or("?");
    Ok(vec![
        Figure::new("mirror.warm_nbd", &worst.1, "ratio", Bar::AtLeast(0.8))
            .peer(&format!("qemu-nbd {version}"), "-f raw, in the worst cell", peer_at_worst, "MB/s")
            .on("fio by its nbd engine, a Unix socket, 3 s a run", "a raw file of 512 MiB in the page cache")
            .with(json!(rows)),
    ])
}

/// Content that no file system takes for a hole, written in small pieces. Where the page cache got it in large ones, by
/// readahead for example, ext4 takes some 50 microseconds for a write of 4 KiB, whoever serves, and nothing else would show.
fn fill(path: &Path) -> Result<()> {
    let (mut chance, mut file, mut page) = (Chance::from_seed(1), File::create(path)?, [0; 4096]);
    for _ in 0..DISK_BYTES / 4096 {
        chance.fill(&mut page);
        file.write_all(&page)?;
    }
    file.sync_all()?;
    Ok(())
}

fn by_diskcast(folder: &Path, file: &Path, pattern: &str, block: &str, depth: u32) -> Result<f64> {
    let socket = folder.join("diskcast.socket");
    let disk = Arc::new(RawDisk::open(file, None)?);
    let table = Arc::new(ExportTable::default());
    table.insert("disk", Export { disk, description: String::new() })?;
    let server = Server::new(table, CLIENTS_MAX, Arc::new(|_| {}));
    server.listen_unix(UnixListener::bind(&socket)?)?;
    let rate = fio(&socket, pattern, block, depth)?;
    std::fs::remove_file(socket)?;
    Ok(rate)
}

fn by_qemu(folder: &Path, file: &Path, pattern: &str, block: &str, depth: u32) -> Result<f64> {
    let socket = folder.join("qemu.socket");
    let server = Command::new("qemu-nbd")
        .args(["--format=raw", "--persistent", "--shared=16", "--export-name=disk", "--socket"])
        .args([&socket, file])
        .stdin(Stdio::null())
        .spawn()
        .map_err(|error| format!("start qemu-nbd: {error}"))?;
    let mut server = Ended(server);
    let clock = std::time::Instant::now();
    while !socket.exists() {
        if clock.elapsed() > START_TIME_MAX || server.0.try_wait()?.is_some() {
            return Err("qemu-nbd does not listen".into());
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    let rate = fio(&socket, pattern, block, depth)?;
    drop(server);
    std::fs::remove_file(socket)?;
    Ok(rate)
}

/// A program that ends with its measurement.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It fails where the program has ended already.
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// 10^6 bytes read and written in a second.
fn fio(socket: &Path, pattern: &str, block: &str, depth: u32) -> Result<f64> {
    let output =
        said(Command::new("fio").args(["--name=warm", "--ioengine=nbd", "--output-format=json"]).args([
            format!("--uri=nbd+unix:///disk?socket={}", socket.display()),
            format!("--rw={pattern}"),
            format!("--bs={block}"),
            format!("--iodepth={depth}"),
            format!("--size={DISK_BYTES}"),
            format!("--runtime={SECONDS}"),
            "--time_based".to_owned(),
            "--randrepeat=1".to_owned(),
            "--norandommap".to_owned(),
        ]))?;
    let start = output.find('{').ok_or_else(|| format!("fio printed no JSON: {output}"))?;
    let report: Value = serde_json::from_str(&output[start..])?;
    let job = &report["jobs"][0];
    if job["error"] != 0 {
        return Err(format!("fio failed: {job}").into());
    }
    let rate = |way: &str| job[way]["bw_bytes"].as_f64().ok_or_else(|| format!("fio tells no rate: {job}"));
    Ok((rate("read")? + rate("write")?) / 1e6)
}
