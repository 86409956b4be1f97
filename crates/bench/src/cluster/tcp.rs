//! TCP as it was in 2004, and as it is now: settings of hosts of the lab, and what their senders went through.

use std::net::Ipv4Addr;

use lab::{Host, Star};

use crate::Result;
use crate::context::said;

/// The receive buffer that a socket of today begins with.
const FIRST_BYTES: u64 = 128 << 10;

/// A set of rules for TCP. The machine's own settings have no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tcp {
    /// As the hosts of seed 002 had it: Reno, one loss for each round trip repaired (no SACK), no probes for lost
    /// tails, and silence for 200 ms after a loss that no three later packets tell of.
    Then,
    /// As Linux has it: cubic, SACK, RACK and probes for lost tails; also with timeouts of 200 ms.
    Now,
}

/// What senders went through.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Losses {
    /// Segments that were sent again.
    pub(super) resent: u64,
    /// Times that a sender fell silent until its timer ended.
    pub(super) timeouts: u64,
}

impl Tcp {
    /// The receive buffer of a socket of today, at most.
    pub(super) const RECEIVE_BYTES: u64 = 6 << 20;

    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Then => "2004's TCP",
            Self::Now => "today's TCP",
        }
    }

    pub(super) const fn congestion(self) -> &'static str {
        match self {
            Self::Then => "reno",
            Self::Now => "cubic",
        }
    }

    /// Sets a host up; `receive_bytes` bounds the receive buffer of each of its sockets.
    pub(super) fn apply(self, host: &Host, receive_bytes: u64) -> Result<()> {
        let first_bytes = if self == Self::Now { FIRST_BYTES.min(receive_bytes) } else { receive_bytes };
        let modern = if self == Self::Now { "1" } else { "0" };
        set(
            host,
            vec![
                ("tcp_sack", modern.to_owned()),
                ("tcp_dsack", modern.to_owned()),
                ("tcp_recovery", modern.to_owned()),
                ("tcp_early_retrans", if self == Self::Now { "3" } else { "0" }.to_owned()),
                ("tcp_frto", if self == Self::Now { "2" } else { "0" }.to_owned()),
                ("tcp_no_metrics_save", "1".to_owned()),
                ("tcp_rmem", format!("4096 {first_bytes} {receive_bytes}")),
            ],
        )?;
        self.route(host, "200ms")
    }

    /// Sets the shortest time after which something is sent again. By the route, since some kernels do not follow
    /// `tcp_rto_min_us`: the one of our machine waits 20 ms.
    fn route(self, host: &Host, timeout: &str) -> Result<()> {
        let (own, window) = (host.ipv4(), if self == Self::Now { "10" } else { "3" });
        let network = Ipv4Addr::new(10, 77, 0, 0);
        let mut route = host.command("ip");
        route.args(["route", "change", &format!("{network}/16"), "dev", "eth0", "src", &own.to_string()]);
        said(route.args(["congctl", self.congestion(), "initcwnd", window, "rto_min", timeout]))?;
        Ok(())
    }
}

/// One setting in which a host differs from today's TCP with timeouts from 200 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    NoSack,
    ShortTimeout,
    Receive(u64),
}

impl Change {
    pub(super) fn words(self) -> String {
        match self {
            Self::Nothing => "today's".to_owned(),
            Self::NoSack => "without SACK".to_owned(),
            Self::ShortTimeout => "timeouts from 20 ms".to_owned(),
            Self::Receive(bytes) => format!("receive buffers of {} KiB", bytes >> 10),
        }
    }

    /// Sets a host up.
    pub(super) fn apply(self, host: &Host) -> Result<()> {
        Tcp::Now.apply(host, if let Self::Receive(bytes) = self { bytes } else { Tcp::RECEIVE_BYTES })?;
        match self {
            Self::Nothing | Self::Receive(_) => Ok(()),
            Self::NoSack => set(host, vec![("tcp_sack", "0".to_owned())]),
            Self::ShortTimeout => Tcp::Now.route(host, "20ms"),
        }
    }
}

/// Sets `net.ipv4` settings of a host.
fn set(host: &Host, settings: Vec<(&'static str, String)>) -> Result<()> {
    let set = move || {
        settings.iter().try_for_each(|(name, value)| {
            let path = format!("/proc/sys/net/ipv4/{name}");
            std::fs::write(&path, value).map_err(|error| format!("write {value} to {path}: {error}"))
        })
    };
    Ok(host.run(set)?.join().map_err(|_| "setting TCP panicked")??)
}

/// What the senders of these hosts have gone through since the lab was built.
pub(super) fn losses(star: &Star, hosts: impl Iterator<Item = u32>) -> Result<Losses> {
    let mut sum = Losses::default();
    for host in hosts {
        let read = || {
            let read = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
            Ok::<_, std::io::Error>((read("snmp")?, read("netstat")?))
        };
        let (snmp, netstat) =
            star.host(host).run(read)?.join().map_err(|_| "reading counters panicked")??;
        sum.resent += counter(&snmp, "Tcp:", "RetransSegs").ok_or("no counter of resent segments")?;
        sum.timeouts += counter(&netstat, "TcpExt:", "TCPTimeouts").ok_or("no counter of timeouts")?;
    }
    Ok(sum)
}

/// A counter of a table of which one line has the names and the next the numbers.
fn counter(text: &str, table: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(table));
    let place = lines.next()?.split_whitespace().position(|word| word == name)?;
    lines.next()?.split_whitespace().nth(place)?.parse().ok()
}

impl std::ops::Sub for Losses {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { resent: self.resent - before.resent, timeouts: self.timeouts - before.timeouts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_names() {
        let text = "TcpExt: SyncookiesSent TCPTimeouts\nTcpExt: 1 23\nIpExt: A\nIpExt: 4\n";
        assert_eq!(counter(text, "TcpExt:", "TCPTimeouts"), Some(23));
        assert_eq!(counter(text, "TcpExt:", "A"), None);
    }
}
