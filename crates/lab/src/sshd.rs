//! Hosts of a lab that are reached by ssh: OpenSSH's server on each of them.

use std::fs::create_dir_all;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};

use crate::{Host, Star};

const PORT: u16 = 22;
/// sshd does not start without this folder.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";
/// Longest wait for a server.
const PATIENCE: Duration = Duration::from_secs(30);

/// Servers that run until this is dropped, and a key for them.
pub struct Sshd {
    folder: PathBuf,
    servers: Vec<Child>,
    /// A path to a socket is short.
    sockets: tempfile::TempDir,
}

impl Sshd {
    /// Starts a server on each of `hosts`, with keys in `folder`, and waits until host 0 can reach them.
    ///
    /// # Errors
    /// `Io` if a program is missing or a server does not start.
    pub fn start<'a>(
        star: &'a Star,
        hosts: impl IntoIterator<Item = &'a Host>,
        folder: &Path,
    ) -> Result<Self> {
        Self::start_after(star, hosts, folder, |_| "true".to_owned())
    }

    /// The same, where each host's server first runs a line for `sh`. What it mounts is seen on this host alone.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_after<'a>(
        star: &'a Star,
        hosts: impl IntoIterator<Item = &'a Host>,
        folder: &Path,
        first: impl Fn(&Host) -> String,
    ) -> Result<Self> {
        let folder = folder.join("ssh");
        let failed = |error| Error::from_io("start servers for ssh", error);
        create_dir_all(&folder).and_then(|()| create_dir_all(PRIVILEGE_SEPARATION)).map_err(failed)?;
        for key in ["host", "client"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(key));
            command.stdin(Stdio::null()).status().map_err(failed)?;
        }
        let sockets = tempfile::tempdir().map_err(failed)?;
        let mut sshd = Self { folder, servers: Vec::new(), sockets };
        for host in hosts {
            sshd.start_at(host, &first(host)).map_err(failed)?;
            let address = (host.ipv4(), PORT);
            let reached = star.host(0).run(move || wait_for(address.into()))?;
            if !reached.join().unwrap_or(false) {
                return Err(Error::new(ErrorKind::Io, format!("no sshd at {}", host.ipv4())));
            }
        }
        Ok(sshd)
    }

    /// `MaxStartups`: with its default, sshd drops some connections when more than 10 clients log in at once.
    fn start_at(&mut self, host: &Host, first: &str) -> std::io::Result<()> {
        let folder = self.folder.display();
        let settings = format!(
            "Port {PORT}\nListenAddress {}\nListenAddress {}\nHostKey {folder}/host\n\
             AuthorizedKeysFile {folder}/client.pub\n\
             PermitRootLogin prohibit-password\nStrictModes no\nUsePAM no\nPidFile none\nMaxStartups 1000\n\
             MaxSessions 1000\nUseDNS no\nSubsystem sftp internal-sftp\n",
            host.ipv4(),
            host.ipv6(),
        );
        let path = self.folder.join(format!("sshd-{}.conf", host.index()));
        std::fs::write(&path, settings)?;
        let mut command = host.command("sh");
        let line = format!("{first} && exec /usr/sbin/sshd -D -q -f \"$0\"");
        command.args(["-c", &line]).arg(&path).stdin(Stdio::null());
        self.servers.push(command.spawn()?);
        Ok(())
    }

    /// Options of ssh and scp: there is a key, and hosts are taken for who they say they are.
    #[must_use]
    pub fn options(&self) -> Vec<String> {
        let key = self.folder.join("client").display().to_string();
        let mut options: Vec<String> = ["-F", "none", "-i"].map(str::to_owned).to_vec();
        options.push(key);
        for option in ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"] {
            options.extend(["-o", option].map(str::to_owned));
        }
        options
    }

    /// The client with these options. Connections that stay are this lab's own: others have hosts of the same
    /// addresses.
    #[must_use]
    pub fn client(&self) -> String {
        format!("ssh {} -o ControlPath={}/%C", self.options().join(" "), self.sockets.path().display())
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        for server in &mut self.servers {
            // It goes with the lab if it can't be ended here.
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "it waits for a program")]
fn wait_for(address: std::net::SocketAddr) -> bool {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if TcpStream::connect(address).is_ok() {
            return true;
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    false
}
