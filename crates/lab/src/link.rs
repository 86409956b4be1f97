//! Links: rate, buffer, loss, offloads and counters.
//!
//! A token bucket filter (`man 8 tc-tbf`), here called shaper, limits the rate. It counts each frame with its 14-byte
//! Ethernet header, without preamble and gap, and counts a super-frame (several frames that the kernel handles as one
//! packet) as the frames inside. Rules of `man 8 nft` for the bridge family drop frames inside a switch.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::tool::{feed, query, run};

/// A number of frames and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Bytes, including Ethernet headers. If offloads are on, a super-frame has one header.
    pub bytes: u64,
    /// Frames. If offloads are on, a super-frame counts as one.
    pub packets: u64,
}

/// The traffic of one host since the lab was built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Frames that the switch received from the host.
    pub sent: Count,
    /// Frames that the switch sent to the host.
    pub received: Count,
    /// Frames to the host that were lost because the buffer of its switch port was full.
    pub overflowed: u64,
}

/// The traffic between a switch and the switch above it since the lab was built. In a shaped direction each frame
/// counts by itself, with its own header, even if the kernel moved it as part of a super-frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UplinkTraffic {
    /// Frames towards the switch above.
    pub up: Count,
    /// Frames from the switch above.
    pub down: Count,
    /// Frames that were lost because the buffer of a direction was full, both directions together.
    pub overflowed: u64,
}

/// One end of a link: a device in a namespace.
#[derive(Debug, Clone)]
pub(crate) struct End {
    pub(crate) namespace: String,
    pub(crate) device: String,
}

/// A link between a port of a switch and the device `far`, which is a host's interface or the uplink of another switch.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) port: End,
    pub(crate) far: End,
    /// Time that a frame takes from one end to the other.
    pub(crate) delay: Duration,
}

impl Link {
    /// The line for `ip -batch` in the namespace of the port that makes a link without delay.
    pub(crate) fn addition(&self, mtu_bytes: u32) -> String {
        let Self { port: End { device, .. }, far, .. } = self;
        let (end, namespace) = (&far.device, &far.namespace);
        format!(
            "link add {device} mtu {mtu_bytes} type veth peer name {end} mtu {mtu_bytes} netns {namespace}\n"
        )
    }

    /// Limits the rate in both directions. `Invalid` if the rate is 0.
    pub(crate) fn shape(&self, rate_bits_per_second: u64, buffer_bytes: u64) -> Result<()> {
        if rate_bits_per_second == 0 {
            return Err(Error::new(ErrorKind::Invalid, "the rate of a link must not be 0"));
        }
        self.ends().into_iter().try_for_each(|end| end.shape(rate_bits_per_second, buffer_bytes))
    }

    /// Makes the frames cross the link one by one, so that a loss hits one frame and not a super-frame of up to 64 KiB.
    /// Checksum offload stays on, because a link in memory needs no checksums.
    pub(crate) fn switch_off_segmentation(&self) -> Result<()> {
        self.ends().into_iter().try_for_each(End::switch_off_segmentation)
    }

    /// Sets the port `up` or `down`.
    pub(crate) fn set_port(&self, state: &str) -> Result<()> {
        run("ip", &["-n", &self.port.namespace, "link", "set", &self.port.device, state]).map(drop)
    }

    fn ends(&self) -> [&End; 2] {
        [&self.port, &self.far]
    }
}

impl End {
    fn shape(&self, rate_bits_per_second: u64, buffer_bytes: u64) -> Result<()> {
        let burst = bucket_bytes(rate_bits_per_second, buffer_bytes);
        let (rate, burst, limit) =
            (rate_bits_per_second.to_string(), burst.to_string(), buffer_bytes.max(burst).to_string());
        let shaper = ["tbf", "rate", &rate, "burst", &burst, "limit", &limit];
        let device = ["-n", &self.namespace, "qdisc", "replace", "dev", &self.device, "root"];
        run("tc", &[&device[..], &shaper[..]].concat()).map(drop)
    }

    fn switch_off_segmentation(&self) -> Result<()> {
        let offloads = ["tso", "off", "gso", "off", "gro", "off", "tx-udp-segmentation", "off"];
        let device = ["netns", "exec", &self.namespace, "ethtool", "-K", &self.device];
        run("ip", &[&device[..], &offloads[..]].concat()).map(drop)
    }

    /// Bytes that its shaper has sent, each frame with its own header, even inside a super-frame; `None` if the
    /// direction is not shaped.
    pub(crate) fn shaped_bytes(&self) -> Result<Option<u64>> {
        Ok(shaped(&queues(&self.namespace)?, &self.device).map(|count| count.bytes))
    }
}

/// Smallest bucket of a shaper with a deep buffer. One super-frame must fit, or the kernel splits it, which costs much
/// processor time.
const BUCKET_BYTES_MIN: u64 = 128 * 1024;
/// Smallest bucket of a shaper with a shallow buffer: a little more than two full frames of 1500 bytes.
const BUCKET_BYTES_SHALLOW: u64 = 4 * 1024;

/// The bucket of a shaper: how many bytes may pass at once after a pause.
fn bucket_bytes(rate_bits_per_second: u64, buffer_bytes: u64) -> u64 {
    // Timers may fire late. With a bucket of 1 ms of the rate, that costs no throughput.
    let deep = (rate_bits_per_second / 8 / 1000).max(BUCKET_BYTES_MIN);
    // A buffer smaller than its bucket would never fill, and no super-frame would fit into it. So a shallow buffer gets
    // a small bucket, and the kernel splits super-frames into the frames that a real switch port sees.
    if buffer_bytes >= deep { deep } else { (buffer_bytes / 4).max(BUCKET_BYTES_SHALLOW) }
}

/// Drops frames that leave `switch` by a port, with the probability that stands beside the port, in millionths;
/// independently for each port and each frame.
pub(crate) fn lose<'a>(switch: &str, ports: impl Iterator<Item = (&'a str, u32)>) -> Result<()> {
    // `nft` fails to delete a table that does not exist, so the first line creates it.
    let mut rules = String::from(
        "table bridge lab {}\ndelete table bridge lab\n\
         table bridge lab { chain loss { type filter hook forward priority 0; }; }\n",
    );
    for (port, loss) in ports.filter(|(_, loss)| *loss > 0) {
        // `nft` takes no number that `mod` cannot yield, so the loss of all frames is a rule without one.
        let chance = format!("numgen random mod 1000000 < {loss}");
        let rule = format!("oifname \"{port}\" {} drop", if loss < 1_000_000 { &chance } else { "" });
        writeln!(rules, "add rule bridge lab loss {rule}").expect("strings take whatever is written");
    }
    feed("ip", &["netns", "exec", switch, "nft", "-f", "-"], &rules).map(drop)
}

/// Drops all multicast UDP packets that arrive in `namespace`. IGMP and MLD still work.
pub(crate) fn deafen(namespace: &str) -> Result<()> {
    let rules = "table inet deaf { chain input { type filter hook input priority 0; \
                 ip daddr 224.0.0.0/4 meta l4proto udp drop; ip6 daddr ff00::/8 meta l4proto udp drop; }; }\n";
    feed("ip", &["netns", "exec", namespace, "nft", "-f", "-"], rules).map(drop)
}

/// The queues of all devices in `namespace`, with their counters.
pub(crate) fn queues(namespace: &str) -> Result<Value> {
    query("tc", &["-n", namespace, "-s", "-j", "qdisc", "show"])
}

/// What the shaper of `device` has sent according to `queues`; `None` if it has none.
pub(crate) fn shaped(queues: &Value, device: &str) -> Option<Count> {
    let queue = find(queues, "dev", device);
    let number = |field: &str| queue[field].as_u64().filter(|_| queue["kind"] == "tbf");
    Some(Count { bytes: number("bytes")?, packets: number("packets")? })
}

/// The traffic of each of these links to hosts, read at the ports of the switches.
pub(crate) fn traffic(links: &[Link]) -> Result<Vec<Traffic>> {
    let mut switches = BTreeMap::new();
    for Link { port, .. } in links {
        if !switches.contains_key(&port.namespace) {
            switches.insert(&port.namespace, Counters::read(&port.namespace)?);
        }
    }
    links.iter().map(|link| switches[&link.port.namespace].traffic(&link.port.device)).collect()
}

/// The traffic of a link between two switches.
pub(crate) fn uplink_traffic(link: &Link) -> Result<UplinkTraffic> {
    let (above, below) = (Counters::read(&link.port.namespace)?, Counters::read(&link.far.namespace)?);
    let (down, up) = (above.traffic(&link.port.device)?, below.traffic(&link.far.device)?);
    Ok(UplinkTraffic {
        up: shaped(&below.queues, &link.far.device).unwrap_or(up.received),
        down: shaped(&above.queues, &link.port.device).unwrap_or(down.received),
        overflowed: up.overflowed + down.overflowed,
    })
}

/// The counters of all ports of one switch.
struct Counters {
    links: Value,
    queues: Value,
}

impl Counters {
    fn read(switch: &str) -> Result<Self> {
        Ok(Self { links: query("ip", &["-n", switch, "-s", "-j", "link", "show"])?, queues: queues(switch)? })
    }

    /// What went through `port`: `sent` is what the switch received there, `received` what it sent.
    fn traffic(&self, port: &str) -> Result<Traffic> {
        let stats = &find(&self.links, "ifname", port)["stats64"];
        let count = |direction: &str| {
            let number = |field| stats[direction][field].as_u64();
            Some(Count { bytes: number("bytes")?, packets: number("packets")? })
        };
        let (sent, received) = count("rx").zip(count("tx")).ok_or_else(|| {
            Error::new(ErrorKind::Io, format!("read the counters of `{port}`: `ip -s -j link` shows none"))
        })?;
        let overflowed = find(&self.queues, "dev", port)["drops"].as_u64().unwrap_or(0);
        Ok(Traffic { sent, received, overflowed })
    }
}

fn find<'a>(list: &'a Value, key: &str, value: &str) -> &'a Value {
    list.as_array().into_iter().flatten().find(|entry| entry[key] == value).unwrap_or(&Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_fit_super_frames_unless_the_buffer_is_shallow() {
        assert_eq!(bucket_bytes(1_000_000_000, 1 << 20), BUCKET_BYTES_MIN);
        assert_eq!(bucket_bytes(10_000_000_000, 2 << 20), 1_250_000);
        assert_eq!(bucket_bytes(1_000_000_000, 32 << 10), 8 << 10);
        assert_eq!(bucket_bytes(1_000_000_000, 1 << 10), BUCKET_BYTES_SHALLOW);
    }
}
