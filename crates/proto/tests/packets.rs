//! Tests of packets: golden bytes of version 3, round trips, and packets that must be dropped.
//!
//! `DISKCAST_BLESS=1 cargo test --workspace --test proto packets::` writes golden files that do not exist yet; it never
//! overwrites one. Each is a sealed datagram in hexadecimal; the payload of the block is
//! encrypted under [`PAYLOAD_KEY`].

use std::path::PathBuf;

use base::{Chance, Duration};
use proto::multicast::{
    BlockHeader, Cause, Downstream, Echo, Key, Lacking, NeedBlocks, NeedRange, NeedSymbols, ObjectRange,
    PayloadCipher, ReceiverCounters, ReceiverId, Reject, Report, Shape, Status, Upstream, VERSION,
    block_bytes_for, open_downstream, open_upstream, peek_receiver, seal, tag,
};

const KEY: Key = Key([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
const PAYLOAD_KEY: Key = Key([16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
const SHAPE: Shape =
    Shape { session: 0x0123_4567_89ab_cdef, epoch: 3, objects: 1000, heads: 4, block_bytes: 512 };

fn sealed(mut packet: Vec<u8>) -> Vec<u8> {
    seal(&KEY, &mut packet);
    packet
}

fn block() -> (BlockHeader, Vec<u8>) {
    let header = BlockHeader {
        sequence: 77,
        timestamp_us: 0xdead_beef,
        object: 999,
        block: 2,
        object_bytes: 1040,
        repair: true,
        coming: 5,
    };
    (header, (0..16).collect())
}

fn status() -> Status {
    Status {
        sequence: 78,
        timestamp_us: 5,
        cursor: 700,
        idle: true,
        queue: None,
        receivers: 64,
        report_interval: Duration::from_millis(32),
        echo: Some(Echo { receiver: ReceiverId(9), timestamp_us: 4, age_us: 300 }),
        pending: vec![ObjectRange { first: 0, count: 2 }, ObjectRange { first: 700, count: 300 }],
        repairs: vec![(12, 5), (13, 1)],
    }
}

fn report() -> Report {
    let counters = ReceiverCounters {
        blocks_arrived: 1,
        blocks_received: 2,
        blocks_duplicate: 3,
        blocks_lost: 4,
        blocks_refused: 5,
        objects_verified: 6,
        queue_us: 7,
    };
    Report { receiver: ReceiverId(9), timestamp_us: 4, seen: 78, crowded: false, counters }
}

fn lacking() -> Lacking {
    Lacking {
        whole: vec![
            NeedRange { objects: ObjectRange { first: 700, count: 300 }, cause: Cause::Late, urgent: false },
            NeedRange {
                objects: ObjectRange { first: 4, count: 1 },
                cause: Cause::BufferFull,
                urgent: false,
            },
        ],
        blocks: vec![NeedBlocks {
            object: 12,
            first_block: 8,
            bitmap: vec![0b101, 0x80],
            cause: Cause::Lost,
        }],
        symbols: vec![NeedSymbols { first: 13, counts: vec![3, 0, 1], cause: Cause::Lost }],
    }
}

/// The golden datagram with that name; written if it does not exist and `DISKCAST_BLESS` is set.
fn golden(name: &str, made: &[u8]) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/multicast");
    let path = folder.join(format!("{name}-v3.hex"));
    let hex: String = made.iter().map(|byte| format!("{byte:02x}")).collect();
    if !path.exists() && std::env::var_os("DISKCAST_BLESS").is_some() {
        std::fs::write(&path, format!("{hex}\n")).expect("golden/multicast can be written");
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_else(|e| {
        panic!("{}: {e}; DISKCAST_BLESS=1 cargo test --workspace --test proto packets::", path.display())
    });
    assert_eq!(stored.trim_end(), hex, "{name}: packets of version 3 never change");
}

#[test]
fn golden_packets_are_written_and_read() {
    let (header, payload) = block();
    let cipher = PayloadCipher::new(&PAYLOAD_KEY);
    let mut encrypted = payload.clone();
    cipher.apply(header.sequence, &mut encrypted);
    let datagram = sealed([&header.encode(&SHAPE)[..], &encrypted].concat());
    golden("block", &datagram);
    assert_eq!(open_downstream(&KEY, &SHAPE, &datagram), Ok(Downstream::Block(header, &encrypted)));
    cipher.apply(header.sequence, &mut encrypted);
    assert_eq!(encrypted, payload);

    let datagram = sealed(status().encode(&SHAPE));
    golden("status", &datagram);
    assert_eq!(open_downstream(&KEY, &SHAPE, &datagram), Ok(Downstream::Status(status())));

    let status = Status { queue: Some(31), ..status() };
    let datagram = sealed(status.encode(&SHAPE));
    golden("status_queue", &datagram);
    assert_eq!(open_downstream(&KEY, &SHAPE, &datagram), Ok(Downstream::Status(status)));

    let bye = [&[3, 3][..], &header.encode(&SHAPE)[2..28]].concat();
    let datagram = sealed([&bye[..2], &[0, 0], &bye[4..]].concat());
    golden("bye", &datagram);
    assert_eq!(open_downstream(&KEY, &SHAPE, &datagram), Ok(Downstream::Bye));

    let packets = [
        ("join", Upstream::Join(report())),
        ("need", Upstream::Need(report(), lacking())),
        ("leave", Upstream::Leave(report())),
        ("join_crowded", Upstream::Join(Report { crowded: true, ..report() })),
    ];
    for (name, packet) in packets {
        let datagram = sealed(packet.encode(&SHAPE));
        golden(name, &datagram);
        assert_eq!(peek_receiver(&datagram), Some(ReceiverId(9)), "{name}");
        assert_eq!(open_upstream(&KEY, &SHAPE, &datagram), Ok(packet), "{name}");
    }
}

#[test]
fn packets_of_older_versions_are_refused() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/multicast");
    let names = ["block", "status", "bye", "join", "need", "leave"];
    for (name, version) in names.into_iter().flat_map(|name| [(name, 1), (name, 2)]) {
        let hex =
            std::fs::read_to_string(folder.join(format!("{name}-v{version}.hex"))).expect("a golden file");
        let digits = hex.trim().as_bytes().chunks(2);
        let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).expect("ASCII"), 16);
        let datagram: Vec<u8> = digits.map(|digits| byte(digits).expect("hexadecimal")).collect();
        assert_eq!(open_downstream(&KEY, &SHAPE, &datagram), Err(Reject::Version), "{name}");
        assert_eq!(open_upstream(&KEY, &SHAPE, &datagram), Err(Reject::Version), "{name}");
    }
}

#[test]
fn the_tag_is_highway_hash_64() {
    use highway::{HighwayHash, HighwayHasher, PortableHash};
    // Reference vectors of HighwayHash: key 00..1f; the empty input, and one byte 00.
    let words = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908, 0x1716_1514_1312_1110, 0x1f1e_1d1c_1b1a_1918];
    for (input, hash) in [(&[][..], 0x907a_56de_22c2_6e53), (&[0], 0x7eab_43aa_c7cd_dd78)] {
        assert_eq!(HighwayHasher::new(highway::Key(words)).hash64(input), hash);
    }
    let key = Key([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    let twice = highway::Key([words[0], words[1], words[0], words[1]]);
    let input: Vec<u8> = (0..100).collect();
    for length in 0..=100 {
        let portable = PortableHash::new(twice).hash64(&input[..length]);
        assert_eq!(u64::from_le_bytes(tag(&key, &input[..length])), portable);
    }
    assert_eq!(u64::from_le_bytes(tag(&key, &input)), 0x7097_1a6f_4d7e_5c66);
}

#[test]
fn lacked_blocks_are_counted_from_the_first() {
    assert_eq!(lacking().blocks[0].blocks().collect::<Vec<_>>(), [8, 10, 23]);
}

#[test]
fn any_flipped_bit_and_any_cut_is_dropped() {
    for packet in [status().encode(&SHAPE), Upstream::Need(report(), lacking()).encode(&SHAPE)] {
        let datagram = sealed(packet);
        for bit in 0..datagram.len() * 8 {
            let mut flipped = datagram.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(open_downstream(&KEY, &SHAPE, &flipped).is_err(), "bit {bit}");
            assert!(open_upstream(&KEY, &SHAPE, &flipped).is_err(), "bit {bit}");
        }
        for length in 0..datagram.len() {
            assert!(open_downstream(&KEY, &SHAPE, &datagram[..length]).is_err(), "{length} bytes");
            assert!(open_upstream(&KEY, &SHAPE, &datagram[..length]).is_err(), "{length} bytes");
        }
    }
}

/// What a member of the session could send, with a valid tag.
fn status_with(at: usize, bytes: &[u8]) -> Result<(), Reject> {
    let mut packet = status().encode(&SHAPE);
    packet[at..at + bytes.len()].copy_from_slice(bytes);
    open_downstream(&KEY, &SHAPE, &sealed(packet)).map(drop)
}

#[test]
fn what_is_out_of_bounds_is_dropped_in_every_field_of_status() {
    assert_eq!(status_with(0, &[1]), Err(Reject::Version));
    assert_eq!(status_with(1, &[99]), Err(Reject::Unknown));
    assert_eq!(status_with(1, &[64]), Err(Reject::Unknown), "a packet of a receiver");
    assert_eq!(status_with(2, &[0x80, 0]), Ok(()), "a flag that may be ignored");
    assert_eq!(status_with(2, &[0, 0x80]), Err(Reject::Unknown), "a critical flag");
    assert_eq!(status_with(4, &4u32.to_le_bytes()), Err(Reject::Epoch(4)));
    assert_eq!(status_with(8, &[0]), Err(Reject::Session));
    assert_eq!(status_with(16, &u64::MAX.to_le_bytes()), Err(Reject::Bounds), "sequence");
    assert_eq!(status_with(28, &1001u32.to_le_bytes()), Err(Reject::Bounds), "cursor");
    assert_eq!(status_with(35, &[255]), Err(Reject::Bounds), "count of ranges");
    assert_eq!(status_with(36, &[255]), Err(Reject::Bounds), "count of repairs");
    assert_eq!(status_with(36, &[3]), Err(Reject::Length), "count of repairs");
    assert_eq!(status_with(42, &u32::MAX.to_le_bytes()), Err(Reject::Bounds), "interval");
    assert_eq!(status_with(64, &u32::MAX.to_le_bytes()), Err(Reject::Bounds), "objects of a range");
    assert_eq!(status_with(64, &0u32.to_le_bytes()), Err(Reject::Bounds), "an empty range");
    assert_eq!(status_with(78, &1000u32.to_le_bytes()), Err(Reject::Bounds), "object of a repair");
}

fn block_with(change: impl Fn(&mut BlockHeader), payload: usize) -> Result<(), Reject> {
    let mut header = block().0;
    change(&mut header);
    let packet = [&header.encode(&SHAPE)[..], &vec![0; payload]].concat();
    open_downstream(&KEY, &SHAPE, &sealed(packet)).map(drop)
}

#[test]
fn what_is_out_of_bounds_is_dropped_in_every_field_of_block() {
    assert_eq!(block_with(|_| (), 16), Ok(()));
    assert_eq!(block_with(|_| (), 15), Err(Reject::Length));
    assert_eq!(block_with(|_| (), 17), Err(Reject::Length));
    assert_eq!(block_with(|header| header.block = 1, 512), Ok(()));
    assert_eq!(block_with(|header| header.block = 1, 16), Err(Reject::Length));
    let symbol = |header: &mut BlockHeader| header.block = 3;
    assert_eq!(block_with(symbol, 512), Ok(()), "symbol 0 of three blocks");
    assert_eq!(block_with(symbol, 16), Err(Reject::Length), "symbols are whole blocks");
    let of_pass = |header: &mut BlockHeader| (header.block, header.repair) = (3, false);
    assert_eq!(block_with(of_pass, 512), Err(Reject::Bounds), "a pass has no symbols");
    assert_eq!(block_with(|header| header.block = u16::MAX, 512), Err(Reject::Bounds), "too many symbols");
    let single = |header: &mut BlockHeader| (header.object_bytes, header.block) = (500, 1);
    assert_eq!(block_with(single, 512), Err(Reject::Bounds), "nothing is coded over one block");
    assert_eq!(block_with(|header| header.object = 1000, 16), Err(Reject::Bounds));
    assert_eq!(block_with(|header| header.object_bytes = u32::MAX, 512), Err(Reject::Bounds));
    assert_eq!(block_with(|header| header.sequence = 1, 16), Err(Reject::Bounds), "before its pass began");
    assert_eq!(block_with(|header| header.sequence = u64::MAX, 16), Err(Reject::Bounds));
    let empty = |header: &mut BlockHeader| (header.object_bytes, header.block) = (0, 0);
    assert_eq!(block_with(empty, 0), Ok(()), "an empty object has one empty block");
}

fn need_with(at: usize, bytes: &[u8]) -> Result<(), Reject> {
    let mut packet = Upstream::Need(report(), lacking()).encode(&SHAPE);
    packet[at..at + bytes.len()].copy_from_slice(bytes);
    open_upstream(&KEY, &SHAPE, &sealed(packet)).map(drop)
}

#[test]
fn what_is_out_of_bounds_is_dropped_in_every_field_of_need() {
    assert_eq!(need_with(0, &[VERSION]), Ok(()));
    assert_eq!(need_with(1, &[1]), Err(Reject::Unknown), "a packet of the server");
    assert_eq!(need_with(1, &[64]), Err(Reject::Bounds), "a JOIN that asks for something");
    assert_eq!(need_with(24, &u64::MAX.to_le_bytes()), Err(Reject::Bounds), "seen");
    assert_eq!(need_with(84, &u16::MAX.to_le_bytes()), Err(Reject::Length), "count of ranges");
    assert_eq!(need_with(86, &u16::MAX.to_le_bytes()), Err(Reject::Length), "count of blocks");
    assert_eq!(need_with(88, &u16::MAX.to_le_bytes()), Err(Reject::Length), "count of symbols");
    assert_eq!(need_with(90, &1000u32.to_le_bytes()), Err(Reject::Bounds), "first object");
    assert_eq!(need_with(96, &u32::MAX.to_le_bytes()), Err(Reject::Bounds), "number of objects");
    assert_eq!(need_with(100, &[3]), Err(Reject::Bounds), "cause");
    assert_eq!(need_with(114, &1000u32.to_le_bytes()), Err(Reject::Bounds), "object");
    assert_eq!(need_with(120, &[1, 0]), Err(Reject::Bounds), "first block");
    assert_eq!(need_with(120, &[0xf8, 0xff]), Err(Reject::Bounds), "blocks beyond 16 bits");
    assert_eq!(need_with(122, &[0, 0]), Err(Reject::Bounds), "an empty bitmap");
    assert_eq!(need_with(122, &[0xff, 0]), Err(Reject::Length), "a bitmap behind the end");
    assert_eq!(
        need_with(128, &998u32.to_le_bytes()),
        Err(Reject::Bounds),
        "symbols of objects behind the last"
    );
    assert_eq!(need_with(134, &[0, 0]), Err(Reject::Bounds), "symbols of no object");
    assert_eq!(need_with(134, &[1, 2]), Err(Reject::Bounds), "symbols of too many objects");
    assert_eq!(need_with(136, &[3]), Err(Reject::Bounds), "cause");
}

#[test]
fn a_need_for_too_much_is_dropped() {
    let shape = Shape { objects: 1 << 26, ..SHAPE };
    let whole =
        NeedRange { objects: ObjectRange { first: 0, count: 1 << 16 }, cause: Cause::Late, urgent: false };
    let most =
        Upstream::Need(report(), Lacking { whole: vec![whole], blocks: Vec::new(), symbols: Vec::new() });
    assert!(open_upstream(&KEY, &shape, &sealed(most.encode(&shape))).is_ok());
    let more =
        Upstream::Need(report(), Lacking { whole: vec![whole; 2], blocks: Vec::new(), symbols: Vec::new() });
    assert_eq!(open_upstream(&KEY, &shape, &sealed(more.encode(&shape))), Err(Reject::Bounds));
}

#[test]
fn another_key_opens_nothing() {
    let datagram = sealed(status().encode(&SHAPE));
    assert_eq!(open_downstream(&Key([0; 16]), &SHAPE, &datagram), Err(Reject::Tag));
}

#[test]
fn rubbish_with_a_right_tag_never_panics() {
    let mut chance = Chance::from_seed(4);
    let prefixes: Vec<Vec<u8>> =
        [1, 2, 3, 64, 65, 66].map(|kind| [&[VERSION, kind], &status().encode(&SHAPE)[2..16]].concat()).into();
    for round in 0..200_000 {
        let mut packet = prefixes[round % prefixes.len()].clone();
        let mut rest = vec![0; usize::try_from(chance.below(200)).unwrap()];
        chance.fill(&mut rest);
        // Small numbers pass more of the checks.
        rest.iter_mut().for_each(|byte| *byte = if chance.hits(700_000) { *byte & 3 } else { *byte });
        packet.extend(rest);
        let datagram = sealed(packet);
        let _ = (open_downstream(&KEY, &SHAPE, &datagram), open_upstream(&KEY, &SHAPE, &datagram));
    }
}

#[test]
fn blocks_fill_the_packet() {
    assert_eq!(block_bytes_for(1500, false), Some(1424));
    assert_eq!(block_bytes_for(1500, true), Some(1392));
    assert_eq!(block_bytes_for(9000, false), Some(8912));
    assert_eq!(block_bytes_for(65_535, false), Some(8960));
    assert_eq!(block_bytes_for(576, false), None);
    assert_eq!(block_bytes_for(0, true), None);
    // Headers, Ethernet's included, are below 7 % of the payload.
    let payload = u32::from(block_bytes_for(1500, false).expect("it fits"));
    assert!((1500 + 14 - payload) * 100 < payload * 7);
}

#[test]
fn what_somebody_waits_for_is_told_from_the_rest() {
    let objects = ObjectRange { first: 7, count: 2 };
    let whole = [true, false].map(|urgent| NeedRange { objects, cause: Cause::Lost, urgent }).to_vec();
    let need = Upstream::Need(report(), Lacking { whole, ..Lacking::default() });
    assert_eq!(open_upstream(&KEY, &SHAPE, &sealed(need.encode(&SHAPE))), Ok(need));
}

#[test]
fn payloads_are_encrypted_as_another_implementation_does() {
    // Zeros encrypted by the pure Rust implementation of AEGIS-128X2 (ours is in C), exclusive or with the payload.
    let expected = concat!(
        "bf021af50aa5248954906c434f4468f7ce5d41cbbd794eb43eda4064d59c80ec357b0f352da560e3",
        "5876510e52843e75facf0576e56f956db00ffcccae78af8980e630a185f62042e25c5b298acb82f1",
    );
    let mut payload = b"diskcast".repeat(10);
    PayloadCipher::new(&KEY).apply(0x01_2345_6789, &mut payload);
    assert_eq!(payload.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), expected);
}
