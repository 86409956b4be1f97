//! Urgent objects: a receiver requests them out of order unless they come soon, and one answer serves all receivers.

use base::{Chance, Duration, Instant};
use proto::multicast::{
    Downstream, MachineId, ObjectRange, Receiver, ReceiverConfig, ReceiverId, Server, ServerConfig,
    ServerEvent, Shape, Status, Transmit, Upstream,
};

use crate::common::server_config;

const SHAPE: Shape = Shape { session: 1, epoch: 1, objects: 100, heads: 1, block_bytes: 1024 };
const OBJECT_BYTES: u32 = 10 * 1024;

fn receiver(number: u32) -> Receiver {
    let config = ReceiverConfig {
        stays: false,
        shape: SHAPE,
        receiver: ReceiverId(number),
        buffer_bytes: 1 << 20,
        object_bytes_mean: OBJECT_BYTES,
        silent_after: Duration::from_secs(3),
        stalled_after: Duration::from_secs(10),
        receivers: 2,
        chance: Chance::from_seed(number.into()),
    };
    let mut receiver = Receiver::new(Instant::ZERO, config);
    receiver.want(Instant::ZERO, ObjectRange { first: 1, count: 99 });
    receiver
}

fn status(pending: Vec<ObjectRange>) -> Status {
    Status {
        sequence: 0,
        timestamp_us: 0,
        cursor: 1,
        idle: false,
        queue: None,
        receivers: 2,
        report_interval: Duration::from_secs(2),
        echo: None,
        pending,
        repairs: Vec::new(),
    }
}

/// The objects that a receiver requests as urgent within 100 ms, if an application waits for object 50 and STATUS
/// announces `pending`.
fn urges(pending: Vec<ObjectRange>) -> Vec<u64> {
    let mut receiver = receiver(0);
    receiver.handle_input(Instant::ZERO, &Downstream::Status(status(pending)));
    receiver.urge(Instant::ZERO, 50);
    let mut urged = Vec::new();
    for millisecond in 0..100 {
        receiver.handle_timeout(Instant::ZERO + Duration::from_millis(millisecond));
        while let Some(packet) = receiver.poll_transmit() {
            let mut sealed = packet;
            let key = proto::multicast::Key([7; 16]);
            proto::multicast::seal(&key, &mut sealed);
            if let Ok(Upstream::Need(_, lacking)) = proto::multicast::open_upstream(&key, &SHAPE, &sealed) {
                urged.extend(lacking.whole.iter().filter(|need| need.urgent).map(|need| need.objects.first));
            }
        }
    }
    urged
}

#[test]
fn what_comes_soon_is_not_asked_for_out_of_its_turn() {
    let range = |first, count| ObjectRange { first, count };
    assert_eq!(urges(vec![range(1, 99)]).first(), Some(&50));
    assert_eq!(urges(vec![range(49, 51)]), []);
    assert_eq!(urges(vec![range(1, 1), range(60, 2), range(50, 1)]), []);
    let late = urges(vec![range(1, 45)]);
    assert!(late.len() >= 2 && late.len() < 12, "it is asked for again, ever more seldom: {late:?}");
}

/// The objects whose passes begin, in order, if the server gets these packets first.
fn sent(packets: Vec<Vec<u8>>) -> Vec<u64> {
    let config = ServerConfig { cache_bytes: 100 << 10, ..server_config(SHAPE, OBJECT_BYTES, 100_000_000) };
    let (mut now, mut sent) = (Instant::ZERO, Vec::new());
    let mut server = Server::new(now, config);
    (0..2).for_each(|number| server.admit(now, ReceiverId(number), MachineId(number)));
    let key = proto::multicast::Key([7; 16]);
    for mut packet in packets {
        proto::multicast::seal(&key, &mut packet);
        server.handle_input(now, &proto::multicast::open_upstream(&key, &SHAPE, &packet).expect("sealed"));
    }
    while sent.len() < 99 {
        while let Some(event) = server.poll_event() {
            if let ServerEvent::Load(object) = event {
                server.loaded(object, true);
            }
        }
        match server.poll_transmit(now) {
            Some(Transmit::Blocks(run)) if run.first.block == 0 => sent.push(run.first.object),
            Some(_) => {}
            None => now = server.poll_timeout().expect("there is more to send"),
        }
    }
    sent
}

#[test]
fn many_who_wait_for_the_same_get_it_once_and_before_the_rest() {
    let mut packets = Vec::new();
    for number in 0..2 {
        let mut receiver = receiver(number);
        receiver.handle_input(Instant::ZERO, &Downstream::Status(status(Vec::new())));
        receiver.urge(Instant::ZERO, 80);
        (0..50).for_each(|millisecond| {
            receiver.handle_timeout(Instant::ZERO + Duration::from_millis(millisecond));
            packets.extend(std::iter::from_fn(|| receiver.poll_transmit()));
        });
    }
    let sent = sent(packets);
    let rest = (1..100).filter(|&object| object != 80);
    assert_eq!(sent, std::iter::once(80).chain(rest).collect::<Vec<_>>());
}
