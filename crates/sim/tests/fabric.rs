//! Tests of the simulated network of switches: where packets are dropped, what limits a sum, and that transfers agree
//! with packets.

use base::{Duration, Instant};
use sim::fabric::{Flows, Group, Line, Packets, Place, Port, Target, Topology};

const GIGABIT: u64 = 1_000_000_000;
const PACKET_BYTES: u64 = 1538;
const GROUP: Group = Group(0);

fn line(bits_per_second: u64) -> Line {
    Line::new(bits_per_second, Duration::from_micros(10), 64 << 10)
}

/// `racks` switches below the top with `hosts` each; ports of 1 Gbit/s, and uplinks of `uplink` bit/s.
fn racks(racks: usize, hosts: usize, uplink: u64) -> (Topology, Vec<Place>, Vec<Vec<Place>>) {
    racks_with(racks, hosts, uplink, line(GIGABIT).queue_bytes)
}

fn racks_with(
    racks: usize,
    hosts: usize,
    uplink: u64,
    queue_bytes: u64,
) -> (Topology, Vec<Place>, Vec<Vec<Place>>) {
    let line = |rate| Line { queue_bytes, ..line(rate) };
    let mut tree = Topology::new();
    let mut add = |_| {
        let switch = tree.add_switch(Topology::top(), line(uplink), line(uplink));
        let hosts = (0..hosts).map(|_| tree.add_host(switch, line(GIGABIT), line(GIGABIT))).collect();
        (switch, hosts)
    };
    let (switches, hosts) = (0..racks).map(&mut add).unzip();
    (tree, switches, hosts)
}

/// Each sender sends `packets` at the full rate of its port. Returns how many arrived, and when the last of each did.
fn blast(net: &mut Packets<usize>, pairs: &[(Place, Target)], packets: u32) -> (u64, Vec<Instant>) {
    const SENDS: usize = usize::MAX / 2;
    let gap = line(GIGABIT).time(PACKET_BYTES);
    for (index, &(from, _)) in pairs.iter().enumerate() {
        for number in 0..packets {
            net.schedule(Instant::ZERO + gap * number, from, SENDS + index);
        }
    }
    let (mut arrived, mut last) = (0, vec![Instant::ZERO; pairs.len()]);
    while let Some((_, event)) = net.advance() {
        if event >= SENDS {
            let (from, target) = pairs[event - SENDS];
            net.send(from, target, PACKET_BYTES, &(event - SENDS));
        } else {
            (arrived, last[event]) = (arrived + 1, net.now());
        }
    }
    (arrived, last)
}

#[test]
fn incast_drops_at_the_port_of_the_receiver_and_only_there() {
    let (tree, switches, hosts) = racks(2, 8, 10 * GIGABIT);
    let to = hosts[0][0];
    let pairs: Vec<_> = hosts.iter().flatten().skip(1).map(|&from| (from, Target::One(to))).collect();
    let mut net = Packets::new(tree);
    let (arrived, _) = blast(&mut net, &pairs, 200);
    let dropped = net.traffic(Port::down(to)).drops;
    assert_eq!(arrived + dropped, 15 * 200);
    assert!(dropped > 15 * 200 * 8 / 10, "15 senders for one port: {dropped} dropped");
    let uplinks = switches.iter().flat_map(|&switch| [Port::up(switch), Port::down(switch)]);
    let senders = pairs.iter().map(|&(from, _)| Port::up(from));
    for port in uplinks.chain(senders) {
        assert_eq!((net.traffic(port).drops, net.traffic(port).drop_bytes), (0, 0), "{port:?}");
    }
    assert_eq!(net.traffic(Port::up(pairs[0].0)).bytes, 200 * PACKET_BYTES);
}

#[test]
fn one_sender_at_the_rate_of_a_port_loses_nothing() {
    let (tree, _, hosts) = racks(1, 2, GIGABIT);
    let mut net = Packets::new(tree);
    let (arrived, last) = blast(&mut net, &[(hosts[0][0], Target::One(hosts[0][1]))], 1000);
    assert_eq!(arrived, 1000);
    // The last packet leaves after 1000 packet times, and passes one more port and two links.
    let expected = Instant::ZERO + line(GIGABIT).time(PACKET_BYTES) * 1001 + Duration::from_micros(20);
    assert_eq!(last, [expected]);
}

#[test]
fn a_shared_uplink_limits_the_sum() {
    let (tree, switches, hosts) = racks(2, 8, 2 * GIGABIT);
    let pairs: Vec<_> = hosts[0].iter().copied().zip(hosts[1].iter().map(|&to| Target::One(to))).collect();
    let mut net = Packets::new(tree);
    let (arrived, last) = blast(&mut net, &pairs, 2000);
    let seconds = last.iter().max().unwrap().0 as f64 / 1e9;
    let rate = arrived as f64 * PACKET_BYTES as f64 * 8.0 / seconds / GIGABIT as f64;
    assert!((1.9..=2.1).contains(&rate), "8 senders over an uplink of 2 Gbit/s: {rate} Gbit/s");
    assert_eq!(net.traffic(Port::up(switches[0])).drops, 8 * 2000 - arrived);
    assert_eq!(net.traffic(Port::up(switches[1])).packets, 0);
}

#[test]
fn delay_adds_up_along_a_path() {
    let (tree, _, hosts) = racks(2, 1, GIGABIT);
    let expected = tree.delay(hosts[0][0], hosts[1][0]) + line(GIGABIT).time(PACKET_BYTES) * 4;
    let mut net = Packets::new(tree);
    let (_, last) = blast(&mut net, &[(hosts[0][0], Target::One(hosts[1][0]))], 1);
    assert_eq!(last, [Instant::ZERO + expected]);
    assert_eq!(expected, Duration::from_nanos(40_000 + 4 * 12_304));
}

#[test]
fn multicast_crosses_each_link_once() {
    let (tree, switches, hosts) = racks(3, 4, 10 * GIGABIT);
    let mut net = Packets::new(tree.clone());
    let mut flows = Flows::new(tree);
    // All of rack 0 with the sender, half of rack 1, nobody in rack 2.
    for &host in hosts[0].iter().chain(&hosts[1][..3]) {
        net.join(GROUP, host);
        flows.join(GROUP, host);
    }
    net.leave(GROUP, hosts[1][2]);
    flows.leave(GROUP, hosts[1][2]);
    let (arrived, _) = blast(&mut net, &[(hosts[0][0], Target::All(GROUP))], 10);
    assert_eq!(arrived, 5 * 10);
    for _ in 0..10 {
        flows.send(hosts[0][0], Target::All(GROUP), PACKET_BYTES, ());
    }
    assert_eq!(std::iter::from_fn(|| flows.advance()).count(), 5 * 10);
    let count = |port| {
        assert_eq!(net.traffic(port).packets, flows.traffic(port).packets);
        net.traffic(port).packets
    };
    let down = |hosts: &[Place]| hosts.iter().map(|&host| count(Port::down(host))).collect::<Vec<_>>();
    assert_eq!(down(&hosts[0]), [0, 10, 10, 10]);
    assert_eq!(down(&hosts[1]), [10, 10, 0, 0]);
    assert_eq!([count(Port::up(switches[0])), count(Port::up(switches[1]))], [10, 0]);
    assert_eq!(switches.iter().map(|&switch| count(Port::down(switch))).collect::<Vec<_>>(), [0, 10, 0]);
}

/// Sends 20 chunks for each pair, as packets and as transfers, and compares when the last byte of each arrives.
fn agree(tree: &Topology, pairs: &[(Place, Target)], members: &[Place], within: f64) {
    const CHUNKS: u32 = 20;
    const PACKETS: u32 = 64;
    let (mut packets, mut flows) = (Packets::new(tree.clone()), Flows::new(tree.clone()));
    members.iter().for_each(|&host| packets.join(GROUP, host));
    members.iter().for_each(|&host| flows.join(GROUP, host));
    for _ in 0..CHUNKS {
        for (index, &(from, target)) in pairs.iter().enumerate() {
            flows.send(from, target, u64::from(PACKETS) * PACKET_BYTES, index);
        }
    }
    let (_, by_packets) = blast(&mut packets, pairs, CHUNKS * PACKETS);
    let mut by_flows = vec![Instant::ZERO; pairs.len()];
    while let Some((_, index)) = flows.advance() {
        by_flows[index] = flows.now();
    }
    for (index, (packets, flows)) in by_packets.iter().zip(&by_flows).enumerate() {
        let ratio = flows.0 as f64 / packets.0 as f64;
        assert!((ratio - 1.0).abs() < within, "pair {index}: {flows:?} by flows, {packets:?} by packets");
    }
}

#[test]
fn transfers_take_as_long_as_their_packets() {
    let (tree, _, hosts) = racks_with(2, 8, 2 * GIGABIT, 1 << 40);
    let [near, far] = [&hosts[0], &hosts[1]];
    let one = |from, to| (from, Target::One(to));
    agree(&tree, &[one(near[0], near[1])], &[], 0.02);
    agree(&tree, &[one(near[0], far[0])], &[], 0.02);
    // Four senders for one receiver, then eight over the uplink, then both at once.
    let incast: Vec<_> = (1..5).map(|from| one(near[from], near[0])).collect();
    agree(&tree, &incast, &[], 0.05);
    let across: Vec<_> = near.iter().zip(far).map(|(&from, &to)| one(from, to)).collect();
    agree(&tree, &across, &[], 0.05);
    let both: Vec<_> = incast.into_iter().chain((5..8).map(|from| one(near[from], far[from]))).collect();
    agree(&tree, &both, &[], 0.05);
    // A multicast to all, alone and beside a transfer for one of its members.
    let cast = (near[0], Target::All(GROUP));
    let members: Vec<Place> = hosts.iter().flatten().copied().collect();
    agree(&tree, &[cast], &members, 0.02);
    agree(&tree, &[cast, one(near[1], far[0])], &members, 0.05);
}

#[test]
fn equal_calls_give_equal_runs() {
    let run = || {
        let (tree, _, hosts) = racks(2, 8, 2 * GIGABIT);
        let pairs: Vec<_> = hosts[0].iter().map(|&from| (from, Target::One(hosts[1][0]))).collect();
        blast(&mut Packets::new(tree), &pairs, 100)
    };
    assert_eq!(run(), run());
}
