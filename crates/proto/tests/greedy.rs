//! A member that asks for everything again and again, as urgently as it can, hardly slows the others.

use base::{Chance, Duration, Instant};
use proto::multicast::{
    Cause, Downstream, Key, Lacking, MachineId, NeedBlocks, NeedRange, NeedSymbols, ObjectRange, Receiver,
    ReceiverConfig, ReceiverCounters, ReceiverEvent, ReceiverId, Report, Server, ServerConfig, ServerEvent,
    Shape, Transmit, Upstream, open_downstream, open_upstream, seal,
};

use crate::common::server_config;

const KEY: Key = Key([1; 16]);

const OBJECTS: u64 = 400;
const COUNT: u32 = 400;
const SHAPE: Shape = Shape { session: 1, epoch: 1, objects: OBJECTS, heads: 2, block_bytes: 1024 };
const BLOCKS: u32 = 100;

fn report(server: &mut Server, now: Instant, receiver: u32, lacking: Lacking) {
    // Packets arrive at both of them, or they would not count.
    let counters = ReceiverCounters { blocks_arrived: 1, ..ReceiverCounters::default() };
    let report =
        Report { receiver: ReceiverId(receiver), timestamp_us: 0, seen: u64::MAX, crowded: false, counters };
    server.handle_input(now, &Upstream::Need(report, lacking));
}

fn whole(first: u64, count: u32, urgent: bool) -> NeedRange {
    NeedRange { objects: ObjectRange { first, count }, cause: Cause::Lost, urgent }
}

fn config() -> ServerConfig {
    ServerConfig {
        cache_bytes: 64 << 20,
        receiver_timeout: Duration::from_secs(100),
        ..server_config(SHAPE, BLOCKS * 1024, 100_000_000)
    }
}

/// Blocks that the server sends until each object went out once, while receivers 1 to `liars` ask again for what went
/// out already: heads, urgent objects, blocks and symbols. Receiver `n` runs on the machine that `machine` gives. If
/// `is_back`, the liars left once before.
fn blocks_until_all_went_out(liars: u32, is_back: bool, machine: impl Fn(u32) -> MachineId) -> u64 {
    let mut now = Instant::ZERO;
    let mut server = Server::new(now, config());
    (0..=liars).for_each(|receiver| server.admit(now, ReceiverId(receiver), machine(receiver)));
    for receiver in (1..=liars).map(ReceiverId).filter(|_| is_back) {
        let counters = ReceiverCounters::default();
        let last = Report { receiver, timestamp_us: 0, seen: 0, crowded: false, counters };
        server.handle_input(now, &Upstream::Leave(last));
    }
    let everything = Lacking { whole: vec![whole(0, COUNT, false)], ..Lacking::default() };
    report(&mut server, now, 0, everything);
    let mut sent = 0;
    loop {
        while let Some(event) = server.poll_event() {
            if let ServerEvent::Load(object) = event {
                server.loaded(object, true);
            }
        }
        match server.poll_transmit(now) {
            Some(Transmit::Blocks(run)) => {
                sent += u64::from(run.count);
                assert!(sent < 10 * OBJECTS * u64::from(BLOCKS), "it never ends");
                if run.first.block == 0 {
                    // It reports although it lacks nothing else, as receivers do.
                    report(&mut server, now, 0, Lacking::default());
                }
                let object = run.first.object;
                if object == OBJECTS - 1
                    && !run.first.repair
                    && u32::from(run.first.block + run.count) == BLOCKS
                {
                    return sent;
                }
                for liar in 1..=liars {
                    let first = object.saturating_sub(60).max(2);
                    let symbols = NeedSymbols { first, counts: vec![16; 60], cause: Cause::Lost };
                    let blocks = |object| NeedBlocks {
                        object,
                        first_block: 8,
                        bitmap: vec![0xff],
                        cause: Cause::Lost,
                    };
                    let lacking = Lacking {
                        whole: vec![whole(0, 2, false), whole(2, 3, true)],
                        blocks: (first..first + 20).map(blocks).collect(),
                        symbols: vec![symbols],
                    };
                    report(&mut server, now, liar, lacking);
                }
            }
            Some(Transmit::Control(_)) => {}
            None => now = server.poll_timeout().expect("there is more to send"),
        }
    }
}

#[test]
fn a_machine_gets_a_share_of_the_stream_for_its_repairs_however_much_it_asks_for() {
    let image = OBJECTS * u64::from(BLOCKS);
    // The credit at the start, and a block for eight.
    let share = |machines: u64| {
        let credit = machines * (2048 + 2 * u64::from(BLOCKS) + u64::from(BLOCKS));
        (image + credit) * 8 / (8 - machines)
    };
    assert_eq!(blocks_until_all_went_out(0, false, MachineId), image);
    let one = blocks_until_all_went_out(1, false, MachineId);
    assert!(one > image && one <= share(1), "{one} of {image}");
    for is_back in [false, true] {
        let many = blocks_until_all_went_out(5, is_back, |receiver| MachineId(receiver.min(1)));
        assert!(many <= share(1), "five receivers of one machine, back {is_back}: {many} of {image}");
    }
}

/// Seconds until two receivers have everything over a link without loss, while a third one, which joined first, asks
/// for what went out as the measured attack does (`hostile.member`).
fn seconds_beside_a_greedy_member(is_greedy: bool) -> f64 {
    let mut now = Instant::ZERO;
    let mut server = Server::new(now, config());
    let mut honest: Vec<Receiver> = (0..2).map(|number| receiver(now, number)).collect();
    (0..3).for_each(|number| server.admit(now, ReceiverId(number), MachineId(number)));
    let (mut left, mut round, mut next_round) = (vec![OBJECTS; 2], 0, now);
    while left.iter().any(|&left| left > 0) {
        while let Some(event) = server.poll_event() {
            if let ServerEvent::Load(object) = event {
                server.loaded(object, true);
            }
        }
        while let Some(transmit) = server.poll_transmit(now) {
            for (receiver, left) in honest.iter_mut().zip(&mut left) {
                deliver(receiver, now, &transmit, left);
            }
        }
        server.handle_timeout(now);
        for receiver in &mut honest {
            receiver.handle_timeout(now);
            while let Some(mut packet) = receiver.poll_transmit() {
                seal(&KEY, &mut packet);
                server.handle_input(now, &open_upstream(&KEY, &SHAPE, &packet).unwrap());
            }
        }
        if is_greedy && next_round <= now {
            let first = 2 + round * 40 % (OBJECTS - 42);
            let blocks =
                |object| NeedBlocks { object, first_block: 8, bitmap: vec![0xff], cause: Cause::Lost };
            let lacking = Lacking {
                whole: vec![whole(0, 2, false), whole(first, 2, true)],
                blocks: (first..first + 20).map(blocks).collect(),
                symbols: vec![NeedSymbols { first, counts: vec![16; 20], cause: Cause::Lost }],
            };
            report(&mut server, now, 2, lacking);
            (round, next_round) = (round + 1, now + Duration::from_millis(5));
        }
        let due = honest.iter().filter_map(Receiver::poll_timeout).chain(server.poll_timeout()).min();
        now = due
            .expect("they go on")
            .max(now + Duration::from_micros(100))
            .min(now + Duration::from_millis(1));
        assert!(
            now < Instant::ZERO + Duration::from_secs(300),
            "{left:?} objects left: {:?}",
            server.statistics(now)
        );
    }
    now.since(Instant::ZERO).as_secs_f64()
}

fn receiver(now: Instant, number: u32) -> Receiver {
    let config = ReceiverConfig {
        stays: false,
        shape: SHAPE,
        receiver: ReceiverId(number),
        buffer_bytes: 64 << 20,
        object_bytes_mean: BLOCKS * 1024,
        silent_after: Duration::from_secs(3),
        stalled_after: Duration::from_secs(10),
        receivers: 3,
        chance: Chance::from_seed(number.into()),
    };
    let mut receiver = Receiver::new(now, config);
    receiver.want(now, ObjectRange { first: 0, count: COUNT });
    receiver
}

/// Gives `receiver` what the server sends; `left` counts the objects that it still lacks.
fn deliver(receiver: &mut Receiver, now: Instant, transmit: &Transmit, left: &mut u64) {
    match transmit {
        Transmit::Blocks(run) => {
            for index in 0..run.count {
                receiver.handle_input(now, &Downstream::Block(run.header(index), &[0; 1024]));
            }
        }
        Transmit::Control(packet) => {
            let mut packet = packet.clone();
            seal(&KEY, &mut packet);
            receiver.handle_input(now, &open_downstream(&KEY, &SHAPE, &packet).unwrap());
        }
    }
    while let Some(event) = receiver.poll_event() {
        match event {
            ReceiverEvent::Complete { slot, .. } => {
                receiver.verified(now, slot, true);
                receiver.release(slot);
                *left -= 1;
            }
            ReceiverEvent::FetchByUnicast { object } => panic!("{object} is left to unicast"),
            _ => {}
        }
    }
}

#[test]
fn honest_receivers_go_on_beside_a_member_that_asks_for_everything() {
    let alone = seconds_beside_a_greedy_member(false);
    let beside = seconds_beside_a_greedy_member(true);
    assert!(beside < 1.4 * alone, "{beside} s beside it, {alone} s without");
}
