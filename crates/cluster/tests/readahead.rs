//! What a device has in memory: what was appended lately, and what comes next for who reads in order. What the kernel
//! has in memory is told by `fincore`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base::Chance;
use cluster::wire::DeviceStatus;
use proto::cluster::ObjectId;
use reqwest::Method;

use crate::lone::{Lone, all_rights, sealed};

const MIB: usize = 1 << 20;
const OBJECT: ObjectId = ObjectId { group: 5, number: 9 };

/// The only file of an object below `folder`.
fn file(folder: &Path) -> PathBuf {
    let only = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    if only.is_dir() { file(&only) } else { only }
}

/// Bytes of a file that are in memory.
fn in_memory(file: &Path) -> usize {
    let mut fincore = Command::new("fincore");
    let told = fincore.args(["--bytes", "--noheadings", "--output", "RES"]).arg(file).output().unwrap();
    assert!(told.status.success(), "{told:?}");
    String::from_utf8(told.stdout).unwrap().trim().parse().unwrap()
}

#[test]
fn what_comes_next_is_in_memory() {
    // A folder on a disk, which the one for temporary files need not be.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let device = Lone::start(folder.path());
    let all = sealed(&all_rights(OBJECT.group));
    let mut content = vec![0; 16 * MIB];
    Chance::from_seed(7).fill(&mut content);
    let create = device.request(Method::POST, &format!("objects/{OBJECT}"), &all).send().unwrap();
    assert_eq!(create.status(), 201);
    let append = device.request(Method::POST, &format!("objects/{OBJECT}/append?at=0"), &all);
    assert_eq!(append.body(content.clone()).send().unwrap().status(), 200);

    // What was appended is in the device's own memory, until it starts again.
    let file = file(&folder.path().join("objects"));
    assert_eq!(in_memory(&file), 0, "it was written past the page cache, in a folder on a disk");
    let read_all = device.request(Method::GET, &format!("objects/{OBJECT}"), &all).send().unwrap();
    assert!(read_all.bytes().unwrap() == content);
    assert_eq!(in_memory(&file), 0);
    drop(device);
    let device = Lone::start(folder.path());

    let read = |number: usize| {
        let (from, to) = (number * MIB, (number + 1) * MIB);
        let request = device.request(Method::GET, &format!("objects/{OBJECT}"), &all);
        let answer = request.header("range", format!("bytes={from}-{}", to - 1)).send().unwrap();
        assert!(answer.bytes().unwrap() == content[from..to]);
    };
    let status = || device.request(Method::GET, "status", "").send().unwrap().json::<DeviceStatus>().unwrap();
    read(0);
    assert!(in_memory(&file) < 2 * MIB, "one read is not a stream");
    read(1);
    let patience = 1000;
    let ahead = (0..patience).any(|_| {
        std::thread::park_timeout(Duration::from_millis(10));
        in_memory(&file) >= 4 * MIB
    });
    assert!(ahead, "{} bytes are in memory", in_memory(&file));
    let before = status();
    read(2);
    assert_eq!((before.reads, status().reads), (2, 3));
    assert_eq!(status().reads_in_memory, before.reads_in_memory + 1);
}
