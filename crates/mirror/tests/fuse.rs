//! A mounted repository as programs see it. The tests need /dev/fuse, and some of them root: the machine that tests
//! this crate has both.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use base::Chance;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, seek};

use crate::common::{CHUNK, DEAD, GOOD, Moody, Place, source, stamp};
use crate::fuse_common::{Loop, Mount, open, run};

const SIZE: u64 = 40 * CHUNK;
/// Error numbers of Linux.
const EPERM: i32 = 1;
const EIO: i32 = 5;
const EBUSY: i32 = 16;
const EFBIG: i32 = 27;
const EROFS: i32 = 30;

#[test]
fn versions_are_files_and_listing_fetches_nothing() {
    let place = Place::new(SIZE, 1);
    place.repository.tag(&"disk".parse().unwrap(), &"stable".parse().unwrap(), 1, &stamp()).unwrap();
    let mount = Mount::new(&place);
    assert_eq!(mount.list(""), ["_clones", "_control", "_status", "disk"]);
    assert_eq!(mount.list("disk"), ["1", "2", "latest", "stable"]);
    let meta = std::fs::metadata(mount.path("disk/latest")).unwrap();
    assert_eq!((meta.len(), meta.mtime(), meta.mode() & 0o777), (SIZE, 1_795_294_800, 0o400));
    assert_eq!(std::fs::read_link(mount.path("disk/latest")).unwrap(), Path::new("2"));
    assert_eq!(std::fs::read_link(mount.path("disk/stable")).unwrap(), Path::new("1"));
    for missing in ["disk/3", "disk/none", "none", "_x", "_clones/none"] {
        let error = std::fs::metadata(mount.path(missing)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{missing}");
    }
    assert_eq!(mount.mounted.counters().opened, 0);
    assert_eq!(std::fs::read_dir(place.path("cache/versions")).unwrap().count(), 0);
    assert!(std::fs::read(mount.path("disk/2")).unwrap() == place.content);
    assert!(std::fs::read(mount.path("disk/stable")).unwrap().iter().all(|&byte| byte == 0));
    for way in [OpenOptions::new().write(true), OpenOptions::new().read(true).write(true)] {
        assert_eq!(way.open(mount.path("disk/2")).unwrap_err().raw_os_error(), Some(EROFS));
    }
    mount.mounted.stop().unwrap();
    assert_eq!(mount.list(""), Vec::<String>::new(), "it is unmounted");
}

#[test]
fn what_is_open_stays_the_version_that_latest_was() {
    let place = Place::new(SIZE, 2);
    let mount = Mount::new(&place);
    let before = File::open(mount.path("disk/latest")).unwrap();
    place.repository.blob(&"disk".parse().unwrap()).write(0, &[9; 4096], &stamp()).unwrap();
    // The kernel caches a link for a second.
    while std::fs::read_link(mount.path("disk/latest")).unwrap() != Path::new("3") {
        std::thread::yield_now();
    }
    let mut bytes = [0; 4096];
    before.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == place.content[..4096]);
    assert!(std::fs::read(mount.path("disk/3")).unwrap()[..4096] == [9; 4096]);
}

#[test]
fn holes_are_found_and_read_without_a_fetch() {
    let place = Place::new(SIZE, 3);
    let mount = Mount::new(&place);
    let file = File::open(mount.path("disk/2")).unwrap();
    let (mut at, mut data) = (0, 0);
    while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
        assert!(place.content[at as usize..start as usize].iter().all(|&byte| byte == 0), "{at}..{start}");
        let end = seek(&file, SeekFrom::Hole(start)).unwrap();
        assert!(end > start && end <= SIZE);
        data += end - start;
        at = end;
    }
    assert!(data < SIZE * 4 / 5 && data > 0, "{data} bytes of data");
    assert!(std::fs::read_to_string(mount.path("_status")).unwrap().contains(" demanded_bytes 0 "));
    assert_eq!(seek(&file, SeekFrom::End(0)).unwrap(), SIZE);
    assert!(seek(&file, SeekFrom::Data(SIZE)).is_err());
}

#[test]
fn a_complete_version_is_read_by_the_kernel_alone() {
    let place = Place::new(SIZE, 4);
    let mount = Mount::new(&place);
    let path = mount.path("disk/2");
    assert!(std::fs::read(&path).unwrap() == place.content);
    let reads = loop {
        // The disk is closed a moment after the last user has closed its file.
        let file = File::open(&path).unwrap();
        let counters = mount.mounted.counters();
        if counters.passthrough > 0 {
            let second = File::open(&path).unwrap();
            second.read_exact_at(&mut [0; 512], 512).unwrap();
            file.read_exact_at(&mut [0; 512], 512).unwrap();
            assert!(std::fs::read(&path).unwrap() == place.content);
            assert!(OpenOptions::new().write(true).open(&path).is_err());
            break (counters.reads, mount.mounted.counters().reads);
        }
    };
    assert_eq!(reads.0, reads.1, "no read came here");
    // Writes of a clone must reach the mount, complete or not.
    let clone = open(&mount.clone_of("own", "disk"));
    clone.write_all_at(&[1; 4096], 0).unwrap();
    assert_eq!(mount.mounted.counters().writes, 1);
}

#[test]
fn clones_are_made_written_committed_and_removed() {
    let place = Place::new(SIZE, 5);
    let mount = Mount::new(&place);
    assert_eq!(mount.control("clone vm1 disk").unwrap(), "cloned vm1 from disk@2");
    for (line, error) in [
        ("clone vm1 disk", std::io::ErrorKind::AlreadyExists),
        ("clone vm2 none", std::io::ErrorKind::NotFound),
        ("commit vm2", std::io::ErrorKind::NotFound),
        ("erase vm1", std::io::ErrorKind::InvalidInput),
        ("fork vm1 disk", std::io::ErrorKind::AlreadyExists),
    ] {
        assert_eq!(mount.control(line).unwrap_err().kind(), error, "{line}");
        assert!(std::fs::read_to_string(mount.path("_control")).unwrap().starts_with("failed: "), "{line}");
    }
    assert_eq!(mount.control("commit vm1").unwrap(), "unchanged vm1: it is disk@2");
    let mut expected = place.content.clone();
    let file = open(&mount.path("_clones/vm1"));
    file.write_all_at(&[7; 1000], 5000).unwrap();
    expected[5000..6000].fill(7);
    let answer = mount.control("commit vm1").unwrap();
    assert!(answer.starts_with("committed vm1 as disk@3: "), "{answer}");
    assert!(place.read("disk@3") == expected);
    // The same by ioctl, as in the paper.
    mount.control("fork vm1 lab").unwrap();
    file.write_all_at(&[8; 1000], 9000).unwrap();
    expected[9000..10000].fill(8);
    let clone = mount.path("_clones/vm1");
    let answer = ioctl(&clone, "+<", 0xC400_DC02, "");
    assert!(answer.starts_with("committed vm1 as lab@"), "{answer}");
    assert!(place.read("lab") == expected);
    assert_eq!(ioctl(&mount.path("disk/2"), "<", 0xC400_DC01, "vm3"), "cloned vm3 from disk@2");
    assert_eq!(ioctl(&clone, "+<", 0xC400_DC01, "attic"), "forked vm1 to attic");
    assert_eq!(mount.list("_clones"), ["vm1", "vm3"]);
    let error = std::fs::remove_file(&clone).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(EBUSY), "it is open");
    std::fs::remove_file(mount.path("_clones/vm3")).unwrap();
    drop(file);
    // The kernel reports the last close a moment later.
    while std::fs::remove_file(&clone).is_err_and(|error| error.raw_os_error() == Some(EBUSY)) {
        std::thread::yield_now();
    }
    assert!(mount.list("_clones").is_empty());
}

/// By Perl, which needs no unsafe code here and is part of every Debian.
fn ioctl(path: &Path, mode: &str, number: u32, text: &str) -> String {
    let program = "my ($p, $m, $n, $t) = @ARGV; open F, $m, $p or die $!; my $b = pack 'a1024', $t; \
                   ioctl(F, $n, $b) or die $!; print unpack 'Z*', $b";
    run(&["perl", "-e", program, path.to_str().unwrap(), mode, &number.to_string(), text])
}

#[test]
fn a_clone_gets_another_name_by_the_control_file_and_mv_is_told_so() {
    let place = Place::new(SIZE, 10);
    let mount = Mount::new(&place);
    let file = open(&mount.clone_of("one", "disk"));
    file.write_all_at(&[7; 512], 4096).unwrap();
    mount.control("clone three disk@1").unwrap();
    let number = |error: std::io::Error| error.raw_os_error();
    assert_eq!(number(mount.control("rename one two").unwrap_err()), Some(EBUSY));
    drop(file);
    for (from, to, said) in [
        ("_clones/one", "_clones/two", "echo rename one NEW > _control"),
        ("disk/2", "disk/3", "not renamed in a mount"),
        ("disk", "other", "not renamed in a mount"),
    ] {
        let error = std::fs::rename(mount.path(from), mount.path(to)).unwrap_err();
        assert_eq!(number(error), Some(EPERM), "{from}");
        let answer = std::fs::read_to_string(mount.path("_control")).unwrap();
        assert!(answer.starts_with("failed: ") && answer.contains(said), "{from}: {answer}");
    }
    // The last close may still be in progress.
    let renamed = loop {
        match mount.control("rename one two") {
            Err(error) if error.raw_os_error() == Some(EBUSY) => {}
            done => break done.unwrap(),
        }
    };
    assert_eq!(renamed, "renamed one to two");
    assert_eq!(mount.list("_clones"), ["three", "two"]);
    assert!(std::fs::read(mount.path("_clones/two")).unwrap()[4096..4608] == [7; 512]);
    assert_eq!(mount.control("rename two three").unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(mount.control("rename one four").unwrap_err().kind(), std::io::ErrorKind::NotFound);
    // The old name is free, and another disk can have it at once.
    let again = mount.clone_of("one", "disk@1");
    assert!(std::fs::read(again).unwrap().iter().all(|&byte| byte == 0));
    mount.mounted.stop().unwrap();
}

#[test]
fn disks_keep_their_size_and_refuse_what_is_behind_it() {
    let place = Place::new(SIZE, 6);
    let mount = Mount::new(&place);
    let path = mount.clone_of("vm", "disk");
    let file = open(&path);
    assert!(file.set_len(SIZE - 1).is_err() && file.set_len(0).is_err());
    file.set_len(SIZE).unwrap();
    assert_eq!(file.write_at(&[1; 2], SIZE).unwrap_err().raw_os_error(), Some(EFBIG));
    assert_eq!(file.read_at(&mut [0; 10], SIZE).unwrap(), 0);
    assert_eq!(file.read_at(&mut [0; 10], SIZE - 3).unwrap(), 3);
    assert!(fallocate(&file, FallocateFlags::empty(), 0, SIZE + 1).is_err());
    fallocate(&file, FallocateFlags::empty(), 0, SIZE).unwrap();
    assert!(File::create(mount.path("_clones/new")).is_err());
    assert!(std::fs::create_dir(mount.path("new")).is_err());
    assert_eq!(std::fs::metadata(&path).unwrap().len(), SIZE);
}

/// Reads, writes, punches holes and zeroes at odd offsets, by several writers that share the sectors at the edges of
/// their parts.
#[test]
fn a_file_is_as_a_file_in_memory() {
    let place = Place::new(SIZE, 7);
    let mount = Mount::new(&place);
    let path = mount.clone_of("vm", "disk@2");
    const WRITERS: u64 = 4;
    let part = SIZE / WRITERS;
    let parts: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let start = if writer == 0 { 0 } else { writer * part + 37 };
                let end = if writer == WRITERS - 1 { SIZE } else { (writer + 1) * part + 37 };
                let model = place.content[start as usize..end as usize].to_vec();
                let path = &path;
                scope.spawn(move || exercise(path, start, model, OFlags::DIRECT, writer))
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let expected = parts.concat();
    assert!(std::fs::read(&path).unwrap() == expected);
    mount.control("commit vm").unwrap();
    assert!(place.read("disk@3") == expected);
    drop(mount);
    let mount = Mount::new(&place);
    assert!(std::fs::read(mount.path("_clones/vm")).unwrap() == expected);
}

/// Random operations of one writer on the bytes from `start` on, some of them through a file opened with `flags`.
/// Returns the expected final content.
fn exercise(path: &Path, start: u64, mut model: Vec<u8>, flags: OFlags, seed: u64) -> Vec<u8> {
    let mut chance = Chance::from_seed(seed);
    let files = [OFlags::empty(), flags].map(|flags| {
        let flags = flags.bits().cast_signed();
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
    });
    for _ in 0..600 {
        let file = &files[chance.below(2) as usize];
        let mut offset = chance.below(model.len() as u64);
        let count_max = if chance.hits(100_000) { 300_000 } else { 9000 };
        let mut count = 1 + chance.below(count_max);
        if chance.hits(300_000) {
            // The edges, whose sectors are shared with neighbours.
            offset = if chance.hits(500_000) { 0 } else { model.len() as u64 - 300 };
            count = 300;
        }
        let count = count.min(model.len() as u64 - offset);
        let range = offset as usize..(offset + count) as usize;
        match chance.below(8) {
            0..3 => {
                let mut bytes = vec![0; count as usize];
                chance.fill(&mut bytes);
                file.write_all_at(&bytes, start + offset).unwrap();
                model[range].copy_from_slice(&bytes);
            }
            3 => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(file, flags, start + offset, count).unwrap();
                model[range].fill(0);
            }
            4 => {
                fallocate(file, FallocateFlags::ZERO_RANGE, start + offset, count).unwrap();
                model[range].fill(0);
            }
            5 => file.sync_data().unwrap(),
            _ => {
                let mut bytes = vec![0; count as usize];
                file.read_exact_at(&mut bytes, start + offset).unwrap();
                assert!(bytes == model[range.clone()], "{range:?} from {start}");
            }
        }
    }
    model
}

#[test]
fn without_a_source_reads_fail_after_their_time_and_others_go_on() {
    let place = Place::new(SIZE, 8);
    let moody = Moody::new(&place, GOOD);
    let mount = Mount::with(&place, vec![source("moody", &moody)], u64::MAX);
    let path = mount.path("disk/2");
    let file = File::open(&path).unwrap();
    let here = place.content.iter().position(|&byte| byte != 0).unwrap() as u64;
    file.read_exact_at(&mut [0; 512], here).unwrap();
    moody.becomes(DEAD);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let whole = scope.spawn(|| {
            let read = std::fs::read(&path);
            ended.store(true, Ordering::SeqCst);
            read
        });
        let mut answered = 0;
        while !ended.load(Ordering::SeqCst) {
            file.read_exact_at(&mut [0; 512], here).unwrap();
            assert_eq!(mount.list("disk").len(), 3);
            answered += 1;
        }
        assert!(answered > 1);
        assert_eq!(whole.join().unwrap().unwrap_err().raw_os_error(), Some(EIO));
    });
    moody.becomes(GOOD);
    assert!(std::fs::read(&path).unwrap() == place.content);
}

#[test]
fn versions_that_nobody_uses_make_room() {
    let place = Place::new(SIZE, 9);
    let mount = Mount::with(&place, place.sources(), 1 << 20);
    assert!(std::fs::read(mount.path("disk/2")).unwrap() == place.content);
    while mount.mounted.counters().dropped == 0 {
        std::thread::yield_now();
    }
    assert!(std::fs::read(mount.path("disk/2")).unwrap() == place.content);
}

#[test]
fn a_stop_ends_what_is_in_use_and_loses_nothing() {
    let place = Place::new(SIZE, 10);
    let mount = Mount::new(&place);
    let file = open(&mount.clone_of("vm", "disk"));
    file.write_all_at(&[5; 777], 12345).unwrap();
    mount.mounted.stop().unwrap();
    assert!(file.read_at(&mut [0; 512], 12345).is_err() && file.write_at(&[1], 0).is_err());
    drop((file, mount));
    let mount = Mount::new(&place);
    let file = open(&mount.path("_clones/vm"));
    let mut bytes = [0; 777];
    file.read_exact_at(&mut bytes, 12345).unwrap();
    assert_eq!(bytes, [5; 777]);
}

/// An ext4 file system of an image is read through a loop device; another one is made on a clone and used.
#[test]
fn file_systems_live_on_loop_devices() {
    const BIG: u64 = 64 << 20;
    let place = Place::new(SIZE, 11);
    let blob = place.repository.blob(&"fs".parse().unwrap());
    blob.create(&store::Shape { size_bytes: BIG, ..store::Shape::default() }, &stamp()).unwrap();
    let mount = Mount::new(&place);
    let clone = mount.clone_of("vm", "fs");
    // A partition that begins at 1 MiB.
    let words = ["mkfs.ext4", "-q", "-F", "-E", "offset=1048576,lazy_itable_init=0,lazy_journal_init=0"];
    run(&[&words[..], &[clone.to_str().unwrap(), "60M"]].concat());
    let mounted = Loop::mount(&clone, place.path("fs"), "loop,offset=1048576,sizelimit=62914560");
    let mut contents = Vec::new();
    for number in 0..40u64 {
        let mut bytes = vec![0; 1000 + 30_000 * number as usize % 300_001];
        Chance::from_seed(number).fill(&mut bytes);
        std::fs::write(mounted.0.join(number.to_string()), &bytes).unwrap();
        contents.push(bytes);
    }
    let model = place.content[..4 << 18].to_vec();
    std::fs::write(mounted.0.join("exercised"), &model).unwrap();
    let model = exercise(&mounted.0.join("exercised"), 0, model, OFlags::empty(), 11);
    let fio =
        ["fio", "--name=verify", "--size=8M", "--rw=randwrite", "--bs=4k", "--verify=crc32c", "--direct=1"];
    run(&[
        &fio[..],
        &["--verify_state_save=0", "--ioengine=psync", "--filename", mounted.0.join("fio").to_str().unwrap()],
    ]
    .concat());
    std::fs::remove_file(mounted.0.join("fio")).unwrap();
    run(&["fstrim", mounted.0.to_str().unwrap()]);
    mounted.unmount();
    mount.control("commit vm").unwrap();
    let version = mount.path("fs/2");
    let mounted = Loop::mount(&version, place.path("read"), "ro,loop,offset=1048576,sizelimit=62914560");
    for (number, bytes) in contents.iter().enumerate() {
        assert!(std::fs::read(mounted.0.join(number.to_string())).unwrap() == *bytes, "file {number}");
    }
    assert!(std::fs::read(mounted.0.join("exercised")).unwrap() == model);
    mounted.unmount();
    let partition = format!("{}?offset=1048576", version.display());
    let output = Command::new("e2fsck").args(["-fn", &partition]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
