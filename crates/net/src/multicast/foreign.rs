//! What enters this machine beside multicast: a receiver whose packets wait long leaves its session only for the sake
//! of such traffic. Without any, its own processor is slow, or the queue is one that stays from the session's start.

use std::fs;

use base::{Duration, Instant};

/// So many bytes per second ask for room. A flow of TCP has more even while a session starves it; what a fetch says and
/// hears beside its session is less.
const BYTES_PER_SECOND: u64 = 16 << 10;
/// It is counted over one to two times this time, which is how long packets wait before a receiver leaves.
const WINDOW: Duration = Duration::from_millis(1500);

#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Instant,
    octets: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Foreign {
    /// Reads the octets of unicast packets that have arrived; `None` if the kernel does not tell.
    read: fn() -> Option<u64>,
    marks: Option<[Mark; 2]>,
}

impl Foreign {
    pub(super) fn new(now: Instant) -> Self {
        Self::by(unicast_octets, now)
    }

    fn by(read: fn() -> Option<u64>, now: Instant) -> Self {
        let marks = read().map(|octets| [Mark { at: now, octets }; 2]);
        Self { read, marks }
    }

    /// To be called now and then.
    pub(super) fn look(&mut self, now: Instant) {
        let Some([older, newer]) = &mut self.marks else { return };
        if now.since(newer.at) >= WINDOW
            && let Some(octets) = (self.read)()
        {
            (*older, *newer) = (*newer, Mark { at: now, octets });
        }
    }

    /// Whether other traffic wants room. True if that is not known.
    pub(super) fn wants_room(&self, now: Instant) -> bool {
        let Some(([older, _], octets)) = self.marks.zip((self.read)()) else { return true };
        let micros = now.since(older.at).as_micros();
        u128::from(octets.saturating_sub(older.octets)) * 1_000_000 >= u128::from(BYTES_PER_SECOND) * micros
    }
}

/// Octets of IP packets that arrived in this network namespace, but for those to groups and broadcast addresses.
fn unicast_octets() -> Option<u64> {
    let four = fs::read_to_string("/proc/thread-self/net/netstat").ok()?;
    let six = fs::read_to_string("/proc/thread-self/net/snmp6").unwrap_or_default();
    Some(octets_of_ipv4(&four)? + octets_of_ipv6(&six))
}

/// Two lines that begin with `IpExt:`, of names and of numbers.
fn octets_of_ipv4(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let (names, numbers) = (lines.next()?.split_whitespace(), lines.next()?.split_whitespace());
    let pairs: Vec<(&str, &str)> = names.zip(numbers).collect();
    let number = |name: &str| pairs.iter().find(|(other, _)| *other == name)?.1.parse::<u64>().ok();
    let groups = number("InMcastOctets")? + number("InBcastOctets").unwrap_or(0);
    Some(number("InOctets")?.saturating_sub(groups))
}

/// Lines of a name and a number.
fn octets_of_ipv6(text: &str) -> u64 {
    let number = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
        lines
            .find(|(other, _)| *other == name)
            .and_then(|(_, number)| number.trim().parse().ok())
            .unwrap_or(0)
    };
    let all: u64 = number("Ip6InOctets");
    all.saturating_sub(number("Ip6InMcastOctets"))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    static OCTETS: AtomicU64 = AtomicU64::new(0);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn little_wants_no_room_and_what_was_long_ago_does_not_count() {
        let read = || Some(OCTETS.load(Ordering::Relaxed));
        let mut foreign = Foreign::by(read, at(0));
        OCTETS.fetch_add(20 << 10, Ordering::Relaxed);
        assert!(foreign.wants_room(at(1000)));
        assert!(!foreign.wants_room(at(1500)));
        OCTETS.fetch_add(100 << 10, Ordering::Relaxed);
        foreign.look(at(1500));
        assert!(foreign.wants_room(at(1600)));
        foreign.look(at(3000));
        assert!(!foreign.wants_room(at(3100)));
        assert!(Foreign::by(|| None, at(0)).wants_room(at(1)), "the kernel does not tell");
    }

    #[test]
    fn the_kernel_counts_unicast_of_both_families() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let socket = UdpSocket::bind(address).unwrap();
            let before = unicast_octets().unwrap();
            (0..20).for_each(|_| _ = socket.send_to(&[0; 1000], socket.local_addr().unwrap()).unwrap());
            assert!(unicast_octets().unwrap() >= before + 20_000, "{address}");
        }
    }

    #[test]
    fn groups_are_left_out() {
        let (names, numbers) = ("InMcastPkts InOctets InMcastOctets InBcastOctets", "3 900 300 100");
        let text = format!("TcpExt: A\nTcpExt: 1\nIpExt: {names}\nIpExt: {numbers}\n");
        assert_eq!(octets_of_ipv4(&text), Some(500));
        assert_eq!(octets_of_ipv4("Tcp: 1\n"), None);
        let text = "Ip6InReceives     9\nIp6InOctets     \t700\nIp6InMcastOctets\t200\n";
        assert_eq!(octets_of_ipv6(text), 500);
    }
}
