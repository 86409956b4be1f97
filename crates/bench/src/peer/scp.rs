//! Sends the file by scp, from an sshd in the lab (Debian's `openssh-server`), with AES-GCM, which processors have
//! instructions for.

use lab::Sshd;

use super::{Job, Peer};
use crate::Result;
use crate::crew::Crew;

pub(super) const PEER: Peer =
    Peer { name: "scp", flags: "aes128-gcm@openssh.com, no compression, TCP cubic; to /dev/null", run };

fn run(job: &Job<'_>) -> Result<Vec<Option<f64>>> {
    let sshd = Sshd::start(job.star, [job.star.host(0)], job.folder)?;
    let mut crew = Crew::new();
    let source = format!("root@{}:{}", job.server(), job.file());
    let mut clients = Vec::new();
    for host in job.receivers() {
        let mut command = host.command("scp");
        command.args(["-q", "-c", "aes128-gcm@openssh.com", "-o", "Compression=no", "-o", "BatchMode=yes"]);
        clients.push(crew.start(command.args(sshd.options()).args([&source, "/dev/null"]))?);
    }
    job.await_ends(&mut crew, &clients)
}
