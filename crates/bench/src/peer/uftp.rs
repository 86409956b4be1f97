//! Sends the file by uftp (Debian's `uftp`): multicast at a fixed rate, with negative acknowledgements.

use super::{Job, Peer, wall_clock};
use crate::Result;
use crate::crew::Crew;

pub(super) const PEER: Peer = Peer {
    name: "uftp",
    flags: "-R 0.95 of the link, closed group, -r 0.01:0.01:0.1 -s 10; to tmpfs, compared",
    run,
};

fn run(job: &Job<'_>) -> Result<Vec<Option<f64>>> {
    let mut crew = Crew::new();
    let (mut done, mut copies, mut names) = (vec![], vec![], vec![]);
    let hook = job.folder.join("received.sh");
    std::fs::write(&hook, "#!/bin/sh\n: > \"$DONE\"\n")?;
    std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    for host in job.receivers() {
        let folder = job.memory.join(host.index().to_string());
        std::fs::create_dir(&folder)?;
        let name = format!("0x{:08X}", host.index());
        // The daemon does not exit after a file, so a hook creates this file when the host has it.
        let end = job.memory.join(format!("{}.done", host.index()));
        let mut command = host.command("uftpd");
        command.args(["-d", "-I", "eth0", "-U", &name, "-B", "8388608", "-x", "1", "-D"]).arg(&folder);
        command.arg("-s").arg(&hook).env("DONE", &end);
        crew.start(&mut command)?;
        copies.push(folder.join(job.name()));
        done.push(end);
        names.push(name);
    }
    job.wait_until_ready(&mut crew);
    let kilobits = (job.rate_bits_per_second / 1000 * 95 / 100).to_string();
    let mut command = job.star.host(0).command("uftp");
    command.args(["-I", "eth0", "-R", &kilobits, "-B", "8388608", "-b", "1428", "-x", "1"]);
    command.args(["-r", "0.01:0.01:0.1", "-s", "10", "-H", &names.join(",")]).arg(job.file);
    let start = wall_clock();
    crew.start(&mut command)?;
    let seconds = job.await_files(&mut crew, &done, start)?;
    if seconds.iter().all(Option::is_some) {
        job.compare(&copies)?;
    }
    Ok(seconds)
}
