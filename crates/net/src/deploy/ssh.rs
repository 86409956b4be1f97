//! How a host is reached by OpenSSH's client. A connection stays for a minute, and the next programs of this user share
//! it: a login takes some tenths of a second of both sides' processors.

use std::path::PathBuf;
use std::process::Command;

/// Options that make ssh fail where it would ask or wait: it has no terminal.
const OPTIONS: &[&str] = &[
    "BatchMode=yes",
    "ConnectTimeout=10",
    // A host that does not answer for 20 s is away.
    "ServerAliveInterval=5",
    "ServerAliveCountMax=4",
];

/// How long a connection stays that nobody uses, in seconds.
const STAYS_SECONDS: u32 = 60;
/// The first OpenSSH whose connection that stays does not hold the standard error of who opened it.
const FIRST_THAT_LETS_GO: (u32, u32) = (8, 5);

/// How hosts are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ssh {
    client: Vec<String>,
    program: String,
    sudo: bool,
    /// Where connections that stay are found; `None` if they do not.
    sockets: Option<PathBuf>,
}

/// Where a host is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Address {
    /// Name or address, as ssh takes it.
    pub host: String,
    /// The user there, if not the one of ssh's configuration.
    pub user: Option<String>,
    /// The port, if not the one of ssh's configuration.
    pub port: Option<u16>,
}

impl Ssh {
    /// By `client`, which is `ssh` with options, where hosts run `program`: `diskcast`, or where it is there. With
    /// `sudo`, which must not ask, if the user there needs it. Connections stay if there is a folder for their
    /// `sockets`, which only this user can write.
    #[must_use]
    pub fn new(client: &str, program: String, sudo: bool, sockets: Option<PathBuf>) -> Self {
        let client: Vec<String> = client.split_whitespace().map(str::to_owned).collect();
        let lets_go = || version(&client).is_some_and(|version| version >= FIRST_THAT_LETS_GO);
        let sockets = sockets.filter(|_| lets_go());
        Self { client, program, sudo, sockets }
    }

    /// The command that runs `diskcast work` on a host.
    pub(super) fn command(&self, address: &Address) -> Command {
        let mut command = self.login(address);
        if self.sudo {
            // Sudo keeps no variables; the server may be named by this one.
            command.args(["sudo", "-n", "--preserve-env=SSH_CONNECTION"]);
        }
        command.args([&self.program, "work"]);
        command
    }

    /// The command that has a host's shell run `line`.
    #[must_use]
    pub fn shell(&self, address: &Address, line: &str) -> Command {
        let mut command = self.login(address);
        command.arg(line);
        command
    }

    fn login(&self, address: &Address) -> Command {
        let mut words = self.client.iter();
        let mut command = Command::new(words.next().map_or("ssh", String::as_str));
        command.args(words);
        OPTIONS.iter().for_each(|option| {
            command.args(["-o", option]);
        });
        // Options of the user are before these, and win.
        if let Some(sockets) = &self.sockets {
            let path = format!("ControlPath={}/%C", sockets.display());
            let stays = format!("ControlPersist={STAYS_SECONDS}");
            command.args(["-o", "ControlMaster=auto", "-o", &path, "-o", &stays]);
        }
        // A terminal there would mix what is said with what is echoed.
        command.arg("-T");
        if let Some(user) = &address.user {
            command.args(["-l", user]);
        }
        if let Some(port) = address.port {
            command.args(["-p", &port.to_string()]);
        }
        command.args(["--", &address.host]);
        command
    }
}

/// The version of OpenSSH that `client` is, if it is that.
fn version(client: &[String]) -> Option<(u32, u32)> {
    let output = Command::new(client.first().map_or("ssh", String::as_str)).arg("-V").output().ok()?;
    version_in(&String::from_utf8_lossy(&output.stderr))
}

fn version_in(said: &str) -> Option<(u32, u32)> {
    let (major, rest) = said.strip_prefix("OpenSSH_")?.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_they_are_said() {
        assert_eq!(version_in("OpenSSH_9.2p1 Debian-2+deb12u10, OpenSSL 3.0.19"), Some((9, 2)));
        assert_eq!(version_in("OpenSSH_8.0p1, OpenSSL 1.1.1k  FIPS"), Some((8, 0)));
        assert_eq!(version_in("OpenSSH_10.0p2"), Some((10, 0)));
        assert_eq!(version_in("Dropbear v2022.83"), None);
    }

    #[test]
    fn a_host_is_no_option() {
        let ssh = Ssh::new("ssh -i key", "diskcast".into(), true, None);
        let address =
            Address { host: "-oProxyCommand=evil".into(), user: Some("admin".into()), port: Some(22) };
        let command = ssh.command(&address);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let dashes = words.iter().position(|word| word == "--").unwrap();
        assert_eq!(words[dashes + 1], "-oProxyCommand=evil");
        assert_eq!(words[..2], ["-i", "key"]);
        assert!(words[..dashes].windows(2).any(|pair| pair == ["-l", "admin"]), "{words:?}");
    }
}
