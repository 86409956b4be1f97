//! A receiver whose packets wait longer than the others' leaves the session. If that does not help, it stays and asks
//! for room.

use base::{Chance, Duration, Instant};
use proto::multicast::{
    BlockHeader, Downstream, Key, ObjectRange, Receiver, ReceiverConfig, ReceiverEvent, ReceiverId, Shape,
    Status, Strain, Upstream, open_upstream, seal,
};

const SHAPE: Shape = Shape { session: 1, epoch: 1, objects: 100_000, heads: 1, block_bytes: 1024 };
const KEY: Key = Key([7; 16]);
const WAY: Duration = Duration::from_micros(200);

struct Stream {
    receiver: Receiver,
    /// How many the session has.
    receivers: u32,
    sent: u64,
    /// What the last report said.
    asks_for_room: Option<bool>,
    strains: u32,
}

impl Stream {
    fn new(stays: bool, receivers: u32) -> Self {
        let config = ReceiverConfig {
            stays,
            shape: SHAPE,
            receiver: ReceiverId(3),
            buffer_bytes: 1 << 20,
            object_bytes_mean: 1024,
            silent_after: Duration::from_secs(3),
            stalled_after: Duration::from_secs(10),
            receivers,
            chance: Chance::from_seed(1),
        };
        let mut receiver = Receiver::new(Instant::ZERO, config);
        receiver.want(Instant::ZERO, ObjectRange { first: 1, count: 99_999 });
        Self { receiver, receivers, sent: 0, asks_for_room: None, strains: 0 }
    }

    /// For a second a packet comes each millisecond, and waits so long; those to the typical receiver for a
    /// millisecond.
    fn second(&mut self, wait: Duration) {
        for _ in 0..1000 {
            let left = Instant::ZERO + Duration::from_millis(1) * u32::try_from(self.sent).unwrap();
            let timestamp_us = u32::try_from(left.0 / 1000).unwrap();
            let now = left + WAY + wait;
            self.sent += 1;
            // A full port loses some.
            if wait > Duration::ZERO && self.sent.is_multiple_of(50) {
                continue;
            }
            let (object, payload) = (self.sent, [0; 100]);
            let header = BlockHeader {
                sequence: self.sent,
                timestamp_us,
                object,
                block: 0,
                object_bytes: 100,
                repair: false,
                coming: 0,
            };
            self.receiver.handle_input(now, &Downstream::Block(header, &payload));
            self.receiver.satisfied(object);
            if self.sent % 10 == 1 {
                self.receiver.handle_input(now, &Downstream::Status(self.status(timestamp_us)));
            }
            self.receiver.handle_timeout(now);
            self.listen();
        }
    }

    fn status(&self, timestamp_us: u32) -> Status {
        Status {
            sequence: self.sent + 1,
            timestamp_us,
            cursor: self.sent,
            idle: false,
            queue: Some(4),
            receivers: self.receivers,
            report_interval: Duration::from_millis(20),
            echo: None,
            pending: vec![ObjectRange { first: self.sent, count: 2000 }],
            repairs: vec![],
        }
    }

    fn listen(&mut self) {
        while let Some(mut packet) = self.receiver.poll_transmit() {
            seal(&KEY, &mut packet);
            let packet = open_upstream(&KEY, &SHAPE, &packet).unwrap();
            let (Upstream::Join(report) | Upstream::Need(report, _) | Upstream::Leave(report)) = packet;
            self.asks_for_room = Some(report.crowded);
        }
        while let Some(event) = self.receiver.poll_event() {
            self.strains += u32::from(event == ReceiverEvent::TooSlow(Strain::Queue));
        }
    }
}

#[test]
fn who_waits_longer_than_the_others_leaves() {
    let mut stream = Stream::new(false, 4);
    stream.second(Duration::ZERO);
    stream.second(Duration::from_millis(3));
    assert_eq!(stream.strains, 0, "the others wait about as long");
    stream.second(Duration::from_millis(9));
    stream.second(Duration::from_millis(9));
    assert_eq!((stream.strains, stream.asks_for_room), (1, Some(false)));
}

#[test]
fn who_left_in_vain_asks_for_room_as_long_as_the_link_is_full() {
    let mut stream = Stream::new(true, 4);
    stream.second(Duration::ZERO);
    assert_eq!(stream.asks_for_room, Some(true), "it left since its link was full");
    stream.second(Duration::ZERO);
    assert_eq!(stream.asks_for_room, Some(false));
    stream.second(Duration::from_millis(9));
    stream.second(Duration::from_millis(9));
    assert_eq!(stream.asks_for_room, Some(true));
}

#[test]
fn who_is_alone_asks_nobody_for_room() {
    let mut stream = Stream::new(true, 1);
    for wait in [0, 9, 9] {
        stream.second(Duration::from_millis(wait));
        assert_eq!(
            stream.asks_for_room,
            Some(false),
            "the rate follows its link, and waits are compared with nobody's"
        );
    }
}
