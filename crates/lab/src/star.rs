//! Builds a star, changes it while it exists, and removes it.

use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, ErrorKind, Result};

use crate::host::{IPV4_PREFIX_BITS, IPV6_PREFIX_BITS, run_in};
use crate::link::{self, Link};
use crate::meter::Meter;
use crate::name::{LabName, remove, sweep};
use crate::switch::Tree;
use crate::tool::{available, feed};
use crate::{Host, SwitchOptions, Traffic, UplinkTraffic};

/// Most hosts that a star can have, including the server.
pub(crate) const HOSTS_MAX: u32 = 1000;

/// The properties of a star.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StarOptions {
    /// Number of hosts, including host 0 (the server, by convention): 1 to [`HOSTS_MAX`].
    pub hosts: u32,
    /// Switches below the root, which always exists: `switches[0]` is switch 1. Without any, all hosts are on the root.
    pub switches: Vec<SwitchOptions>,
    /// Rate of the link of every host in both directions; `None` for links without a limit.
    pub rate_bits_per_second: Option<u64>,
    /// Bytes that can wait before each shaped direction of a link, like the buffer of a switch port. A frame that finds
    /// the buffer full is lost. If the buffer is smaller than 128 KiB or than 1 ms of the rate, the kernel splits
    /// super-frames (several frames that it handles as one packet) before the buffer, which costs processor time.
    pub buffer_bytes: u64,
    /// Hosts whose link has a delay, with the least time that a frame takes in either direction. A thread of this
    /// process carries the frames of such a link; what is beyond 64 MiB under way in one direction is lost. The host
    /// does not notice that its port on the switch is down.
    pub host_delays: Vec<(u32, Duration)>,
    /// Probability, in millionths, that a frame to host 1 or higher is lost; independent for each host and each frame.
    pub loss_per_million: u32,
    /// Whether the root sends IGMP and MLD queries, and every switch forwards a group only up and to hosts and switches
    /// that report it.
    pub snooping: bool,
    /// Largest packet in bytes: 1280 to 9000.
    pub mtu_bytes: u32,
    /// TCP congestion control between the hosts. It is explicit so that the machine's own setting has no effect.
    pub congestion_control: String,
}

impl Default for StarOptions {
    fn default() -> Self {
        Self {
            hosts: 2,
            switches: Vec::new(),
            rate_bits_per_second: None,
            buffer_bytes: 1 << 20,
            host_delays: Vec::new(),
            loss_per_million: 0,
            snooping: true,
            mtu_bytes: 1500,
            congestion_control: "cubic".to_owned(),
        }
    }
}

/// A running lab. Dropping it kills every process in it and removes its namespaces.
#[derive(Debug)]
pub struct Star {
    pub(crate) tree: Tree,
    hosts: Vec<Host>,
    /// Namespaces of hosts behind routers.
    pub(crate) further: Vec<String>,
    loss_per_million: Vec<u32>,
    segmentation_off: bool,
}

impl Star {
    /// Removes labs whose owner no longer runs, then builds a star.
    ///
    /// # Errors
    /// `Unsupported` without root or tools; `Invalid` for options out of range; `Io` with the output of a tool that
    /// failed.
    pub fn build(options: &StarOptions) -> Result<Self> {
        available()?;
        check(options)?;
        sweep()?;
        let name = LabName::new()?;
        let mut star = Self {
            tree: Tree::plan(&name, options)?,
            hosts: (0..options.hosts).map(|index| Host::new(index, name.host(index))).collect(),
            further: Vec::new(),
            loss_per_million: vec![0; options.hosts as usize],
            segmentation_off: false,
        };
        // A failure from here on drops the star, which removes the namespaces that exist already.
        star.add_namespaces()?;
        star.tree.build(options)?;
        star.hosts.iter().try_for_each(|host| configure(host, options))?;
        star.tree.shape(options)?;
        for index in 1..options.hosts {
            star.loss_per_million[index as usize] = options.loss_per_million;
        }
        star.apply_loss()?;
        Ok(star)
    }

    /// Host `index`.
    ///
    /// # Panics
    /// If the star has no such host.
    #[must_use]
    pub fn host(&self, index: u32) -> &Host {
        &self.hosts[index as usize]
    }

    /// All hosts, in the order of their indices.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// A command that runs `program` on a switch, 0 for the root: its ports are those of the bridge `br0`. Dropping
    /// the lab kills it.
    ///
    /// # Panics
    /// If there is no such switch.
    #[must_use]
    pub fn switch_command(&self, switch: u32, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.tree.switches[switch as usize], program]);
        command
    }

    /// Runs `work` on a new thread of this process, inside the network of a switch.
    ///
    /// # Errors
    /// `Io` if the lab no longer exists.
    ///
    /// # Panics
    /// If there is no such switch.
    pub fn run_on_switch<T: Send + 'static>(
        &self,
        switch: u32,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>> {
        run_in(&self.tree.switches[switch as usize], work)
    }

    /// Disconnects host `index`: sets its port on the switch down.
    ///
    /// # Errors
    /// `Io` with the output of `ip`.
    pub fn cut(&self, index: u32) -> Result<()> {
        self.link(index).set_port("down")
    }

    /// Connects host `index` again: sets its port on the switch up. On a switch below the root, groups may not reach it
    /// before the root's next query, within about two seconds.
    ///
    /// # Errors
    /// `Io` with the output of `ip`.
    pub fn heal(&self, index: u32) -> Result<()> {
        self.link(index).set_port("up")
    }

    /// Disconnects a switch from the one above: sets the port of its uplink down.
    ///
    /// # Errors
    /// `Io` with the output of `ip`.
    ///
    /// # Panics
    /// If there is no such switch, or it is the root.
    pub fn cut_uplink(&self, switch: u32) -> Result<()> {
        self.uplink(switch).set_port("down")
    }

    /// Connects a switch to the one above again. Groups may not come through before the root's next query, within about
    /// two seconds.
    ///
    /// # Errors
    /// `Io` with the output of `ip`.
    ///
    /// # Panics
    /// If there is no such switch, or it is the root.
    pub fn heal_uplink(&self, switch: u32) -> Result<()> {
        self.uplink(switch).set_port("up")
    }

    /// Drops all multicast UDP packets that arrive at host `index`, like a switch that does not forward multicast.
    ///
    /// # Errors
    /// `Io` with the output of `nft`.
    pub fn deafen(&self, index: u32) -> Result<()> {
        link::deafen(self.host(index).namespace())
    }

    /// Changes the probability, in millionths, that a frame to host `index` is lost.
    ///
    /// # Errors
    /// `Io` with the output of `nft` or `ethtool`.
    pub fn set_loss(&mut self, index: u32, loss_per_million: u32) -> Result<()> {
        self.loss_per_million[index as usize] = loss_per_million;
        self.apply_loss()
    }

    /// Changes the rate and the buffer of the link of host `index`, in both directions.
    ///
    /// # Errors
    /// `Invalid` if the rate is 0; `Io` with the output of `tc`.
    pub fn shape_host(&self, index: u32, rate_bits_per_second: u64, buffer_bytes: u64) -> Result<()> {
        self.link(index).shape(rate_bits_per_second, buffer_bytes)
    }

    /// Changes the rate and the buffer of the uplink of a switch, in both directions.
    ///
    /// # Errors
    /// `Invalid` if the rate is 0; `Io` with the output of `tc`.
    ///
    /// # Panics
    /// If there is no such switch, or it is the root.
    pub fn shape_uplink(&self, switch: u32, rate_bits_per_second: u64, buffer_bytes: u64) -> Result<()> {
        self.uplink(switch).shape(rate_bits_per_second, buffer_bytes)
    }

    /// Bytes that host `index` sent over its shaped link. Each frame counts with its own Ethernet header, even if the
    /// kernel moved it as part of a super-frame.
    ///
    /// # Errors
    /// `Invalid` if the link is not shaped; `Io` if the counters cannot be read.
    pub fn sent_on_wire(&self, index: u32) -> Result<u64> {
        let unshaped = || Error::new(ErrorKind::Invalid, format!("the link of host {index} is not shaped"));
        self.link(index).far.shaped_bytes()?.ok_or_else(unshaped)
    }

    /// Starts a thread that reads the counters of the links of all hosts every `interval`.
    ///
    /// # Errors
    /// `Io` if the namespace of a switch no longer exists.
    pub fn meter(&self, interval: Duration) -> Result<Meter> {
        Meter::start(&self.tree.switches, &self.tree.links, interval)
    }

    /// The traffic of each host since the lab was built, in the order of their indices.
    ///
    /// # Errors
    /// `Io` if the counters cannot be read.
    pub fn traffic(&self) -> Result<Vec<Traffic>> {
        link::traffic(&self.tree.links)
    }

    /// The traffic between a switch and the one above it.
    ///
    /// # Errors
    /// `Io` if the counters cannot be read.
    ///
    /// # Panics
    /// If there is no such switch, or it is the root.
    pub fn uplink_traffic(&self, switch: u32) -> Result<UplinkTraffic> {
        link::uplink_traffic(self.uplink(switch))
    }

    /// The link of host `index`.
    pub(crate) fn link(&self, index: u32) -> &Link {
        &self.tree.links[index as usize]
    }

    fn uplink(&self, switch: u32) -> &Link {
        &self.tree.uplinks[(switch as usize).checked_sub(1).expect("the root has no uplink")]
    }

    fn namespaces(&self) -> impl Iterator<Item = &str> {
        let further = self.further.iter().map(String::as_str);
        let switches = self.tree.switches.iter().map(String::as_str);
        switches.chain(self.hosts.iter().map(Host::namespace)).chain(further)
    }

    fn add_namespaces(&self) -> Result<()> {
        let lines: String = self.namespaces().map(|namespace| format!("netns add {namespace}\n")).collect();
        feed("ip", &["-batch", "-"], &lines)?;
        self.namespaces().try_for_each(skip_duplicate_address_detection)
    }

    fn apply_loss(&mut self) -> Result<()> {
        if self.loss_per_million.iter().all(|loss| *loss == 0) && !self.segmentation_off {
            return Ok(());
        }
        // Loss rules drop whole super-frames, so the kernel must not build any.
        if !self.segmentation_off {
            self.tree.switch_off_segmentation()?;
            self.segmentation_off = true;
        }
        let ports = self.tree.links.iter().map(|link| &link.port).zip(&self.loss_per_million);
        self.tree.switches.iter().try_for_each(|switch| {
            let ports = ports.clone().filter(|(port, _)| port.namespace == *switch);
            link::lose(switch, ports.map(|(port, loss)| (port.device.as_str(), *loss)))
        })
    }
}

impl Drop for Star {
    fn drop(&mut self) {
        self.tree.end_delays();
        for namespace in self.namespaces() {
            // `drop` cannot report an error. The next lab on this machine removes the rest.
            let _ = remove(namespace);
        }
    }
}

fn check(options: &StarOptions) -> Result<()> {
    let invalid = |what: String| Err(Error::new(ErrorKind::Invalid, what));
    match options {
        StarOptions { hosts, .. } if !(1..=HOSTS_MAX).contains(hosts) => {
            invalid(format!("a star has 1 to {HOSTS_MAX} hosts, not {hosts}"))
        }
        StarOptions { mtu_bytes, .. } if !(1280..=9000).contains(mtu_bytes) => {
            invalid(format!("an MTU must be 1280 to 9000 bytes, not {mtu_bytes}"))
        }
        StarOptions { loss_per_million, .. } if *loss_per_million > 1_000_000 => {
            invalid(format!("a loss of {loss_per_million} millionths is more than all frames"))
        }
        _ => Ok(()),
    }
}

/// Makes IPv6 usable at once on new interfaces of a namespace. The lab assigns all addresses, so none is duplicate.
fn skip_duplicate_address_detection(namespace: &str) -> Result<()> {
    const SETTING: &str = "/proc/sys/net/ipv6/conf/default/accept_dad";
    let written = run_in(namespace, || std::fs::write(SETTING, "0"))?.join().expect("writing does not panic");
    written.map_err(|e| Error::from_source(ErrorKind::Io, format!("write `{SETTING}` in `{namespace}`"), e))
}

fn configure(host: &Host, options: &StarOptions) -> Result<()> {
    let [.., high, low] = host.index().to_be_bytes();
    let (ipv4, ipv6, congestion) = (host.ipv4(), host.ipv6(), &options.congestion_control);
    // The routes set the congestion control, because a namespace may not choose it by sysctl.
    let lines = format!(
        "link set lo up\n\
         link set eth0 address 02:dc:00:00:{high:02x}:{low:02x}\n\
         link set eth0 up\n\
         addr add {ipv4}/{IPV4_PREFIX_BITS} dev eth0 noprefixroute\n\
         addr add {ipv6}/{IPV6_PREFIX_BITS} dev eth0 nodad noprefixroute\n\
         route add 10.77.0.0/{IPV4_PREFIX_BITS} dev eth0 src {ipv4} congctl {congestion}\n\
         route add fd77::/{IPV6_PREFIX_BITS} dev eth0 congctl {congestion}\n\
         route add 224.0.0.0/4 dev eth0 src {ipv4}\n"
    );
    feed("ip", &["-n", host.namespace(), "-batch", "-"], &lines).map(drop)
}
