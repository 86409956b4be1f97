//! The switches of a lab: which hosts hang on which switch, and the bridges that they are made of.
//!
//! Switch 0 is the root. Every other switch has one uplink, to the switch above it. The root alone sends queries of
//! IGMP and MLD; the uplink of every other switch counts as the port towards a router (RFC 4541, section 2.1.1), so
//! that reports and the packets of groups always travel up, and travel down only to switches with members.

use std::fmt::Write as _;
use std::time::Duration;

use base::{Error, ErrorKind, Result};

use crate::StarOptions;
use crate::delay::Delay;
use crate::link::{End, Link};
use crate::name::LabName;
use crate::tool::feed;

/// Most switches of a lab, including the root.
pub(crate) const SWITCHES_MAX: usize = 64;
/// How often the root of several switches sends queries, in hundredths of a second. A switch that sends none itself
/// learns by the next query which groups are wanted behind a link that was healed, so it must come soon.
const QUERIES_CENTISECONDS: u32 = 200;

/// A switch below another one, and the uplink between the two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchOptions {
    /// Index of the switch above: 0 for the root, or that of a switch which stands earlier in
    /// [`StarOptions::switches`].
    pub above: u32,
    /// Indices of the hosts on this switch. A host that no switch names is on the root.
    pub hosts: Vec<u32>,
    /// Rate of the uplink in both directions; `None` for an uplink without a limit.
    pub rate_bits_per_second: Option<u64>,
    /// Bytes that can wait before each direction of a shaped uplink, as [`StarOptions::buffer_bytes`].
    pub buffer_bytes: u64,
    /// Time that a frame takes over the uplink, in either direction. See [`StarOptions::host_delays`].
    pub delay: Duration,
}

impl Default for SwitchOptions {
    fn default() -> Self {
        Self {
            above: 0,
            hosts: Vec::new(),
            rate_bits_per_second: None,
            buffer_bytes: 1 << 20,
            delay: Duration::ZERO,
        }
    }
}

/// All links of a lab.
#[derive(Debug)]
pub(crate) struct Tree {
    /// Namespaces of the switches, root first.
    pub(crate) switches: Vec<String>,
    /// The link of each host.
    pub(crate) links: Vec<Link>,
    /// The uplink of each switch but the root: `uplinks[0]` is that of switch 1.
    pub(crate) uplinks: Vec<Link>,
    /// The threads that carry the frames of links with a delay.
    delays: Vec<Delay>,
}

impl Tree {
    /// Plans the tree of these options. `Invalid` if a switch or a host has no place or two places.
    pub(crate) fn plan(name: &LabName, options: &StarOptions) -> Result<Self> {
        let below = &options.switches;
        if below.len() >= SWITCHES_MAX {
            let count = below.len() + 1;
            return Err(invalid(format!("a lab has at most {SWITCHES_MAX} switches, not {count}")));
        }
        let switches: Vec<String> = (0..=below.len()).map(|index| name.switch(number(index))).collect();
        let uplinks = (1..).zip(below).map(|(index, switch)| {
            let above = switches.get(switch.above as usize).filter(|_| (switch.above as usize) < index);
            let fault = || invalid(format!("switch {index} cannot be below switch {}", switch.above));
            Ok(Link {
                port: End { namespace: above.ok_or_else(fault)?.clone(), device: format!("down{index}") },
                far: End { namespace: switches[index].clone(), device: "uplink".to_owned() },
                delay: switch.delay,
            })
        });
        let uplinks = uplinks.collect::<Result<_>>()?;
        let hosts = places(options)?.into_iter().zip(delays(options)?);
        let links = (0..).zip(hosts).map(|(host, (switch, delay))| Link {
            port: End { namespace: switches[switch].clone(), device: format!("port{host}") },
            far: End { namespace: name.host(host), device: "eth0".to_owned() },
            delay,
        });
        Ok(Self { links: links.collect(), switches, uplinks, delays: Vec::new() })
    }

    /// Makes the bridges and the links, in namespaces that exist.
    pub(crate) fn build(&mut self, options: &StarOptions) -> Result<()> {
        for link in self.links.iter().chain(&self.uplinks).filter(|link| !link.delay.is_zero()) {
            self.delays.push(Delay::connect(link, options.mtu_bytes)?);
        }
        // From the root down: a link is made together with its port, and the uplink must exist before its switch.
        self.switches.iter().enumerate().try_for_each(|(index, switch)| {
            let lines = self.bridge(index, options);
            feed("ip", &["-n", switch, "-batch", "-"], &lines).map(drop)
        })
    }

    /// The lines for `ip -batch` that make switch `index`.
    fn bridge(&self, index: usize, options: &StarOptions) -> String {
        let StarOptions { mtu_bytes, snooping, .. } = options;
        let snooping = u8::from(*snooping);
        // IGMPv3: with version 2 a host stays silent if another host has reported the group, but a snooping bridge
        // needs a report from each port. The bridge floods until the response interval of its first query has passed.
        // That takes 1 s (100 centiseconds) instead of 10 s, because the querier starts by a later command than the one
        // that sets the interval.
        let mut lines = format!(
            "link add br0 type bridge mcast_snooping {snooping} mcast_igmp_version 3 mcast_mld_version 2 \
             mcast_query_response_interval 100\n"
        );
        let mut add = |line: std::fmt::Arguments<'_>| {
            lines.write_fmt(line).expect("strings take whatever is written");
        };
        if index == 0 {
            if !self.uplinks.is_empty() {
                add(format_args!(
                    "link set br0 type bridge mcast_query_interval {QUERIES_CENTISECONDS} \
                     mcast_startup_query_interval {QUERIES_CENTISECONDS}\n"
                ));
            }
            add(format_args!("link set br0 type bridge mcast_querier {snooping}\n"));
        }
        for link in self.links.iter().chain(&self.uplinks) {
            if link.port.namespace == self.switches[index] {
                if link.delay.is_zero() {
                    add(format_args!("{}", link.addition(*mtu_bytes)));
                }
                add(format_args!("link set {} master br0 up\n", link.port.device));
            }
        }
        if let Some(uplink) = index.checked_sub(1).map(|index| &self.uplinks[index]) {
            let device = &uplink.far.device;
            // 2: always towards a router.
            add(format_args!(
                "link set {device} master br0 up\nlink set {device} type bridge_slave mcast_router 2\n"
            ));
        }
        add(format_args!("link set br0 up\n"));
        lines
    }

    /// Removes the links that have a delay.
    pub(crate) fn end_delays(&mut self) {
        self.delays.clear();
    }

    /// Limits the rates of all links that have one.
    pub(crate) fn shape(&self, options: &StarOptions) -> Result<()> {
        if let Some(rate) = options.rate_bits_per_second {
            self.links.iter().try_for_each(|link| link.shape(rate, options.buffer_bytes))?;
        }
        self.uplinks.iter().zip(&options.switches).try_for_each(|(uplink, switch)| {
            switch.rate_bits_per_second.map_or(Ok(()), |rate| uplink.shape(rate, switch.buffer_bytes))
        })
    }

    /// Makes frames cross all links one by one.
    pub(crate) fn switch_off_segmentation(&self) -> Result<()> {
        self.links.iter().chain(&self.uplinks).try_for_each(Link::switch_off_segmentation)
    }
}

/// The switch of each host.
fn places(options: &StarOptions) -> Result<Vec<usize>> {
    let mut places = vec![None; options.hosts as usize];
    for (index, switch) in (1..).zip(&options.switches) {
        for host in &switch.hosts {
            match places.get_mut(*host as usize) {
                Some(free @ None) => *free = Some(index),
                Some(_) => return Err(invalid(format!("host {host} is on two switches"))),
                None => return Err(invalid(format!("switch {index} has host {host}, which does not exist"))),
            }
        }
    }
    Ok(places.into_iter().map(|place| place.unwrap_or(0)).collect())
}

/// The delay of the link of each host.
fn delays(options: &StarOptions) -> Result<Vec<Duration>> {
    let mut delays = vec![Duration::ZERO; options.hosts as usize];
    for (host, delay) in &options.host_delays {
        let missing = || invalid(format!("there is no host {host} whose link could have a delay"));
        *delays.get_mut(*host as usize).ok_or_else(missing)? = *delay;
    }
    Ok(delays)
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

fn number(index: usize) -> u32 {
    u32::try_from(index).expect("bounded by SWITCHES_MAX")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_and_switch_has_one_place() {
        let plan = |switches: &[(u32, &[u32])]| {
            let below = |(above, hosts): &(u32, &[u32])| SwitchOptions {
                above: *above,
                hosts: hosts.to_vec(),
                ..SwitchOptions::default()
            };
            let switches = switches.iter().map(below).collect();
            let options = StarOptions { hosts: 4, switches, ..StarOptions::default() };
            Tree::plan(&LabName::new().unwrap(), &options)
        };
        let tree = plan(&[(0, &[2]), (1, &[1, 3])]).unwrap();
        let places: Vec<&str> = tree.links.iter().map(|link| &*link.port.namespace).collect();
        assert_eq!(places, [0, 2, 1, 2].map(|switch| &*tree.switches[switch]));
        assert_eq!(tree.uplinks[1].port.namespace, tree.switches[1]);
        for bad in [&[(1, &[][..])][..], &[(0, &[4])], &[(0, &[1, 1])], &[(0, &[1]), (0, &[1])]] {
            assert_eq!(plan(bad).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
