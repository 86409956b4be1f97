//! A receiver that hears nothing notices it on time, though it asks ever more seldom. One that hears blocks, but was
//! not told yet how often to report, asks for what it needs only.

use base::{Chance, Duration, Instant};
use proto::multicast::{
    BlockHeader, Downstream, ObjectRange, Receiver, ReceiverConfig, ReceiverEvent, ReceiverId, Shape,
};

const SHAPE: Shape = Shape { session: 1, epoch: 1, objects: 100, heads: 1, block_bytes: 1024 };
const SILENT_AFTER: Duration = Duration::from_secs(3);

fn receiver(begin: Instant, seed: u64) -> Receiver {
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
    let mut receiver = Receiver::new(begin, config);
    receiver.want(begin, ObjectRange { first: 1, count: 99 });
    receiver
}

#[test]
fn silence_is_noticed_when_it_has_lasted_long_enough() {
    for seed in 0..100 {
        let begin = Instant::ZERO + Duration::from_secs(1);
        let mut receiver = receiver(begin, seed);
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

#[test]
fn before_the_first_status_a_receiver_asks_for_what_it_needs_only() {
    for seed in 0..20 {
        let mut receiver = receiver(Instant::ZERO, seed);
        let mut packets = 0;
        for ms in 0..2000_u32 {
            let now = Instant::ZERO + Duration::from_millis(ms.into());
            if ms % 10 == 0 {
                // The last blocks of objects of which it has no other block.
                let (sequence, timestamp_us) = (u64::from(ms), ms * 1000);
                let object_bytes = 10 * 1024;
                let header = BlockHeader {
                    sequence,
                    timestamp_us,
                    object: 1,
                    block: 9,
                    object_bytes,
                    repair: false,
                    coming: 0,
                };
                receiver.handle_input(now, &Downstream::Block(header, &[0; 1024]));
            }
            receiver.handle_timeout(now);
            packets += std::iter::from_fn(|| receiver.poll_transmit()).count();
        }
        assert!((1..20).contains(&packets), "{packets} packets in two seconds");
    }
}
