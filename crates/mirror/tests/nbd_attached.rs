//! An attached disk by NBD, under libnbd's and QEMU's tools.
#![allow(clippy::unwrap_used, reason = "helpers of tests unwrap, too")]
#![allow(clippy::cast_possible_truncation, reason = "images of tests fit memory")]

mod common;
mod nbd_common;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{CHUNK, Place, options, stamp};
use mirror::nbd::Export;
use mirror::{CommitOptions, Mirror, MirrorOptions, Served};
use nbd_common::House;

/// Runs a tool that has to succeed; false if it is not installed, which is a failure where `CI` is set.
#[expect(clippy::print_stderr, reason = "a test that leaves something out says so")]
fn run(program: &str, arguments: &[&str]) -> bool {
    match Command::new(program).args(arguments).stdin(Stdio::null()).output() {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program} {arguments:?}: {errors}");
            true
        }
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{program}: {error}");
            eprintln!("left out, since there is no {program}");
            false
        }
    }
}

#[test]
fn an_attached_disk_is_copied_written_and_committed_while_it_is_served() {
    let place = Place::new(48 * CHUNK, 20);
    let manifest = place.manifest("disk");
    let mirror = Mirror::create(&place.path("m"), &manifest, place.sources(), &options()).unwrap();
    let mirror = Arc::new(mirror);
    let house = House::new(8);
    let export = Export { disk: Arc::clone(&mirror) as Arc<dyn Served>, description: "attached".into() };
    house.table.insert("attached", export).unwrap();
    let (uri, copy) = (house.uri("attached"), place.path("copy"));
    if !run("nbdcopy", &[&uri, copy.to_str().unwrap()]) {
        return;
    }
    assert!(std::fs::read(&copy).unwrap() == place.content);
    let counters = mirror.counters();
    let fetched = counters.demanded_bytes + counters.prefetched_bytes;
    assert_eq!(fetched, manifest.statistics.encoded_bytes, "each chunk came once: {counters:?}");

    let words = [
        "-c",
        "write -P 7 65024 1024",
        "-c",
        "write -z 262144 131072",
        "-c",
        "flush",
        "-c",
        "read -P 7 65024 1024",
    ];
    if !run("qemu-io", &[&["-f", "raw", &uri], &words[..]].concat()) {
        return;
    }
    let mut expected = place.content.clone();
    expected[65_024..66_048].fill(7);
    expected[262_144..393_216].fill(0);
    let commit = mirror
        .commit(&place.repository, &"changed".parse().unwrap(), &CommitOptions::new(&stamp()))
        .unwrap()
        .unwrap();
    assert_eq!(commit.dirty_bytes, 1024 + 131_072);
    assert!(place.read("changed") == expected);
    assert!(run("nbdcopy", &[&uri, copy.to_str().unwrap()]));
    assert!(std::fs::read(&copy).unwrap() == expected);
}

#[test]
fn fio_verifies_what_it_wrote_while_the_disk_fills_and_is_committed() {
    let place = Place::new(128 * CHUNK, 21);
    let options = MirrorOptions { background_bytes_per_second: 8 << 20, ..options() };
    let mirror =
        Mirror::create(&place.path("m"), &place.manifest("disk"), place.sources(), &options).unwrap();
    let mirror = Arc::new(mirror);
    let house = House::new(8);
    let export = Export { disk: Arc::clone(&mirror) as Arc<dyn Served>, description: "attached".into() };
    house.table.insert("attached", export).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| {
            let mut commits = 0;
            while !over.load(Ordering::Relaxed) {
                let commit = mirror
                    .commit(&place.repository, &"running".parse().unwrap(), &CommitOptions::new(&stamp()))
                    .unwrap();
                commits += u32::from(commit.is_some());
            }
            commits
        });
        let uri = format!("--uri={}", house.uri("attached"));
        let mut ran = false;
        for pattern in ["--rw=randwrite", "--rw=randrw"] {
            let words = [
                "--name=verify",
                "--ioengine=nbd",
                &uri,
                pattern,
                "--bsrange=512-16k",
                "--blockalign=512",
                "--size=4m",
                "--iodepth=16",
                "--verify=crc32c",
                "--do_verify=1",
                "--verify_fatal=1",
                "--fsync=64",
                "--verify_state_save=0",
            ];
            ran = run("fio", &words);
        }
        over.store(true, Ordering::Relaxed);
        assert!(committer.join().unwrap() > 0 || !ran);
    });
    // What was committed last and what is dirty since are what is read.
    let mut bytes = vec![0; 128 * CHUNK as usize];
    mirror.read(0, &mut bytes).unwrap();
    mirror.commit(&place.repository, &"running".parse().unwrap(), &CommitOptions::new(&stamp())).unwrap();
    assert!(place.read("running") == bytes);
}
