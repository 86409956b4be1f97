//! Tests capture and install together: allocated sectors are restored, free space is treated as asked, and faults are
//! reported as errors.

use std::sync::Arc;

use base::{Chance, ErrorKind, Extent, ExtentSet};
use bytes::Bytes;
use disk::ReadAt;
use disk::device::MemoryDisk;
use image::{
    CaptureOptions, Catalogue, Cipher, FreeSpace, InstallOptions, Installer, KnownChunks, Manifest,
    MemoryObjects, NoProgress, ObjectSink, ObjectSource, Offer, Recoder, Reuse, capture,
};

use crate::common::disks::{Fault, FaultyDisk, Sample, SparseDisk, map, sample};
use crate::common::{install, key, small};

fn options() -> CaptureOptions {
    CaptureOptions { chunk: small(), threads: 3, ..CaptureOptions::default() }
}

fn captured(sample: &Sample, objects: &dyn ObjectSink) -> Manifest {
    captured_with(sample, objects, Cipher::None)
}

fn captured_with(sample: &Sample, objects: &dyn ObjectSink, cipher: Cipher) -> Manifest {
    let options = CaptureOptions { cipher, ..options() };
    let disk = MemoryDisk::with_sectors(sample.bytes.clone(), sample.map.geometry.logical_sector_bytes);
    let captured = capture(&disk, &sample.map, objects, &options, &NoProgress).unwrap();
    let mut manifest = Manifest::draft("test", &sample.map, &captured, "2026-11-20T14:00:00Z");
    manifest.number = 1;
    Manifest::decode(&manifest.encode(None).unwrap()).unwrap()
}

fn noise(chance: &mut Chance, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    chance.fill(&mut noise);
    noise
}

fn range(extent: Extent) -> std::ops::Range<usize> {
    let start = usize::try_from(extent.offset_bytes()).unwrap();
    start..start + usize::try_from(extent.len_bytes()).unwrap()
}

#[test]
fn what_is_allocated_comes_back_and_free_space_is_treated_as_asked() {
    for seed in 0..40 {
        let mut chance = Chance::from_seed(seed);
        let unit = if chance.hits(500_000) { 1 } else { 8 };
        let sectors = 8 * (1 + chance.below(1500));
        let sample = sample(&mut chance, sectors, unit);
        let objects = MemoryObjects::new();
        let manifest = captured(&sample, &objects);
        let tail = 4096 * usize::try_from(chance.below(40)).unwrap();
        for free in [FreeSpace::Skip, FreeSpace::Zero, FreeSpace::Discard] {
            let before = noise(&mut chance, sample.bytes.len() + tail);
            let fault = Fault::None;
            let target = Arc::new(FaultyDisk::new(before.clone(), manifest.logical_sector_bytes, fault));
            let options = InstallOptions { free, threads: 3, ..InstallOptions::default() };
            let report = install(&manifest, (&objects, &Cipher::None), target.clone(), options).unwrap();
            let after = target.disk.contents();
            let whole = Extent::new(0, after.len() as u64 / 512);
            for run in sample.map.allocated.runs() {
                assert!(after[range(*run)] == sample.bytes[range(*run)], "seed {seed}: {run:?} differs");
            }
            for gap in sample.map.allocated.gaps_within(whole).runs().iter().map(|gap| range(*gap)) {
                let good = match free {
                    FreeSpace::Skip => after[gap.clone()] == before[gap],
                    FreeSpace::Zero => after[gap].iter().all(|&byte| byte == 0),
                    FreeSpace::Discard => true,
                };
                assert!(good, "seed {seed}: free space with {free:?}");
            }
            let handled =
                report.written_bytes + report.zeroed_bytes + report.discarded_bytes + report.skipped_bytes;
            assert_eq!(handled, after.len() as u64, "seed {seed}: {report:?}");
            assert_eq!(report.verified_bytes, manifest.statistics.allocated_bytes, "seed {seed}");
        }
    }
}

#[test]
fn what_is_sealed_is_opened_by_an_install_that_has_the_key() {
    for seed in 0..10 {
        let mut chance = Chance::from_seed(seed);
        let sectors = 8 * (1 + chance.below(1500));
        let sample = sample(&mut chance, sectors, 8);
        let (objects, plain) = (MemoryObjects::new(), MemoryObjects::new());
        let manifest = captured_with(&sample, &objects, key());
        let same = captured(&sample, &plain);
        let fault = Fault::None;
        let target = Arc::new(FaultyDisk::new(vec![0; sample.bytes.len()], 4096, fault));
        install(&manifest, (&objects, &key()), target.clone(), InstallOptions::default()).unwrap();
        let after = target.disk.contents();
        for run in sample.map.allocated.runs() {
            assert!(after[range(*run)] == sample.bytes[range(*run)], "seed {seed}: {run:?} differs");
        }
        // Equal chunks share one object, encrypted or not. The names of encrypted objects can't be computed without
        // the key.
        assert_eq!(objects.count(), plain.count(), "seed {seed}");
        let names = |manifest: &Manifest, source: &dyn ObjectSource, cipher: &Cipher| {
            Catalogue::load(manifest, source, cipher).unwrap().objects().to_vec()
        };
        let (sealed, clear) = (names(&manifest, &objects, &key()), names(&same, &plain, &Cipher::None));
        assert!(sealed.iter().all(|object| clear.iter().all(|other| other.digest != object.digest)));
        // Without the key the tree can't be read, although all its objects are present. An image without objects has
        // no node to decrypt.
        let locked = Catalogue::load(&manifest, &objects, &Cipher::None);
        assert_eq!(locked.is_ok(), sealed.is_empty(), "seed {seed}");
    }
}

#[test]
fn without_decoding_objects_are_verified_and_nothing_is_written() {
    let mut chance = Chance::from_seed(6);
    let sample = sample(&mut chance, 20_000, 8);
    let objects = MemoryObjects::new();
    let manifest = captured(&sample, &objects);
    let before = noise(&mut chance, sample.bytes.len());
    let target = Arc::new(MemoryDisk::with_sectors(before.clone(), 4096));
    let options = InstallOptions { decode: false, free: FreeSpace::Zero, ..InstallOptions::default() };
    let report = install(&manifest, (&objects, &Cipher::None), target.clone(), options).unwrap();
    assert_eq!((report.written_bytes, report.zeroed_bytes, report.verified_bytes), (0, 0, 0));
    assert!(target.contents() == before, "something was written");
    let chunk = *Catalogue::load(&manifest, &objects, &Cipher::None).unwrap().objects().last().unwrap();
    objects.tamper(&chunk, Some(Bytes::from(vec![0; chunk.len as usize])));
    let error = install(&manifest, (&objects, &Cipher::None), target, options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn capturing_again_gives_the_same_root_and_nothing_new() {
    let mut chance = Chance::from_seed(5);
    let sample = sample(&mut chance, 20_000, 8);
    let objects = MemoryObjects::new();
    let first = captured(&sample, &objects);
    let count = objects.count();
    assert_eq!(captured(&sample, &objects).root, first.root);
    assert_eq!(objects.count(), count);
    // Chunks of a base version keep their objects even if another level encodes them differently.
    let known = KnownChunks::of(&Catalogue::load(&first, &objects, &Cipher::None).unwrap()).unwrap();
    let disk = MemoryDisk::with_sectors(sample.bytes.clone(), 4096);
    let other_level = CaptureOptions { level: 9, known, ..options() };
    let again = capture(&disk, &sample.map, &objects, &other_level, &NoProgress).unwrap();
    assert_eq!((again.root, objects.count()), (first.root, count));
}

#[test]
fn sixty_four_tebibytes_with_little_in_them_are_quick() {
    let (size, mut chance) = (64 << 40, Chance::from_seed(4));
    let (source, target) = (SparseDisk::new(size), Arc::new(SparseDisk::new(size)));
    for _ in 0..40 {
        let (number, mut page) = (chance.below(size / 4096), [0; 4096]);
        chance.fill(&mut page);
        source.pages.write().insert(number, page);
        target.pages.write().insert(chance.below(size / 4096), page);
    }
    let sectors = size / 512;
    let map = map(sectors, 4096, ExtentSet::of(Extent::new(0, sectors)));
    let objects = MemoryObjects::new();
    let captured = capture(&source, &map, &objects, &options(), &NoProgress).unwrap();
    assert_eq!(captured.statistics.allocated_bytes, size);
    let mut manifest = Manifest::draft("sparse", &map, &captured, "2026-11-20T14:00:00Z");
    manifest.number = 1;
    let report =
        install(&manifest, (&objects, &Cipher::None), target.clone(), InstallOptions::default()).unwrap();
    assert_eq!((report.verified_bytes, report.past_cache), (size, false));
    let zeros = |_: &u64, page: &mut [u8; 4096]| page.iter().any(|&byte| byte != 0);
    target.pages.write().retain(zeros);
    assert!(*source.pages.read() == *target.pages.read(), "the disks differ");
}

#[test]
fn one_partition_is_an_image_of_its_own() {
    let mut chance = Chance::from_seed(6);
    let mut sample = sample(&mut chance, 9000, 1);
    sample.map.window = Extent::new(1000, 3000);
    let objects = MemoryObjects::new();
    let manifest = captured(&sample, &objects);
    assert_eq!((manifest.size_sectors, manifest.origin.start_sector), (3000, 1000));
    let target = Arc::new(MemoryDisk::new(vec![7; 3000 * 512]));
    install(&manifest, (&objects, &Cipher::None), target.clone(), InstallOptions::default()).unwrap();
    for run in sample.map.allocated.within(sample.map.window) {
        let there = range(Extent::new(run.start - 1000, run.count));
        assert!(target.contents()[there] == sample.bytes[range(run)], "{run:?}");
    }
}

#[test]
fn objects_may_be_offered_in_any_order_twice_and_wrong() {
    for seed in 0..20 {
        let mut chance = Chance::from_seed(seed);
        let sectors = 8 * (1 + chance.below(2000));
        let sample = sample(&mut chance, sectors, 8);
        let objects = MemoryObjects::new();
        let manifest = captured(&sample, &objects);
        let catalogue = Arc::new(Catalogue::load(&manifest, &objects, &Cipher::None).unwrap());
        let target = Arc::new(MemoryDisk::with_sectors(vec![1; sample.bytes.len()], 4096));
        let options = InstallOptions { threads: 2, memory_bytes: 1 << 20, ..InstallOptions::default() };
        let installer =
            Installer::begin(catalogue.clone(), target.clone(), options, Arc::new(NoProgress)).unwrap();
        let mut ids: Vec<u64> = (0..catalogue.objects().len() as u64 + 3)
            .chain(installer.missing().into_iter().flatten())
            .collect();
        let mut turns = 0;
        while !ids.is_empty() {
            let at = usize::try_from(chance.below(ids.len() as u64)).unwrap();
            let id = ids[at];
            let Some(object) = catalogue.objects().get(usize::try_from(id).unwrap()) else {
                assert!(matches!(installer.offer(id, Bytes::new()).unwrap(), Offer::Known));
                ids.swap_remove(at);
                continue;
            };
            let bytes = objects.fetch(object).unwrap();
            let mut wrong = bytes.to_vec();
            wrong[usize::try_from(chance.below(bytes.len() as u64)).unwrap()] ^= 1;
            let needed = installer.needs(id);
            match installer.try_offer(id, wrong.into()).unwrap() {
                Offer::Wrong(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
                Offer::Known => assert!(!needed),
                Offer::Full => {}
                Offer::Taken => panic!("seed {seed}: a wrong object was taken"),
            }
            turns += 1;
            let offered =
                if turns % 2 == 0 { installer.offer(id, bytes) } else { installer.try_offer(id, bytes) };
            match offered.unwrap() {
                Offer::Full => {}
                Offer::Wrong(error) => panic!("seed {seed}: {error}"),
                Offer::Taken | Offer::Known => drop(ids.swap_remove(at)),
            }
        }
        assert!(installer.missing().is_empty());
        installer.finish().unwrap();
        for run in sample.map.allocated.runs() {
            assert!(target.contents()[range(*run)] == sample.bytes[range(*run)], "seed {seed}: {run:?}");
        }
    }
}

#[test]
fn resuming_fetches_only_what_is_not_right_yet() {
    let mut chance = Chance::from_seed(11);
    let sample = sample(&mut chance, 30_000, 8);
    let objects = MemoryObjects::new();
    let manifest = captured(&sample, &objects);
    let catalogue = Arc::new(Catalogue::load(&manifest, &objects, &Cipher::None).unwrap());
    let target = Arc::new(MemoryDisk::with_sectors(noise(&mut chance, sample.bytes.len()), 4096));
    let begin = |reuse| {
        let options = InstallOptions { reuse, ..InstallOptions::default() };
        Installer::begin(catalogue.clone(), target.clone(), options, Arc::new(NoProgress)).unwrap()
    };
    // A third of the objects arrive before the install ends.
    let first = begin(Reuse::Never);
    let ids: Vec<u64> = first.missing().into_iter().flatten().collect();
    for id in ids.iter().filter(|id| *id % 3 == 0) {
        let object = &catalogue.objects()[usize::try_from(*id).unwrap()];
        assert!(matches!(first.offer(*id, objects.fetch(object).unwrap()).unwrap(), Offer::Taken));
    }
    assert_eq!(first.finish().unwrap_err().kind(), ErrorKind::Incomplete);
    let second = begin(Reuse::Always);
    let left: Vec<u64> = second.missing().into_iter().flatten().collect();
    assert!(left.iter().all(|id| id % 3 != 0), "an object that was written is needed again");
    assert!(!left.is_empty());
    second.pull(&objects).unwrap();
    let report = second.finish().unwrap();
    assert_eq!(report.kept_bytes + report.written_bytes, manifest.statistics.data_bytes);
    let third = begin(Reuse::Always);
    assert!(third.missing().is_empty());
    assert_eq!(third.finish().unwrap().written_bytes, 0);
}

/// A disk of 64 chunks of noise, with zeros in chunks 20 to 29. All of it is allocated.
fn plain_sample() -> Sample {
    let mut bytes = noise(&mut Chance::from_seed(2), 64 << 16);
    bytes[20 << 16..30 << 16].fill(0);
    let sectors = bytes.len() as u64 / 512;
    Sample { bytes, map: map(sectors, 512, ExtentSet::of(Extent::new(0, sectors))) }
}

#[test]
fn faults_of_the_target_are_errors_that_say_where() {
    let sample = plain_sample();
    let objects = MemoryObjects::new();
    let manifest = captured(&sample, &objects);
    let at = 40 * 65_536 + 1000;
    let chunk_offset = (40 * 65_536).to_string();
    let cases = [
        (Fault::WriteFails(at), ErrorKind::Io, "chunk 40"),
        (Fault::FullAfter(1 << 20), ErrorKind::Full, "write chunk"),
        (Fault::SpoilsWritesOf(at), ErrorKind::Verification, &*chunk_offset),
        (Fault::LosesZeros, ErrorKind::Verification, "1310720"),
        (Fault::SyncFails, ErrorKind::Io, "durable"),
        (Fault::ReadFails(at), ErrorKind::Io, "chunk 40"),
    ];
    for (fault, kind, word) in cases {
        let target = Arc::new(FaultyDisk::new(vec![1; sample.bytes.len()], 512, fault));
        let error =
            install(&manifest, (&objects, &Cipher::None), target, InstallOptions::default()).unwrap_err();
        let text = base::chain(&error);
        assert_eq!(error.kind(), kind, "{fault:?}: {text}");
        assert!(text.contains(word), "{fault:?}: {text}");
    }
}

#[test]
fn offers_after_a_failure_fail_and_never_hang() {
    let sample = plain_sample();
    let objects = MemoryObjects::new();
    let manifest = captured(&sample, &objects);
    let catalogue = Arc::new(Catalogue::load(&manifest, &objects, &Cipher::None).unwrap());
    let target = Arc::new(FaultyDisk::new(vec![1; sample.bytes.len()], 512, Fault::FullAfter(1 << 18)));
    let options = InstallOptions { threads: 1, memory_bytes: 1 << 17, ..InstallOptions::default() };
    let installer = Installer::begin(catalogue.clone(), target, options, Arc::new(NoProgress)).unwrap();
    let offers = installer.missing().into_iter().flatten().map(|id| {
        let object = &catalogue.objects()[usize::try_from(id).unwrap()];
        installer.offer(id, objects.fetch(object).unwrap()).map_err(|error| error.kind())
    });
    let last = offers.last().unwrap();
    assert_eq!(last.unwrap_err(), ErrorKind::Full);
    assert_eq!(installer.finish().unwrap_err().kind(), ErrorKind::Full);
}

#[test]
fn unreadable_sources_say_where() {
    let sample = plain_sample();
    let disk = FaultyDisk::new(sample.bytes.clone(), 512, Fault::ReadFails(12 * 65_536 + 7));
    let error = capture(&disk, &sample.map, &MemoryObjects::new(), &options(), &NoProgress).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("chunk 12, 65536 bytes at offset 786432"), "{error}");
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    let sample = plain_sample();
    let objects = MemoryObjects::new();
    let manifest = captured(&sample, &objects);
    let targets = [
        MemoryDisk::new(vec![9; sample.bytes.len() - 512]),
        MemoryDisk::with_sectors(vec![9; sample.bytes.len()], 4096),
    ];
    for target in targets.map(Arc::new) {
        let options = InstallOptions::default();
        let error = install(&manifest, (&objects, &Cipher::None), target.clone(), options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(target.contents().iter().all(|&byte| byte == 9));
    }
    let disk = MemoryDisk::new(sample.bytes.clone());
    for window in [Extent::new(0, 0), Extent::new(8, 1 << 40), Extent::new(u64::MAX, 8)] {
        let map = disk::DiskMap { window, ..sample.map.clone() };
        let error = capture(&disk, &map, &MemoryObjects::new(), &options(), &NoProgress).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    }
    assert_eq!(disk.geometry().size_bytes, 64 << 16);
}

#[test]
fn bad_objects_of_a_source_never_reach_the_target() {
    let sample = plain_sample();
    let objects = MemoryObjects::new();
    let manifest = captured(&sample, &objects);
    let catalogue = Catalogue::load(&manifest, &objects, &Cipher::None).unwrap();
    for (id, object) in catalogue.objects().iter().enumerate() {
        let good = objects.fetch(object).unwrap();
        let mut flipped = good.to_vec();
        let middle = flipped.len() / 2;
        flipped[middle] ^= 4;
        let cases = [Some(flipped.into()), Some(good.slice(1..)), Some(Bytes::new()), None];
        for bad in cases {
            let kind = if bad.is_some() { ErrorKind::Corrupt } else { ErrorKind::NotFound };
            objects.tamper(object, bad);
            let target = Arc::new(MemoryDisk::new(vec![9; sample.bytes.len()]));
            let options = InstallOptions { threads: 2, ..InstallOptions::default() };
            let error = install(&manifest, (&objects, &Cipher::None), target.clone(), options).unwrap_err();
            assert_eq!(error.kind(), kind, "object {id}: {error}");
            let after = target.contents();
            let right = |at: usize| after[at] == 9 || after[at] == sample.bytes[at];
            assert!((0..after.len()).all(right), "object {id}: something unverified was written");
        }
        objects.tamper(object, Some(good));
    }
}

/// Many runs of 1 KiB of zeros with 1 KiB of free space between them, and some longer runs. All of them are zeros after
/// the install, other sectors are unchanged, and verification finds a run that is not zeros.
#[test]
fn short_runs_of_zeros_are_made_and_checked_one_by_one() {
    let sectors = 8000;
    let mut allocated: ExtentSet = (0..1500).map(|run| Extent::new(4 * run, 2)).collect();
    [(6100, 127), (6230, 128), (6500, 900), (7999, 1)]
        .iter()
        .for_each(|run| allocated.insert(Extent::new(run.0, run.1)));
    let sample = Sample { bytes: vec![0; 8000 * 512], map: map(sectors, 512, allocated.clone()) };
    let objects = MemoryObjects::new();
    let manifest = captured(&sample, &objects);
    let before = noise(&mut Chance::from_seed(31), sample.bytes.len());
    let run = |fault| {
        let target = Arc::new(FaultyDisk::new(before.clone(), 512, fault));
        let done = install(&manifest, (&objects, &Cipher::None), target.clone(), InstallOptions::default());
        (done, target.disk.contents())
    };
    let (report, after) = run(Fault::None);
    let report = report.unwrap();
    assert_eq!(report.zeroed_bytes, allocated.sectors() * 512);
    assert_eq!(report.verified_bytes, report.zeroed_bytes);
    for sector in 0..sectors {
        let (extent, bytes) = (Extent::new(sector, 1), range(Extent::new(sector, 1)));
        let zeros = after[bytes.clone()].iter().all(|&byte| byte == 0);
        assert!(if allocated.contains(extent) { zeros } else { after[bytes.clone()] == before[bytes] });
    }
    for lost in [0, 4 * 700, 4 * 1499, 6100, 7999] {
        let error = run(Fault::LosesWritesOf(lost * 512)).0.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Verification);
        assert!(error.to_string().ends_with(&format!(" {}", lost * 512)), "{error}");
    }
}

#[test]
fn a_disk_gives_back_the_objects_that_it_was_written_from() {
    for (seed, cipher) in (0..20).zip([Cipher::None, key()].iter().cycle()) {
        let mut chance = Chance::from_seed(seed);
        let sectors = 8 * (1 + chance.below(1500));
        let sample = sample(&mut chance, sectors, 8);
        let objects = MemoryObjects::new();
        let manifest = captured_with(&sample, &objects, cipher.clone());
        let catalogue = Arc::new(Catalogue::load(&manifest, &objects, cipher).unwrap());
        // What is free on it says nothing.
        let mut bytes = noise(&mut chance, sample.bytes.len());
        for run in sample.map.allocated.runs() {
            bytes[range(*run)].copy_from_slice(&sample.bytes[range(*run)]);
        }
        let recoder = Recoder::new(Arc::clone(&catalogue)).unwrap();
        let disk = MemoryDisk::with_sectors(bytes.clone(), manifest.logical_sector_bytes);
        assert_eq!(recoder.chunks(), catalogue.heads()..catalogue.objects().len() as u64, "seed {seed}");
        for (id, object) in (0..).zip(catalogue.objects()) {
            let stored = objects.fetch(object).unwrap();
            let is_chunk = recoder.chunks().contains(&id);
            assert_eq!(
                recoder.object(id, &disk),
                is_chunk.then(|| stored.clone()),
                "seed {seed}, object {id}"
            );
            assert_eq!(recoder.makes(id, &stored), is_chunk, "seed {seed}, object {id}");
        }
        // A chunk that has changed is none.
        for run in sample.map.allocated.runs() {
            bytes[range(*run)].iter_mut().for_each(|byte| *byte ^= 1);
        }
        let changed = MemoryDisk::with_sectors(bytes, manifest.logical_sector_bytes);
        assert!(recoder.chunks().all(|id| recoder.object(id, &changed).is_none()), "seed {seed}");
    }
}

#[test]
fn what_another_encoder_made_is_not_made_again() {
    let mut chance = Chance::from_seed(1);
    let sample = sample(&mut chance, 4000, 8);
    let disk = MemoryDisk::with_sectors(sample.bytes.clone(), 512);
    let objects = MemoryObjects::new();
    let options = CaptureOptions { level: 19, ..options() };
    let captured = capture(&disk, &sample.map, &objects, &options, &NoProgress).unwrap();
    let mut manifest = Manifest::draft("test", &sample.map, &captured, "2026-11-20T14:00:00Z");
    manifest.number = 1;
    let catalogue = Arc::new(Catalogue::load(&manifest, &objects, &Cipher::None).unwrap());
    let recoder = Recoder::new(Arc::clone(&catalogue)).unwrap();
    let (mut same, mut other) = (0, 0);
    for id in recoder.chunks() {
        let stored = objects.fetch(&catalogue.objects()[usize::try_from(id).unwrap()]).unwrap();
        let made = recoder.object(id, &disk);
        assert_eq!(made.is_some(), recoder.makes(id, &stored));
        assert!(made.is_none_or(|made| made == stored), "one object has one name");
        *(if recoder.makes(id, &stored) { &mut same } else { &mut other }) += 1;
    }
    assert!(other > 0, "level 19 makes the same as the default in {same} chunks");
}
