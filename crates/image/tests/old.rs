//! Tests old signatures: an install erases those in free space before it writes anything else. It never erases content
//! of the image, anything that an install wrote, or partitions that were left out of the image.

use std::sync::Arc;

use base::{ErrorKind, Extent, ExtentSet, Result};
use disk::device::MemoryDisk;
use disk::{DiskMap, Geometry, Partition, ReadAt, TableKind, WriteAt};
use image::{
    CaptureOptions, Catalogue, Cipher, FreeSpace, InstallOptions, Installer, Manifest, MemoryObjects,
    NoProgress, Reuse, capture, old_signatures,
};
use parking_lot::Mutex;

use crate::common::disks::{Fault, FaultyDisk, map};
use crate::common::{install, small};

const SECTORS: u64 = 16 << 11;
const SWAP: (u64, &[u8]) = (4086, b"SWAPSPACE2");
const BTRFS: (u64, &[u8]) = (0x1_0040, b"_BHRfS_M");

/// The map of a disk with two partitions: 32 KiB of partition 1 are allocated, partition 2 was left out. Outside of
/// them only the first MiB is allocated.
fn two_partitions() -> DiskMap {
    let mut allocated = ExtentSet::of(Extent::new(0, 2048));
    allocated.insert(Extent::new(2048, 64));
    let mut map = map(SECTORS, 512, allocated);
    map.table = TableKind::Mbr;
    for (number, start) in [(1, 2048), (2, 3 << 12)] {
        let extent = Extent::new(start, 8192);
        let (type_id, name, uuid, filesystem) = ("83".to_owned(), None, None, None);
        map.partitions.push(Partition { number, extent, type_id, name, uuid, filesystem });
    }
    map
}

fn captured(map: &DiskMap, bytes: Vec<u8>) -> (Manifest, MemoryObjects) {
    let objects = MemoryObjects::new();
    let options = CaptureOptions { chunk: small(), ..CaptureOptions::default() };
    let done = capture(&MemoryDisk::new(bytes), map, &objects, &options, &NoProgress).unwrap();
    (Manifest::draft("test", map, &done, "2026-11-20T14:00:00Z"), objects)
}

fn content() -> Vec<u8> {
    (0..SECTORS * 512).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

fn put(bytes: &mut [u8], offset: u64, magic: &[u8]) {
    let at = usize::try_from(offset).unwrap();
    bytes[at..at + magic.len()].copy_from_slice(magic);
}

/// The ranges of bytes where `after` differs from `before`.
fn changed(before: &[u8], after: &[u8]) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for at in (0..before.len()).filter(|&at| before[at] != after[at]) {
        match ranges.last_mut() {
            Some((_, end)) if *end == at => *end += 1,
            _ => ranges.push((at, at + 1)),
        }
    }
    ranges
}

/// The target has old signatures everywhere. The install erases exactly the bytes of those in free space, and
/// overwrites those where the image has content. All stay in the partition that was left out, and with
/// `keep_signatures`.
#[test]
fn old_signatures_are_erased_where_the_image_leaves_space_free() {
    let map = two_partitions();
    let (manifest, objects) = captured(&map, content());
    let size = (SECTORS + 2048) * 512;
    let mut before = vec![0x11; usize::try_from(size).unwrap()];
    let first = 2048 * 512;
    let second = (3 << 12) * 512;
    put(&mut before, BTRFS.0, BTRFS.1);
    put(&mut before, first + 4086, SWAP.1);
    put(&mut before, first + BTRFS.0, BTRFS.1);
    put(&mut before, second + SWAP.0, SWAP.1);
    put(&mut before, second + 1080, b"\x53\xEF");
    // An md superblock at the end of the larger target, and a backup of a GPT in its last sector.
    put(&mut before, size - 65_536, b"\xFC\x4E\x2B\xA9");
    put(&mut before, size - 512, b"EFI PART");
    let expected = [
        ("btrfs", Some(1), first + BTRFS.0, 8),
        ("linux_raid_member", None, size - 65_536, 4),
        ("gpt", None, size - 512, 8),
    ];
    for free in [FreeSpace::Skip, FreeSpace::Discard] {
        for keep_signatures in [false, true] {
            let options = InstallOptions { keep_signatures, free, ..InstallOptions::default() };
            let target = Arc::new(MemoryDisk::new(before.clone()));
            let catalogue = Catalogue::load(&manifest, &objects, &Cipher::None).unwrap();
            let old = old_signatures(&catalogue, &*target, size).unwrap();
            let listed: Vec<_> =
                old.iter().map(|one| (one.kind, one.partition, one.offset, one.len)).collect();
            assert_eq!(listed, expected);
            assert!(target.contents() == before, "the list of signatures changed the target");
            let report = install(&manifest, (&objects, &Cipher::None), target.clone(), options).unwrap();
            assert_eq!(report.erased_signatures, if keep_signatures { 0 } else { 3 });
            if free == FreeSpace::Discard {
                continue;
            }
            let after = target.contents();
            let erased: Vec<_> =
                changed(&before, &after).into_iter().filter(|range| range.0 as u64 >= 2112 * 512).collect();
            let range =
                |at: u64, len: u64| (usize::try_from(at).unwrap(), usize::try_from(at + len).unwrap());
            let wanted: Vec<_> = expected.iter().map(|one| range(one.2, one.3)).collect();
            assert_eq!(erased, if keep_signatures { Vec::new() } else { wanted });
        }
    }
}

/// A disk that logs the offset and length of each write, and each sync.
struct Noting {
    disk: MemoryDisk,
    log: Mutex<Vec<(u64, u64)>>,
}

/// The entry of the log for a sync.
const SYNC: (u64, u64) = (u64::MAX, 0);

impl ReadAt for Noting {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.disk.read_exact_at(buf, offset)
    }

    fn name(&self) -> &'static str {
        "noting"
    }
}

impl WriteAt for Noting {
    fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.log.lock().push((offset, buf.len() as u64));
        self.disk.write_all_at(buf, offset)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.log.lock().push((offset, len));
        self.disk.write_zeroes(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.disk.discard(offset, len)
    }

    fn sync(&self) -> Result<()> {
        self.log.lock().push(SYNC);
        self.disk.sync()
    }

    fn read_back_at(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        self.disk.read_back_at(buf, offset)
    }
}

/// A power cut at any moment leaves either the old content, or no old signature: they are erased and synced first.
#[test]
fn signatures_are_gone_for_good_before_the_first_chunk_is_written() {
    let (manifest, objects) = captured(&two_partitions(), content());
    let mut before = vec![0; usize::try_from(SECTORS * 512).unwrap()];
    let at = 2048 * 512 + BTRFS.0;
    put(&mut before, at, BTRFS.1);
    let target = Arc::new(Noting { disk: MemoryDisk::new(before), log: Mutex::new(Vec::new()) });
    install(&manifest, (&objects, &Cipher::None), target.clone(), InstallOptions::default()).unwrap();
    let log = target.log.lock();
    assert_eq!(log[..2], [(at / 512 * 512, 512), SYNC]);
    let free = |offset: u64| offset >= 2112 * 512;
    assert!(log[2..].iter().all(|&entry| entry == SYNC || !free(entry.0)), "free space was written twice");
}

/// A resumed install erases nothing that the first install wrote, wherever the first one was interrupted.
#[test]
fn an_install_that_goes_on_erases_nothing_that_it_wrote() {
    // The content itself has magic bytes of signatures, also next to free space.
    let mut bytes = content();
    for (offset, magic) in [SWAP, BTRFS, (1080, b"\x53\xEF"), (510, b"\x55\xAA"), (512, b"EFI PART")] {
        put(&mut bytes, offset, magic);
        put(&mut bytes, 2048 * 512 + offset, magic);
    }
    let (manifest, objects) = captured(&two_partitions(), bytes);
    let catalogue = Arc::new(Catalogue::load(&manifest, &objects, &Cipher::None).unwrap());
    for broken_after in [0, 1, 5, 100] {
        let target = Arc::new(MemoryDisk::new(vec![0x22; usize::try_from(SECTORS * 512).unwrap()]));
        let begin = |reuse| {
            let options = InstallOptions { reuse, ..InstallOptions::default() };
            Installer::begin(catalogue.clone(), target.clone(), options, Arc::new(NoProgress)).unwrap()
        };
        let installer = begin(Reuse::Never);
        for id in installer.missing().into_iter().flatten().take(broken_after) {
            let object = catalogue.objects()[usize::try_from(id).unwrap()];
            let bytes = image::ObjectSource::fetch(&objects, &object).unwrap();
            installer.offer(id, bytes).unwrap();
        }
        drop(installer);
        let between = target.contents();
        assert_eq!(old_signatures(&catalogue, &*target, SECTORS * 512).unwrap(), []);
        let again = begin(Reuse::Always);
        drop(again);
        assert!(target.contents() == between, "interrupted after {broken_after} objects");
    }
}

#[test]
fn a_target_that_keeps_what_was_erased_fails_verification() {
    let (manifest, objects) = captured(&two_partitions(), content());
    let mut before = vec![0; usize::try_from(SECTORS * 512).unwrap()];
    let at = 2048 * 512 + BTRFS.0;
    put(&mut before, at, BTRFS.1);
    let run = |fault, verify| {
        let target = Arc::new(FaultyDisk::new(before.clone(), 512, fault));
        let options = InstallOptions { verify, ..InstallOptions::default() };
        install(&manifest, (&objects, &Cipher::None), target, options)
    };
    let error = run(Fault::LosesWritesOf(at), true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Verification);
    assert!(error.to_string().contains(&format!("btrfs at {at}")), "{error}");
    assert_eq!(run(Fault::WriteFails(at), true).unwrap_err().kind(), ErrorKind::Io);
    run(Fault::LosesWritesOf(at), false).unwrap();
}

/// An image of one partition is installed on a larger one. The install looks for signatures at the end of the larger
/// one, as libblkid does.
#[test]
fn the_end_that_counts_is_that_of_the_target() {
    let mut map = map(4096, 512, ExtentSet::of(Extent::new(0, 64)));
    map.geometry.size_bytes = SECTORS * 512;
    map.window = Extent::new(0, 4096);
    let (manifest, objects) = captured(&map, content());
    assert_eq!(manifest.origin.disk_sectors, SECTORS);
    let size = 8192 * 512;
    let mut before = vec![0; 8192 * 512];
    // Tools look for an md superblock at the end of the target, but no longer at the end of the image.
    put(&mut before, 4096 * 512 - 65_536, b"\xFC\x4E\x2B\xA9");
    put(&mut before, size - 65_536, b"\xFC\x4E\x2B\xA9");
    let target = Arc::new(MemoryDisk::new(before.clone()));
    install(&manifest, (&objects, &Cipher::None), target.clone(), InstallOptions::default()).unwrap();
    let after = target.contents();
    assert_eq!(changed(&before[64 * 512..], &after[64 * 512..]).len(), 1);
}
