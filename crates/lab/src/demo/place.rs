//! Where the demo's hosts run: in a lab, or all on the loopback of this machine.

use std::process::Command;

use lab::{Star, StarOptions};

use crate::Failure;

/// The place where hosts run. Host 0 is the server.
pub(crate) enum Place {
    /// Each host is a host of a star.
    Lab { star: Star, rate_bits_per_second: u64 },
    /// All hosts are on loopback, for the reason `why`. The server uses `port`, which was free.
    Loopback { port: u16, why: String },
}

impl Place {
    /// Builds a lab with `hosts` hosts if `loopback` is false and the machine allows it; otherwise uses loopback.
    pub(crate) fn choose(loopback: bool, hosts: u32, rate_bits_per_second: u64) -> Result<Self, Failure> {
        let why = match lab::available() {
            _ if loopback => "as asked".to_owned(),
            Err(error) => base::chain(&error),
            Ok(()) => {
                let rate = Some(rate_bits_per_second);
                let options = StarOptions { hosts, rate_bits_per_second: rate, ..StarOptions::default() };
                return Ok(Self::Lab { star: Star::build(&options)?, rate_bits_per_second });
            }
        };
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        Ok(Self::Loopback { port, why })
    }

    pub(crate) fn is_lab(&self) -> bool {
        matches!(self, Self::Lab { .. })
    }

    /// The place, for people.
    pub(crate) fn describe(&self) -> String {
        match self {
            // A rate read as nanoseconds is a division by 10^9 without a lossy cast.
            Self::Lab { rate_bits_per_second, .. } => format!(
                "in network namespaces, links of {:.1} Gbit/s, a switch that snoops",
                std::time::Duration::from_nanos(*rate_bits_per_second).as_secs_f64()
            ),
            Self::Loopback { why, .. } => format!("on loopback ({why})"),
        }
    }

    /// Address and port of the server.
    pub(crate) fn server(&self) -> String {
        match self {
            Self::Lab { star, .. } => format!("{}:7717", star.host(0).ipv4()),
            Self::Loopback { port, .. } => format!("127.0.0.1:{port}"),
        }
    }

    /// What `diskcast serve` is told of its interface: nothing in a lab. Loopback must be asked for.
    pub(crate) fn interface(&self) -> &'static [&'static str] {
        match self {
            Self::Lab { .. } => &[],
            Self::Loopback { .. } => &["--interface", "lo"],
        }
    }

    /// A command that runs `program` on `host`.
    pub(crate) fn command(&self, host: u32, program: &str) -> Command {
        match self {
            Self::Lab { star, .. } => star.host(host).command(program),
            Self::Loopback { .. } => Command::new(program),
        }
    }

    /// Bytes that host 1, the first that fetches, has received. On loopback, the bytes of all traffic there.
    pub(crate) fn received_bytes(&self) -> Result<u64, Failure> {
        match self {
            Self::Lab { star, .. } => Ok(star.traffic()?[1].received.bytes),
            Self::Loopback { .. } => loopback_bytes(&std::fs::read_to_string("/proc/net/dev")?),
        }
    }
}

/// The first number after `lo:` in `/proc/net/dev`: bytes received.
fn loopback_bytes(table: &str) -> Result<u64, Failure> {
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix("lo:"));
    let field =
        line.and_then(|line| line.split_whitespace().next()).ok_or("/proc/net/dev has no line of `lo`")?;
    Ok(field.parse()?)
}
