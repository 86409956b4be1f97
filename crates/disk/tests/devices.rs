//! Tests files and loop devices as sources and targets: reading, writing, zeroing, discarding, reading back, and the
//! refusals of a preflight.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use base::ErrorKind;
use disk::{Geometry, ReadAt, TargetOptions, WriteAt, open_source, open_target, preflight};

use crate::common::{Bench, Loop, at_last, have, is_root, map_of, output, run};

fn geometry(size_bytes: u64, sector_bytes: u32) -> Geometry {
    Geometry { size_bytes, logical_sector_bytes: sector_bytes, physical_sector_bytes: sector_bytes }
}

fn refusal(target: &Path, needed: Geometry) -> String {
    let error = preflight(target, needed, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error:?}");
    error.to_string()
}

/// Checks all operations of a target; the results must be the same on every medium.
fn exercise(path: &Path, options: &TargetOptions) {
    let target = open_target(path, options).unwrap();
    let unit = u64::from(target.geometry().logical_sector_bytes);
    let size = target.geometry().size_bytes;
    let data: Vec<u8> = (0..10 * unit).map(|n| (n % 251) as u8 + 1).collect();
    target.write_all_at(&data, 3 * unit).unwrap();
    target.write_all_at(&data[..unit as usize], size - unit).unwrap();
    target.write_zeroes(5 * unit, 2 * unit).unwrap();
    target.reserve(4 * unit, 6 * unit).unwrap();
    match target.discard(9 * unit, unit) {
        Ok(()) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}"),
    }
    target.sync().unwrap();
    let mut back = vec![0xEE; 6 * unit as usize];
    target.read_back_at(&mut back, 3 * unit).unwrap();
    let at = |from: u64, to: u64| from as usize * unit as usize..to as usize * unit as usize;
    assert!(back[at(0, 2)] == data[at(0, 2)] && back[at(4, 6)] == data[at(4, 6)]);
    assert!(back[at(2, 4)].iter().all(|&byte| byte == 0));
    let mut last = vec![0; unit as usize];
    target.read_back_at(&mut last, size - unit).unwrap();
    assert!(last == data[at(0, 1)]);
    assert!(target.read_back_at(&mut back, size - unit).is_err());
    assert!(target.write_zeroes(0, 0).is_ok());
}

/// Who writes is told apart from who does not by the kernel: util-linux has a lock that any user can take.
#[test]
fn a_file_that_another_program_writes_is_refused_and_left_as_it_is() {
    let bench = Bench::new();
    let path = bench.path("target");
    fs::write(&path, "old").unwrap();
    let alone = TargetOptions { create_size: Some(1 << 20), alone: true, ..Default::default() };
    let raw = || open_target(&path, &alone).map(drop);
    let qcow2 = || disk::open_qcow2_target(&path, geometry(1 << 20, 512), false).map(drop);
    let holder = fs::File::open(&path).unwrap();
    let mut flock = std::process::Command::new("flock");
    flock.args(["--exclusive", "0"]).stdin(holder.try_clone().unwrap());
    assert!(flock.status().unwrap().success());
    for opened in [raw(), qcow2()] {
        let refused = opened.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused);
        assert!(refused.to_string().contains("by another program"), "{refused}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"old");
    // A disk that is served may be read and grown by this program meanwhile.
    open_target(&path, &TargetOptions::default()).map(drop).unwrap();
    drop((holder, flock));
    raw().unwrap();
    qcow2().unwrap();
    raw().unwrap();
}

#[test]
fn sparse_file() {
    let bench = Bench::new();
    for path in [bench.path("target"), bench.tree("target")] {
        exercise(&path, &TargetOptions { create_size: Some((64 << 20) + 512), ..Default::default() });
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.len(), (64 << 20) + 512);
        assert!(metadata.blocks() < 100, "stays sparse");
        let target = open_target(&path, &TargetOptions::default()).unwrap();
        target.reserve(16 << 20, 1 << 20).unwrap();
        assert!(fs::metadata(&path).unwrap().blocks() >= 2048, "there is room");
        assert!(target.reserve(0, u64::MAX >> 2).is_err(), "for so much there is none");
        drop(target);
        // An existing file grows to `create_size`, but is not cut to it.
        let grown = open_target(&path, &TargetOptions { create_size: Some(65 << 20), ..Default::default() });
        assert_eq!(grown.unwrap().geometry().size_bytes, 65 << 20);
        let same = open_target(&path, &TargetOptions { create_size: Some(1 << 20), ..Default::default() });
        assert_eq!(same.unwrap().geometry().size_bytes, 65 << 20);
    }
    let missing = open_target(&bench.path("missing"), &TargetOptions::default()).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

#[test]
fn source_of_odd_length_reads_zeros_behind_its_end() {
    let bench = Bench::new();
    let path = bench.path("odd");
    fs::write(&path, vec![7; 1000]).unwrap();
    let source = open_source(&path).unwrap();
    assert_eq!(source.geometry().size_bytes, 1024);
    let mut buf = [1; 1024];
    source.read_exact_at(&mut buf, 0).unwrap();
    assert!(buf[..1000] == [7; 1000] && buf[1000..] == [0; 24]);
    assert!(source.read_exact_at(&mut buf, 512).is_err());
    assert_eq!(open_source(&bench.path("none")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(open_source(Path::new("/dev/null")).unwrap_err().kind(), ErrorKind::Refused);
}

#[test]
fn holes_of_a_source_are_known() {
    let bench = Bench::new();
    let path = bench.sparse_file("sparse", 64 << 20);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[1; 4096], 32 << 20).unwrap();
    let source = open_source(&path).unwrap();
    assert_eq!(source.next_data(0), 32 << 20);
    assert!(source.is_hole(0, 32 << 20) && !source.is_hole(0, (32 << 20) + 1));
    assert_eq!(source.next_data((32 << 20) + 4096), 64 << 20);
}

#[test]
fn devices_of_both_sector_sizes() {
    if !is_root() || !have(&["losetup"]) {
        return;
    }
    for sector_bytes in [512, 4096] {
        let bench = Bench::new();
        let file = bench.random_file("file", 8 << 20, 5);
        let device = Loop::over(&file, &format!("-b {sector_bytes}"));
        exercise(&device.0, &TargetOptions::default());
        let source = open_source(&device.0).unwrap();
        assert_eq!(source.geometry().logical_sector_bytes, sector_bytes);
        assert_eq!(source.geometry().size_bytes, 8 << 20);
    }
}

/// Large writes pass by the page cache, small and unaligned ones do not; the last one counts wherever they meet.
#[test]
fn large_and_small_writes_to_a_device_agree() {
    if !is_root() || !have(&["losetup"]) {
        return;
    }
    let bench = Bench::new();
    let image = bench.sparse_file("disk", 8 << 20);
    let device = Loop::over(&image, "");
    let target = open_target(&device.0, &TargetOptions::default()).unwrap();
    let mut chance = base::Chance::from_seed(11);
    let mut model = vec![0u8; 8 << 20];
    let mut memory = vec![0u8; (1 << 20) + 8192];
    for round in 0..400u32 {
        chance.fill(&mut memory[..64]);
        memory.rotate_right(61);
        let page = if chance.below(2) == 0 { 4096 } else { 512 };
        let len = (chance.below(256) as usize + 1) * page;
        let offset = chance.below(((8 << 20) - len) as u64 / page as u64 + 1) as usize * page;
        let shift = chance.below(2) as usize * 512;
        let start = memory.as_ptr().align_offset(4096) + shift;
        match chance.below(8) {
            0 => {
                target.write_zeroes(offset as u64, len as u64).unwrap();
                model[offset..offset + len].fill(0);
            }
            _ => {
                memory[start..start + 512].fill(round as u8);
                target.write_all_at(&memory[start..start + len], offset as u64).unwrap();
                model[offset..offset + len].copy_from_slice(&memory[start..start + len]);
            }
        }
        if round % 16 == 0 {
            let mut back = vec![0; len];
            target.read_exact_at(&mut back, offset as u64).unwrap();
            assert!(back == model[offset..offset + len], "round {round}: the page cache");
        }
    }
    target.sync().unwrap();
    let mut back = vec![0; model.len()];
    assert!(target.read_back_at(&mut back, 0).unwrap());
    assert!(back == model, "the medium");
    drop((target, device));
    assert!(fs::read(&image).unwrap() == model, "the file below");
}

#[test]
fn disk_with_sectors_of_4096_bytes() {
    if !is_root() || !have(&["losetup", "sgdisk", "mke2fs", "e2fsck"]) {
        return;
    }
    let bench = Bench::new();
    let file = bench.sparse_file("file", 64 << 20);
    let device = Loop::over(&file, "-b 4096");
    run("sgdisk -o -n 1:1M:+4M -n 2:8M:+40M", &[&device.0]);
    let part = bench.random_file("part", 40 << 20, 1);
    run("mke2fs -q -F -t ext4 -b 1024", &[&part]);
    open_target(&device.0, &TargetOptions::default())
        .unwrap()
        .write_all_at(&fs::read(&part).unwrap(), 8 << 20)
        .unwrap();
    let by_device = map_of(&device.0);
    drop(device);
    // A file has no sector size of its own: the survey takes it from the GPT.
    let by_file = map_of(&file);
    for map in [&by_device, &by_file] {
        assert_eq!(map.geometry.logical_sector_bytes, 4096);
        assert_eq!(map.partitions[1].extent, base::Extent::new(8 << 11, 40 << 11));
        assert!(map.partitions[1].filesystem.as_ref().unwrap().understood, "{:?}", map.warnings);
        assert!(map.allocated.runs().iter().all(|run| run.start % 8 == 0 && run.count % 8 == 0));
    }
    assert_eq!(by_device.allocated, by_file.allocated);
    let restored = bench.restore(&file, &by_file);
    fs::write(&part, &fs::read(&restored).unwrap()[8 << 20..48 << 20]).unwrap();
    run("e2fsck -fn", &[&part]);
}

#[test]
fn preflight_refuses_in_clear_words() {
    if !is_root() || !have(&["losetup", "mke2fs", "mount", "umount"]) {
        return;
    }
    let bench = Bench::new();
    let file = bench.sparse_file("file", 32 << 20);
    let fits = geometry(32 << 20, 512);
    preflight(&file, fits, None).unwrap();
    preflight(&bench.path("to be made"), fits, None).unwrap();
    assert_eq!(preflight(&bench.path("no/folder"), fits, None).unwrap_err().kind(), ErrorKind::NotFound);
    let source = open_source(&file).unwrap();
    let same = preflight(&file, fits, Some(source.identity())).unwrap_err();
    assert!(same.to_string().ends_with("is the source itself"), "{same}");
    assert!(refusal(Path::new("/dev/null"), fits).ends_with("is neither a file nor a block device"));

    let device = Loop::over(&file, "");
    preflight(&device.0, fits, None).unwrap();
    assert!(refusal(&file, fits).contains("is in use by the loop device"));
    assert!(
        refusal(&device.0, geometry(33 << 20, 512))
            .contains("is too small: it has 32.0 MiB (33554432 bytes)")
    );
    assert!(refusal(&device.0, geometry(32 << 20, 4096)).contains("has logical sectors of 512 bytes"));
    let itself = open_source(&device.0).unwrap().identity();
    assert!(preflight(&device.0, fits, Some(itself)).unwrap_err().to_string().contains("the source itself"));

    run("mke2fs -q -F -t ext4", &[&device.0]);
    let place = bench.path("mounted here");
    fs::create_dir(&place).unwrap();
    run("mount", &[&device.0, &place]);
    let words = std::panic::catch_unwind(|| refusal(&device.0, fits));
    let opened = open_target(&device.0, &TargetOptions::default()).map(drop);
    // The journal of a mounted filesystem counts as not replayed.
    let map = std::panic::catch_unwind(|| map_of(&device.0));
    assert!(at_last(|| output("umount", &[&place]).status.success()));
    assert!(words.unwrap().ends_with("mounted here`"));
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Refused);
    assert!(map.unwrap().warnings[0].contains("journal has not been replayed"));

    drop(device);
    let device = Loop::over(&file, "-r");
    assert!(refusal(&device.0, fits).contains("is read-only"));
}
