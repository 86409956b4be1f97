//! Links that are much slower than the first rate, and receivers that come, report or listen later than others.

use base::Chance;

use super::net::{MS, Net, Port, SECOND};
use super::{KIB, M, Outcome, fast, outcome};

#[test]
fn a_limited_port_that_lets_a_burst_pass_first_is_soon_found_to_be_slow() {
    const SEEDS: u64 = 8;
    // The part of the first four seconds' packets that is lost, on average: when the reports come decides.
    for (link, buffer, bucket, hosts, most) in [
        (25.0 * M, 1024 * KIB, 128 * KIB, 1, 0.01),
        (25.0 * M, 1024 * KIB, 128 * KIB, 4, 0.01),
        (25.0 * M, 1024 * KIB, 128 * KIB, 16, 0.01),
        (25.0 * M, 64 * KIB, 128 * KIB, 16, 0.08),
        (10.0 * M, 1024 * KIB, 256 * KIB, 16, 0.03),
        (100.0 * M, 1024 * KIB, 1024 * KIB, 4, 0.04),
    ] {
        let what = format!("{} Mbit/s {} + {} KiB {hosts} hosts", link / M, bucket / KIB, buffer / KIB);
        let mut lost = 0.0;
        for seed in 0..SEEDS {
            let port = Port::new(link, buffer).with_bucket(bucket);
            let mut net = Net::new(&vec![port; hosts]);
            net.chance = Chance::from_seed(seed);
            net.server(0, 250_000_000, Port::new(link * 10.0, 192 * KIB));
            net.run(4 * SECOND);
            let outcome = outcome(what.clone(), &net, 500, 4000, link);
            net.demand(outcome.sum > 0.95, &outcome);
            lost += outcome.lost[0] / SEEDS as f64;
        }
        assert!(lost < most, "{what}: {lost:.4} lost");
    }
}

#[test]
fn a_long_queue_of_its_own_is_no_other_flow() {
    for hosts in [3, 16] {
        for seed in 0..20 {
            let mut net = Net::new(&vec![Port::new(25.0 * M, 1024 * KIB).with_bucket(128 * KIB); hosts]);
            net.chance = Chance::from_seed(seed);
            net.server(0, 250_000_000, Port::new(250.0 * M, 192 * KIB));
            (hosts / 2..hosts).for_each(|host| net.reports_after(host, host as u64 * SECOND / 8));
            for _ in 0..300 {
                net.run(10 * MS);
                let competes = net.servers[0].rate.law_name() == "compete";
                assert!(!competes, "{hosts} hosts, seed {seed}, at {} ms", net.now / MS);
            }
        }
    }
}

#[test]
fn who_was_there_first_keeps_no_long_queue() {
    for first in [1, 2, 3] {
        for seed in 0..8 {
            let port = Port::new(25.0 * M, 1024 * KIB).with_bucket(128 * KIB);
            let mut net = Net::new(&vec![port; 16]);
            net.chance = Chance::from_seed(seed);
            net.server(0, 250_000_000, Port::new(250.0 * M, 192 * KIB));
            (first..16).for_each(|host| net.joins_after(host, (4 + host as u64) * SECOND / 10));
            net.run(4 * SECOND);
            let now = net.now;
            let queues: Vec<f64> =
                net.hosts.iter_mut().map(|host| host.port.backlog(now) * 8e3 / host.port.rate).collect();
            let what = format!("{first} first, seed {seed}, {queues:.0?} ms");
            let outcome = outcome(what, &net, 2000, 4000, 25.0 * M);
            net.demand(queues[0] < 100.0 && outcome.sum > 0.9, &outcome);
        }
    }
}

#[test]
fn who_comes_later_does_not_let_a_slow_link_overflow() {
    let mut net = Net::new(&vec![Port::new(25.0 * M, 1024 * KIB); 16]);
    net.server(0, 250_000_000, Port::new(250.0 * M, 192 * KIB));
    for host in 5..16 {
        net.reports_after(host, host as u64 * SECOND / 8);
    }
    net.run(SECOND);
    for _ in 0..300 {
        net.run(10 * MS);
        let rate = net.servers[0].rate.bits_per_second();
        assert!(net.trace || rate < 75_000_000, "{rate} bit/s at {} ms", net.now / MS);
    }
    let outcome = outcome("late".into(), &net, 1000, 4000, 25.0 * M);
    net.demand(outcome.sum > 0.95 && outcome.lost[0] == 0.0, &outcome);
}

#[test]
fn receivers_that_were_silent_find_the_rate_that_was() {
    let mut net = Net::new(&vec![Port::new(25.0 * M, 1024 * KIB); 4]);
    net.server(0, 250_000_000, Port::new(250.0 * M, 192 * KIB));
    net.run(3 * SECOND);
    (0..4).for_each(|host| net.reports_after(host, 3 * SECOND / 2));
    for _ in 0..400 {
        net.run(10 * MS);
        let rate = net.servers[0].rate.bits_per_second();
        assert!(net.trace || rate < 75_000_000, "{rate} bit/s at {} ms", net.now / MS);
    }
    let outcome = outcome("silent".into(), &net, 5000, 7000, 25.0 * M);
    net.demand(outcome.sum > 0.95, &outcome);
}

#[test]
fn whose_link_is_slow_does_not_slow_those_that_come_later() {
    for rate in [1.0 * M, 10.0 * M] {
        let mut ports = vec![Port::new(100.0 * M, 256 * KIB); 4];
        ports[0].rate = rate;
        let mut net = Net::new(&ports);
        net.server(0, 250_000_000, fast());
        (1..4).for_each(|host| net.reports_after(host, 3 * SECOND));
        net.run(7 * SECOND);
        let outcome = Outcome {
            rates: vec![net.mean(0, 1, 4500, 7000) / (100.0 * M)],
            ..outcome(format!("first at {} Mbit/s", rate / M), &net, 4500, 7000, 100.0 * M)
        };
        net.demand(outcome.rates[0] > 0.95, &outcome);
    }
}
