//! An attached disk served by NBD, used with the tools of libnbd and QEMU, and fio.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mirror::nbd::Export;
use mirror::{CommitOptions, Mirror, MirrorOptions, Served};

use crate::common::{CHUNK, Place, all, options, stamp};
use crate::nbd_common::House;
use crate::nbd_common::tools::{available, qemu_io, run};

/// A disk of the image `disk`, and an NBD server of it as `attached`.
fn served(place: &Place, options: &MirrorOptions) -> (House, Arc<Mirror>) {
    let mirror = Mirror::create(&place.path("m"), &place.manifest("disk"), place.sources(), options);
    let (house, mirror) = (House::new(8), Arc::new(mirror.unwrap()));
    let export = Export { disk: Arc::clone(&mirror) as Arc<dyn Served>, description: "attached".into() };
    house.table.insert("attached", export).unwrap();
    (house, mirror)
}

#[test]
fn an_attached_disk_is_copied_written_and_committed_while_it_is_served() {
    if !available(&["nbdcopy", "qemu-io"]) {
        return;
    }
    let place = Place::new(48 * CHUNK, 20);
    let (house, mirror) = served(&place, &options());
    let (uri, copy) = (house.uri("attached"), place.path("copy"));
    run("nbdcopy", &[&uri, copy.to_str().unwrap()]);
    assert!(std::fs::read(&copy).unwrap() == place.content);
    let counters = mirror.counters();
    let fetched = counters.demanded_bytes + counters.prefetched_bytes;
    let encoded = place.manifest("disk").statistics.encoded_bytes;
    assert_eq!(fetched, encoded, "each chunk came once: {counters:?}");

    qemu_io(&uri, &["write -P 7 65024 1024", "write -z 262144 131072", "flush", "read -P 7 65024 1024"]);
    let mut expected = place.content.clone();
    expected[65_024..66_048].fill(7);
    expected[262_144..393_216].fill(0);
    let commit = mirror
        .commit(&*place.repository, &"changed".parse().unwrap(), &CommitOptions::new(&stamp()))
        .unwrap()
        .unwrap();
    assert_eq!(commit.dirty_bytes, 1024 + 131_072);
    assert!(place.read("changed") == expected);
    run("nbdcopy", &[&uri, copy.to_str().unwrap()]);
    assert!(std::fs::read(&copy).unwrap() == expected);
}

#[test]
fn fio_verifies_what_it_wrote_while_the_disk_fills_and_is_committed() {
    if !available(&["fio"]) {
        return;
    }
    let place = Place::new(128 * CHUNK, 21);
    let options = MirrorOptions { background_bytes_per_second: 8 << 20, ..options() };
    let (house, mirror) = served(&place, &options);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| {
            let mut commits = 0;
            while !over.load(Ordering::Relaxed) {
                let commit = mirror
                    .commit(&*place.repository, &"running".parse().unwrap(), &CommitOptions::new(&stamp()))
                    .unwrap();
                commits += u32::from(commit.is_some());
            }
            commits
        });
        let uri = format!("--uri={}", house.uri("attached"));
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
            run("fio", &words);
        }
        over.store(true, Ordering::Relaxed);
        assert!(committer.join().unwrap() > 0);
    });
    // Reads return the last committed content and what was written since.
    let bytes = all(&mirror);
    mirror.commit(&*place.repository, &"running".parse().unwrap(), &CommitOptions::new(&stamp())).unwrap();
    assert!(place.read("running") == bytes);
}
