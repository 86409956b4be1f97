//! Faults of networks, as users meet them: switches that filter or forget groups, firewalls that let one direction
//! pass, links that carry less than the interface says, routers.

use std::net::Ipv4Addr;
use std::time::Duration;

use base::{Error, ErrorKind, Result};

use crate::host::run_in;
use crate::tool::{feed, run};
use crate::{Host, Star};

/// The network behind a router; `.1` is the router, `.2` the host.
const INNER: [u8; 3] = [10, 78, 0];

impl Star {
    /// The switch forwards no multicast of IPv4 to host `index`, like a port with a filter.
    ///
    /// # Errors
    /// `Io` with the output of `nft`.
    pub fn filter_groups(&self, index: u32) -> Result<()> {
        let rules = format!(
            "table bridge filtered {{ chain forwarding {{ type filter hook forward priority 0; \
             oifname \"{}\" ether type ip ip daddr 224.0.0.0/4 meta l4proto udp drop; }}; }}\n",
            self.link(index).port.device
        );
        nft(&self.link(index).port.namespace, &rules)
    }

    /// Each switch forgets `memory` after a host's last IGMP report that it wants groups, like any switch with IGMP
    /// snooping. The root sends queries every `queries`, if that is given. For a star without `snooping`.
    ///
    /// # Errors
    /// `Io` with the output of `nft` or `ip`.
    pub fn forget_groups(&self, memory: Duration, queries: Option<Duration>) -> Result<()> {
        let rules = format!(
            "table bridge forgetful {{ set members {{ type ifname; flags dynamic,timeout; timeout {}s; }}; \
             chain reports {{ type filter hook prerouting priority 0; \
             ether type ip ip protocol igmp update @members {{ iifname }}; }}; \
             chain forwarding {{ type filter hook forward priority 0; \
             ether type ip ip daddr 239.0.0.0/8 oifname != \"uplink\" oifname != @members drop; }}; }}\n",
            memory.as_secs()
        );
        self.tree.switches.iter().try_for_each(|switch| nft(switch, &rules))?;
        let Some(every) = queries else { return Ok(()) };
        let centiseconds = (every.as_millis() / 10).to_string();
        let settings = [
            "mcast_query_interval",
            &centiseconds,
            "mcast_startup_query_interval",
            &centiseconds,
            "mcast_querier",
            "1",
        ];
        for (index, switch) in self.tree.switches.iter().enumerate() {
            let bridge = ["-n", switch, "link", "set", "br0", "type", "bridge", "mcast_snooping", "1"];
            run("ip", &[&bridge[..], if index == 0 { &settings } else { &[] }].concat())?;
        }
        Ok(())
    }

    /// Host `index` gets packets of up to `mtu_bytes`, and sends longer ones.
    ///
    /// # Errors
    /// `Io` with the output of a tool.
    pub fn narrow_towards(&self, index: u32, mtu_bytes: u32) -> Result<()> {
        self.tree.switch_off_segmentation()?;
        let rules = format!(
            "table netdev narrow {{ chain ingress {{ type filter hook ingress device eth0 priority 0; \
             meta length > {mtu_bytes} drop; }}; }}\n"
        );
        nft(self.host(index).namespace(), &rules)
    }

    /// The port of host `index` carries packets of up to `mtu_bytes`, both ways, although the host's interface says
    /// more.
    ///
    /// # Errors
    /// `Io` with the output of `ip`.
    pub fn narrow(&self, index: u32, mtu_bytes: u32) -> Result<()> {
        // The switch lets super-frames pass, whatever is inside.
        self.tree.switch_off_segmentation()?;
        let port = &self.link(index).port;
        let mtu = mtu_bytes.to_string();
        run("ip", &["-n", &port.namespace, "link", "set", &port.device, "mtu", &mtu]).map(drop)
    }

    /// Of the long multicast packets that arrive at host `index`, so many of a thousand are lost; of others none.
    ///
    /// # Errors
    /// `Io` with the output of a tool.
    pub fn lose_blocks(&self, index: u32, of_thousand: u32) -> Result<()> {
        self.tree.switch_off_segmentation()?;
        let rules = format!(
            "table netdev lossy {{ chain ingress {{ type filter hook ingress device eth0 priority 0; \
             ip daddr 224.0.0.0/4 meta length > 600 numgen random mod 1000 < {of_thousand} drop; }}; }}\n"
        );
        nft(self.host(index).namespace(), &rules)
    }

    /// A firewall on host `index` drops UDP packets that arrive for its own address.
    ///
    /// # Errors
    /// `Io` with the output of `nft`.
    pub fn refuse_udp(&self, index: u32) -> Result<()> {
        let rules = format!(
            "table inet firewall {{ chain input {{ type filter hook input priority 0; \
             ip daddr {} meta l4proto udp drop; }}; }}\n",
            self.host(index).ipv4()
        );
        nft(self.host(index).namespace(), &rules)
    }

    /// A firewall on host 0 drops what arrives at the UDP ports to which receivers of multicast report (7719 to 7818).
    ///
    /// # Errors
    /// `Io` with the output of `nft`.
    pub fn refuse_reports(&self) -> Result<()> {
        self.refuse("udp dport 7719-7818")
    }

    /// The same for reports of host `index` alone.
    ///
    /// # Errors
    /// `Io` with the output of `nft`.
    pub fn refuse_reports_of(&self, index: u32) -> Result<()> {
        self.refuse(&format!("ip saddr {} udp dport 7719-7818", self.host(index).ipv4()))
    }

    fn refuse(&self, packets: &str) -> Result<()> {
        let rules = format!(
            "table inet reports {{ chain input {{ type filter hook input priority 0; {packets} drop; }}; }}\n"
        );
        nft(self.host(0).namespace(), &rules)
    }

    /// The interface of host `index`, and its port, carry packets of up to `mtu_bytes`, while the rest of the network
    /// does not.
    ///
    /// # Errors
    /// `Io` with the output of `ip`.
    pub fn widen_host(&self, index: u32, mtu_bytes: u32) -> Result<()> {
        // The switch lets super-frames pass, whatever is inside.
        self.tree.switch_off_segmentation()?;
        let (port, mtu) = (&self.link(index).port, mtu_bytes.to_string());
        run("ip", &["-n", &port.namespace, "link", "set", &port.device, "mtu", &mtu])?;
        run("ip", &["-n", self.host(index).namespace(), "link", "set", "eth0", "mtu", &mtu])?;
        run("ip", &["-n", &port.namespace, "link", "set", "br0", "mtu", "1500"]).map(drop)
    }

    /// Adds a host in a network of its own behind host `index`, which becomes a router. With `nat` the router changes
    /// the addresses of what leaves that network; else the other hosts have a route to it. The router forwards no
    /// multicast.
    ///
    /// # Errors
    /// `Io` with the output of a tool that failed, also if there is such a host already.
    pub fn behind(&mut self, index: u32, nat: bool) -> Result<Host> {
        let router = self.host(index).clone();
        let namespace = format!("{}r", router.namespace());
        run("ip", &["netns", "add", &namespace])?;
        self.further.push(namespace.clone());
        let [a, b, c] = INNER;
        let (inside, own) = (Ipv4Addr::new(a, b, c, 1), Ipv4Addr::new(a, b, c, 2));
        let lines = format!(
            "link add inside type veth peer name eth0 netns {namespace}\n\
             addr add {inside}/24 dev inside\n\
             link set inside up\n"
        );
        feed("ip", &["-n", router.namespace(), "-batch", "-"], &lines)?;
        let lines = format!(
            "link set lo up\naddr add {own}/24 dev eth0\nlink set eth0 up\nroute add default via {inside}\n"
        );
        feed("ip", &["-n", &namespace, "-batch", "-"], &lines)?;
        forward(router.namespace())?;
        if nat {
            let rules = "table ip translation { chain leaving { type nat hook postrouting priority 100; \
                         oifname \"eth0\" masquerade; }; }\n";
            nft(router.namespace(), rules)?;
        } else {
            for host in self.hosts().iter().filter(|host| host.index() != index) {
                let network = format!("{a}.{b}.{c}.0/24");
                let via = router.ipv4().to_string();
                run("ip", &["-n", host.namespace(), "route", "add", &network, "via", &via])?;
            }
        }
        Ok(Host::at(index, namespace, own))
    }
}

fn nft(namespace: &str, rules: &str) -> Result<()> {
    feed("ip", &["netns", "exec", namespace, "nft", "-f", "-"], rules).map(drop)
}

/// Lets a namespace forward packets between its interfaces.
fn forward(namespace: &str) -> Result<()> {
    const SETTING: &str = "/proc/sys/net/ipv4/ip_forward";
    let written = run_in(namespace, || std::fs::write(SETTING, "1"))?.join().expect("writing does not panic");
    written.map_err(|e| Error::from_source(ErrorKind::Io, format!("write `{SETTING}` in `{namespace}`"), e))
}
