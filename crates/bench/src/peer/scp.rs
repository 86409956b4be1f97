//! Sends the file by scp, from an sshd in the lab (Debian's `openssh-server`), with AES-GCM, which processors have
//! instructions for.

use std::process::Command;

use super::{Job, Peer};
use crate::Result;
use crate::context::said;
use crate::crew::Crew;

pub(super) const PEER: Peer =
    Peer { name: "scp", flags: "aes128-gcm@openssh.com, no compression, TCP cubic; to /dev/null", run };

const PORT: u16 = 2222;
/// sshd does not start without this folder.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";

fn run(job: &Job<'_>) -> Result<Vec<Option<f64>>> {
    let mut crew = Crew::new();
    for key in ["host", "client"] {
        let path = job.folder.join(key);
        said(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&path))?;
    }
    std::fs::create_dir_all(PRIVILEGE_SEPARATION)?;
    let folder = job.folder.display();
    let configuration = job.folder.join("sshd.conf");
    // `MaxStartups`: with its default, sshd drops some connections when more than 10 clients log in at once.
    std::fs::write(
        &configuration,
        format!(
            "Port {PORT}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/client.pub\n\
             PermitRootLogin prohibit-password\n\
             StrictModes no\nUsePAM no\nPidFile none\nMaxStartups 100\nUseDNS no\nSubsystem sftp internal-sftp\n"
        ),
    )?;
    let mut command = job.star.host(0).command("/usr/sbin/sshd");
    crew.start(command.args(["-D", "-e", "-f"]).arg(&configuration))?;
    job.await_port(0, PORT)?;
    crew.restart_clock();
    let source = format!("root@{}:{}", job.server(), job.file());
    let mut clients = Vec::new();
    for host in job.receivers() {
        let mut command = host.command("scp");
        command.args(["-q", "-P", &PORT.to_string(), "-c", "aes128-gcm@openssh.com", "-i"]);
        command.arg(job.folder.join("client")).args([
            "-F",
            "none",
            "-o",
            "Compression=no",
            "-o",
            "BatchMode=yes",
        ]);
        command.args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]);
        clients.push(crew.start(command.args([&source, "/dev/null"]))?);
    }
    job.await_ends(&mut crew, &clients)
}
