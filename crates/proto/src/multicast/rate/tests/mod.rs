//! Tests of the rate in a simulated network: what it finds, how it shares, and how it competes with TCP.
//!
//! `RATE_TRACE=1 cargo test -p diskcast-proto rate::tests::NAME -- --nocapture` prints the results, and rates and
//! queue every 25 ms.
#![expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

mod law;
mod net;
mod slow;
mod tcp;

use base::{Duration, Instant};

use self::net::{MS, Net, PACKET, Port, SECOND};
use super::{Feedback, OwnShare, Rate, RateConfig};
use crate::multicast::wire::header::ReceiverId;

const M: f64 = 1e6;
const KIB: u64 = 1 << 10;

/// A network card that is never the limit.
fn fast() -> Port {
    Port::new(100e9, 1 << 30)
}

/// What was delivered to the first host, from one time to another.
#[derive(Debug)]
#[expect(dead_code, reason = "printed when an assertion fails")]
struct Outcome {
    what: String,
    /// Parts of the link, by server and by TCP flow.
    rates: Vec<f64>,
    flows: Vec<f64>,
    sum: f64,
    jain: f64,
    /// Coefficient of variation of the rates of 100 ms, of each server.
    variation: Vec<f64>,
    lost: Vec<f64>,
}

fn outcome(what: String, net: &Net, from_ms: u64, to_ms: u64, link: f64) -> Outcome {
    let servers = 0..net.servers.len();
    let rates: Vec<f64> = servers.clone().map(|server| net.mean(server, 0, from_ms, to_ms) / link).collect();
    let flows: Vec<f64> = net.flows.iter().map(|(_, flow)| flow.mean(from_ms, to_ms) / link).collect();
    let sum: f64 = rates.iter().chain(&flows).sum();
    let own: f64 = rates.iter().sum();
    let outcome = Outcome {
        what,
        sum,
        jain: own * own / (rates.len() as f64 * rates.iter().map(|rate| rate * rate).sum::<f64>()),
        variation: servers
            .clone()
            .map(|server| variation(&net.delivered(server, 0, from_ms, to_ms)))
            .collect(),
        lost: servers.map(|server| net.lost(server, 0)).collect(),
        rates,
        flows,
    };
    net.say(&format!("{outcome:.3?}"));
    outcome
}

/// Coefficient of variation.
fn variation(values: &[u64]) -> f64 {
    let mean = values.iter().sum::<u64>() as f64 / values.len() as f64;
    let square = values.iter().map(|v| (*v as f64 - mean).powi(2)).sum::<f64>() / values.len() as f64;
    square.sqrt() / mean
}

#[test]
fn finds_a_free_link_within_150_ms_and_fills_it() {
    for (link, buffer, hosts) in [
        (100.0 * M, 256 * KIB, 1),
        (100.0 * M, 256 * KIB, 16),
        (130.0 * M, 128 * KIB, 4),
        (190.0 * M, 1024 * KIB, 2),
        (1000.0 * M, 512 * KIB, 1),
        (1000.0 * M, 512 * KIB, 8),
        (2500.0 * M, 1024 * KIB, 1),
        (10_000.0 * M, 2048 * KIB, 1),
    ] {
        let mut net = Net::new(&vec![Port::new(link, buffer); hosts]);
        net.server(0, 100_000_000, fast());
        net.run(if link > 5e9 { 900 * MS } else { 3000 * MS });
        let what = format!("{} Mbit/s {} KiB {hosts} hosts", link / M, buffer / KIB);
        let early = outcome(what.clone(), &net, 100, 300, link);
        net.demand(early.sum > 0.95, &early);
        let late = outcome(what, &net, 200, (net.now - SECOND) / MS, link);
        net.demand(late.sum > 0.97 && late.variation[0] < 0.1 && late.lost[0] < 0.02, &late);
    }
}

#[test]
fn starts_ten_times_too_fast_and_recovers() {
    let mut net = Net::new(&[Port::new(10.0 * M, 256 * KIB)]);
    net.server(0, 100_000_000, fast());
    net.run(4000 * MS);
    let outcome = outcome("10 Mbit/s".into(), &net, 500, 4000, 10.0 * M);
    net.demand(outcome.sum > 0.95 && outcome.lost[0] < 0.01, &outcome);
}

#[test]
fn servers_that_share_a_port_share_it_fairly() {
    for (link, buffer, hosts, servers) in [
        (10.0 * M, 128 * KIB, 1, 2),
        (100.0 * M, 64 * KIB, 1, 2),
        (100.0 * M, 1024 * KIB, 1, 2),
        (100.0 * M, 1024 * KIB, 4, 2),
        (100.0 * M, 256 * KIB, 16, 2),
        (100.0 * M, 256 * KIB, 4, 4),
        (400.0 * M, 1024 * KIB, 4, 2),
        (1000.0 * M, 1024 * KIB, 4, 2),
    ] {
        for gap in [0, 2000 * MS] {
            let mut net = Net::new(&vec![Port::new(link, buffer); hosts]);
            for server in 0..servers {
                net.server(server * gap, (link as u64).min(100_000_000), Port::new(link * 4.0, 192 * KIB));
            }
            net.run(servers * gap + 8 * SECOND);
            let begin = (servers - 1) * gap / MS;
            let what = format!(
                "{} Mbit/s {} KiB {hosts} hosts {servers} servers, {} ms apart",
                link / M,
                buffer / KIB,
                gap / MS
            );
            let outcome = outcome(what, &net, begin + 1000, begin + 8000, link);
            net.demand(outcome.sum > 0.9 && outcome.jain > 0.85, &outcome);
        }
    }
}

#[test]
fn two_servers_share_a_port_before_a_short_transfer_is_over() {
    let mut jains = vec![];
    for busy in [false, true] {
        for gap in [0, 10, 20, 35, 50, 100, 200] {
            let mut net = Net::new(&vec![Port::new(1000.0 * M, 1024 * KIB); 4]);
            net.hosts.iter_mut().for_each(|host| host.busy = busy);
            for server in 0..2 {
                net.server(server * gap * MS, 250_000_000, Port::new(1000.0 * M, 192 * KIB));
            }
            net.run(2300 * MS);
            let what = format!("{gap} ms apart, {}", if busy { "busy" } else { "quiet" });
            let outcome = outcome(what, &net, 1000, 2300, 1000.0 * M);
            net.demand(outcome.sum > 0.95 && outcome.jain > 0.85, &outcome);
            jains.push(outcome.jain);
        }
    }
    let mean = jains.iter().sum::<f64>() / jains.len() as f64;
    assert!(mean > 0.92, "{jains:.2?}");
}

#[test]
fn neither_loss_by_chance_nor_busy_receivers_are_congestion() {
    for (name, loss, busy, link) in [
        ("loss 1 %", 10_000, false, 100.0 * M),
        ("loss 10 %", 100_000, false, 100.0 * M),
        ("loss 1 %", 10_000, false, 1000.0 * M),
        ("busy", 0, true, 100.0 * M),
        ("busy", 0, true, 1000.0 * M),
        ("busy, loss 1 %", 10_000, true, 100.0 * M),
        ("busy, loss 10 %", 100_000, true, 100.0 * M),
    ] {
        for hosts in [1, 4, 16] {
            let mut port = Port::new(link, 512 * KIB);
            port.loss_per_million = loss;
            let mut net = Net::new(&vec![port; hosts]);
            net.hosts.iter_mut().for_each(|host| host.busy = busy);
            net.server(0, 100_000_000, fast());
            net.run(5 * SECOND);
            let what = format!("{} Mbit/s {name} {hosts} hosts", link / M);
            let known = net.servers[0].rate.loss_per_million();
            let outcome = outcome(what, &net, 200, 5000, link);
            let chance = f64::from(loss) / 1e6;
            net.demand(outcome.sum > 0.92 * (1.0 - chance), &outcome);
            assert!((f64::from(known) / 1e6 - chance).abs() < 0.003 + 0.2 * chance, "{known} {outcome:#?}");
        }
    }
}

#[test]
fn a_server_whose_processor_is_busy_is_no_congestion() {
    for (late_ms, link, least) in [
        (5, 100.0 * M, 0.9),
        (25, 100.0 * M, 0.6),
        (25, 30.0 * M, 0.8),
        (60, 30.0 * M, 0.7),
        (60, 100.0 * M, 0.3),
        (5, 1000.0 * M, 0.5),
    ] {
        for (hosts, busy) in [(1, false), (3, false), (3, true), (16, false)] {
            let mut net = Net::new(&vec![Port::new(link, 512 * KIB); hosts]);
            net.hosts.iter_mut().for_each(|host| host.busy = busy);
            net.server(0, 100_000_000, Port::new(link, 512 * KIB)).late = late_ms * MS;
            net.run(8 * SECOND);
            let what = format!("{} Mbit/s, late by {late_ms} ms, {hosts} hosts, busy {busy}", link / M);
            let outcome = outcome(what, &net, 1000, 8000, link);
            net.demand(outcome.sum > least, &outcome);
        }
    }
}

#[test]
fn loss_by_chance_that_begins_later_is_no_congestion_for_long() {
    for (loss, hosts) in [(30_000, 1), (100_000, 1), (100_000, 16)] {
        let mut net = Net::new(&vec![Port::new(100.0 * M, 512 * KIB); hosts]);
        net.server(0, 100_000_000, fast());
        net.run(4 * SECOND);
        net.hosts.iter_mut().for_each(|host| host.port.loss_per_million = loss);
        net.run(7 * SECOND);
        let outcome = outcome(format!("{loss} {hosts} hosts"), &net, 8000, 11_000, 100.0 * M);
        net.demand(outcome.sum > 0.95 * (1.0 - f64::from(loss) / 1e6), &outcome);
    }
}

#[test]
fn small_buffers_do_with_little_loss() {
    for (link, buffer, hosts) in [
        (100.0 * M, 32 * KIB, 1),
        (100.0 * M, 64 * KIB, 1),
        (100.0 * M, 64 * KIB, 16),
        (1000.0 * M, 64 * KIB, 1),
        (1000.0 * M, 64 * KIB, 16),
    ] {
        let mut net = Net::new(&vec![Port::new(link, buffer); hosts]);
        net.server(0, 100_000_000, Port::new(10e9, 192 * KIB));
        net.run(4 * SECOND);
        let what = format!("{} Mbit/s {} KiB {hosts} hosts", link / M, buffer / KIB);
        let outcome = outcome(what, &net, 200, 4000, link);
        net.demand(outcome.sum > 0.95 && outcome.lost[0] < 0.02, &outcome);
    }
}

#[test]
fn a_slow_card_is_kept_busy() {
    for (link, card, hosts) in [
        (10.0 * M, 10.0 * M, 1),
        (100.0 * M, 100.0 * M, 1),
        (100.0 * M, 100.0 * M, 16),
        (1000.0 * M, 400.0 * M, 8),
        (1000.0 * M, 1000.0 * M, 8),
    ] {
        let mut net = Net::new(&vec![Port::new(link, 1024 * KIB); hosts]);
        net.server(0, 100_000_000, Port::new(card, 192 * KIB));
        net.run(4 * SECOND);
        let what = format!("{} Mbit/s, card {}, {hosts} hosts", link / M, card / M);
        let outcome = outcome(what, &net, 200, 4000, card);
        net.demand(outcome.sum > 0.97 && outcome.lost[0] == 0.0, &outcome);
    }
}

#[test]
fn machines_that_read_slowly_are_not_overrun() {
    for (reads, buffer, hosts) in
        [(40.0 * M, 4096 * KIB, 3), (40.0 * M, 208 * KIB, 3), (200.0 * M, 4096 * KIB, 16)]
    {
        let mut net = Net::new(&vec![Port::new(1000.0 * M, 512 * KIB); hosts]);
        net.hosts.iter_mut().for_each(|host| host.socket = Some(Port::new(reads, buffer)));
        net.server(0, 100_000_000, fast());
        net.run(6 * SECOND);
        let what = format!("{hosts} hosts read {} Mbit/s, sockets of {} KiB", reads / M, buffer / KIB);
        let outcome = outcome(what, &net, 1000, 6000, reads);
        net.demand(outcome.sum > 0.9 && outcome.lost[0] < 0.02, &outcome);
    }
}

#[test]
fn follows_a_link_that_changes() {
    let mut net = Net::new(&[Port::new(100.0 * M, 256 * KIB)]);
    net.server(0, 100_000_000, fast());
    net.run(2 * SECOND);
    net.hosts[0].port.rate = 1000.0 * M;
    net.run(4 * SECOND);
    let up = outcome("100 to 1000".into(), &net, 4000, 6000, 1000.0 * M);
    net.demand(up.sum > 0.9, &up);
    net.hosts[0].port.rate = 100.0 * M;
    net.run(2 * SECOND);
    let down = outcome("1000 to 100".into(), &net, 6200, 8000, 100.0 * M);
    net.demand(down.sum > 0.95, &down);
}

#[test]
fn beside_tcp_each_gets_its_part() {
    for (link, buffer) in [(100.0 * M, 256 * KIB), (100.0 * M, 1024 * KIB), (1000.0 * M, 1024 * KIB)] {
        for (server, tcp) in [(0, 2 * SECOND), (2 * SECOND, 0)] {
            let mut net = Net::new(&[Port::new(link, buffer)]);
            net.server(server, 100_000_000, fast());
            net.tcp(tcp, 0);
            net.run(22 * SECOND);
            let what = format!("{} Mbit/s {} KiB, server {server} TCP {tcp}", link / M, buffer / KIB);
            let outcome = outcome(what, &net, 3000, 22_000, link);
            net.demand(outcome.rates[0] > 0.25 && outcome.flows[0] > 0.25, &outcome);
        }
    }
}

#[test]
fn a_host_that_asks_for_room_gets_some_until_it_asks_no_more() {
    // Nothing but the server's own link limits the session, and it fills the hosts' ports.
    let mut net = Net::new(&vec![Port::new(100.0 * M, 256 * KIB); 4]);
    net.server(0, 100_000_000, Port::new(100.0 * M, 256 * KIB));
    net.tcp(0, 0);
    net.run(4 * SECOND);
    net.hosts[0].crowded = true;
    net.run(12 * SECOND);
    let asked = outcome("asked".into(), &net, 6000, 16_000, 100.0 * M);
    net.demand(asked.flows[0] > 0.12 && asked.rates[0] > 0.72, &asked);
    net.hosts[0].crowded = false;
    net.flows.clear();
    net.run(9 * SECOND);
    let after = outcome("after".into(), &net, 22_000, 25_000, 100.0 * M);
    net.demand(after.rates[0] > 0.95, &after);
}

#[test]
fn who_asks_for_room_again_and_again_gets_no_more() {
    let mut net = Net::new(&vec![Port::new(100.0 * M, 256 * KIB); 4]);
    net.server(0, 100_000_000, Port::new(100.0 * M, 256 * KIB));
    net.run(4 * SECOND);
    for _ in 0..40 {
        net.hosts[0].crowded = true;
        net.run(SECOND / 10);
        net.hosts[0].crowded = false;
        net.run(5 * SECOND);
    }
    let last = outcome("again".into(), &net, 188_000, 208_000, 100.0 * M);
    net.demand(last.rates[0] > 0.7, &last);
}

#[test]
fn a_slow_minority_does_not_slow_the_others() {
    for slow in [1, 3] {
        let mut ports = vec![Port::new(100.0 * M, 256 * KIB); 16];
        ports[15 - slow..15].iter_mut().for_each(|port| port.rate = 10.0 * M);
        let mut net = Net::new(&ports);
        net.server(0, 100_000_000, fast());
        net.run(3 * SECOND);
        let outcome = outcome(format!("{slow} of 16 slow"), &net, 200, 3000, 100.0 * M);
        net.demand(outcome.sum > 0.95, &outcome);
    }
}

/// Runs one receiver that reports this queue every 10 ms, for a second. Returns the rate at the end.
fn run_with_queue(rate: &mut Rate, from: Instant, queue_us: u32) -> u64 {
    for step in 1..100u64 {
        let now = from + Duration::from_millis(10 * step);
        for _ in 0..rate.bits_per_second() / 800 / PACKET {
            rate.sent(rate.ready_at(), PACKET);
        }
        let arrived = from.since(Instant::ZERO).as_secs() * 1000 + step * 10;
        rate.feedback(
            now,
            &Feedback { receiver: ReceiverId(3), queue_us, arrived, lost: 0, crowded: false },
            1,
        );
    }
    rate.bits_per_second()
}

#[test]
fn a_part_of_the_own_link_is_taken_while_packets_wait_nowhere_else() {
    let config = RateConfig { initial: 20_000_000, floor: 1_000_000, ceiling: 100_000_000 };
    let mut rate = Rate::new(Instant(SECOND), config).with_packet(PACKET);
    let share = OwnShare { rate: 50_000_000, queue: Duration::from_millis(20) };
    rate.set_own_share(Some(share));
    assert_eq!(run_with_queue(&mut rate, Instant(SECOND), 20_000), 50_000_000);
    rate.set_own_share(Some(OwnShare { rate: 30_000_000, ..share }));
    assert_eq!(run_with_queue(&mut rate, Instant(2 * SECOND), 20_000), 30_000_000);
    // Another link is full, too.
    assert!(run_with_queue(&mut rate, Instant(3 * SECOND), 40_000) < 15_000_000);
    // It is given a while; then the part is taken again.
    assert!(run_with_queue(&mut rate, Instant(4 * SECOND), 0) < 15_000_000);
    assert_eq!(run_with_queue(&mut rate, Instant(10 * SECOND), 0), 30_000_000);
}

#[test]
fn bounds_hold_and_runs_are_short() {
    let start = Instant(SECOND);
    let mut rate = Rate::new(start, RateConfig { initial: 1, floor: 8_000_000, ceiling: 100_000_000 })
        .with_packet(PACKET);
    assert_eq!(rate.bits_per_second(), 8_000_000);
    assert_eq!(rate.run_blocks_max(PACKET, 43), 1);
    let receiver = ReceiverId(3);
    let mut now = start;
    for step in 1..100 {
        now = start + Duration::from_millis(10 * step);
        for _ in 0..rate.bits_per_second() / 800 / PACKET {
            rate.sent(rate.ready_at(), PACKET);
        }
        rate.feedback(
            now,
            &Feedback { receiver, queue_us: 0, arrived: step * 100, lost: 0, crowded: false },
            1,
        );
    }
    assert_eq!(rate.bits_per_second(), 100_000_000);
    assert_eq!(rate.run_blocks_max(PACKET, 43), 4);
    rate.set_ceiling(50_000_000);
    assert_eq!(rate.bits_per_second(), 50_000_000);
    // The ceiling of many sessions may be lower than the floor of each.
    rate.set_ceiling(2_000_000);
    assert_eq!(rate.bits_per_second(), 2_000_000);
    rate.set_ceiling(50_000_000);
    rate.forget(receiver);
    // No receiver reports any more.
    for second in 1..10 {
        rate.sent(now + Duration::from_secs(second), PACKET);
    }
    assert_eq!(rate.bits_per_second(), 8_000_000);
}
