//! Attached disks with real files and a real repository, compared with plain vectors of bytes.

use std::sync::Arc;
use std::time::Duration;

use base::{Chance, ErrorKind};
use mirror::{CommitOptions, Durability, Mirror, MirrorOptions, Served, Space};
use store::{CACHE_BYTES_MIN, Cache, CacheSetting};

use crate::common::{CHUNK, DEAD, FLIPS, GONE, GOOD, Moody, Place, all, options, source, stamp};

const SIZE: u64 = 40 * CHUNK + 1536;

#[test]
fn a_cold_disk_reads_as_its_image_and_then_needs_nobody() {
    let place = Place::new(SIZE, 1);
    let moody = Moody::new(&place, GOOD);
    let sources = vec![source("moody", &moody)];
    let folder = place.path("mirror");
    let mirror = Mirror::create(&folder, &place.manifest("disk"), sources.clone(), &options()).unwrap();
    assert!(!mirror.read_now(CHUNK, &mut [0; 512]).unwrap() && !mirror.is_complete());
    let mut chance = Chance::from_seed(1);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let mut chance = chance.fork();
            let (mirror, content) = (&mirror, &place.content);
            scope.spawn(move || {
                for _ in 0..60 {
                    let offset = chance.below(SIZE / 512 - 8) * 512;
                    let mut bytes = vec![0; 512 * (1 + chance.below(8) as usize)];
                    mirror.read(offset, &mut bytes).unwrap();
                    assert!(bytes == content[offset as usize..][..bytes.len()], "at {offset}");
                }
            });
        }
    });
    assert!(all(&mirror) == place.content);
    assert!(mirror.is_complete());
    let counters = mirror.counters();
    let encoded = place.manifest("disk").statistics.encoded_bytes;
    assert_eq!(counters.demanded_bytes + counters.prefetched_bytes, encoded, "each chunk once: {counters:?}");
    mirror.close().unwrap();
    assert_eq!(mirror.read(0, &mut [0; 512]).unwrap_err().kind(), ErrorKind::Refused);
    drop(mirror);
    moody.becomes(DEAD);
    let again = Mirror::open(&folder, sources, &options()).unwrap();
    assert!(all(&again) == place.content);
}

#[test]
fn disks_of_one_machine_share_a_cache_and_what_is_spoilt_there_harms_none() {
    let place = Place::new(SIZE, 6);
    let moody = Moody::new(&place, GOOD);
    let setting = CacheSetting { folder: place.path("cache"), bytes_max: CACHE_BYTES_MIN };
    let attach = |name: &str| {
        let cache = Arc::new(Cache::open(&setting).unwrap());
        let sources = vec![source("moody", &moody).cached(cache)];
        Mirror::create(&place.path(name), &place.manifest("disk"), sources, &options()).unwrap()
    };
    assert!(all(&attach("first")) == place.content);
    moody.becomes(DEAD);
    assert!(all(&attach("second")) == place.content, "everything is in the cache");
    moody.becomes(FLIPS);
    let mut spoilt = 0;
    for shelf in std::fs::read_dir(setting.folder.join("objects")).unwrap() {
        for object in std::fs::read_dir(shelf.unwrap().path()).unwrap() {
            let path = object.unwrap().path();
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[7] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            spoilt += 1;
        }
    }
    assert!(spoilt > 10);
    let mirror = attach("third");
    moody.becomes(GOOD);
    assert!(all(&mirror) == place.content);
    moody.becomes(DEAD);
    assert!(all(&attach("fourth")) == place.content, "the cache was healed");
}

#[test]
fn a_second_process_is_kept_out_and_a_second_disk_too() {
    let place = Place::new(SIZE, 1);
    let (folder, manifest) = (place.path("mirror"), place.manifest("disk"));
    let mirror = Mirror::create(&folder, &manifest, place.sources(), &options()).unwrap();
    let error = Mirror::open(&folder, place.sources(), &options()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
    drop(mirror);
    let error = Mirror::create(&folder, &manifest, place.sources(), &options()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
    let error = Mirror::open(&place.path("none"), place.sources(), &options()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn writes_never_fetch_and_merge_with_what_comes_later() {
    let place = Place::new(SIZE, 2);
    let moody = Moody::new(&place, DEAD);
    let mirror =
        Mirror::create(&place.path("m"), &place.manifest("disk"), vec![source("moody", &moody)], &options())
            .unwrap();
    let mut expected = place.content.clone();
    for at in [512, CHUNK - 512, 3 * CHUNK + 1024, SIZE - 512] {
        mirror.write(at, &[7; 512], Durability::Durable).unwrap();
        expected[at as usize..][..512].fill(7);
        let mut bytes = [0; 512];
        mirror.read(at, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 512]);
    }
    mirror.discard(5 * CHUNK, 2 * CHUNK, Durability::Cached).unwrap();
    expected[5 * CHUNK as usize..7 * CHUNK as usize].fill(0);
    mirror.flush().unwrap();
    assert_eq!(mirror.counters().demanded_chunks, 0);
    moody.becomes(GOOD);
    assert!(all(&mirror) == expected);
    assert_eq!(mirror.dirty_bytes(), 4 * 512 + 2 * CHUNK);
}

#[test]
fn damage_at_the_only_source_is_an_error_and_a_source_that_is_away_is_waited_for() {
    let place = Place::new(SIZE, 3);
    let (liar, away) = (Moody::new(&place, FLIPS), Moody::new(&place, DEAD));
    let manifest = place.manifest("disk");
    // There is no deadline, and nothing is prefetched.
    let options = MirrorOptions { ahead_chunks_max: 0, ..options() };
    let alone = Mirror::create(&place.path("a"), &manifest, vec![source("liar", &liar)], &options).unwrap();
    let full = place.content.chunks(CHUNK as usize).position(|chunk| chunk.iter().any(|&byte| byte != 0));
    let (at, name) = (full.unwrap() as u64 * CHUNK, format!("chunk {}", full.unwrap()));
    for _ in 0..4 {
        let error = alone.read(at, &mut [0; 512]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let damage = alone.damage();
        assert!(damage.len() == 1 && damage[0].what == name && damage[0].source == "liar", "{damage:?}");
    }
    assert_eq!(alone.waiting(), None);
    // The next read asks the source again, and the earlier damage has no effect any more.
    liar.becomes(GOOD);
    assert!(all(&alone) == place.content && alone.damage().is_empty());
    alone.close().unwrap();

    // Another source may have it undamaged, but cannot be reached.
    liar.becomes(FLIPS);
    let sources = vec![source("liar", &liar), source("away", &away)];
    let mirror = Mirror::create(&place.path("b"), &manifest, sources, &options).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| mirror.read(at, &mut [0; 512]));
        while mirror.counters().lies < 4 {
            std::thread::yield_now();
        }
        let waiting = mirror.waiting().unwrap();
        assert!(waiting.what == name && waiting.why.is_some(), "{waiting:?}");
        away.becomes(GOOD);
        reader.join().unwrap().unwrap();
        assert_eq!(mirror.waiting(), None);
    });
    // A missing node does not make reads wait forever either.
    let gone = Moody::new(&place, GONE);
    let lacks = Mirror::create(&place.path("c"), &manifest, vec![source("gone", &gone)], &options).unwrap();
    let error = lacks.read(at, &mut [0; 512]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(lacks.damage()[0].what.contains("node"), "{:?}", lacks.damage());
}

#[test]
fn a_flipped_chunk_is_never_served_and_heals_from_another_source() {
    let place = Place::new(SIZE, 3);
    let liar = Moody::new(&place, FLIPS);
    let patient = MirrorOptions { give_up: Some(Duration::from_millis(300)), ..options() };
    let manifest = place.manifest("disk");
    let alone = Mirror::create(&place.path("a"), &manifest, vec![source("liar", &liar)], &patient).unwrap();
    let mut bytes = vec![1; SIZE as usize];
    let error = alone.read(0, &mut bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("chunk") && error.to_string().contains("liar"), "{error}");
    assert!(bytes.iter().all(|&byte| byte == 1));
    drop(alone);
    let sources = vec![source("liar", &liar), place.sources().remove(0)];
    let mirror = Mirror::create(&place.path("b"), &manifest, sources, &options()).unwrap();
    assert!(all(&mirror) == place.content);
    assert!(mirror.counters().lies > 0);
}

#[test]
fn a_read_waits_for_a_source_that_is_away_or_gives_up_in_time() {
    let place = Place::new(SIZE, 4);
    let moody = Moody::new(&place, DEAD);
    let manifest = place.manifest("disk");
    let bounded = MirrorOptions { give_up: Some(Duration::from_millis(100)), ..options() };
    let short = Mirror::create(&place.path("a"), &manifest, vec![source("moody", &moody)], &bounded).unwrap();
    let error = short.read(0, &mut [0; 512]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    let waits =
        Mirror::create(&place.path("b"), &manifest, vec![source("moody", &moody)], &options()).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| all(&waits));
        // Whether or not the reader already waits, it must end well.
        moody.becomes(GOOD);
        assert!(reader.join().unwrap() == place.content);
    });
    // A read after an error succeeds once the source is asked again.
    let mut bytes = vec![0; SIZE as usize];
    while let Err(error) = short.read(0, &mut bytes) {
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    }
    assert!(bytes == place.content);
}

#[test]
fn a_disk_closes_although_a_read_waits_for_a_source_that_is_gone() {
    let place = Place::new(SIZE, 4);
    let sources = vec![source("moody", &Moody::new(&place, DEAD))];
    let folder = place.path("m");
    let mirror = Mirror::create(&folder, &place.manifest("disk"), sources, &options()).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| mirror.read(0, &mut [0; 512]).unwrap_err());
        while mirror.counters().demanded_chunks == 0 {
            std::thread::yield_now();
        }
        mirror.close().unwrap();
        assert_eq!(reader.join().unwrap().kind(), ErrorKind::Unreachable);
    });
    drop(mirror);
    assert!(all(&Mirror::open(&folder, place.sources(), &options()).unwrap()) == place.content);
}

#[test]
fn the_background_fills_a_disk_that_nobody_reads() {
    let place = Place::new(SIZE, 5);
    let options = MirrorOptions { background_bytes_per_second: 1 << 30, ..options() };
    let mirror =
        Mirror::create(&place.path("m"), &place.manifest("disk"), place.sources(), &options).unwrap();
    while !mirror.is_complete() {
        std::thread::yield_now();
    }
    assert_eq!(mirror.counters().background_bytes, place.manifest("disk").statistics.encoded_bytes);
    assert!(all(&mirror) == place.content);
}

#[test]
fn what_others_read_first_is_fetched_before_it_is_asked_for() {
    let place = Place::new(SIZE, 6);
    let manifest = place.manifest("disk");
    let first = Mirror::create(&place.path("a"), &manifest, place.sources(), &options()).unwrap();
    for chunk in [7, 30, 2, 21] {
        first.read(chunk * CHUNK, &mut [0; 512]).unwrap();
    }
    assert_eq!(first.order(), [7, 30, 2, 21]);
    let second = Mirror::create(&place.path("b"), &manifest, place.sources(), &options()).unwrap();
    second.expect_reads(&first.order());
    let fetched = first.counters().demanded_bytes;
    while second.counters().prefetched_bytes < fetched {
        std::thread::yield_now();
    }
    assert_eq!(second.counters().prefetched_unused_bytes(), fetched);
    for chunk in first.order() {
        second.read(chunk * CHUNK, &mut [0; 512]).unwrap();
    }
    let counters = second.counters();
    assert_eq!((counters.demanded_chunks, counters.prefetched_unused_bytes()), (0, 0));
}

#[test]
fn status_tells_what_is_free_dirty_and_here() {
    let place = Place::new(SIZE, 7);
    let mirror =
        Mirror::create(&place.path("m"), &place.manifest("disk"), place.sources(), &options()).unwrap();
    mirror.read(CHUNK, &mut [0; 512]).unwrap();
    mirror.write(2 * CHUNK + 512, &[9; 1024], Durability::Cached).unwrap();
    mirror.write_zeroes(4 * CHUNK, CHUNK, Space::Free, Durability::Cached).unwrap();
    let runs = mirror.status(0, SIZE, 10_000).unwrap();
    assert_eq!(runs.iter().map(|run| run.bytes).sum::<u64>(), SIZE);
    assert_eq!(mirror.counters().demanded_chunks, 1, "to know what is free no chunk is fetched");
    let bytes = all(&mirror);
    let mut at = 0;
    for run in &runs {
        let part = &bytes[at..at + run.bytes as usize];
        assert!(!run.status.zero || part.iter().all(|&byte| byte == 0), "at {at}: {run:?}");
        at += run.bytes as usize;
    }
    let dirty: u64 = runs.iter().filter(|run| run.status.dirty).map(|run| run.bytes).sum();
    assert_eq!(dirty, 1024 + CHUNK);
    let zero: u64 = runs.iter().filter(|run| run.status.zero).map(|run| run.bytes).sum();
    assert!(zero > SIZE / 4, "{zero}");
    assert!(mirror.status(0, SIZE, 3).unwrap().len() <= 3);
}

/// Four guests write and another thread commits. Each guest owns a quarter of the disk and writes a growing number
/// to its cells in turn. So each version, which is the disk at one moment, must show a prefix of each guest's
/// writes.
#[test]
fn a_version_is_of_one_moment_while_guests_write_on() {
    const CELLS: u64 = 24;
    let place = Place::new(SIZE, 8);
    let mirror =
        Mirror::create(&place.path("m"), &place.manifest("disk"), place.sources(), &options()).unwrap();
    let cell = |guest: u64, at: u64| (guest * 10 + at % 10) * CHUNK + at / 10 * 4096;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let versions = std::thread::scope(|scope| {
        for guest in 0..4 {
            let (mirror, stop) = (&mirror, &stop);
            scope.spawn(move || {
                for number in 1u64.. {
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    let bytes = number.to_le_bytes().repeat(512);
                    mirror.write(cell(guest, number % CELLS), &bytes, Durability::Cached).unwrap();
                }
            });
        }
        let image = "running".parse().unwrap();
        let mut versions = Vec::new();
        while versions.len() < 8 {
            let commit = mirror.commit(&*place.repository, &image, &CommitOptions::new(&stamp())).unwrap();
            versions.extend(commit.map(|commit| commit.manifest.number));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        versions
    });
    assert!(versions.is_sorted_by(|a, b| a < b));
    for number in versions {
        let bytes = place.read(&format!("running@{number}"));
        for guest in 0..4 {
            let numbers: Vec<u64> = (0..CELLS)
                .map(|at| {
                    let cell = &bytes[cell(guest, at) as usize..][..4096];
                    let number = u64::from_le_bytes(*cell.first_chunk().unwrap());
                    // A cell that was not written has the content of the image.
                    let whole = cell.chunks(8).all(|eight| eight == number.to_le_bytes());
                    if number % CELLS == at && whole { number } else { 0 }
                })
                .collect();
            let newest = *numbers.iter().max().unwrap();
            for (at, &number) in (0..).zip(&numbers) {
                // The highest number up to `newest` that belongs into this cell.
                let expected = newest.saturating_sub((newest + CELLS - at) % CELLS);
                assert_eq!(number, expected, "guest {guest}: {numbers:?}");
            }
        }
    }
}

#[test]
fn a_commit_of_one_mebibyte_in_four_gibibytes_stores_little_and_goes_on() {
    let place = Place::new(4 << 30 >> 6, 9);
    let big = place.repository.blob(&"big".parse().unwrap());
    let shape = store::Shape { size_bytes: 4 << 30, ..store::Shape::default() };
    big.create(&shape, &stamp()).unwrap();
    big.write(1 << 30, &place.content, &stamp()).unwrap();
    let mirror =
        Mirror::create(&place.path("m"), &place.manifest("big"), place.sources(), &options()).unwrap();
    let mut chance = Chance::from_seed(9);
    let mut bytes = vec![0; 1 << 20];
    chance.fill(&mut bytes);
    mirror.write(1 << 30, &bytes, Durability::Cached).unwrap();
    let image = "machine".parse().unwrap();
    let commit = mirror.commit(&*place.repository, &image, &CommitOptions::new(&stamp())).unwrap().unwrap();
    assert_eq!(commit.dirty_bytes, 1 << 20);
    assert!(commit.stored_bytes <= 3 << 19, "{} bytes were stored", commit.stored_bytes);
    assert_eq!((mirror.base().image, mirror.base().number, mirror.dirty_bytes()), ("machine".into(), 1, 0));
    assert!(
        mirror.commit(&*place.repository, &image, &CommitOptions::new(&stamp())).unwrap().is_none(),
        "nothing changed"
    );
    // The machine continues in another place, on demand.
    let elsewhere =
        Mirror::create(&place.path("e"), &place.manifest("machine"), place.sources(), &options()).unwrap();
    let mut read = vec![0; 1 << 20];
    elsewhere.read(1 << 30, &mut read).unwrap();
    assert!(read == bytes);
    elsewhere.write(0, &[1; 512], Durability::Cached).unwrap();
    elsewhere.commit(&*place.repository, &image, &CommitOptions::new(&stamp())).unwrap().unwrap();
    mirror.write(0, &[2; 512], Durability::Cached).unwrap();
    let error = mirror.commit(&*place.repository, &image, &CommitOptions::new(&stamp())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    // The disk stays unchanged, and can become an image of its own.
    mirror.read(0, &mut read[..512]).unwrap();
    assert_eq!((read[0], mirror.dirty_bytes()), (2, 512));
    mirror
        .commit(&*place.repository, &"other".parse().unwrap(), &CommitOptions::new(&stamp()))
        .unwrap()
        .unwrap();
    assert_eq!(place.manifest("other").number, 1);
}

#[test]
fn a_disk_that_was_only_dropped_opens_with_all_that_was_written() {
    let place = Place::new(SIZE, 10);
    let folder = place.path("m");
    let small = MirrorOptions { journal_bytes_max: 2000, ..options() };
    let mut expected = place.content.clone();
    let mut chance = Chance::from_seed(10);
    let mirror = Mirror::create(&folder, &place.manifest("disk"), place.sources(), &small).unwrap();
    drop(mirror);
    for round in 0..6 {
        let mirror = Mirror::open(&folder, place.sources(), &small).unwrap();
        for _ in 0..40 {
            let offset = chance.below(SIZE / 512 - 64) * 512;
            let bytes = vec![chance.u64() as u8; 512 * (1 + chance.below(63)) as usize];
            mirror.write(offset, &bytes, Durability::Cached).unwrap();
            expected[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            if chance.hits(200_000) {
                mirror.flush().unwrap();
            }
        }
        if round == 3 {
            let commit =
                mirror.commit(&*place.repository, &"disk".parse().unwrap(), &CommitOptions::new(&stamp()));
            assert!(place.read("disk") == expected, "{commit:?}");
        }
        if chance.hits(500_000) {
            mirror.close().unwrap();
        }
        assert!(round < 4 || mirror.base().number == 3);
    }
    let mirror = Mirror::open(&folder, place.sources(), &small).unwrap();
    assert!(all(&mirror) == expected);
    let journal = std::fs::metadata(folder.join("journal")).unwrap().len();
    assert!(journal < 100_000, "{journal}");
}
