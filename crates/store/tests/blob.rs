//! Images as blobs, compared with plain byte vectors: every version returns exactly what was written, with any number
//! of concurrent writers. To repeat one test: `cargo test --workspace --test store blob::<name>`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Barrier;

use base::{Chance, ErrorKind, Extent, ExtentSet};
use image::manifest::{FilesystemRecord, PartitionRecord, Statistics};
use image::{ChunkSize, DecryptedNodes, Leaf, Leaves, NoProgress};
use store::{Changes, Content, Piece, Repository, Scope, Shape};

use crate::common::{self, Place, image, in_folder, in_memory, reference, stamp};

/// The expected content of an image.
#[derive(Clone, Default)]
struct Model {
    bytes: Vec<u8>,
    allocated: ExtentSet,
}

impl Model {
    fn write(&mut self, unit: u64, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        self.bytes.resize(self.bytes.len().max(end as usize), 0);
        self.bytes[offset as usize..end as usize].copy_from_slice(bytes);
        if !bytes.is_empty() {
            self.allocated
                .insert(Extent::between(offset / unit * unit / 512, end.next_multiple_of(unit) / 512));
        }
    }

    fn free(&mut self, unit: u64, ranges: &[Range<u64>]) {
        let mut freed = vec![false; self.bytes.len()];
        for range in ranges {
            let range = range.start as usize..range.end as usize;
            freed[range.clone()].fill(true);
            self.bytes[range].fill(0);
        }
        for (at, sector) in (0..).step_by(unit as usize / 512).zip(freed.chunks(unit as usize)) {
            if sector.iter().all(|freed| *freed) {
                self.allocated.remove(Extent::new(at, unit / 512));
            }
        }
    }
}

/// A random range of an image of `size` bytes, mostly of whole sectors.
fn some_range(chance: &mut Chance, size: u64) -> Range<u64> {
    let unit = if chance.hits(300_000) { 1 } else { 512 };
    let start = chance.below(size) / unit * unit;
    start..start + chance.below(size - start + 1) / unit * unit
}

fn shape(size_bytes: u64, log2: u8, logical_sector_bytes: u32) -> Shape {
    Shape { size_bytes, chunk: ChunkSize::from_log2(log2).unwrap(), logical_sector_bytes }
}

/// Bytes that compress a little; sometimes only zeros.
fn some_bytes(chance: &mut Chance, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; count as usize];
    if !chance.hits(200_000) {
        let random = (chance.below(count + 1)) as usize;
        chance.fill(&mut bytes[..random]);
    }
    bytes
}

fn check(repository: &Repository, name: &str, model: &Model, seed: u64) {
    let snapshot = repository.snapshot(&reference(name)).unwrap();
    let layout = *snapshot.layout();
    assert_eq!(layout.size_bytes(), model.bytes.len() as u64, "seed {seed}");
    let mut all = Vec::new();
    snapshot.copy_to(0, layout.size_bytes(), &mut all).unwrap();
    assert!(all == model.bytes, "seed {seed}: {name} holds other bytes");
    let whole = Extent::new(0, layout.size_sectors);
    assert_eq!(snapshot.allocated(whole).unwrap(), model.allocated, "seed {seed}: {name}");
    let mut statistics = Statistics::default();
    let mut chunks = 0;
    let source = DecryptedNodes { source: repository, cipher: repository.cipher() };
    for run in Leaves::new(source, layout.chunk, &snapshot.manifest().root) {
        let run = run.unwrap();
        layout.check_run(&run).unwrap();
        statistics.add(&run.leaf, run.count);
        chunks += run.count;
    }
    statistics.add(&Leaf::Free, layout.chunk_count() - chunks);
    assert_eq!(snapshot.manifest().statistics, statistics, "seed {seed}: {name}");
}

/// Content that consists of several pieces.
struct Pieces(Vec<(u64, Vec<u8>)>);

impl Content for Pieces {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        let holds =
            |(start, bytes): &&(u64, Vec<u8>)| (*start..*start + bytes.len() as u64).contains(&offset);
        // Where pieces overlap, the last one wins, byte by byte.
        for (at, byte) in (offset..).zip(&mut *into) {
            let (start, bytes) = self
                .0
                .iter()
                .rev()
                .find(|(start, bytes)| (*start..*start + bytes.len() as u64).contains(&at))
                .unwrap();
            *byte = bytes[(at - start) as usize];
        }
        assert!(self.0.iter().any(|piece| holds(&piece)));
        Ok(())
    }
}

fn any_history_of_one_writer_reads_back(place: &Place) {
    for seed in 0..12 {
        let mut chance = Chance::from_seed(seed);
        let unit = [512, 4096][(seed % 2) as usize];
        let size = 4096 * (1 + chance.below(150));
        let name = format!("image{seed}");
        let blob = place.repository.blob(&image(&name));
        blob.create(&shape(size, 16, unit), &stamp()).unwrap();
        let unit = u64::from(unit);
        let mut model = Model { bytes: vec![0; size as usize], ..Model::default() };
        let mut versions = vec![model.clone()];
        for _ in 0..12 {
            let size = model.bytes.len() as u64;
            match chance.below(4) {
                0 => {
                    let sectors = 1 + chance.below(100_000 / unit);
                    let bytes = some_bytes(&mut chance, unit * sectors);
                    let (offset, _) = blob.append(&bytes, &stamp()).unwrap();
                    assert_eq!(offset, size);
                    model.write(unit, offset, &bytes);
                }
                1 => {
                    let freed: Vec<_> = (0..chance.below(4)).map(|_| some_range(&mut chance, size)).collect();
                    model.free(unit, &freed);
                    let pieces: Vec<_> = (0..chance.below(20))
                        .map(|_| {
                            let offset = chance.below(size);
                            let count = chance.below((size - offset).min(5000)) + 1;
                            (offset, some_bytes(&mut chance, count))
                        })
                        .collect();
                    let written: Vec<Range<u64>> =
                        pieces.iter().map(|(at, bytes)| *at..*at + bytes.len() as u64).collect();
                    pieces.iter().for_each(|(at, bytes)| model.write(unit, *at, bytes));
                    let changes = Changes { written: &written, content: &Pieces(pieces), freed: &freed };
                    blob.commit(&changes, Some(versions.len() as u64), &stamp()).unwrap();
                }
                _ => {
                    let offset = chance.below(size);
                    let count = chance.below(size - offset + 1);
                    let bytes = some_bytes(&mut chance, count);
                    blob.write(offset, &bytes, &stamp()).unwrap();
                    model.write(unit, offset, &bytes);
                }
            }
            versions.push(model.clone());
        }
        for (number, model) in (1..).zip(&versions) {
            check(&place.repository, &format!("{name}@{number}"), model, seed);
        }
        let recent = blob.recent().unwrap();
        assert_eq!((recent.number, recent.size_bytes), (13, model.bytes.len() as u64), "seed {seed}");
    }
    assert_eq!(place.repository.verify(&Scope::All, &NoProgress).unwrap().damaged, []);
}

#[test]
fn any_history_of_one_writer_reads_back_from_a_folder() {
    any_history_of_one_writer_reads_back(&in_folder());
}

#[test]
fn any_history_of_one_writer_reads_back_from_memory() {
    any_history_of_one_writer_reads_back(&in_memory());
}

/// One write of a test: bytes at an offset, or a range to free.
enum Asked {
    Write(u64, Vec<u8>),
    Free(Range<u64>),
}

impl Asked {
    fn any(chance: &mut Chance, size: u64) -> Self {
        let offset = chance.below(size);
        let count = chance.below((size - offset).min(100_000)) + 1;
        match chance.below(4) {
            0 => Self::Free(offset..offset + count),
            _ => Self::Write(offset, some_bytes(chance, count)),
        }
    }

    fn ask(&self, blob: &store::Blob<'_>) -> store::Committed {
        match self {
            Self::Write(offset, bytes) => blob.write(*offset, bytes, &stamp()).unwrap(),
            Self::Free(range) => {
                let content = &Piece { offset: 0, bytes: &[] };
                let changes = Changes { written: &[], content, freed: std::slice::from_ref(range) };
                blob.commit(&changes, None, &stamp()).unwrap()
            }
        }
    }
}

/// Threads that write to one image, each with the repository that `of` returns. Returns what each version wrote.
fn race<'r>(
    writers: usize,
    writes: u64,
    size: u64,
    of: impl Fn(usize) -> &'r Repository + Sync,
) -> (BTreeMap<u64, Asked>, u64, u64) {
    let barrier = Barrier::new(writers);
    let (barrier, of) = (&barrier, &of);
    let all: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..writers)
            .map(|writer| {
                scope.spawn(move || {
                    let mut chance = Chance::from_seed(writer as u64);
                    let blob = of(writer).blob(&image("shared"));
                    barrier.wait();
                    (0..writes)
                        .map(|_| {
                            let asked = Asked::any(&mut chance, size);
                            (asked.ask(&blob), asked)
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let retries = all.iter().map(|(done, _)| u64::from(done.retries)).sum();
    let merged = all.iter().map(|(done, _)| done.merged_chunks).sum();
    (all.into_iter().map(|(done, asked)| (done.manifest.number, asked)).collect(), retries, merged)
}

fn replay(repository: &Repository, size: u64, history: &BTreeMap<u64, Asked>) {
    let mut model = Model { bytes: vec![0; size as usize], ..Model::default() };
    for (number, asked) in history {
        match asked {
            Asked::Write(offset, bytes) => model.write(512, *offset, bytes),
            Asked::Free(range) => model.free(512, std::slice::from_ref(range)),
        }
        if number % 7 == 0 || *number as usize == history.len() + 1 {
            check(repository, &format!("shared@{number}"), &model, *number);
        }
    }
}

#[test]
fn writers_of_one_process_never_lose_a_race_and_each_version_is_all_writes_before_it() {
    for place in [in_folder(), in_memory()] {
        let size = 1 << 20;
        place.repository.blob(&image("shared")).create(&shape(size, 16, 512), &stamp()).unwrap();
        let (history, retries, merged) = race(16, 8, size, |_| &place.repository);
        assert!(history.keys().copied().eq(2..=16 * 8 + 1), "every write is one version");
        assert_eq!(retries, 0);
        assert!(merged > 0, "some wrote the same chunk at once");
        replay(&place.repository, size, &history);
        assert_eq!(place.repository.verify(&Scope::All, &NoProgress).unwrap().damaged, []);
    }
}

#[test]
fn writers_of_several_processes_go_onto_each_others_versions() {
    let place = in_folder();
    let size = 1 << 20;
    place.repository.blob(&image("shared")).create(&shape(size, 16, 512), &stamp()).unwrap();
    let others: Vec<_> = (0..4).map(|_| Repository::open(&place.location).unwrap()).collect();
    let (history, retries, _) = race(8, 6, size, |writer| &others[writer % 4]);
    assert!(history.keys().copied().eq(2..=8 * 6 + 1), "every write is one version");
    assert!(retries > 0, "numbers were taken by other processes");
    replay(&place.repository, size, &history);
    assert_eq!(place.repository.verify(&Scope::All, &NoProgress).unwrap().damaged, []);
}

#[test]
fn appends_never_overlap_and_nothing_is_lost() {
    let place = in_folder();
    place.repository.blob(&image("log")).create(&Shape::default(), &stamp()).unwrap();
    let others: Vec<_> = (0..3).map(|_| Repository::open(&place.location).unwrap()).collect();
    let appended: Vec<(u64, Vec<u8>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6u8)
            .map(|writer| {
                let blob = others[usize::from(writer % 3)].blob(&image("log"));
                scope.spawn(move || {
                    (1..6u8)
                        .map(|turn| {
                            let bytes = vec![writer * 16 + turn; 512 * 40 * usize::from(turn)];
                            (blob.append(&bytes, &stamp()).unwrap().0, bytes)
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut model = Model { bytes: vec![0; 512], ..Model::default() };
    let total: usize = appended.iter().map(|(_, bytes)| bytes.len()).sum();
    appended.iter().for_each(|(offset, bytes)| model.write(512, *offset, bytes));
    assert_eq!(model.bytes.len(), 512 + total, "no gaps, no overlaps");
    check(&place.repository, "log", &model, 0);
}

#[test]
fn a_clone_is_one_record_and_goes_its_own_way() {
    let place = in_folder();
    let disk = place.repository.blob(&image("disk"));
    disk.create(&shape(64 << 40, 18, 512), &stamp()).unwrap();
    disk.write(40 << 40, b"before", &stamp()).unwrap();
    let files = || {
        let mut count = 0;
        let mut folders = vec![place.folder().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                let is_folder = entry.file_type().unwrap().is_dir();
                // The next prune deletes the log of the writer's lease.
                let stays = entry.file_name() != "leases";
                if is_folder { folders.extend(stays.then(|| entry.path())) } else { count += 1 }
            }
        }
        count
    };
    let before = files();
    let copy = place.repository.blob(&image("copy"));
    let cloned = copy.clone_from(&reference("disk@2"), &stamp()).unwrap();
    assert_eq!(files(), before + 1);
    let (original, _) = place.repository.signed_manifest(&reference("disk@2")).unwrap();
    let parent = cloned.parent.unwrap();
    assert_eq!((parent.image.as_str(), parent.number, parent.digest), ("disk", 2, original.digest()));
    let done = copy.write(40 << 40, b"BE", &stamp()).unwrap();
    assert!(done.stored_bytes < 8 << 10, "{} bytes", done.stored_bytes);
    disk.write((40 << 40) + 2, b"long", &stamp()).unwrap();
    for (name, text) in
        [("disk", b"belong"), ("disk@2", b"before"), ("copy@1", b"before"), ("copy", b"BEfore")]
    {
        let mut bytes = [0; 6];
        place.repository.snapshot(&reference(name)).unwrap().read(40 << 40, &mut bytes).unwrap();
        assert_eq!(&bytes, text, "{name}");
    }
    assert_eq!(copy.clone_from(&reference("disk"), &stamp()).unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(disk.create(&Shape::default(), &stamp()).unwrap_err().kind(), ErrorKind::Exists);
    let nowhere = place.repository.blob(&image("other")).clone_from(&reference("no"), &stamp());
    assert_eq!(nowhere.unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_version_that_is_not_the_expected_one_takes_nothing() {
    let place = in_memory();
    let disk = place.repository.blob(&image("disk"));
    assert_eq!(disk.write(0, b"x", &stamp()).unwrap_err().kind(), ErrorKind::NotFound);
    disk.create(&shape(1 << 20, 16, 512), &stamp()).unwrap();
    disk.write(0, b"theirs", &stamp()).unwrap();
    let content = Piece { offset: 0, bytes: b"mine" };
    let changes = Changes { written: std::slice::from_ref(&(0..4)), content: &content, freed: &[] };
    let late = disk.commit(&changes, Some(1), &stamp()).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Refused, "{late}");
    disk.commit(&changes, Some(2), &stamp()).unwrap();
    let beyond = Changes { written: &[], freed: std::slice::from_ref(&(0..(1 << 20) + 1)), ..changes };
    assert_eq!(disk.commit(&beyond, None, &stamp()).unwrap_err().kind(), ErrorKind::Refused);
    let behind = disk.write((1 << 20) - 1, b"xy", &stamp()).unwrap_err();
    assert_eq!(behind.kind(), ErrorKind::Refused);
    let snapshot = place.repository.snapshot(&reference("disk")).unwrap();
    assert_eq!(snapshot.read(1 << 20, &mut [0]).unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!(snapshot.read(u64::MAX, &mut [0]).unwrap_err().kind(), ErrorKind::Refused);
    for bad in [shape(0, 16, 512), shape(513, 16, 512), shape(4096, 16, 8191), shape(512, 16, 4096)] {
        let refused = place.repository.blob(&image("bad")).create(&bad, &stamp());
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
    }
}

#[test]
fn a_removed_version_is_not_built_upon_and_numbers_go_on() {
    let place = in_folder();
    let disk = place.repository.blob(&image("disk"));
    disk.create(&shape(1 << 20, 16, 512), &stamp()).unwrap();
    disk.write(0, b"good", &stamp()).unwrap();
    disk.write(0, b"evil", &stamp()).unwrap();
    place.repository.remove(&reference("disk@3"), &stamp()).unwrap();
    let done = disk.write(4, b" day", &stamp()).unwrap();
    assert_eq!((done.manifest.number, done.manifest.parent.unwrap().number), (4, 2));
    let mut bytes = [0; 8];
    place.repository.snapshot(&reference("disk")).unwrap().read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"good day");
}

#[test]
fn a_number_whose_manifest_was_pruned_is_not_used_again() {
    let place = in_folder();
    let disk = place.repository.blob(&image("disk"));
    disk.create(&shape(1 << 20, 16, 512), &stamp()).unwrap();
    // Another process publishes a version, removes it, and prunes; only the tombstone is left.
    let other = Repository::open(&place.location).unwrap();
    other.blob(&image("disk")).write(0, b"gone", &stamp()).unwrap();
    other.remove(&reference("disk@2"), &stamp()).unwrap();
    let folder = place.folder().join("versions/disk");
    std::fs::remove_file(folder.join("00000000000000000002")).unwrap();
    let done = disk.write(4, b"kept", &stamp()).unwrap().manifest;
    assert_eq!((done.number, done.parent.unwrap().number), (3, 1));
}

#[test]
fn a_captured_version_in_between_is_written_over_even_if_it_is_cut_otherwise() {
    let place = in_folder();
    let disk = place.repository.blob(&image("disk"));
    disk.create(&shape(7 << 16, 18, 4096), &stamp()).unwrap();
    disk.write(9, b"first", &stamp()).unwrap();
    let captured = common::publish(&Repository::open(&place.location).unwrap(), "disk", 5);
    assert_eq!((captured.number, captured.chunk_bytes), (3, 1 << 16));
    let done = disk.write(100, b"over it", &stamp()).unwrap();
    assert_eq!((done.manifest.chunk_bytes, done.manifest.parent.unwrap().number), (1 << 16, 3));
    let read = |name: &str| {
        let mut bytes = vec![0; 7 << 16];
        place.repository.snapshot(&reference(name)).unwrap().read(0, &mut bytes).unwrap();
        bytes
    };
    let mut expected = read("disk@3");
    expected[100..107].copy_from_slice(b"over it");
    assert!(read("disk") == expected);
}

#[test]
fn what_is_written_over_is_marked_in_the_description_of_the_disk() {
    let place = in_memory();
    let (mut draft, _) = common::put_image(&place.repository, 1, 64);
    let partition = |number: u32, start_sector: u64| PartitionRecord {
        number,
        start_sector,
        sectors: 2048,
        type_id: "83".to_owned(),
        name: None,
        uuid: None,
        filesystem: Some(FilesystemRecord {
            kind: "ext4".to_owned(),
            uuid: None,
            label: None,
            understood: true,
            changed: false,
        }),
    };
    draft.disk.table = "mbr".to_owned();
    draft.disk.partitions = vec![partition(1, 2048), partition(2, 4096)];
    place.repository.publish(&image("disk"), draft).unwrap();
    let disk = place.repository.blob(&image("disk"));
    let marks = |write: store::Committed| {
        let changed = |partition: &PartitionRecord| partition.filesystem.as_ref().unwrap().changed;
        let described = write.manifest.disk;
        (described.changed, described.partitions.iter().map(changed).collect::<Vec<_>>())
    };
    assert_eq!(
        marks(disk.write(4096 * 512, b"in the second", &stamp()).unwrap()),
        (false, vec![false, true])
    );
    assert_eq!(
        marks(disk.write(2048 * 512, &[1; 1024 * 1024], &stamp()).unwrap()),
        (false, vec![true, true])
    );
    let place = in_memory();
    let (mut draft, _) = common::put_image(&place.repository, 1, 64);
    draft.disk.table = "mbr".to_owned();
    draft.disk.partitions = vec![partition(1, 2048), partition(2, 4096)];
    place.repository.publish(&image("disk"), draft).unwrap();
    let disk = place.repository.blob(&image("disk"));
    assert_eq!(marks(disk.write(446, b"the table", &stamp()).unwrap()), (true, vec![false, false]));
}

#[test]
fn a_flipped_chunk_is_named_and_never_served() {
    let place = in_folder();
    let disk = place.repository.blob(&image("disk"));
    disk.create(&shape(1 << 20, 16, 512), &stamp()).unwrap();
    disk.write(0, &[7; 200_000], &stamp()).unwrap();
    let chunks = place.folder().join("chunks");
    let folder = std::fs::read_dir(chunks).unwrap().next().unwrap().unwrap().path();
    let file = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let fresh = Repository::open(&place.location).unwrap();
    let snapshot = fresh.snapshot(&reference("disk")).unwrap();
    let error = snapshot.read(0, &mut vec![0; 200_000]).unwrap_err();
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(base::chain(&error).contains(&name[..8]), "{}", base::chain(&error));
    // A write that needs the old content fails too; one that overwrites all of it succeeds.
    assert_eq!(fresh.blob(&image("disk")).write(5, b"x", &stamp()).unwrap_err().kind(), ErrorKind::Corrupt);
    fresh.blob(&image("disk")).write(0, &[8; 196_608], &stamp()).unwrap();
}
