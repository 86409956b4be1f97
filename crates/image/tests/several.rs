//! Tests installs that write several targets in one pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Chance, ErrorKind, Extent, ExtentSet};
use bytes::Bytes;
use disk::WriteAt;
use image::{
    CaptureOptions, Catalogue, Cipher, InstallOptions, Installer, Manifest, MemoryObjects, NoProgress,
    ObjectRef, ObjectSource, Offer, Reuse, capture,
};

use crate::common::disks::{Fault, FaultyDisk, map};
use crate::common::small;

const BYTES: usize = 64 << 16;

struct Image {
    bytes: Vec<u8>,
    catalogue: Arc<Catalogue>,
    objects: Counted,
}

/// Objects, and how many were asked for.
struct Counted {
    objects: MemoryObjects,
    fetched: AtomicU64,
}

impl ObjectSource for Counted {
    fn fetch(&self, object: &ObjectRef) -> base::Result<Bytes> {
        self.fetched.fetch_add(1, Ordering::Relaxed);
        self.objects.fetch(object)
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Chance::from_seed(seed).fill(&mut bytes);
    bytes
}

fn image() -> Image {
    let bytes = noise(1, BYTES);
    let sectors = (BYTES / 512) as u64;
    let map = map(sectors, 512, ExtentSet::of(Extent::new(0, sectors)));
    let objects = MemoryObjects::new();
    let options = CaptureOptions { chunk: small(), threads: 2, ..CaptureOptions::default() };
    let captured =
        capture(&disk::device::MemoryDisk::new(bytes.clone()), &map, &objects, &options, &NoProgress);
    let mut manifest = Manifest::draft("test", &map, &captured.unwrap(), "2026-11-26T01:00:00Z");
    manifest.number = 1;
    let catalogue = Arc::new(Catalogue::load(&manifest, &objects, &Cipher::None).unwrap());
    Image { bytes, catalogue, objects: Counted { objects, fetched: AtomicU64::new(0) } }
}

/// Disks with these contents and faults.
fn disks(all: Vec<(Vec<u8>, Fault)>) -> Vec<Arc<FaultyDisk>> {
    all.into_iter().map(|(bytes, fault)| Arc::new(FaultyDisk::new(bytes, 512, fault))).collect()
}

fn begin(image: &Image, disks: &[Arc<FaultyDisk>], reuse: Reuse) -> base::Result<Installer> {
    let targets = disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn WriteAt>).collect();
    let options = InstallOptions { reuse, threads: 2, ..InstallOptions::default() };
    Installer::begin_several(image.catalogue.clone(), targets, options, Arc::new(NoProgress))
}

#[test]
fn each_object_is_fetched_once_and_each_target_keeps_what_it_has() {
    let image = image();
    let mut half = noise(2, BYTES);
    half[..BYTES / 2].copy_from_slice(&image.bytes[..BYTES / 2]);
    let disks = disks(vec![
        (noise(3, BYTES), Fault::None),
        (half, Fault::None),
        (noise(4, BYTES + 8192), Fault::None),
        (image.bytes.clone(), Fault::None),
    ]);
    let installer = begin(&image, &disks, Reuse::InPlace).unwrap();
    installer.pull(&image.objects).unwrap();
    let report = installer.finish().unwrap();

    assert_eq!(image.objects.fetched.load(Ordering::Relaxed), 64);
    let (all, half) = (BYTES as u64, BYTES as u64 / 2);
    assert_eq!((report.written_bytes, report.kept_bytes), (2 * all + half, half + all));
    assert_eq!(report.verified_bytes, 4 * all);
    for disk in &disks {
        assert!(disk.disk.contents()[..BYTES] == image.bytes);
    }
}

#[test]
fn a_target_that_fails_does_not_stop_the_others() {
    let image = image();
    let faults = [
        (Fault::WriteFails(5 << 16), ErrorKind::Io),
        (Fault::FullAfter(3 << 16), ErrorKind::Full),
        (Fault::SpoilsWritesOf(9 << 16), ErrorKind::Verification),
        (Fault::LosesWritesOf(9 << 16), ErrorKind::Verification),
        (Fault::SyncFails, ErrorKind::Io),
    ];
    for (fault, kind) in faults {
        for pushed in [false, true] {
            let disks = disks(vec![
                (noise(3, BYTES), Fault::None),
                (noise(4, BYTES), fault),
                (noise(5, BYTES), Fault::None),
            ]);
            let installer = begin(&image, &disks, Reuse::Never).unwrap();
            if pushed {
                push(&image, &installer);
            } else {
                installer.pull(&image.objects).unwrap();
            }
            let error = installer.finish().unwrap_err();
            assert_eq!(error.kind(), kind, "{fault:?}: {error}");
            assert!(error.to_string().contains("2 of 3 targets are complete"), "{fault:?}: {error}");
            for disk in [&disks[0], &disks[2]] {
                assert!(disk.disk.contents() == image.bytes, "{fault:?}");
            }
        }
    }
}

/// Offers objects until none is missing.
fn push(image: &Image, installer: &Installer) {
    while let Some(id) = installer.missing().first().map(|range| range.start) {
        let bytes = image.objects.fetch(&image.catalogue.objects()[usize::try_from(id).unwrap()]).unwrap();
        assert!(matches!(
            installer.try_offer(id, Bytes::from_static(b"wrong")).unwrap(),
            Offer::Wrong(_) | Offer::Full
        ));
        match installer.try_offer(id, bytes).unwrap() {
            Offer::Taken | Offer::Full | Offer::Known => {}
            Offer::Wrong(error) => panic!("{error}"),
        }
    }
}

#[test]
fn when_all_targets_fail_the_install_ends() {
    let image = image();
    let disks = disks(vec![
        (noise(3, BYTES), Fault::WriteFails(1 << 16)),
        (noise(4, BYTES), Fault::FullAfter(3 << 16)),
    ]);
    let installer = begin(&image, &disks, Reuse::Never).unwrap();
    let error = installer.pull(&image.objects).unwrap_err();
    assert!([ErrorKind::Io, ErrorKind::Full].contains(&error.kind()), "{error}");
    assert!(installer.finish().is_err());
}

#[test]
fn one_target_that_is_too_small_refuses_all() {
    let image = image();
    let before = noise(3, BYTES);
    let disks = disks(vec![(before.clone(), Fault::None), (noise(4, BYTES - 512), Fault::None)]);
    let error = begin(&image, &disks, Reuse::Never).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(disks[0].disk.contents() == before, "nothing was written");
}
