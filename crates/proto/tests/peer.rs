//! Golden bytes of the peer protocol, version 1 (`formats/peer.md`). `DISKCAST_BLESS=1 cargo test --workspace
//! --test proto peer::` writes files that do not exist yet; it never changes one.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use proto::multicast::Key;
use proto::peer::{
    MemberId, Offer, Offered, Packet, Part, Record, Report, Request, SwarmId, Window, open, seal_packet,
};

const KEY: Key = Key(*b"peers in a rack!");

fn golden(name: &str, made: &[u8]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../golden/peer/{name}-v1.hex"));
    let hex: String = made.iter().map(|byte| format!("{byte:02x}")).collect();
    if !path.exists() && std::env::var_os("DISKCAST_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("golden/peer can be made");
        std::fs::write(&path, format!("{hex}\n")).expect("golden/peer can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(kept.trim(), hex, "{name}");
}

fn packet(name: &str, packet: &Packet) {
    let made = seal_packet(&KEY, SwarmId(0x0102_0304_0506_0708), MemberId(0x1112_1314_1516_1718), 9, packet);
    golden(name, &made);
    assert_eq!(open(Some(&KEY), &made).as_ref(), Ok(packet));
}

#[test]
fn golden_packets_are_written_and_read() {
    let part = Part { batch: 0x0203, mask: 0x8000_00f0 };
    let report = |held: Vec<std::ops::Range<u32>>| {
        let window = Window { objects: 32..96, held };
        Packet::Report(Report { port: 7701, uploads: 2, place: 0xabcd, objects: 1000, window })
    };
    packet("report-runs", &report(vec![40..64, 70..71]));
    packet("report-bitmap", &report((0..16).map(|at| 32 + 4 * at..33 + 4 * at).collect()));
    packet("leave", &Packet::Leave);
    let avoided = [MemberId(5), MemberId(6), MemberId(0), MemberId(0)];
    packet("request", &Packet::Request(Request { part, avoided, blamed: 2, direct: true, scouts: false }));
    let offer = |offered| Packet::Offer(Offer { part, offered });
    let address = Some(Ipv4Addr::new(10, 1, 2, 3).into());
    packet("offer-member", &offer(Offered::Member { member: MemberId(7), address, port: 7700 }));
    packet("offer-nobody", &offer(Offered::Nobody { others: true }));
    packet("offer-wait", &offer(Offered::Wait { milliseconds: 25 }));
}

#[test]
fn golden_records_are_written_and_read() {
    let part = Part { batch: 3, mask: 0x81 };
    let records = [
        ("get", Record::Get(part)),
        ("object", Record::Object { object: 99, bytes: 70_000 }),
        ("lacks", Record::Lacks(part)),
        ("busy", Record::Busy),
    ];
    for (name, record) in records {
        golden(name, &record.encode());
        assert_eq!(Record::parse(&record.encode()), Ok(record));
    }
}
