//! Tests the NBD front end with real clients: the tools of libnbd and QEMU, and fio.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::Chance;
use mirror::nbd::{Event, Tls};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::nbd_common::tools::{available, fails, qemu_io, run};
use crate::nbd_common::{self, House, MIB, Rigged};

/// Makes a sparse file with random bytes in some places. Returns its content.
fn patchy(path: &Path, bytes: u64, seed: u64) -> Vec<u8> {
    let file = fs::File::create(path).unwrap();
    file.set_len(bytes).unwrap();
    let (mut chance, mut piece) = (Chance::from_seed(seed), vec![0; 300_000]);
    for _ in 0..20 {
        chance.fill(&mut piece);
        file.write_all_at(&piece, chance.below(bytes - 300_000)).unwrap();
    }
    fs::read(path).unwrap()
}

#[test]
fn nbdinfo_tells_what_is_served() {
    if !available(&["nbdinfo"]) {
        return;
    }
    let (house, disk) = House::of(|path| Rigged::new(path, 64 * MIB));
    let large =
        Arc::new(Rigged { sector_bytes: 4096, read_only: true, ..Rigged::new(&house.path("large"), MIB) });
    house.offer("large", &large);
    let said = run("nbdinfo", &["--json", &house.uri("disk")]);
    for fact in [
        "\"export-size\": 67108864",
        "\"block_size_minimum\": 512",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
        "\"can_multi_conn\": true",
        "\"can_fua\": true",
        "\"can_fast_zero\": true",
        "\"can_trim\": true",
        "\"can_df\": true",
        "\"can_cache\": true",
        "\"is_read_only\": false",
        "\"structured\": true",
        "\"description\": \"test disk disk\"",
        "\"base:allocation\"",
        "\"diskcast:local\"",
        "\"diskcast:dirty\"",
    ] {
        assert!(said.contains(fact), "no {fact} in {said}");
    }
    let said = run("nbdinfo", &["--json", &house.uri("large")]);
    assert!(
        said.contains("\"block_size_minimum\": 4096") && said.contains("\"is_read_only\": true"),
        "{said}"
    );
    let said = run("nbdinfo", &["--list", &house.uri("")]);
    assert!(said.contains("export=\"disk\"") && said.contains("export=\"large\""), "{said}");
    assert!(fails("nbdinfo", &[&house.uri("none")]).contains("No such file or directory for export: none"));
    mirror::Served::write(&*disk, MIB, &[1; 65536], mirror::Durability::Cached).unwrap();
    let said = run("nbdinfo", &["--map", &house.uri("disk")]);
    let words: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0][..3], ["0", "1048576", "3"], "{said}");
    assert_eq!(words[1][..3], ["1048576", "65536", "0"], "{said}");
    assert_eq!(words.len(), 3, "{said}");
    assert!(run("nbdinfo", &["--map=diskcast:local", &house.uri("disk")]).contains("67108864"));
}

#[test]
fn nbdcopy_brings_every_byte_both_ways() {
    if !available(&["nbdcopy"]) {
        return;
    }
    for sector_bytes in [512, 4096] {
        let (house, disk) = House::of(|path| Rigged { sector_bytes, ..Rigged::new(path, 96 * MIB) });
        let (from, back) = (house.path("from"), house.path("back"));
        let content = patchy(&from, 96 * MIB, u64::from(sector_bytes));
        let (from, back, uri) = (from.to_str().unwrap(), back.to_str().unwrap(), house.uri("disk"));
        run("nbdcopy", &["--flush", from, &uri]);
        assert!(fs::read(house.path("disk.raw")).unwrap() == content);
        assert!(disk.flushes.load(Ordering::SeqCst) > 0);
        run("nbdcopy", &[&uri, back]);
        assert!(fs::read(back).unwrap() == content);
        fs::remove_file(back).unwrap();
        run("nbdcopy", &["--synchronous", "--no-extents", "--request-size=32768", &uri, back]);
        assert!(fs::read(back).unwrap() == content);
        // No read is answered at once, so threads do all of them; the target file already has content.
        disk.near.store(false, Ordering::SeqCst);
        run("nbdcopy", &["--connections=4", "--request-size=4194304", &uri, back]);
        assert!(fs::read(back).unwrap() == content);
    }
}

#[test]
fn qemu_writes_and_reads_patterns() {
    if !available(&["qemu-io", "qemu-img"]) {
        return;
    }
    for sector_bytes in [512, 4096] {
        let (house, disk) = House::of(|path| Rigged { sector_bytes, ..Rigged::new(path, 64 * MIB) });
        let uri = house.uri("disk");
        qemu_io(
            &uri,
            &[
                "write -P 0x11 0 8M",
                "write -P 0x22 -f 1M 64k",
                "write -z 2M 1M",
                "write -z -u 4M 1M",
                "discard 6M 1M",
                // Less than a sector: QEMU does a read-modify-write.
                "write -P 0x33 7000001 77",
                "flush",
                "aio_write -P 0x44 16M 2M",
                "aio_write -P 0x55 20M 2M",
                "aio_flush",
            ],
        );
        disk.near.store(false, Ordering::SeqCst);
        qemu_io(
            &uri,
            &[
                "read -P 0x11 0 1M",
                "read -P 0x22 1M 64k",
                "read -P 0 2M 1M",
                "read -P 0x11 3M 1M",
                "read -P 0 4M 1M",
                "read -P 0 6M 512k",
                "read -P 0x33 7000001 77",
                "read -P 0x44 16M 2M",
                "read -P 0x55 20M 2M",
                "read -P 0 32M 32M",
            ],
        );
        let info = run("qemu-img", &["info", "--output=json", &uri]);
        assert!(info.contains("\"virtual-size\": 67108864"), "{info}");
        let from = house.path("from");
        patchy(&from, 64 * MIB, 9);
        let from = from.to_str().unwrap();
        run("qemu-img", &["convert", "-n", "-W", "-f", "raw", "-O", "raw", from, &uri]);
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", from, &uri]);
    }
}

#[test]
fn qemu_is_told_of_a_read_only_disk() {
    if !available(&["qemu-io", "qemu-img"]) {
        return;
    }
    let (house, _) = House::of(|path| Rigged { read_only: true, ..Rigged::new(path, MIB) });
    let uri = house.uri("disk");
    assert!(fails("qemu-io", &["-f", "raw", &uri, "-c", "write 0 4k"]).contains("Permission denied"));
    assert!(fails("qemu-img", &["info", &house.uri("none")]).contains("no disk `none` is served"));
    run("qemu-io", &["-r", "-f", "raw", &uri, "-c", "read -P 0 0 4k"]);
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !available(&["fio"]) {
        return;
    }
    let (house, disk) = House::of(|path| Rigged::new(path, 32 * MIB));
    let uri = format!("--uri={}", house.uri("disk"));
    for (near, pattern) in [(true, "randwrite"), (false, "write"), (false, "randrw")] {
        disk.near.store(near, Ordering::SeqCst);
        let pattern = format!("--rw={pattern}");
        let words = [
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            &pattern,
            "--bsrange=512-256k",
            "--blockalign=512",
            "--size=32m",
            "--iodepth=16",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--randseed=1",
            "--fsync=50",
            "--verify_state_save=0",
        ];
        run("fio", &words);
    }
}

#[test]
fn many_clients_at_once_each_find_their_own() {
    if !available(&["qemu-io"]) {
        return;
    }
    let house = House::new(12);
    let disk = Arc::new(Rigged::new(&house.path("disk.raw"), 64 * MIB));
    house.offer("disk", &disk);
    let uri = house.uri("disk");
    let clients: Vec<Child> = (0..12)
        .map(|client| {
            let write = format!("write -P {} {}M 2M", client + 1, 4 * client);
            let read = format!("read -P {} {}M 2M", client + 1, 4 * client);
            let words = ["-f", "raw", &uri, "-c", &write, "-c", "flush", "-c", &read];
            Command::new("qemu-io").args(words).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    for mut client in clients {
        assert!(client.wait().unwrap().success());
    }
    // Their places are free once the server has noticed that they left.
    (0..12).for_each(|_| drop(house.event(|event| matches!(event, Event::Disconnected { .. }))));
    for client in 0..12 {
        qemu_io(&uri, &[&format!("read -P {} {}M 2M", client + 1, 4 * client)]);
    }
}

#[test]
fn a_killed_client_harms_nobody() {
    if !available(&["nbdcopy", "qemu-io"]) {
        return;
    }
    let (house, disk) =
        House::of(|path| Rigged { held: |write, at| write && at >= 8 * MIB, ..Rigged::new(path, 32 * MIB) });
    let (from, mut content) = (house.path("from"), vec![0; 32 << 20]);
    Chance::from_seed(1).fill(&mut content);
    fs::write(&from, content).unwrap();
    let uri = house.uri("disk");
    for round in 0..5 {
        disk.gate.set_closed(true);
        let before = disk.writes.load(Ordering::SeqCst);
        let words = [from.to_str().unwrap(), &uri];
        let mut copy = Command::new("nbdcopy").args(words).stdin(Stdio::null()).spawn().unwrap();
        while disk.writes.load(Ordering::SeqCst) < before + 8 {
            std::thread::yield_now();
        }
        copy.kill().unwrap();
        assert!(!copy.wait().unwrap().success(), "it cannot have come to its end");
        let word = format!("{}k", 64 * round);
        qemu_io(&uri, &[&format!("write -P 7 {word} 64k"), "flush", &format!("read -P 7 {word} 64k")]);
        disk.gate.set_closed(false);
    }
    assert_eq!(house.server.stop(nbd_common::PATIENCE), 0);
    let (mut came, mut went) = (0, 0);
    for event in house.events.try_iter() {
        match event {
            Event::Connected { .. } => came += 1,
            Event::Disconnected { .. } => went += 1,
            _ => {}
        }
    }
    assert_eq!(came, went);
}

/// Makes a certificate for `localhost`: the configuration of the server, and the file with which clients verify it.
fn certificate(folder: &Path) -> Arc<rustls::ServerConfig> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(folder.join("ca-cert.pem"), made.cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.unwrap().with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key);
    Arc::new(config.unwrap())
}

#[test]
fn disks_are_served_under_tls() {
    if !available(&["nbdinfo", "nbdcopy"]) {
        return;
    }
    let (house, disk) = House::of(|path| Rigged::new(path, 64 * MIB));
    let config = certificate(house.folder.path());
    let (strict, lax) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = [&strict, &lax].map(|listener| listener.local_addr().unwrap().port());
    house.server.listen_tcp(strict, Tls::Required(Arc::clone(&config))).unwrap();
    house.server.listen_tcp(lax, Tls::Offered(config)).unwrap();
    let trust = format!("tls-certificates={}", house.folder.path().display());
    let private = |port| format!("nbds://localhost:{port}/disk?{trust}");
    let plain = |port| format!("nbd://localhost:{port}/disk");
    for port in ports {
        assert!(run("nbdinfo", &["--json", &private(port)]).contains("\"TLS\": true"));
    }
    assert!(run("nbdinfo", &["--json", &plain(ports[1])]).contains("\"TLS\": false"));
    assert!(fails("nbdinfo", &[&plain(ports[0])]).contains("TLS"));
    let from = house.path("from");
    let content = patchy(&from, 64 * MIB, 4);
    for near in [true, false] {
        disk.near.store(near, Ordering::SeqCst);
        let back = house.path("back");
        run("nbdcopy", &[from.to_str().unwrap(), &private(ports[0])]);
        run("nbdcopy", &[&private(ports[0]), back.to_str().unwrap()]);
        assert!(fs::read(back).unwrap() == content);
    }
    // A server with the right name but another key must be rejected.
    fs::write(
        house.path("ca-cert.pem"),
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem(),
    )
    .unwrap();
    fails("nbdinfo", &[&private(ports[0])]);
}
