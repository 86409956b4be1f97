//! A receiver that hears nothing notices it on time, though it asks ever more seldom.

use base::{Chance, Duration, Instant};
use proto::multicast::{ObjectRange, Receiver, ReceiverConfig, ReceiverEvent, ReceiverId, Shape};

const SHAPE: Shape = Shape { session: 1, epoch: 1, objects: 100, heads: 1, block_bytes: 1024 };
const SILENT_AFTER: Duration = Duration::from_secs(3);

#[test]
fn silence_is_noticed_when_it_has_lasted_long_enough() {
    for seed in 0..100 {
        let config = ReceiverConfig {
            stays: false,
            shape: SHAPE,
            receiver: ReceiverId(0),
            buffer_bytes: 1 << 20,
            object_bytes_mean: 10 * 1024,
            silent_after: SILENT_AFTER,
            stalled_after: Duration::from_secs(10),
            receivers: 4,
            chance: Chance::from_seed(seed),
        };
        let begin = Instant::ZERO + Duration::from_secs(1);
        let mut receiver = Receiver::new(begin, config);
        receiver.want(begin, ObjectRange { first: 1, count: 99 });
        let (mut now, mut packets) = (begin, 0);
        let noticed = loop {
            now = receiver.poll_timeout().expect("it waits").max(now);
            receiver.handle_timeout(now);
            packets += std::iter::from_fn(|| receiver.poll_transmit()).count();
            if let Some(event) = receiver.poll_event() {
                break event;
            }
        };
        // Nothing was ever heard, so half of it is enough.
        assert_eq!((noticed, now), (ReceiverEvent::Silent { since: begin }, begin + SILENT_AFTER / 2));
        assert!(packets < 12, "{packets} packets");
    }
}
