//! Large rooms: what a transfer costs when there are many receivers. Times are virtual.

use base::Duration;
use sim::{Room, RoomOutcome};

const MEBIBYTE: u64 = 1 << 20;
const RATE: u64 = 100_000_000;
/// Gathering, the first report, and the last losses.
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
    assert_eq!(outcome.blocks_useless, 0, "{:?}", outcome.statistics.resent);
}

#[test]
fn equal_rooms_run_equally() {
    let room =
        Room { starts_over: Duration::from_millis(200), slow: 3, ..Room::new(30, MEBIBYTE, RATE, 10_000) };
    let (one, two) = (run(&room), run(&room));
    assert_eq!((one.took, one.steps, one.data_bytes), (two.took, two.steps, two.data_bytes));
    let other = run(&Room { seed: 2, ..room });
    assert_ne!(one.deliveries, other.deliveries);
}
