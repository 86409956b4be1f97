//! Tests of the simulated cloud: properties that hold for any parameters.

use base::Duration;
use sim::cloud::{Boot, Cloud, Way};

const MACHINES: usize = 20;

fn cloud(way: Way) -> Cloud {
    Cloud { computes: Duration::from_millis(500), ..Cloud::new(MACHINES, way) }
}

#[test]
fn each_machine_fetches_what_its_boot_touches_and_a_multicast_brings_it_once() {
    let boot = Boot::recorded();
    let bytes = boot.object_bytes();
    let nodes = 64 * 20_000 + 20_000;
    for (way, least, most) in [
        (Way::Here, 0, 0),
        (Way::Multicast, bytes, bytes + 2 * nodes * MACHINES as u64),
        (Way::Demand, bytes * MACHINES as u64, (bytes + nodes) * MACHINES as u64),
        (Way::Profile, bytes * MACHINES as u64, (bytes + nodes) * MACHINES as u64),
    ] {
        let outcome = cloud(way).run(&boot);
        assert!((least..=most).contains(&outcome.boot_bytes), "{way:?}: {} of {bytes}", outcome.boot_bytes);
        assert_eq!((outcome.booted.len(), outcome.committed.len()), (MACHINES, MACHINES));
    }
}

#[test]
fn no_way_beats_the_links_nor_the_local_disk() {
    let boot = Boot::recorded();
    let local = cloud(Way::Here).run(&boot).mean_boot();
    for way in [Way::Demand, Way::Profile, Way::Multicast] {
        for storage in [1, 50] {
            let cloud = Cloud { storage, ..cloud(way) };
            let outcome = cloud.run(&boot);
            assert!(outcome.mean_boot() >= local, "{way:?}");
            let ports = storage.min(MACHINES) as u64;
            assert!(outcome.all_booted >= cloud.link_time(outcome.boot_bytes / ports), "{way:?} {storage}");
            assert!(outcome.all_committed() >= cloud.link_time(outcome.commit_bytes / ports));
        }
    }
}

#[test]
fn copies_are_sent_and_equal_seeds_give_equal_runs() {
    let boot = Boot::recorded();
    let once = cloud(Way::Profile).run(&boot);
    let thrice = Cloud { replicas: 3, ..cloud(Way::Profile) }.run(&boot);
    assert_eq!(thrice.commit_bytes, 3 * once.commit_bytes);
    let again = cloud(Way::Profile).run(&boot);
    assert_eq!((again.steps, again.booted), (once.steps, once.booted));
}
