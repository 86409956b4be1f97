//! A member of a session forges packets.

use std::sync::atomic::{AtomicBool, Ordering};

use proto::multicast::{BlockHeader, Status, VERSION, seal};

use super::*;
use crate::multicast::bundle::Packing;
use crate::multicast::terms::shape_of;
use crate::udp::GroupSender;

/// Sends what a member of the session can forge, until `over`: a BLOCK of each object, of the right length and of a
/// wrong one, a STATUS and a BYE.
fn forge(grant: &SessionGrant, names: &[ObjectRef], over: &AtomicBool) {
    let shape = shape_of(grant).unwrap();
    let packing = Packing::new(
        names.iter().map(|name| name.len).collect(),
        grant.heads,
        grant.block_bytes,
        grant.bundle_blocks,
    );
    let key = grant.group_key.into();
    let mut packets = Vec::new();
    for object in 0..grant.objects {
        for bytes in [packing.bytes(object), packing.bytes(object) / 2 + 1] {
            let (sequence, block) = (1000 + object, 0);
            let header = BlockHeader {
                sequence,
                timestamp_us: 0,
                object,
                block,
                object_bytes: bytes,
                repair: false,
                coming: 0,
            };
            let payload = vec![0x5a; shape.place(bytes, block).1.into()];
            packets.push([&header.encode(&shape)[..], &payload].concat());
        }
    }
    let status = Status {
        sequence: 1 << 40,
        timestamp_us: 0,
        cursor: 0,
        idle: true,
        queue: None,
        receivers: 1,
        report_interval: base::Duration::from_secs(60),
        echo: None,
        pending: Vec::new(),
        repairs: Vec::new(),
    };
    packets.push(status.encode(&shape));
    packets.push([&[VERSION, 3][..], &status.encode(&shape)[2..28]].concat());
    packets.iter_mut().for_each(|packet| seal(&key, packet));
    let sender = GroupSender::open(grant.group, &SendOptions::on(loopback())).unwrap();
    while !over.load(Ordering::Acquire) {
        for packet in &packets {
            sender.send(packet, packet.len()).unwrap();
        }
    }
}

#[test]
fn what_a_member_forges_costs_single_objects_and_nothing_more() {
    let (names, memory) = objects(4, 60);
    let server = start("239.255.78.14:47814", &loopback(), &names, memory);
    let grant = server.admit(&request("honest", 65536), HERE).unwrap();
    let liar = server.admit(&request("liar", 65536), [127, 0, 0, 2].into()).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| forge(&liar, &names, &over));
        let mut collector = Collector::new(&names);
        let received = receive(&grant, &ReceiveOptions::on(loopback()), &mut collector);
        over.store(true, Ordering::Release);
        let received = received.unwrap();
        assert_eq!(received.end, End::Complete, "{received:?}");
        assert!(received.forged.packets > 0, "{received:?}");
        assert_eq!(collector.got.len(), names.len());
    });
}
