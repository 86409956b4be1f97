//! The links of the star: rate, buffer, loss, offloads and counters.
//!
//! `man 8 tc-tbf` shapes. It counts frames with their 14-byte Ethernet header, without preamble and gap, and counts the
//! frames of a segmented super-frame one by one. Rules of `man 8 nft` in the bridge family drop frames inside the
//! switch.

use std::fmt::Write as _;

use base::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::tool::{feed, query, run};

/// Frames and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Bytes with Ethernet headers. Where offloads are on, a super-frame counts one header.
    pub bytes: u64,
    /// Frames. Where offloads are on, a super-frame counts as one.
    pub packets: u64,
}

/// What one host sent and received since the lab was built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Frames that the host sent and its link let through.
    pub sent: Count,
    /// Frames that the switch sent to the host.
    pub received: Count,
    /// Frames towards the host that were dropped because the buffer of its switch port was full.
    pub overflowed: u64,
}

/// The interface of the switch that leads to host `index`.
pub(crate) fn port(index: u32) -> String {
    format!("port{index}")
}

/// Smallest bucket of a shaper with a deep buffer. A super-frame must fit, or the kernel splits it, which costs
/// processor time.
const BUCKET_BYTES_MIN: u64 = 128 * 1024;
/// Smallest bucket of a shaper with a shallow buffer: a little more than two full frames.
const BUCKET_BYTES_SHALLOW: u64 = 4 * 1024;

/// The bucket of a shaper: how much may pass at once after a pause.
fn bucket_bytes(rate_bits_per_second: u64, buffer_bytes: u64) -> u64 {
    // A millisecond of the rate, so that late timers do not cost throughput.
    let deep = (rate_bits_per_second / 8 / 1000).max(BUCKET_BYTES_MIN);
    // If the bucket were larger than the buffer, the buffer would never fill, and no super-frame would fit. With this
    // bucket the kernel splits super-frames into frames, as a switch's port receives them.
    if buffer_bytes >= deep { deep } else { (buffer_bytes / 4).max(BUCKET_BYTES_SHALLOW) }
}

/// Shapes what `device` sends.
pub(crate) fn shape(
    namespace: &str,
    device: &str,
    rate_bits_per_second: u64,
    buffer_bytes: u64,
) -> Result<()> {
    let burst = bucket_bytes(rate_bits_per_second, buffer_bytes);
    let (rate, burst, limit) =
        (rate_bits_per_second.to_string(), burst.to_string(), buffer_bytes.max(burst).to_string());
    let shaper = ["tbf", "rate", &rate, "burst", &burst, "limit", &limit];
    run("tc", &[&["-n", namespace, "qdisc", "replace", "dev", device, "root"], &shaper[..]].concat())
        .map(drop)
}

/// Makes frames of `device` cross the switch one by one, so that a loss hits a frame and not 64 KiB of them. Checksum
/// offload stays on: on a link in memory no checksum is computed.
pub(crate) fn switch_off_segmentation(namespace: &str, device: &str) -> Result<()> {
    let offloads = ["tso", "off", "gso", "off", "gro", "off", "tx-udp-segmentation", "off"];
    run("ip", &[&["netns", "exec", namespace, "ethtool", "-K", device], &offloads[..]].concat()).map(drop)
}

/// Loses frames towards host `i` with probability `loss_per_million[i]`, each receiver and frame for itself.
pub(crate) fn lose(switch: &str, loss_per_million: &[u32]) -> Result<()> {
    let mut rules = String::from(
        "table bridge lab {}\ndelete table bridge lab\n\
         table bridge lab { chain loss { type filter hook forward priority 0; }; }\n",
    );
    for (index, loss) in loss_per_million.iter().enumerate().filter(|(_, loss)| **loss > 0) {
        let rule = format!("oifname \"port{index}\" numgen random mod 1000000 < {loss} drop");
        writeln!(rules, "add rule bridge lab loss {rule}").expect("strings take whatever is written");
    }
    feed("ip", &["netns", "exec", switch, "nft", "-f", "-"], &rules).map(drop)
}

/// Drops all UDP packets to groups that arrive in `namespace`. IGMP and MLD still work.
pub(crate) fn deafen(namespace: &str) -> Result<()> {
    let rules = "table inet deaf { chain input { type filter hook input priority 0; \
                 ip daddr 224.0.0.0/4 meta l4proto udp drop; ip6 daddr ff00::/8 meta l4proto udp drop; }; }\n";
    feed("ip", &["netns", "exec", namespace, "nft", "-f", "-"], rules).map(drop)
}

/// Bytes that the shaper of `device` let through; each frame counts with its own header, also if it was part of a
/// super-frame. `None` if the device is not shaped.
pub(crate) fn shaped_bytes(namespace: &str, device: &str) -> Result<Option<u64>> {
    let queues = query("tc", &["-n", namespace, "-s", "-j", "qdisc", "show"])?;
    Ok(shaper_bytes(&queues, device))
}

/// The same of the ports of hosts `0..hosts`.
pub(crate) fn shaped_bytes_of_ports(switch: &str, hosts: u32) -> Result<Vec<Option<u64>>> {
    let queues = query("tc", &["-n", switch, "-s", "-j", "qdisc", "show"])?;
    Ok((0..hosts).map(|index| shaper_bytes(&queues, &port(index))).collect())
}

fn shaper_bytes(queues: &Value, device: &str) -> Option<u64> {
    let queue = find(queues, "dev", device);
    queue["bytes"].as_u64().filter(|_| queue["kind"] == "tbf")
}

/// The traffic of hosts `0..hosts`, read at the ports of the switch.
pub(crate) fn traffic(switch: &str, hosts: u32) -> Result<Vec<Traffic>> {
    let links = query("ip", &["-n", switch, "-s", "-j", "link", "show"])?;
    let queues = query("tc", &["-n", switch, "-s", "-j", "qdisc", "show"])?;
    (0..hosts).map(|index| port_traffic(&links, &queues, &port(index))).collect()
}

fn port_traffic(links: &Value, queues: &Value, port: &str) -> Result<Traffic> {
    let stats = &find(links, "ifname", port)["stats64"];
    let count = |direction: &str| {
        let number = |field| stats[direction][field].as_u64();
        Some(Count { bytes: number("bytes")?, packets: number("packets")? })
    };
    let (from_host, to_host) = count("rx").zip(count("tx")).ok_or_else(|| {
        Error::new(ErrorKind::Io, format!("read the counters of `{port}`: `ip -s -j link` shows none"))
    })?;
    let overflowed = find(queues, "dev", port)["drops"].as_u64().unwrap_or(0);
    Ok(Traffic { sent: from_host, received: to_host, overflowed })
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
