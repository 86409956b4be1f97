//! Tests what an install finds on its target: chunks in their places, and chunks that moved.

use std::sync::Arc;

use base::{Chance, ErrorKind, Extent, ExtentSet};
use disk::device::MemoryDisk;
use image::{
    CaptureOptions, Catalogue, Cipher, FreeSpace, InstallOptions, InstallReport, Installer, Manifest,
    MemoryObjects, NoProgress, Reuse, capture,
};

use crate::common::disks::{Fault, FaultyDisk, map};
use crate::common::{install, small};

/// Bytes of a chunk.
const CHUNK: usize = 1 << 16;

/// An image of chunks that differ from each other, but for those that `same` makes equal.
struct Image {
    bytes: Vec<u8>,
    manifest: Manifest,
    objects: MemoryObjects,
}

impl Image {
    fn of(bytes: Vec<u8>, allocated: ExtentSet) -> Self {
        let sectors = bytes.len() as u64 / 512;
        let map = map(sectors, 512, allocated);
        let objects = MemoryObjects::new();
        let options = CaptureOptions { chunk: small(), threads: 3, ..CaptureOptions::default() };
        let captured =
            capture(&MemoryDisk::new(bytes.clone()), &map, &objects, &options, &NoProgress).unwrap();
        let mut manifest = Manifest::draft("test", &map, &captured, "2026-11-25T22:00:00Z");
        manifest.number = 1;
        Self { bytes, manifest, objects }
    }

    /// All sectors are allocated.
    fn whole(chunks: &[usize]) -> Self {
        let bytes = chunks.iter().flat_map(|seed| chunk(*seed)).collect();
        Self::of(bytes, ExtentSet::of(Extent::new(0, (chunks.len() * CHUNK / 512) as u64)))
    }

    /// Installs it on a disk of `before`, and checks that it is there. Returns the report.
    fn install_on(&self, before: Vec<u8>, reuse: Reuse, memory_bytes: u64) -> InstallReport {
        let target = Arc::new(FaultyDisk::new(before, 512, Fault::None));
        let options = InstallOptions { reuse, threads: 3, memory_bytes, ..InstallOptions::default() };
        let report =
            install(&self.manifest, (&self.objects, &Cipher::None), target.clone(), options).unwrap();
        let after = target.disk.contents();
        assert!(after[..self.bytes.len()] == self.bytes[..], "{reuse:?}: the disk is not the image's");
        report
    }
}

/// The chunk of noise with number `seed`.
fn chunk(seed: usize) -> Vec<u8> {
    let mut bytes = vec![0; CHUNK];
    Chance::from_seed(seed as u64).fill(&mut bytes);
    bytes
}

fn disk(chunks: &[usize]) -> Vec<u8> {
    chunks.iter().flat_map(|seed| chunk(*seed)).collect()
}

const PLENTY: u64 = 64 << 20;

#[test]
fn a_disk_that_moved_by_a_chunk_costs_one_chunk() {
    let all: Vec<usize> = (0..64).collect();
    let moved_up: Vec<usize> = (1..65).collect();
    let moved_down: Vec<usize> = (100..101).chain(0..63).collect();
    let image = Image::whole(&all);
    let bytes = (63 * CHUNK) as u64;
    for before in [moved_up, moved_down] {
        let report = image.install_on(disk(&before), Reuse::Always, PLENTY);
        let expected = (0, bytes, CHUNK as u64);
        assert_eq!((report.kept_bytes, report.moved_bytes, report.written_bytes), expected, "{before:?}");
    }
}

#[test]
fn chunks_that_changed_places_in_circles_wait_in_memory_or_are_fetched() {
    let image = Image::whole(&(0..64).collect::<Vec<_>>());
    let turned: Vec<usize> = (0..64).map(|place| (place + 1) % 64).collect();
    let swapped: Vec<usize> = (0..64).map(|place| place ^ 1).collect();
    for before in [turned, swapped] {
        let report = image.install_on(disk(&before), Reuse::Always, PLENTY);
        assert_eq!((report.moved_bytes, report.written_bytes), ((64 * CHUNK) as u64, 0), "{before:?}");
        // Without memory for any, one of each circle is fetched.
        let report = image.install_on(disk(&before), Reuse::Always, 0);
        let circles = if before[0] == 1 && before[1] == 0 { 32 } else { 1 };
        assert_eq!(report.written_bytes, (circles * CHUNK) as u64, "{before:?}");
    }
}

#[test]
fn what_lies_in_free_space_or_behind_the_image_is_found_if_asked_for() {
    // Chunks 0 to 7 are allocated, 8 to 15 free; the disk has 8 more.
    let image = Image::of(disk(&(0..16).collect::<Vec<_>>()), ExtentSet::of(Extent::new(0, 8 * 128)));
    let mut before: Vec<usize> = (200..224).collect();
    before[9] = 3;
    before[20] = 4;

    let check = |reuse| {
        let target = Arc::new(MemoryDisk::new(disk(&before)));
        let options = InstallOptions { reuse, ..InstallOptions::default() };
        let report =
            install(&image.manifest, (&image.objects, &Cipher::None), target.clone(), options).unwrap();
        assert!(target.contents()[..8 * CHUNK] == image.bytes[..8 * CHUNK]);
        assert!(target.contents()[8 * CHUNK..] == disk(&before)[8 * CHUNK..], "free space has changed");
        report.moved_bytes
    };
    assert_eq!(check(Reuse::Always), 2 * CHUNK as u64);
    assert_eq!((check(Reuse::InPlace), check(Reuse::IfItPays)), (0, 0));
}

#[test]
fn whatever_lies_where_the_image_comes_out_right() {
    for seed in 0..400 {
        let mut chance = Chance::from_seed(seed);
        let count = 1 + chance.below(40);
        let kinds = 1 + chance.below(count + 10);
        let mut chunks = |count: u64| -> Vec<usize> {
            (0..count).map(|_| usize::try_from(chance.below(kinds)).unwrap()).collect()
        };
        let (wanted, before) = (chunks(count), chunks(count));
        let memory = [0, 1 << 18, PLENTY][usize::try_from(chance.below(3)).unwrap()];
        // Some chunks have free sectors.
        let mut allocated = ExtentSet::new();
        for place in 0..count {
            let free = if chance.hits(200_000) { 8 * chance.below(16) } else { 0 };
            allocated.insert(Extent::new(place * 128, 128 - free));
        }
        let image = Image::of(disk(&wanted), allocated.clone());
        let target = Arc::new(FaultyDisk::new(disk(&before), 512, Fault::None));
        for reuse in [Reuse::Always, Reuse::IfItPays] {
            let options =
                InstallOptions { reuse, threads: 2, memory_bytes: memory, ..InstallOptions::default() };
            install(&image.manifest, (&image.objects, &Cipher::None), target.clone(), options).unwrap();
            let after = target.disk.contents();
            for run in allocated.runs() {
                let at = |sector: u64| usize::try_from(sector * 512).unwrap();
                let bytes = at(run.start)..at(run.end());
                assert!(after[bytes.clone()] == image.bytes[bytes], "seed {seed}: {run:?}");
            }
        }
    }
}

#[test]
fn reuse_is_chosen_if_one_half_of_a_sample_is_right() {
    let image = Image::whole(&(0..64).collect::<Vec<_>>());
    let kept = |right: usize| {
        let before: Vec<usize> =
            (0..64).map(|place| if place < right { place } else { 900 + place }).collect();
        image.install_on(disk(&before), Reuse::IfItPays, PLENTY).kept_bytes
    };
    assert_eq!(kept(0), 0);
    assert_eq!(kept(16), 0, "a quarter does not pay");
    assert_eq!(kept(48), (48 * CHUNK) as u64);
    assert_eq!(kept(64), (64 * CHUNK) as u64);
}

#[test]
fn what_is_kept_is_read_once() {
    let image = Image::whole(&(0..64).collect::<Vec<_>>());
    let target = Arc::new(FaultyDisk::new(image.bytes.clone(), 512, Fault::None));
    let catalogue = Arc::new(Catalogue::load(&image.manifest, &image.objects, &Cipher::None).unwrap());
    let options = InstallOptions { reuse: Reuse::Always, ..InstallOptions::default() };
    let installer = Installer::begin(catalogue, target.clone(), options, Arc::new(NoProgress)).unwrap();
    assert!(installer.missing().is_empty());
    let report = installer.finish().unwrap();
    assert_eq!((report.written_bytes, report.verified_bytes), (0, image.bytes.len() as u64));
    assert!(report.past_cache);
}

#[test]
fn a_move_that_was_lost_is_found_when_it_is_read_back() {
    let image = Image::whole(&(0..16).collect::<Vec<_>>());
    let before: Vec<usize> = (1..17).collect();
    let lost = Fault::LosesWritesOf(5 * CHUNK as u64);
    let target = Arc::new(FaultyDisk::new(disk(&before), 512, lost));
    let options = InstallOptions { reuse: Reuse::Always, ..InstallOptions::default() };
    let error = install(&image.manifest, (&image.objects, &Cipher::None), target, options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Verification, "{error}");
    // What can't be read is fetched.
    let unreadable = Fault::ReadFails(5 * CHUNK as u64);
    let target = Arc::new(FaultyDisk::new(image.bytes.clone(), 512, unreadable));
    let options = InstallOptions { verify: false, ..options };
    let report = install(&image.manifest, (&image.objects, &Cipher::None), target, options).unwrap();
    assert_eq!(report.written_bytes, CHUNK as u64);
}

#[test]
fn an_unreadable_sector_in_a_gap_matters_to_nobody() {
    let mut allocated = ExtentSet::of(Extent::new(0, 4 * 128));
    allocated.remove(Extent::new(160, 16));
    let image = Image::of(disk(&[0, 1, 2, 3]), allocated);
    let unreadable = Fault::ReadFails(165 * 512);
    let target = Arc::new(FaultyDisk::new(image.bytes.clone(), 512, unreadable));
    for reuse in [Reuse::Always, Reuse::Never] {
        let options = InstallOptions { reuse, keep_signatures: true, ..InstallOptions::default() };
        let report =
            install(&image.manifest, (&image.objects, &Cipher::None), target.clone(), options).unwrap();
        let kept = if reuse == Reuse::Always { (512 - 16) * 512 } else { 0 };
        assert_eq!(report.kept_bytes, kept, "{reuse:?}");
    }
}

#[test]
fn zeros_that_are_there_are_not_written_again() {
    let mut bytes = disk(&[0, 1, 2, 3, 4, 5, 6, 7]);
    bytes[2 * CHUNK..5 * CHUNK].fill(0);
    let image = Image::of(bytes.clone(), ExtentSet::of(Extent::new(0, 8 * 128)));
    let all = bytes.len() as u64;
    for (free, damaged) in [
        (FreeSpace::Skip, false),
        (FreeSpace::Zero, false),
        (FreeSpace::Discard, false),
        (FreeSpace::Skip, true),
        (FreeSpace::Zero, true),
    ] {
        let mut before = bytes.clone();
        before[3 * CHUNK + 7] = u8::from(damaged);
        let target = Arc::new(FaultyDisk::new(before, 512, Fault::None));
        let options = InstallOptions { reuse: Reuse::Always, free, ..InstallOptions::default() };
        let report =
            install(&image.manifest, (&image.objects, &Cipher::None), target.clone(), options).unwrap();
        assert!(target.disk.contents() == bytes);
        let zeroed = if damaged || free == FreeSpace::Zero { 3 * CHUNK as u64 } else { 0 };
        assert_eq!((report.zeroed_bytes, report.verified_bytes), (zeroed, all), "{free:?}, {damaged}");
    }
}
