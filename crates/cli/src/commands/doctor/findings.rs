//! What the observations of a probe mean, in plain words, and what to type.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use base::units::show_seconds;
use net::interface::Interface;
use net::probe::Heard;

/// Switches send queries every 125 s by default (RFC 3376, section 8.2). Who heard none for this time has no querier.
const QUERY_PATIENCE: Duration = Duration::from_secs(135);
/// The share of lost packets that is worth a word.
const LOSS_WORTH_A_WORD: f64 = 0.005;
/// Least packets of each smaller size that must have arrived before the larger ones count as lost by their size.
const ARRIVED_MIN: u32 = 8;
/// A UDP port of the groups; reports go to [`REPORT_PORTS`].
const GROUP_PORT: u16 = 7718;
const REPORT_PORTS: &str = "7719-7818";

/// How to turn on a querier for IPv4.
const IGMP_QUERIERS: &[&str] = &[
    "Cisco IOS:      ip igmp snooping querier",
    "Aruba/ProCurve: vlan 1 ip igmp querier",
    "Juniper:        set protocols igmp-snooping vlan all l2-querier source-address ADDRESS",
    "MikroTik:       /interface bridge set [find] igmp-snooping=yes multicast-querier=yes",
    "Linux bridge:   ip link set br0 type bridge mcast_querier 1",
    "a web page:     Multicast or IGMP snooping, Querier: enable, on one switch of the network",
];

/// How to turn on a querier for IPv6.
const MLD_QUERIERS: &[&str] = &[
    "Aruba/ProCurve: vlan 1 ipv6 mld querier",
    "MikroTik:       /interface bridge set [find] igmp-snooping=yes multicast-querier=yes",
    "Linux bridge:   ip link set br0 type bridge mcast_querier 1",
    "others:         MLD snooping, Querier: enable, on one switch of the network",
];

/// What is known of the way between this machine and its server.
pub(super) struct Observed<'a> {
    /// This machine's interface towards the server.
    pub(super) interface: &'a Interface,
    /// Whether the server is in the interface's own network.
    pub(super) is_local: bool,
    /// Whether the server is this machine.
    pub(super) is_here: bool,
    /// The address from which the server got the request, if it is none of this machine's.
    pub(super) seen_as: Option<IpAddr>,
    /// Time to live of the server's packets.
    pub(super) ttl: u8,
    /// Whether the group is one of IPv4.
    pub(super) ipv4: bool,
    pub(super) heard: &'a Heard,
}

/// What differs between IPv4 and IPv6.
struct Family {
    /// By which machines say which groups they want.
    protocol: &'static str,
    may_it_send: &'static str,
    queriers: &'static [&'static str],
    /// All groups, as nft says it.
    groups: &'static str,
    /// The groups of a server as it is by default.
    network: &'static str,
}

const IPV4: Family = Family {
    protocol: "IGMP",
    may_it_send: "on this machine: may it send IGMP? nft list ruleset (ip protocol igmp, output)",
    queriers: IGMP_QUERIERS,
    groups: "ip daddr 239.0.0.0/8",
    network: "239.0.0.0/8",
};
const IPV6: Family = Family {
    protocol: "MLD",
    may_it_send: "on this machine: may it send MLD? nft list ruleset (icmpv6 type mld2-listener-report, output)",
    queriers: MLD_QUERIERS,
    groups: "ip6 daddr { ff12::/16, ff15::/16 }",
    network: "ff12::/16",
};

impl Observed<'_> {
    const fn family(&self) -> Family {
        if self.ipv4 { IPV4 } else { IPV6 }
    }
}

/// A fault, or something that will become one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// Its name, for programs.
    pub(super) fault: &'static str,
    /// What is wrong.
    pub(super) what: String,
    /// What follows for a fetch.
    pub(super) so: &'static str,
    /// What to do, each on a line of its own.
    pub(super) try_this: Vec<String>,
}

const BY_UNICAST: &str =
    "Fetches get the image by unicast: right, but each machine takes its own copy from the server.";

impl Finding {
    fn new(fault: &'static str, what: impl Into<String>, so: &'static str, try_this: &[&str]) -> Self {
        let try_this = try_this.iter().map(|&line| line.to_owned()).collect();
        Self { fault, what: what.into(), so, try_this }
    }
}

/// Everything that is wrong, the worst first.
pub(super) fn findings(observed: &Observed<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let Observed { interface, heard, .. } = observed;
    if observed.is_here {
        found.push(Finding::new(
            "loopback",
            "the server is this machine: nothing passed a network, so this says nothing about it",
            "Run the doctor on a machine that is to fetch.",
            &[],
        ));
        return found;
    }
    if !interface.multicast {
        found.push(Finding::new(
            "interface",
            format!("interface {} is not made for multicast (it lacks the flag MULTICAST)", interface.name),
            BY_UNICAST,
            &[&format!("ip link set {} multicast on", interface.name)],
        ));
    }
    found.extend(address(observed));
    found.extend(arrival(observed));
    // What helps against the first helps against the second.
    found.extend(sizes(heard).or_else(|| sizes_to_server(observed)));
    found.extend(reports(heard));
    found.extend(duration(observed));
    found
}

fn address(observed: &Observed<'_>) -> Option<Finding> {
    let seen_as = observed.seen_as?;
    Some(Finding::new(
        "nat",
        format!("the server sees this machine as {seen_as}: a router between them changes addresses (NAT)"),
        BY_UNICAST,
        &["put the server into the machines' network, or run a second `diskcast serve` there"],
    ))
}

fn arrival(observed: &Observed<'_>) -> Option<Finding> {
    let heard = observed.heard;
    if heard.rounds > 0 {
        return None;
    }
    if heard.reached.is_some_and(|packets| packets > 0) {
        let name = &observed.interface.name;
        let Family { groups, network, .. } = observed.family();
        return Some(Finding::new(
            "local-firewall",
            format!("multicast reaches {name}, but a firewall on this machine drops it"),
            BY_UNICAST,
            &[
                &format!("nft insert rule inet filter input udp dport {GROUP_PORT} {groups} accept"),
                &format!("firewall-cmd --add-port={GROUP_PORT}/udp --permanent && firewall-cmd --reload"),
                &format!("ufw allow in proto udp to {network} port {GROUP_PORT}"),
            ],
        ));
    }
    if !observed.is_local && observed.seen_as.is_none() {
        let (what, first) = match observed.ttl {
            1 => (
                "the server is behind a router, and its packets stay in its own network (--ttl 1)",
                "on the server: diskcast serve --ttl 4",
            ),
            _ => (
                "the server is behind a router that does not forward multicast",
                "on the routers between: multicast routing (PIM)",
            ),
        };
        return Some(Finding::new(
            "router",
            what,
            BY_UNICAST,
            &[first, "or put the server into the machines' network"],
        ));
    }
    if observed.seen_as.is_some() {
        return None;
    }
    Some(Finding::new(
        "no-multicast",
        "no multicast arrives at this machine",
        BY_UNICAST,
        &[
            "on the switches: look for multicast filters, storm control, or client isolation of Wi-Fi",
            "on the server: is another interface better? diskcast serve --interface NAME",
            &format!("on the server: may it send? nft list ruleset (udp dport {GROUP_PORT}, output)"),
            observed.family().may_it_send,
        ],
    ))
}

fn sizes(heard: &Heard) -> Option<Finding> {
    let rounds = (heard.last_round - heard.first_round).saturating_add(1);
    let (arrived, missing, largest) = limit_of(&heard.sizes, rounds)?;
    Some(Finding::new(
        "mtu",
        format!(
            "packets of {arrived} bytes arrive, those of {missing} do not: something on the way carries less than the \
             server's MTU of {largest}"
        ),
        "Fetches hear the group but no data. They get the image by unicast, in small packets, after some seconds.",
        &[
            &format!("on the server: ip link set INTERFACE mtu {arrived}"),
            "or raise the MTU of the switch, tunnel or bridge between",
        ],
    ))
}

/// The same for what this machine sends.
fn sizes_to_server(observed: &Observed<'_>) -> Option<Finding> {
    let Observed { heard, interface, .. } = observed;
    let (arrived, missing, largest) = limit_of(&heard.sizes_at_server, heard.reports_sent)?;
    Some(Finding::new(
        "mtu-to-server",
        format!(
            "this machine's packets of {arrived} bytes reach the server, those of {missing} do not: something on the \
             way carries less than {largest}"
        ),
        "Uploads from this machine pause for some seconds at first, and go on in small packets.",
        &[
            &format!("on this machine: ip link set {} mtu {arrived}", interface.name),
            "or raise the MTU of the switch, tunnel or bridge between",
        ],
    ))
}

/// The largest size that arrived, the next one, and the largest that was sent; `None` if that one arrived, or nothing
/// did. In each of `rounds` all sizes were sent. A network that is merely busy loses packets of each: so of those that
/// arrive half must have, and some, or the others may have been lost by chance.
fn limit_of(sizes: &BTreeMap<u16, u32>, rounds: u32) -> Option<(u16, u16, u16)> {
    let fewest = *sizes.values().filter(|count| **count > 0).min()?;
    if fewest < ARRIVED_MIN || fewest < rounds / 2 {
        return None;
    }
    let arrived = *sizes.iter().rfind(|(_, count)| **count > 0)?.0;
    let (&missing, _) = sizes.range(arrived + 1..).next()?;
    Some((arrived, missing, *sizes.last_key_value()?.0))
}

fn reports(heard: &Heard) -> Option<Finding> {
    let (sent, arrived) = (heard.reports_sent, heard.reports_arrived);
    if sent < 10 || arrived * 2 > sent {
        return None;
    }
    let what = match arrived {
        0 => "none of this machine's reports (UDP) reaches the server".to_owned(),
        _ => format!("only {arrived} of {sent} of this machine's reports (UDP) reach the server"),
    };
    Some(Finding::new(
        "reports",
        what,
        BY_UNICAST,
        &[
            &format!("on the server: nft insert rule inet filter input udp dport {REPORT_PORTS} accept"),
            &format!("or: firewall-cmd --add-port={REPORT_PORTS}/udp --permanent && firewall-cmd --reload"),
        ],
    ))
}

fn duration(observed: &Observed<'_>) -> Option<Finding> {
    let (heard, family) = (observed.heard, observed.family());
    let queries_every = heard.querier.and_then(|querier| querier.interval);
    if let Some(stopped) = heard.stopped_after {
        let after = show_seconds(stopped.as_secs());
        if heard.came_back != Some(true) {
            let what = format!("multicast stopped arriving after {after}, and did not come back");
            let look = "look at the switch and the cable; run the doctor again";
            return Some(Finding::new("stopped", what, BY_UNICAST, &[look]));
        }
        let so = "Fetches that take longer pause for some seconds each time, join again, and go on.";
        if heard.querier.is_none() && heard.reached.is_some() {
            return Some(Finding::new(
                "no-querier",
                format!(
                    "after {after} the switch forgot that this machine wants multicast, until it joined again: {} \
                     snooping is on, and nothing in the network asks who wants what (a querier)",
                    family.protocol
                ),
                so,
                family.queriers,
            ));
        }
        let what = match queries_every {
            Some(interval) => format!(
                "after {after} the switch forgot that this machine wants multicast, although it is asked every {}",
                show_seconds(interval.as_secs())
            ),
            None => format!(
                "after {after} the switch forgot that this machine wants multicast, until it joined again"
            ),
        };
        let mut lines = vec![
            family.may_it_send,
            "on the switch: the membership timeout must be longer than two query intervals",
        ];
        if heard.querier.is_none() {
            lines.push("run the doctor as root: it then looks for the querier");
        }
        return Some(Finding::new("membership", what, so, &lines));
    }
    if let Some(loss) = heard.loss().filter(|&loss| loss > LOSS_WORTH_A_WORD) {
        let what = format!("{:.1} % of the packets are lost on an idle network", loss * 100.0);
        let so = "Fetches repair this, and take longer.";
        let look = "look at cables, ports (ethtool -S), duplex, and Wi-Fi";
        return Some(Finding::new("loss", what, so, &[look]));
    }
    let is_silent = heard.rounds > 0 && heard.reached.is_some() && heard.querier.is_none();
    (is_silent && heard.time >= QUERY_PATIENCE).then(|| {
        Finding::new(
            "querier-unheard",
            "nothing in the network asks who wants multicast (a querier)",
            "All is well while switches flood multicast. With snooping it will stop after minutes.",
            family.queriers,
        )
    })
}

#[cfg(test)]
mod tests {
    use net::probe::Querier;

    use super::*;

    fn well() -> Heard {
        Heard {
            time: Duration::from_secs(20),
            rounds_sent: 100,
            sizes: BTreeMap::from([(100, 100), (1400, 100), (1500, 100)]),
            rounds: 100,
            last_round: 101,
            between: 300,
            reached: Some(300),
            reports_sent: 100,
            reports_arrived: 100,
            ..Heard::default()
        }
    }

    fn found(heard: &Heard, change: impl FnOnce(&mut Observed<'_>)) -> Vec<&'static str> {
        let interface = Interface {
            name: "eth0".into(),
            index: 2,
            addresses: vec!["10.0.0.2".parse().unwrap()],
            network: None,
            card: None,
            up: true,
            multicast: true,
            loopback: false,
        };
        let mut observed = Observed {
            interface: &interface,
            is_local: true,
            is_here: false,
            seen_as: None,
            ttl: 1,
            ipv4: true,
            heard,
        };
        change(&mut observed);
        let found = findings(&observed);
        observed.ipv4 = false;
        // What is said of IPv6 says nothing of IPv4, except in names of settings.
        for line in findings(&observed).iter().flat_map(|one| one.try_this.iter().chain([&one.what])) {
            let line = line.replace("igmp-snooping=yes", "");
            assert!(!line.to_lowercase().contains("igmp") && !line.contains("239."), "{line}");
        }
        found.iter().map(|finding| finding.fault).collect()
    }

    #[test]
    fn each_fault_is_named_and_a_healthy_network_has_none() {
        let all_well = |_: &mut Observed<'_>| ();
        assert!(found(&well(), all_well).is_empty());
        let deaf =
            Heard { rounds: 0, sizes: BTreeMap::from([(100, 0), (1500, 0)]), reached: Some(0), ..well() };
        assert_eq!(found(&deaf, all_well), ["no-multicast"]);
        assert_eq!(found(&deaf, |observed| observed.is_local = false), ["router"]);
        assert_eq!(found(&Heard { reached: Some(5), ..deaf.clone() }, all_well), ["local-firewall"]);
        let natted = |observed: &mut Observed<'_>| observed.seen_as = Some("192.0.2.1".parse().unwrap());
        assert_eq!(found(&Heard { reports_arrived: 100, ..deaf.clone() }, natted), ["nat"]);
        let narrow = Heard { sizes: BTreeMap::from([(100, 100), (1400, 99), (1500, 0)]), ..well() };
        assert_eq!(found(&narrow, all_well), ["mtu"]);
        // Of most rounds nothing arrived, and of few rounds the largest may be missing by chance.
        let busy = BTreeMap::from([(100, 30), (1400, 12), (1500, 0)]);
        let few = BTreeMap::from([(100, 6), (1400, 6), (1500, 0)]);
        for (sizes, last_round) in [(busy.clone(), 101), (few.clone(), 6)] {
            assert!(!found(&Heard { sizes, last_round, ..well() }, all_well).contains(&"mtu"));
        }
        for (sizes_at_server, reports_sent) in [(busy, 100), (few, 6)] {
            let heard = Heard { sizes_at_server, reports_sent, ..well() };
            assert!(!found(&heard, all_well).contains(&"mtu-to-server"));
        }
        let one_way = Heard { sizes_at_server: narrow.sizes, ..well() };
        assert_eq!(found(&one_way, all_well), ["mtu-to-server"]);
        assert_eq!(found(&Heard { reports_arrived: 0, ..well() }, all_well), ["reports"]);
        let stops = Heard { stopped_after: Some(Duration::from_secs(9)), came_back: Some(true), ..well() };
        assert_eq!(found(&stops, all_well), ["no-querier"]);
        assert_eq!(found(&Heard { came_back: Some(false), ..stops.clone() }, all_well), ["stopped"]);
        let querier = Querier { address: "10.0.0.1".parse().unwrap(), queries: 3, interval: None };
        assert_eq!(found(&Heard { querier: Some(querier), ..stops.clone() }, all_well), ["membership"]);
        assert_eq!(found(&Heard { reached: None, ..stops }, all_well), ["membership"]);
        let lossy = Heard { between: 290, ..well() };
        assert_eq!(found(&lossy, all_well), ["loss"]);
        assert_eq!(found(&Heard { time: Duration::from_secs(200), ..well() }, all_well), ["querier-unheard"]);
        assert_eq!(found(&well(), |observed| observed.is_here = true), ["loopback"]);
    }
}
