//! Tests the client side of NBD: many readers and writers of a disk at once, errors of a server, servers that lie, and
//! disks that nbdkit and QEMU serve.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::Arc;

use base::{Chance, ErrorKind};
use disk::{ReadAt as _, WriteAt as _};
use mirror::nbd::{Export, ExportAddress, NbdDisk, ServerAddress};

use crate::nbd_common::tools::available;
use crate::nbd_common::{House, MIB, Rigged};

fn add(house: &House, name: &str, disk: Rigged) {
    let export = Export { disk: Arc::new(disk), description: name.into() };
    house.table.insert(name, export).unwrap();
}

fn open(house: &House, name: &str) -> NbdDisk {
    NbdDisk::open(&ExportAddress::parse(&house.uri(name)).unwrap()).unwrap()
}

#[test]
fn readers_and_writers_share_the_connections() {
    let house = House::new(8);
    add(&house, "disk", Rigged::new(&house.path("disk"), 32 * MIB));
    let disk = Arc::new(open(&house, "disk"));
    assert_eq!(disk.geometry().size_bytes, 32 * MIB);
    // More threads than connections.
    std::thread::scope(|scope| {
        for part in 0..16u64 {
            let disk = Arc::clone(&disk);
            scope.spawn(move || {
                let bytes = vec![u8::try_from(part).unwrap() + 1; 1 << 20];
                let mut back = vec![0; 1 << 20];
                for at in [2 * part * MIB, 2 * part * MIB + 512] {
                    disk.write_all_at(&bytes, at).unwrap();
                    disk.read_exact_at(&mut back, at).unwrap();
                    assert!(back == bytes);
                }
                disk.write_zeroes(2 * part * MIB, 512).unwrap();
            });
        }
    });
    disk.sync().unwrap();
    let bytes = std::fs::read(house.path("disk")).unwrap();
    for part in 0..16usize {
        let here = &bytes[(2 * part) << 20..(2 * part + 1) << 20];
        assert!(here[..512].iter().all(|&byte| byte == 0));
        assert!(here[512..].iter().all(|&byte| usize::from(byte) == part + 1));
    }
    // Ranges that fit no sector are read nevertheless.
    let mut piece = [0; 100];
    disk.read_exact_at(&mut piece, 3 * MIB / 2 - 7).unwrap();
    assert_eq!(piece, bytes[(3 << 19) - 7..][..100]);
    assert!(disk.read_exact_at(&mut piece, 32 * MIB - 50).is_err());
}

#[test]
fn errors_of_a_server_are_errors_here_and_the_disk_stays_usable() {
    let house = House::new(8);
    add(&house, "broken", Rigged { broken_from: MIB, ..Rigged::new(&house.path("broken"), 4 * MIB) });
    add(&house, "closed", Rigged { read_only: true, ..Rigged::new(&house.path("closed"), 4 * MIB) });
    add(&house, "large", Rigged { sector_bytes: 4096, ..Rigged::new(&house.path("large"), 4 * MIB) });
    let disk = open(&house, "broken");
    let mut piece = vec![0; 4096];
    for _ in 0..20 {
        assert_eq!(disk.read_exact_at(&mut piece, 2 * MIB).unwrap_err().kind(), ErrorKind::Io);
        disk.read_exact_at(&mut piece, 0).unwrap();
    }
    let closed = open(&house, "closed");
    assert!(closed.is_read_only() && !disk.is_read_only());
    assert_eq!(closed.write_all_at(&piece, 0).unwrap_err().kind(), ErrorKind::Refused);
    let large = open(&house, "large");
    // Of a disk without a partition table nobody knows it.
    assert_eq!(large.geometry().logical_sector_bytes, 512);
    large.read_exact_at(&mut piece[..512], 512).unwrap();
    let missing = NbdDisk::open(&ExportAddress::parse(&house.uri("none")).unwrap()).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let nowhere = ServerAddress::Unix(house.path("nowhere"));
    let gone = NbdDisk::open(&ExportAddress { server: nowhere, export: String::new() }).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Unreachable);
}

/// A server's smallest block is a limit for requests. It refuses all others.
#[test]
fn parts_of_blocks_are_written_by_many_at_once() {
    let house = House::new(8);
    add(&house, "large", Rigged { sector_bytes: 4096, ..Rigged::new(&house.path("large"), MIB) });
    let disk = open(&house, "large");
    disk.write_all_at(&vec![9; 1 << 20], 0).unwrap();
    // Each block has a sector of each of them.
    std::thread::scope(|scope| {
        for writer in 0..8u8 {
            let disk = &disk;
            scope.spawn(move || {
                for block in 0..MIB / 4096 {
                    disk.write_all_at(&[writer; 512], block * 4096 + u64::from(writer) * 512).unwrap();
                }
            });
        }
    });
    let mut wanted: Vec<u8> = (0..1 << 20).map(|at: u32| u8::try_from(at / 512 % 8).unwrap()).collect();
    // Inside one block, over an edge without a whole block, and with whole ones.
    for (sector, count) in [(1, 3), (15, 2), (20, 30), (64, 8)] {
        let (at, bytes) = (sector * 512, count * 512);
        disk.write_all_at(&vec![7; bytes], at as u64).unwrap();
        wanted[at..][..bytes].fill(7);
        let behind = at + 100 * 512;
        disk.write_zeroes(behind as u64, bytes as u64).unwrap();
        wanted[behind..][..bytes].fill(0);
    }
    disk.discard(513 * 512, 1024).unwrap();
    disk.sync().unwrap();
    assert!(std::fs::read(house.path("large")).unwrap() == wanted);
}

/// A server that answers well until its `good` bytes are used up, and then with random ones.
#[test]
fn whatever_a_server_sends_ends_in_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    // What a good server sends: greeting, no structured replies, size and flags, and a reply to a read.
    let mut good = [&b"NBDMAGICIHAVEOPT\0\x03"[..]].concat();
    let answer = |option: u32, kind: u32, body: &[u8]| {
        let length = u32::try_from(body.len()).unwrap();
        [
            &0x0003_e889_0455_65a9_u64.to_be_bytes()[..],
            &option.to_be_bytes(),
            &kind.to_be_bytes(),
            &length.to_be_bytes(),
            body,
        ]
        .concat()
    };
    good.extend(answer(8, 1, &[]));
    good.extend(answer(10, 1, &[]));
    good.extend(answer(7, 3, &[&[0, 0][..], &MIB.to_be_bytes(), &[0, 1]].concat()));
    good.extend(answer(7, 1, &[]));
    let opened = good.len();
    good.extend(
        [&0x668e_33ef_u32.to_be_bytes()[..], &[0, 1, 0, 1], &1u64.to_be_bytes(), &(8 + 512u32).to_be_bytes()]
            .concat(),
    );
    good.extend([&[0; 8][..], &[7; 512]].concat());
    let address = ExportAddress { server: ServerAddress::Unix(path), export: String::new() };
    let all = good.clone();
    let server = std::thread::spawn(move || {
        let rounds = 400;
        for seed in 0..rounds {
            let (mut client, _) = listener.accept().unwrap();
            let mut chance = Chance::from_seed(seed);
            let mut bytes = all.clone();
            match seed {
                0 => {}
                _ if seed % 2 == 0 => {
                    bytes.truncate(usize::try_from(chance.below(all.len() as u64 - 1)).unwrap())
                }
                _ => {
                    let at = usize::try_from(chance.below(all.len() as u64 - 512)).unwrap();
                    chance.fill(&mut bytes[at..]);
                }
            }
            let mut taker = client.try_clone().unwrap();
            let taken =
                std::thread::spawn(move || while taker.read(&mut [0; 256]).is_ok_and(|count| count > 0) {});
            let _ = client.write_all(&bytes);
            let _ = client.shutdown(std::net::Shutdown::Write);
            taken.join().unwrap();
        }
        rounds
    });
    let mut read = 0;
    for _ in 0..400 {
        let Ok(disk) = NbdDisk::open(&address) else { continue };
        let mut piece = [0; 512];
        if disk.read_exact_at(&mut piece, 0).is_ok() {
            read += 1;
        }
    }
    assert_eq!(server.join().unwrap(), 400);
    assert!(read >= 1, "the good server's bytes are read");
    assert!(opened > 100);
}

#[test]
fn holes_are_known_from_the_server() {
    if !available(&["qemu-nbd", "qemu-img"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (path, socket) = (folder.path().join("disk"), folder.path().join("socket"));
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(64 << 30).unwrap();
    let places = [0, 5 << 30, (9 << 30) + (1 << 20), (64 << 30) - (64 << 10)];
    for at in places {
        std::os::unix::fs::FileExt::write_all_at(&file, &[9; 64 << 10], at).unwrap();
    }
    let mut child = Command::new("qemu-nbd")
        .args(["--read-only", "--shared=4", "--format=raw"])
        .arg(format!("--socket={}", socket.display()))
        .arg(&path)
        .spawn()
        .unwrap();
    let address = ExportAddress { server: ServerAddress::Unix(socket), export: String::new() };
    let disk = loop {
        match NbdDisk::open(&address) {
            Ok(disk) => break disk,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable),
        }
        assert!(child.try_wait().unwrap().is_none());
        std::thread::yield_now();
    };
    let (mut at, mut found) = (0, Vec::new());
    while disk.next_data(at) < 64 << 30 {
        at = disk.next_data(at);
        found.push(at);
        let mut piece = vec![0; 64 << 10];
        disk.read_exact_at(&mut piece, at).unwrap();
        assert!(piece.iter().all(|&byte| byte == 9));
        at += 64 << 10;
    }
    assert_eq!(found, places);
    // It ends with its last client.
    drop(disk);
    assert!(child.wait().unwrap().success());
}
