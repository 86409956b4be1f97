//! Tests of the simulated bandwidth of a cluster: properties that hold for any parameters, and cases computed by hand.

use proto::cluster::Width;
use sim::striped::{Striped, Wiring, Work};

/// Payload that a link of 1 Gbit/s carries in a second.
const LINK: f64 = 125e6 * 1448.0 / 1538.0;
const FAST: u64 = 10_000_000_000;

fn cluster(work: Work, clients: u32, devices: u32) -> Striped {
    Striped { wiring: Wiring::Switch, contents: 16, ..Striped::seed_002(work, clients, devices) }
}

fn rate(striped: &Striped) -> f64 {
    striped.run().bytes_per_second()
}

#[test]
fn one_client_of_many_devices_gets_its_link() {
    let read = rate(&cluster(Work::Read, 1, 100));
    assert!((0.97 * LINK..=LINK).contains(&read), "{read}");
    // A fifth of what it sends is parity.
    let written = rate(&cluster(Work::Write, 1, 100));
    assert!((0.93 * 0.8 * LINK..=0.8 * LINK).contains(&written), "{written}");
}

#[test]
fn nothing_is_faster_than_links_and_disks() {
    for (clients, devices, disk) in [(3, 12, FAST), (12, 12, FAST), (7, 40, 33_300_000), (40, 20, 33_300_000)]
    {
        for work in [Work::Read, Work::Write] {
            for at_once in [1, 8] {
                for wiring in [Wiring::Switch, Wiring::Shelves] {
                    let cluster = cluster(work.clone(), clients, devices);
                    let cluster = Striped { wiring, at_once, disk_bytes_per_second: disk, ..cluster };
                    let content = if work == Work::Read { 1.0 } else { 0.8 };
                    let links = LINK * f64::from(clients.min(devices));
                    let trunks = if wiring == Wiring::Shelves {
                        4.0 * LINK * f64::from(devices.div_ceil(10))
                    } else {
                        f64::INFINITY
                    };
                    #[expect(clippy::cast_precision_loss, reason = "a rate")]
                    let disks = f64::from(devices) * disk as f64;
                    let limit = content * links.min(disks).min(trunks);
                    let rate = rate(&cluster);
                    assert!(rate <= limit * 1.001, "{rate} of {limit}: {cluster:?}");
                    assert!(rate >= limit * 0.4, "{rate} of {limit}: {cluster:?}");
                }
            }
        }
    }
}

#[test]
fn where_devices_are_the_bottleneck_twice_as_many_give_twice_as_much() {
    for work in [Work::Read, Work::Write] {
        let (half, whole) = (rate(&cluster(work.clone(), 60, 20)), rate(&cluster(work.clone(), 60, 40)));
        assert!((1.8..=2.2).contains(&(whole / half)), "{work:?}: {half} {whole}");
    }
}

/// One content over two data components without parity. The directory has 24 + 42 bytes and the name `client-0/0`, 76
/// together, so each disk reads four units of 64 KiB for a content of 500,000 bytes, of which the client gets the rest.
#[test]
fn a_small_case_takes_what_is_computed_by_hand() {
    let cluster = Striped {
        width: Width::new(2, 0).unwrap(),
        contents: 1,
        content_bytes: 500_000,
        link_bits_per_second: 1_000_000_000_000,
        disk_bytes_per_second: 65_536_000,
        ..cluster(Work::Read, 1, 2)
    };
    // Two commands: each there and back through a switch (4 times 50 us) and taken in 300 us. Then four units of 1 ms.
    let micros = 2 * (4 * 50 + 300) + 4 * 1000;
    let took = cluster.run().last().as_nanos();
    assert!((micros * 1000..micros * 1000 + 10_000).contains(&took), "{took} ns, not {micros} us");
    // Twice the time of the disk.
    let slow = Striped { disk_bytes_per_second: 32_768_000, ..cluster };
    let more = slow.run().last().as_nanos() - took;
    assert!(more.abs_diff(4_000_000) < 1000, "{more}");
}

#[test]
fn a_boot_reads_what_it_needs_and_no_link_is_faster_than_it_is() {
    for machines in [1, 20] {
        let cluster = Striped::seed_003(machines);
        let Work::Boot(image) = &cluster.work else { unreachable!("it boots") };
        let outcome = cluster.run();
        assert_eq!(outcome.content_bytes, image.boot_bytes() * u64::from(machines));
        assert!(outcome.sent_bytes >= outcome.content_bytes, "{outcome:?}");
        #[expect(clippy::cast_precision_loss, reason = "a time")]
        let (busiest, own) = (outcome.most_sent_bytes as f64 / LINK, image.boot_bytes() as f64 / LINK);
        let first = outcome.ended.iter().min().unwrap().as_secs_f64();
        // What a port has still to send is counted, too.
        assert!(outcome.last().as_secs_f64() >= 0.99 * busiest && first >= own, "{outcome:?}");
    }
}

#[test]
fn equal_seeds_give_equal_runs_and_others_do_not() {
    let ended = |seed| Striped { seed, ..cluster(Work::Write, 5, 20) }.run().ended;
    assert_eq!(ended(1), ended(1));
    assert_ne!(ended(1), ended(2));
}
