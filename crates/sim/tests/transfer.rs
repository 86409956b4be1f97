//! Tests the cost of a transfer on a fast network with a round trip of 20 ms: its time compared with the link time,
//! its blocks compared with those of the image, and its reports. Times are virtual, so these bounds hold on any
//! machine.

use base::{Duration, Instant};
use sim::{Outcome, Scenario, run};

const GIGABIT: u64 = 1_000_000_000;
const IMAGE_BYTES: u64 = 16 << 20;
const ROUND_TRIP: Duration = Duration::from_millis(20);
/// Time for join, answer, report and first block, and for the last losses.
const START: Duration = Duration::from_millis(45);

fn plain(hosts: usize) -> Scenario {
    Scenario::plain(IMAGE_BYTES, hosts, GIGABIT, ROUND_TRIP)
}

/// Runs the scenario; returns the outcome and the time of each host.
fn transfer(scenario: &Scenario) -> (Outcome, Vec<Duration>) {
    let outcome = run(scenario);
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    let hosts = outcome.done_at.iter().zip(&scenario.hosts);
    let took = hosts.map(|(done, host)| done.expect("done").since(host.starts)).collect();
    (outcome, took)
}

fn image_blocks(scenario: &Scenario) -> u64 {
    scenario.object_bytes.iter().map(|&bytes| u64::from(bytes.div_ceil(scenario.block_bytes.into()))).sum()
}

#[test]
fn without_loss_each_block_goes_out_once_and_control_is_tiny() {
    for hosts in [1, 4, 16] {
        let scenario = plain(hosts);
        let (outcome, took) = transfer(&scenario);
        assert_eq!(outcome.blocks_sent, image_blocks(&scenario), "{hosts} hosts");
        let last = took.iter().max().copied().unwrap_or_default();
        assert!(last <= scenario.transfer_time() + START, "{hosts} hosts: {last:?}");
        let statistics = outcome.statistics.expect("the server is up");
        let reported: u64 = outcome.reports.iter().map(|(reports, bytes)| bytes + reports * 42).sum();
        assert!(reported * 100 <= statistics.bytes_sent, "{hosts} hosts: {:?}", outcome.reports);
        assert!(statistics.control_bytes_sent * 1000 <= statistics.bytes_sent, "{statistics:?}");
    }
}

#[test]
fn receivers_with_small_buffers_keep_the_server_busy() {
    // 2.5 MB are in flight in one round trip.
    for buffer_bytes in [6 << 20, 12 << 20] {
        let mut scenario = Scenario::plain(4 * IMAGE_BYTES, 4, GIGABIT, ROUND_TRIP);
        scenario.hosts.iter_mut().for_each(|host| host.buffer_bytes = buffer_bytes);
        let (outcome, took) = transfer(&scenario);
        assert_eq!(outcome.blocks_sent, image_blocks(&scenario), "{buffer_bytes} bytes");
        let last = took.iter().max().copied().unwrap_or_default();
        assert!(last <= scenario.transfer_time() + START, "{buffer_bytes} bytes: {last:?}");
    }
}

#[test]
fn losses_are_repaired_once_each_and_at_once() {
    for (hosts, loss_per_million) in [(1, 10_000), (4, 10_000), (16, 10_000), (4, 100_000)] {
        let mut scenario = plain(hosts);
        scenario.hosts.iter_mut().for_each(|host| host.link.loss_per_million = loss_per_million);
        let (outcome, took) = transfer(&scenario);
        let name = format!("{hosts} hosts, loss {loss_per_million}");
        // Fewer blocks are useless than a few hosts lose.
        let most = outcome.blocks_sent * u64::from(loss_per_million) * 3 / 2_000_000;
        assert!(outcome.blocks_useless <= most, "{name}: {} useless, at most {most}", outcome.blocks_useless);
        // The time of the blocks sent, and a few rounds for the last of them; more rounds if repairs get lost again.
        let stretch = outcome.blocks_sent as f64 / image_blocks(&scenario) as f64;
        let rounds = if loss_per_million > 10_000 { 8 } else { 4 };
        let most = scenario.transfer_time().mul_f64(stretch) + START + (ROUND_TRIP + START / 4) * rounds;
        let last = took.iter().max().copied().unwrap_or_default();
        assert!(last <= most, "{name}: {last:?} of {most:?}");
    }
}

#[test]
fn a_late_joiner_rides_the_stream_and_gets_what_it_missed() {
    let mut scenario = plain(5);
    scenario.hosts[4].starts = Instant::ZERO + scenario.transfer_time() / 2;
    let alone = transfer(&plain(4)).1;
    let (outcome, took) = transfer(&scenario);
    let missed = (image_blocks(&scenario) * 6).div_ceil(10);
    assert!(outcome.blocks_sent <= image_blocks(&scenario) + missed, "{} blocks", outcome.blocks_sent);
    // It lets the other receivers report first before it requests what it missed.
    assert!(took[4] <= scenario.transfer_time() + START + ROUND_TRIP, "{:?}", took[4]);
    assert!(took[0] <= alone[0] + Duration::from_millis(5), "{:?} instead of {:?}", took[0], alone[0]);
    let statistics = outcome.statistics.expect("the server is up");
    assert_eq!(statistics.resent.late, statistics.resent.total(), "{statistics:?}");
}

#[test]
fn heads_go_first_wherever_the_stream_is() {
    let mut scenario = Scenario { heads: 16, ..plain(2) };
    let half = scenario.transfer_time() / 2;
    scenario.hosts[1].starts = Instant::ZERO + half;
    let took = run(&scenario).heads_at[1].expect("heads came").since(scenario.hosts[1].starts);
    assert!(took <= ROUND_TRIP + START, "{took:?}");
    // In the normal order they would come after the other half.
    assert!(took < half, "{took:?}, {half:?}");
}

#[test]
fn a_slow_disk_slows_nobody_else_and_is_kept_busy() {
    let fast = transfer(&plain(4)).1;
    let mut scenario = plain(4);
    scenario.hosts[3].disk_bytes_per_second = 20_000_000;
    scenario.hosts[3].buffer_bytes = 4 << 20;
    let (outcome, took) = transfer(&scenario);
    assert!(took[..3].iter().max() <= fast.iter().max(), "{took:?} instead of {fast:?}");
    let disk = Duration::from_nanos(IMAGE_BYTES * 1000 / 20);
    assert!(took[3] <= disk.mul_f64(1.1) + START, "{:?} of {disk:?}", took[3]);
    let resent = outcome.statistics.expect("the server is up").resent;
    assert!(resent.buffer_full > 0 && resent.buffer_full == resent.total(), "{resent:?}");
}

#[test]
fn a_slow_disk_alone_is_never_sent_what_it_cannot_hold() {
    let mut scenario = plain(1);
    scenario.hosts[0].disk_bytes_per_second = 20_000_000;
    scenario.hosts[0].buffer_bytes = 4 << 20;
    let (outcome, _) = transfer(&scenario);
    assert_eq!(outcome.blocks_sent, image_blocks(&scenario));
}

#[test]
fn starts_spread_over_a_transfer_cost_less_than_two_images() {
    let mut scenario = plain(16);
    let spread = scenario.transfer_time() / 16;
    for (index, host) in (0u32..).zip(&mut scenario.hosts) {
        host.starts = Instant::ZERO + spread * index;
    }
    let (outcome, took) = transfer(&scenario);
    assert!(outcome.blocks_sent * 100 <= image_blocks(&scenario) * 198, "{} blocks", outcome.blocks_sent);
    let slowest = took.iter().max().copied().unwrap_or_default();
    assert!(slowest <= scenario.transfer_time().mul_f64(1.1) + START, "{slowest:?}");
}
