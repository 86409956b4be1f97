//! Builds a star, changes it while it exists, and removes it.

use std::fmt::Write as _;
use std::time::Duration;

use base::{Error, ErrorKind, Result};

use crate::host::{IPV4_PREFIX_BITS, IPV6_PREFIX_BITS, run_in};
use crate::link::{self, port};
use crate::meter::Meter;
use crate::name::{LabName, remove, sweep};
use crate::tool::{available, feed, run};
use crate::{Host, Traffic};

/// Most hosts that a star can have, including the server.
pub(crate) const HOSTS_MAX: u32 = 1000;

/// The properties of a star.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StarOptions {
    /// Number of hosts, including host 0 (the server, by convention): 1 to [`HOSTS_MAX`].
    pub hosts: u32,
    /// Rate of every link in both directions; `None` for links without a limit.
    pub rate_bits_per_second: Option<u64>,
    /// Bytes that can wait before each shaped direction of a link, like the buffer of a switch port. A frame that finds
    /// the buffer full is lost. If the buffer is smaller than 128 KiB or than 1 ms of the rate, the kernel splits
    /// super-frames (several frames that it handles as one packet) before the buffer, which costs processor time.
    pub buffer_bytes: u64,
    /// Probability, in millionths, that a frame to host 1 or higher is lost; independent for each host and each frame.
    pub loss_per_million: u32,
    /// Whether the switch sends IGMP and MLD queries, and forwards a group only to hosts that report it.
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
            rate_bits_per_second: None,
            buffer_bytes: 1 << 20,
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
    pub(crate) switch: String,
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
            switch: name.switch(),
            hosts: (0..options.hosts).map(|index| Host::new(index, name.host(index))).collect(),
            further: Vec::new(),
            loss_per_million: vec![0; options.hosts as usize],
            segmentation_off: false,
        };
        // A failure from here on drops the star, which removes the namespaces that exist already.
        star.add_namespaces()?;
        star.add_switch(options)?;
        star.hosts.iter().try_for_each(|host| configure(host, options))?;
        star.shape(options)?;
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

    /// Disconnects host `index`: sets its port on the switch down.
    ///
    /// # Errors
    /// `Io` with the output of `ip`.
    pub fn cut(&self, index: u32) -> Result<()> {
        self.set_port(index, "down")
    }

    /// Connects host `index` again: sets its port on the switch up.
    ///
    /// # Errors
    /// `Io` with the output of `ip`.
    pub fn heal(&self, index: u32) -> Result<()> {
        self.set_port(index, "up")
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
        if rate_bits_per_second == 0 {
            return Err(Error::new(ErrorKind::Invalid, "the rate of a link must not be 0"));
        }
        link::shape(&self.switch, &port(index), rate_bits_per_second, buffer_bytes)?;
        link::shape(self.host(index).namespace(), "eth0", rate_bits_per_second, buffer_bytes)
    }

    /// Bytes that host `index` sent over its shaped link. Each frame counts with its own Ethernet header, even if the
    /// kernel moved it as part of a super-frame.
    ///
    /// # Errors
    /// `Invalid` if the link is not shaped; `Io` if the counters cannot be read.
    pub fn sent_on_wire(&self, index: u32) -> Result<u64> {
        let unshaped = || Error::new(ErrorKind::Invalid, format!("the link of host {index} is not shaped"));
        link::shaped_bytes(self.host(index).namespace(), "eth0")?.ok_or_else(unshaped)
    }

    /// Starts a thread that reads the counters of all links every `interval`.
    ///
    /// # Errors
    /// `Io` if the namespace of the switch no longer exists.
    pub fn meter(&self, interval: Duration) -> Result<Meter> {
        Meter::start(&self.switch, u32::try_from(self.hosts.len()).expect("bounded by HOSTS_MAX"), interval)
    }

    /// The traffic of each host since the lab was built, in the order of their indices.
    ///
    /// # Errors
    /// `Io` if the counters cannot be read.
    pub fn traffic(&self) -> Result<Vec<Traffic>> {
        link::traffic(&self.switch, u32::try_from(self.hosts.len()).expect("bounded by HOSTS_MAX"))
    }

    fn namespaces(&self) -> impl Iterator<Item = &str> {
        let further = self.further.iter().map(String::as_str);
        std::iter::once(self.switch.as_str()).chain(self.hosts.iter().map(Host::namespace)).chain(further)
    }

    fn add_namespaces(&self) -> Result<()> {
        let lines: String = self.namespaces().map(|namespace| format!("netns add {namespace}\n")).collect();
        feed("ip", &["-batch", "-"], &lines)?;
        self.namespaces().try_for_each(skip_duplicate_address_detection)
    }

    fn add_switch(&self, options: &StarOptions) -> Result<()> {
        let StarOptions { mtu_bytes: mtu, snooping, .. } = options;
        let snooping = u8::from(*snooping);
        // IGMPv3: with version 2 a host stays silent if another host has reported the group, but a snooping bridge
        // needs a report from each port. The bridge floods until the response interval of its first query has passed.
        // That takes 1 s (100 centiseconds) instead of 10 s, because the second command starts the querier only after
        // the first has set the interval.
        let mut lines = format!(
            "link add br0 type bridge mcast_snooping {snooping} mcast_igmp_version 3 mcast_mld_version 2 \
             mcast_query_response_interval 100\n\
             link set br0 type bridge mcast_querier {snooping}\n"
        );
        for host in &self.hosts {
            let (port, namespace) = (port(host.index()), host.namespace());
            writeln!(lines, "link add {port} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {namespace}")
                .and_then(|()| writeln!(lines, "link set {port} master br0 up"))
                .expect("strings take whatever is written");
        }
        lines.push_str("link set br0 up\n");
        feed("ip", &["-n", &self.switch, "-batch", "-"], &lines).map(drop)
    }

    fn shape(&self, options: &StarOptions) -> Result<()> {
        let Some(rate) = options.rate_bits_per_second else { return Ok(()) };
        self.hosts.iter().try_for_each(|host| self.shape_host(host.index(), rate, options.buffer_bytes))
    }

    fn apply_loss(&mut self) -> Result<()> {
        if self.loss_per_million.iter().all(|loss| *loss == 0) && !self.segmentation_off {
            return Ok(());
        }
        // Loss rules drop whole super-frames, so the kernel must not build any.
        if !self.segmentation_off {
            for host in &self.hosts {
                link::switch_off_segmentation(&self.switch, &port(host.index()))?;
                link::switch_off_segmentation(host.namespace(), "eth0")?;
            }
            self.segmentation_off = true;
        }
        link::lose(&self.switch, &self.loss_per_million)
    }

    fn set_port(&self, index: u32, state: &str) -> Result<()> {
        run("ip", &["-n", &self.switch, "link", "set", &port(index), state]).map(drop)
    }
}

impl Drop for Star {
    fn drop(&mut self) {
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
        StarOptions { rate_bits_per_second: Some(0), .. } => {
            invalid("the rate of a link must not be 0".to_owned())
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
