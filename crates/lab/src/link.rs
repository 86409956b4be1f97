//! The links of the star: rate, buffer, loss, offloads and counters.
//!
//! A token bucket filter (`man 8 tc-tbf`), here called shaper, limits the rate. It counts each frame with its 14-byte
//! Ethernet header, without preamble and gap, and counts a super-frame (several frames that the kernel handles as one
//! packet) as the frames inside. Rules of `man 8 nft` for the bridge family drop frames inside the switch.

use std::fmt::Write as _;

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

/// The name of the switch port of host `index`.
pub(crate) fn port(index: u32) -> String {
    format!("port{index}")
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

/// Limits the rate at which `device` sends.
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

/// Makes the frames of `device` cross the switch one by one, so that a loss hits one frame and not a super-frame of up
/// to 64 KiB. Checksum offload stays on, because a link in memory needs no checksums.
pub(crate) fn switch_off_segmentation(namespace: &str, device: &str) -> Result<()> {
    let offloads = ["tso", "off", "gso", "off", "gro", "off", "tx-udp-segmentation", "off"];
    run("ip", &[&["netns", "exec", namespace, "ethtool", "-K", device], &offloads[..]].concat()).map(drop)
}

/// Drops frames to host `i` with probability `loss_per_million[i]`, independently for each host and each frame.
pub(crate) fn lose(switch: &str, loss_per_million: &[u32]) -> Result<()> {
    // `nft` fails to delete a table that does not exist, so the first line creates it.
    let mut rules = String::from(
        "table bridge lab {}\ndelete table bridge lab\n\
         table bridge lab { chain loss { type filter hook forward priority 0; }; }\n",
    );
    for (index, loss) in loss_per_million.iter().enumerate().filter(|(_, loss)| **loss > 0) {
        // `nft` takes no number that `mod` cannot yield, so the loss of all frames is a rule without one.
        let chance = format!("numgen random mod 1000000 < {loss}");
        let rule = format!("oifname \"port{index}\" {} drop", if *loss < 1_000_000 { &chance } else { "" });
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

/// Bytes that the shaper of `device` has sent, each frame with its own header, even inside a super-frame; `None` if the
/// device is not shaped.
pub(crate) fn shaped_bytes(namespace: &str, device: &str) -> Result<Option<u64>> {
    let queues = query("tc", &["-n", namespace, "-s", "-j", "qdisc", "show"])?;
    Ok(shaper_bytes(&queues, device))
}

/// Like [`shaped_bytes`], for the switch ports of hosts `0..hosts`.
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
