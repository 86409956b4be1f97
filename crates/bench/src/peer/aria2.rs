//! Sends the file by BitTorrent: aria2 on all hosts, opentracker on the server (Debian's `aria2`, `opentracker` and
//! `mktorrent`).

use std::process::Command;

use super::{Job, Peer, wall_clock};
use crate::Result;
use crate::context::said;
use crate::crew::Crew;

pub(super) const PEER: Peer = Peer {
    name: "aria2 + tracker",
    flags: "256 KiB pieces, all peers, tracker asked each 2 s, all go on seeding; to tmpfs, compared",
    run,
};

/// The tracker's port.
const PORT: u16 = 6969;

fn run(job: &Job<'_>) -> Result<Vec<Option<f64>>> {
    let mut crew = Crew::new();
    let torrent = start_tracker(job, &mut crew)?;
    let seed = job.file.parent().unwrap_or(job.file);
    let mut seeder = aria2(job, 0);
    crew.start(seeder.arg("--dir").arg(seed).arg("--bt-seed-unverified=true").arg(&torrent))?;
    job.await_port(0, 6881)?;
    job.wait_until_ready(&mut crew);
    let (mut done, mut copies) = (vec![], vec![]);
    let start = wall_clock();
    for host in job.receivers() {
        let folder = job.memory.join(host.index().to_string());
        // aria2 goes on seeding after its download, so its exit tells nothing. A hook creates this file instead.
        let end = job.memory.join(format!("{}.done", host.index()));
        std::fs::create_dir(&folder)?;
        let hook = job.folder.join("received.sh");
        let mut command = aria2(job, host.index());
        command.arg("--dir").arg(&folder).arg("--on-bt-download-complete").arg(hook).arg(&torrent);
        crew.start(command.env("DONE", &end))?;
        copies.push(folder.join(job.name()));
        done.push(end);
    }
    let seconds = job.await_files(&mut crew, &done, start)?;
    if seconds.iter().all(Option::is_some) {
        job.compare(&copies)?;
    }
    Ok(seconds)
}

/// Makes the torrent and starts a tracker for it; returns the torrent's path. The torrent must be on the tracker's
/// whitelist: Debian's opentracker serves no other torrents.
fn start_tracker(job: &Job<'_>, crew: &mut Crew) -> Result<std::path::PathBuf> {
    let hook = job.folder.join("received.sh");
    std::fs::write(&hook, "#!/bin/sh\n: > \"$DONE\"\n")?;
    std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let torrent = job.folder.join("file.torrent");
    let announce = format!("http://{}:{PORT}/announce", job.server());
    // `-l 18`: pieces of 2^18 bytes.
    said(Command::new("mktorrent").args(["-l", "18", "-a", &announce, "-o"]).arg(&torrent).arg(job.file))?;
    let shown = said(Command::new("aria2c").arg("--show-files").arg(&torrent))?;
    let hash =
        shown.lines().find_map(|line| line.strip_prefix("Info Hash: ")).ok_or("aria2 shows no hash")?;
    // The tracker runs as `nobody` and reads the whitelist in its own folder, so other users need access to it.
    let folder =
        tempfile::Builder::new().prefix("tracker").disable_cleanup(true).tempdir_in(job.memory)?.keep();
    for open in [job.memory, &folder] {
        std::fs::set_permissions(open, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    let list = folder.join("whitelist");
    std::fs::write(&list, format!("{}\n", hash.trim()))?;
    let mut tracker = job.star.host(0).command("opentracker");
    let (address, port) = (job.server().to_string(), PORT.to_string());
    tracker.args(["-i", &address, "-p", &port, "-P", &port, "-u", "nobody", "-d"]).arg(&folder);
    crew.start(tracker.args(["-w", "whitelist"]))?;
    job.await_port(0, PORT)?;
    Ok(torrent)
}

/// aria2 on `host` with all options but the folder, the hook and the torrent.
fn aria2(job: &Job<'_>, host: u32) -> Command {
    let mut command = job.star.host(host).command("aria2c");
    command.args([
        "--no-conf=true",
        "--quiet=true",
        "--enable-dht=false",
        "--enable-dht6=false",
        "--bt-enable-lpd=true",
        "--enable-peer-exchange=true",
        "--bt-max-peers=0",
        "--bt-request-peer-speed-limit=1000M",
        "--bt-tracker-interval=2",
        "--listen-port=6881",
        "--file-allocation=none",
        "--bt-require-crypto=false",
        "--bt-min-crypto-level=plain",
        "--seed-ratio=0.0",
    ]);
    command
}
