//! Receivers that join in the middle of a pass get what they missed of it without waiting until the end.

use base::{Chance, Duration, Instant};
use proto::multicast::{
    BlockHeader, Cause, Disposition, Downstream, Lacking, MachineId, NeedRange, NeedSymbols, ObjectRange,
    Receiver, ReceiverConfig, ReceiverCounters, ReceiverId, Report, Run, Server, ServerEvent, Shape,
    Transmit, Upstream,
};

use crate::common::server_config;

/// One head and three other objects, of 100 blocks each.
const SHAPE: Shape = Shape { session: 1, epoch: 1, objects: 4, heads: 1, block_bytes: 1024 };
const OBJECT_BYTES: u32 = 100 * 1024;

fn receiver() -> Receiver {
    let config = ReceiverConfig {
        stays: false,
        shape: SHAPE,
        receiver: ReceiverId(0),
        buffer_bytes: 1 << 20,
        object_bytes_mean: OBJECT_BYTES,
        silent_after: Duration::from_secs(3),
        stalled_after: Duration::from_secs(10),
        receivers: 2,
        chance: Chance::from_seed(1),
    };
    let mut receiver = Receiver::new(Instant::ZERO, config);
    receiver.want(Instant::ZERO, ObjectRange { first: 0, count: 4 });
    receiver
}

/// What a receiver does with block `block` of its first pass.
fn first_heard(block: u16) -> Disposition {
    let header = BlockHeader {
        sequence: u64::from(block),
        timestamp_us: 0,
        object: 0,
        block,
        object_bytes: OBJECT_BYTES,
        repair: false,
        coming: 0,
    };
    receiver().handle_input(Instant::ZERO, &Downstream::Block(header, &[0; 1024]))
}

#[test]
fn of_a_pass_whose_begin_was_missed_nothing_is_taken() {
    assert!(matches!(first_heard(0), Disposition::Place { .. }));
    assert!(matches!(first_heard(16), Disposition::Place { .. }), "an eighth and 4 are repaired for one");
    assert_eq!(first_heard(17), Disposition::Unwanted);
}

/// A server whose two receivers want everything, at the time when the head and some of the other objects went out.
fn server() -> (Server, Instant) {
    let mut now = Instant::ZERO;
    let mut server = Server::new(now, server_config(SHAPE, OBJECT_BYTES, 100_000_000));
    (0..2).for_each(|receiver| server.admit(now, ReceiverId(receiver), MachineId(receiver)));
    let whole = NeedRange { objects: ObjectRange { first: 0, count: 4 }, cause: Cause::Late, urgent: false };
    report(&mut server, now, 0, Lacking { whole: vec![whole], ..Lacking::default() });
    while next_run(&mut server, &mut now).first.object < 2 {}
    (server, now)
}

fn report(server: &mut Server, now: Instant, seen: u64, lacking: Lacking) {
    let report = Report {
        receiver: ReceiverId(1),
        timestamp_us: 0,
        seen,
        crowded: false,
        counters: ReceiverCounters::default(),
    };
    server.handle_input(now, &Upstream::Need(report, lacking));
}

/// The next run of blocks, waiting for it.
fn next_run(server: &mut Server, now: &mut Instant) -> Run {
    loop {
        while let Some(event) = server.poll_event() {
            if let ServerEvent::Load(object) = event {
                server.loaded(object, true);
            }
        }
        match server.poll_transmit(*now) {
            Some(Transmit::Blocks(run)) => return run,
            Some(Transmit::Control(_)) => {}
            None => *now = server.poll_timeout().expect("there is more to send"),
        }
    }
}

/// Whether the server sends symbols of `object` before the last object, if one of two receivers needs `count`
/// symbols.
fn is_repaired_at_once(object: u64, lacked: u8) -> bool {
    let (mut server, mut now) = server();
    let symbols = NeedSymbols { first: object, counts: vec![lacked], cause: Cause::Lost };
    report(&mut server, now, 200, Lacking { symbols: vec![symbols], ..Lacking::default() });
    loop {
        let run = next_run(&mut server, &mut now);
        if run.first.object == object {
            return true;
        }
        if run.first.object == 3 {
            return false;
        }
    }
}

#[test]
fn a_head_is_repaired_at_once_for_whoever_lacks_it() {
    assert!(is_repaired_at_once(1, 10));
    assert!(!is_repaired_at_once(1, 60), "one that loses much is not repaired at the cost of the others");
    assert!(is_repaired_at_once(0, 60), "without the head it cannot even begin");
}

#[test]
fn what_those_got_that_have_left_is_nowhere() {
    let (mut server, now) = server();
    let leave = |server: &mut Server, receiver: u32| {
        let report = Report {
            receiver: ReceiverId(receiver),
            timestamp_us: 0,
            seen: 200,
            crowded: false,
            counters: ReceiverCounters::default(),
        };
        server.handle_input(now, &Upstream::Leave(report));
    };
    assert!(server.went_out_to_members()(1) && !server.went_out_to_members()(3));
    leave(&mut server, 0);
    server.admit(now, ReceiverId(2), MachineId(2));
    assert!(server.went_out_to_members()(1), "one that is here has it");
    leave(&mut server, 1);
    assert!(!server.went_out_to_members()(1), "nobody that is here has it");
}
