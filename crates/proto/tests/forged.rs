//! A member of the group forges BLOCKs, which have a valid tag; it cannot forge STATUS.

use base::{Chance, Duration, Instant};
use proto::multicast::{
    BlockHeader, Downstream, Key, ObjectRange, Receiver, ReceiverConfig, ReceiverId, Shape, Status, Upstream,
    open_upstream, seal,
};

const KEY: Key = Key([1; 16]);
const SHAPE: Shape = Shape { session: 1, epoch: 1, objects: 40, heads: 0, block_bytes: 1024 };
const BLOCKS: u16 = 100;

fn receiver(now: Instant) -> Receiver {
    let config = ReceiverConfig {
        stays: false,
        shape: SHAPE,
        receiver: ReceiverId(1),
        buffer_bytes: 64 << 20,
        object_bytes_mean: 1024 * u32::from(BLOCKS),
        silent_after: Duration::from_secs(3),
        stalled_after: Duration::from_secs(10),
        receivers: 2,
        chance: Chance::from_seed(1),
    };
    let mut receiver = Receiver::new(now, config);
    receiver.want(now, ObjectRange { first: 0, count: 40 });
    receiver
}

fn status(sequence: u64, timestamp_us: u32) -> Downstream<'static> {
    Downstream::Status(Status {
        sequence,
        timestamp_us,
        cursor: 0,
        idle: false,
        queue: Some(0),
        receivers: 2,
        report_interval: Duration::from_millis(10),
        echo: None,
        pending: vec![ObjectRange { first: 0, count: 40 }],
        repairs: Vec::new(),
    })
}

fn block(sequence: u64, timestamp_us: u32) -> BlockHeader {
    let (object, block) = (sequence / u64::from(BLOCKS), sequence % u64::from(BLOCKS));
    let (block, object_bytes) = (block.try_into().unwrap(), 1024 * u32::from(BLOCKS));
    BlockHeader { sequence, timestamp_us, object, block, object_bytes, repair: false, coming: 0 }
}

/// The largest queue that a receiver reports in two seconds of an idle network, in which a block with a timestamp
/// that lies so far ahead arrives after half a second.
fn queue_us(forged_ahead_us: Option<u32>) -> u32 {
    let mut receiver = receiver(Instant::ZERO);
    let mut most = None;
    for ms in 0..2000_u32 {
        let now = Instant::ZERO + Duration::from_millis(ms.into());
        let timestamp_us = ms * 1000;
        if ms % 10 == 0 {
            receiver.handle_input(now, &status(ms.into(), timestamp_us));
        }
        receiver.handle_input(now, &Downstream::Block(block(ms.into(), timestamp_us), &[0; 1024]));
        if let Some(ahead_us) = forged_ahead_us.filter(|_| ms == 500) {
            let forged = block(ms.into(), timestamp_us + ahead_us);
            receiver.handle_input(now, &Downstream::Block(forged, &[0; 1024]));
        }
        receiver.handle_timeout(now);
        while let Some(mut packet) = receiver.poll_transmit() {
            seal(&KEY, &mut packet);
            if let Upstream::Need(report, _) = open_upstream(&KEY, &SHAPE, &packet).unwrap() {
                most = most.max(Some(report.counters.queue_us));
            }
        }
    }
    most.expect("it reports")
}

#[test]
fn a_block_with_a_forged_timestamp_leaves_no_queue() {
    assert_eq!(queue_us(None), 0);
    let queue_us = queue_us(Some(1_000_000));
    assert!(queue_us <= 1000, "{queue_us} µs");
}
