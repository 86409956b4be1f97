//! How a host is reached by OpenSSH's client.

use std::process::Command;

/// Options that make ssh fail where it would ask or wait: it has no terminal.
const OPTIONS: &[&str] = &[
    "BatchMode=yes",
    "ConnectTimeout=10",
    // A host that does not answer for 20 s is away.
    "ServerAliveInterval=5",
    "ServerAliveCountMax=4",
];

/// How hosts are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ssh {
    /// The client, with options: `ssh`.
    pub client: Vec<String>,
    /// What the host runs: `diskcast`, or where it is there.
    pub program: String,
    /// Whether the user there needs `sudo`, which must not ask.
    pub sudo: bool,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_no_option() {
        let ssh = Ssh {
            client: vec!["ssh".into(), "-i".into(), "key".into()],
            program: "diskcast".into(),
            sudo: true,
        };
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
