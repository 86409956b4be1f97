//! Packets and the machines that take them. Damaged packets get a right tag, since a member of the session could send
//! them.

use std::cell::RefCell;
use std::sync::Arc;

use base::{Chance, Duration, Instant};
use proto::multicast::{
    BlockHeader, Cause, Disposition, Downstream, Gathering, Key, Lacking, MachineId, NeedRange, ObjectRange,
    RateConfig, Receiver, ReceiverConfig, ReceiverCounters, ReceiverEvent, ReceiverId, Report, Server,
    ServerConfig, ServerEvent, Shape, Status, Upstream, open_downstream, open_upstream, seal,
};

use crate::Target;

pub(crate) const DOWNSTREAM: Target = Target { name: "downstream", seeds: downstream, take: take_downstream };
pub(crate) const UPSTREAM: Target = Target { name: "upstream", seeds: upstream, take: take_upstream };
pub(crate) const SERVER: Target = Target { name: "server", seeds: upstream, take: take_server };
pub(crate) const RECEIVER: Target = Target { name: "receiver", seeds: downstream, take: take_receiver };

const KEY: Key = Key([9; 16]);
const SHAPE: Shape = Shape { session: 0x1234, epoch: 5, objects: 40, heads: 3, block_bytes: 512 };
const OBJECT_BYTES: u32 = 2000;

fn report() -> Report {
    let counters = ReceiverCounters::default();
    Report { receiver: ReceiverId(1), timestamp_us: 77, seen: 10, crowded: false, counters }
}

fn upstream() -> Vec<Vec<u8>> {
    let whole =
        vec![NeedRange { objects: ObjectRange { first: 0, count: 20 }, cause: Cause::Late, urgent: true }];
    let lacking = Lacking { whole, blocks: Vec::new(), symbols: Vec::new() };
    [Upstream::Join(report()), Upstream::Need(report(), lacking), Upstream::Leave(report())]
        .map(|packet| packet.encode(&SHAPE))
        .into()
}

fn downstream() -> Vec<Vec<u8>> {
    let header = BlockHeader {
        sequence: 9,
        timestamp_us: 3,
        object: 4,
        block: 1,
        object_bytes: OBJECT_BYTES,
        repair: false,
        coming: 0,
    };
    let block = [&header.encode(&SHAPE)[..], &[0xAB; 512]].concat();
    let status = Status {
        sequence: 12,
        timestamp_us: 4,
        cursor: 5,
        idle: false,
        queue: None,
        receivers: 3,
        report_interval: Duration::from_millis(20),
        echo: None,
        pending: vec![ObjectRange { first: 5, count: 7 }],
        repairs: vec![(6, 2)],
    };
    vec![block, status.encode(&SHAPE)]
}

/// The damaged packet as a datagram with the right tag.
fn datagram(input: &[u8]) -> Vec<u8> {
    let mut datagram = input.to_vec();
    seal(&KEY, &mut datagram);
    datagram
}

fn take_downstream(input: &[u8]) {
    assert!(open_downstream(&KEY, &SHAPE, input).is_err(), "a packet without a tag was let in");
    let _ = open_downstream(&KEY, &SHAPE, &datagram(input));
}

fn take_upstream(input: &[u8]) {
    assert!(open_upstream(&KEY, &SHAPE, input).is_err(), "a packet without a tag was let in");
    let _ = reported(input);
}

fn reported(input: &[u8]) -> Option<Upstream> {
    open_upstream(&KEY, &SHAPE, &datagram(input)).ok()
}

/// The machines live through many damaged packets, as they do in life.
const LIFETIME: u64 = 500;

struct Life<M> {
    machine: M,
    now: Instant,
    age: u64,
}

fn server() -> Server {
    let config = ServerConfig {
        shape: SHAPE,
        object_bytes: Arc::from([OBJECT_BYTES; 40]),
        rate: RateConfig { initial: 100_000_000, floor: 1_000_000, ceiling: 1_000_000_000 },
        overhead_bytes: 42,
        signature_bytes: 0,
        run_blocks_max: 16,
        cache_bytes: 64 << 10,
        gathering: Gathering::default(),
        receiver_timeout: Duration::from_secs(5),
    };
    Server::new(Instant::ZERO, config)
}

fn take_server(input: &[u8]) {
    thread_local!(static LIFE: RefCell<Option<Life<Server>>> = const { RefCell::new(None) });
    let Some(packet) = reported(input) else { return };
    LIFE.with_borrow_mut(|life| {
        let mut current =
            life.take().unwrap_or_else(|| Life { machine: server(), now: Instant::ZERO, age: 0 });
        let (server, now) = (&mut current.machine, current.now);
        // The driver lets only those in that were admitted.
        let receiver = packet.report().receiver;
        server.admit(now, receiver, MachineId(receiver.0 % 4));
        server.handle_input(now, &packet);
        server.handle_timeout(now);
        drain_server(server, now);
        current.now = now + Duration::from_micros(700);
        current.age += 1;
        *life = (current.age < LIFETIME).then_some(current);
    });
}

fn drain_server(server: &mut Server, now: Instant) {
    for _ in 0..10_000 {
        let event = server.poll_event();
        if let Some(ServerEvent::Load(object)) = event {
            assert!(object < SHAPE.objects, "asks for an object that is not there");
            server.loaded(object, true);
        }
        if event.is_none() && server.poll_transmit(now).is_none() {
            return;
        }
    }
    panic!("the server never comes to rest");
}

fn receiver() -> Receiver {
    let config = ReceiverConfig {
        stays: false,
        shape: SHAPE,
        receiver: ReceiverId(1),
        buffer_bytes: 8 << 20,
        object_bytes_mean: OBJECT_BYTES,
        silent_after: Duration::from_secs(2),
        stalled_after: Duration::from_secs(2),
        receivers: 1,
        chance: Chance::from_seed(1),
    };
    let mut receiver = Receiver::new(Instant::ZERO, config);
    receiver.want(Instant::ZERO, ObjectRange { first: 0, count: 40 });
    receiver
}

fn take_receiver(input: &[u8]) {
    thread_local!(static LIFE: RefCell<Option<Life<Receiver>>> = const { RefCell::new(None) });
    let datagram = datagram(input);
    let Ok(packet) = open_downstream(&KEY, &SHAPE, &datagram) else { return };
    LIFE.with_borrow_mut(|life| {
        let mut current =
            life.take().unwrap_or_else(|| Life { machine: receiver(), now: Instant::ZERO, age: 0 });
        let (receiver, now) = (&mut current.machine, current.now);
        let place = receiver.handle_input(now, &packet);
        if let (Disposition::Place { offset, .. }, Downstream::Block(header, payload)) = (place, &packet) {
            assert!(
                u64::from(offset) + payload.len() as u64
                    <= u64::from(SHAPE.padded_bytes(header.object_bytes)),
                "beyond its object"
            );
        }
        receiver.handle_timeout(now);
        drain_receiver(receiver, now);
        current.now = now + Duration::from_micros(700);
        current.age += 1;
        *life = (current.age < LIFETIME).then_some(current);
    });
}

fn drain_receiver(receiver: &mut Receiver, now: Instant) {
    for _ in 0..10_000 {
        let event = receiver.poll_event();
        match event {
            Some(ReceiverEvent::Complete { slot, object, .. }) => {
                // Damaged content: mostly its digest is wrong.
                let ok = object % 4 == 0;
                receiver.verified(now, slot, ok);
                if ok {
                    receiver.release(slot);
                }
            }
            Some(_) => {}
            None if receiver.poll_transmit().is_none() => return,
            None => {}
        }
    }
    panic!("the receiver never comes to rest");
}
