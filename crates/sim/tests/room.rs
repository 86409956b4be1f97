//! Tests large rooms: the cost of a transfer to many receivers. Times are virtual.

use base::Duration;
use sim::{Room, RoomOutcome};

const MEBIBYTE: u64 = 1 << 20;
const RATE: u64 = 100_000_000;
/// Time for gathering receivers, the first report, and the last losses.
const START: Duration = Duration::from_millis(60);

fn run(room: &Room) -> RoomOutcome {
    let outcome = room.run();
    assert!(outcome.violations.is_empty(), "{} receivers: {:#?}", room.receivers, outcome.violations);
    outcome
}

#[test]
fn without_loss_each_block_goes_out_once_to_any_number() {
    for receivers in [1, 10, 100, 1000] {
        let room = Room::new(receivers, 4 * MEBIBYTE, RATE, 0);
        let outcome = run(&room);
        assert_eq!(outcome.statistics.blocks_sent, outcome.statistics.image_blocks, "{receivers} receivers");
        assert_eq!(outcome.blocks_useless, 0, "{receivers} receivers");
        let last = outcome.last().expect("all are done");
        assert!(last <= room.transfer_time() + START, "{receivers} receivers: {last:?}");
    }
}

#[test]
fn the_loss_is_what_was_asked_for() {
    let outcome = run(&Room::new(100, 4 * MEBIBYTE, RATE, 30_000));
    let lost = outcome.losses as f64 / (outcome.losses + outcome.deliveries) as f64;
    assert!((0.029..0.031).contains(&lost), "{lost} of {} packets", outcome.losses + outcome.deliveries);
}

#[test]
fn equal_rooms_run_equally() {
    let room =
        Room { starts_over: Duration::from_millis(200), slow: 3, ..Room::new(30, MEBIBYTE, RATE, 10_000) };
    // The image is so small that useless requests of slow ports exceed what the rules of rooms allow, so violations
    // are not checked here.
    let (one, two) = (room.run(), room.run());
    assert_eq!((one.took, one.steps, one.data_bytes), (two.took, two.steps, two.data_bytes));
    let other = Room { seed: 2, ..room }.run();
    assert_ne!(one.deliveries, other.deliveries);
}

#[test]
fn time_and_control_hardly_grow_with_the_number() {
    let alone = run(&Room::new(1, 32 * MEBIBYTE, RATE, 10_000)).last().expect("all are done");
    for receivers in [10, 100, 1000] {
        let outcome = run(&Room::new(receivers, 32 * MEBIBYTE, RATE, 10_000));
        let last = outcome.last().expect("all are done");
        assert!(last <= alone.mul_f64(1.15), "{receivers} receivers: {last:?}, one: {alone:?}");
        let (control, data) = (outcome.control_bytes, outcome.data_bytes);
        assert!(control * 100 <= data, "{receivers} receivers: {control} bytes of {data}");
        assert!(outcome.images() <= 1.05, "{receivers} receivers: {}", outcome.images());
        assert_eq!(outcome.unicast_bytes, 0);
    }
}

#[test]
fn heavy_loss_costs_what_the_worst_of_them_loses() {
    let room = Room::new(16, 32 * MEBIBYTE, RATE, 100_000);
    let outcome = run(&room);
    let last = outcome.last().expect("all are done");
    assert!(last <= room.transfer_time().mul_f64(1.35), "{last:?}");
    assert!(outcome.images() <= 1.22, "{}", outcome.images());
}

#[test]
fn starts_spread_over_a_transfer_cost_less_than_two_images() {
    let together = Room::new(16, 32 * MEBIBYTE, RATE, 0);
    let alone = run(&Room { receivers: 1, ..together.clone() }).last().expect("all are done");
    let outcome = run(&Room { starts_over: together.transfer_time(), ..together });
    let last = outcome.last().expect("all are done");
    assert!(last <= alone.mul_f64(1.08), "{last:?}, alone {alone:?}");
    assert!(outcome.images() <= 1.98, "{}", outcome.images());
}

#[test]
fn a_slow_port_holds_nobody_else_and_gets_what_it_bears() {
    let room = Room::new(16, 32 * MEBIBYTE, RATE, 0);
    let without = run(&Room { receivers: 15, ..room.clone() }).last().expect("all are done");
    let outcome = run(&Room { slow: 1, ..room.clone() });
    let took: Vec<Duration> = outcome.took.iter().copied().flatten().collect();
    let fast = took[..15].iter().max().copied().unwrap_or_default();
    assert!(fast <= without.mul_f64(1.05), "{fast:?}, without it {without:?}");
    assert!(took[15] <= room.transfer_time().mul_f64(10.5), "{:?}", took[15]);
    assert!((1..=32 * MEBIBYTE).contains(&outcome.unicast_bytes), "{} bytes", outcome.unicast_bytes);
}
