//! The layout of a version as QCOW2, without its content: QEMU finds no fault in it, and each cluster of the disk where
//! the layout says. To repeat one test: `cargo test --workspace --test image qcow2::<name>`.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use base::{Chance, Result};
use image::{ChunkExtents, ChunkSize, Layout, Leaf, LeafRun, Qcow2Layout};

use crate::common::random_leaf;

const CLUSTER: u64 = 1 << 16;

/// The chunks of an image, by their index.
struct Chunks {
    layout: Layout,
    leaves: BTreeMap<u64, Leaf>,
}

impl Chunks {
    fn new(log2: u8, size_sectors: u64) -> Self {
        let layout =
            Layout { chunk: ChunkSize::from_log2(log2).unwrap(), size_sectors, logical_sector_bytes: 512 };
        Self { layout, leaves: BTreeMap::new() }
    }

    /// Sets the chunk, unless it reaches behind the end of the image.
    fn set(&mut self, index: u64, leaf: Leaf) {
        let end = leaf.extents().map_or(0, ChunkExtents::end);
        if u64::from(end) <= self.layout.chunk_extent(index).count {
            self.leaves.insert(index, leaf);
        }
    }

    fn within(&self, bytes: Range<u64>) -> impl Iterator<Item = Result<LeafRun>> + '_ {
        let chunk = u64::from(self.layout.chunk.bytes());
        let found = self.leaves.range(bytes.start / chunk..bytes.end.div_ceil(chunk));
        found.map(|(&first, leaf)| Ok(LeafRun { first, count: 1, leaf: leaf.clone() }))
    }

    fn qcow2(&self) -> Qcow2Layout {
        Qcow2Layout::of(&self.layout, self.within(0..self.layout.size_bytes())).unwrap()
    }

    /// The clusters of the disk that must have a place in the file.
    fn clusters_with_data(&self) -> Vec<u64> {
        let mut clusters = Vec::new();
        for (index, leaf) in &self.leaves {
            let Leaf::Data(extents, _) = leaf else { continue };
            for extent in self.layout.extents_of(*index, extents) {
                let (start, end) = (extent.start * 512 / CLUSTER, (extent.end() * 512).div_ceil(CLUSTER));
                clusters.extend(start..end);
            }
        }
        clusters.dedup();
        clusters
    }

    /// Writes the file, with a hole in place of each byte of the disk, and returns what the holes are: offset in the
    /// file, offset on the disk and length.
    fn write(&self, path: &Path, step: usize) -> Vec<(u64, u64, u64)> {
        let (qcow2, file, mut holes) = (self.qcow2(), File::create(path).unwrap(), Vec::new());
        file.set_len(qcow2.file_bytes()).unwrap();
        let mut buffer = vec![0xAA; step];
        for offset in (0..qcow2.file_bytes()).step_by(step) {
            let len = usize::try_from((qcow2.file_bytes() - offset).min(step as u64)).unwrap();
            let begin = buffer.as_ptr() as u64;
            let into = &mut buffer[..len];
            let parts = qcow2.fill(&self.layout, offset, into, |range| self.within(range)).unwrap();
            let filled: Vec<_> = parts
                .iter()
                .map(|part| (part.into.as_ptr() as u64 - begin, part.offset, part.into.len() as u64))
                .collect();
            let mut done = 0;
            for &(at, on_disk, count) in &filled {
                assert!(count > 0 && on_disk + count <= self.layout.size_bytes());
                holes.push((offset + at, on_disk, count));
                file.write_all_at(
                    &buffer[usize::try_from(done).unwrap()..usize::try_from(at).unwrap()],
                    offset + done,
                )
                .unwrap();
                done = at + count;
            }
            file.write_all_at(&buffer[usize::try_from(done).unwrap()..len], offset + done).unwrap();
        }
        holes
    }
}

fn qemu_img(words: &[&str], path: &Path) -> serde_json::Value {
    let done = Command::new("qemu-img").args(words).arg("--output=json").arg(path).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{words:?}: {said}{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_str(&said).unwrap()
}

/// Checks the file at `path` with QEMU, and where it finds each cluster of the disk.
fn check(chunks: &Chunks, path: &Path, step: usize) {
    let holes = chunks.write(path, step);
    let found = qemu_img(&["check", "-f", "qcow2"], path);
    let clusters = chunks.clusters_with_data();
    assert_eq!(found["check-errors"], 0, "{found}");
    assert!(found["corruptions"].is_null() && found["leaks"].is_null(), "{found}");
    assert_eq!(found["allocated-clusters"].as_u64().unwrap_or(0), clusters.len() as u64);
    assert_eq!(found["image-end-offset"], chunks.qcow2().file_bytes());
    let info = qemu_img(&["info"], path);
    assert_eq!(info["virtual-size"], chunks.layout.size_bytes());
    assert_eq!(info["format-specific"]["data"]["compat"], "1.1");
    // Each byte of the disk that has a place, in the order of the disk: first by QEMU, then by the layout.
    let size = chunks.layout.size_bytes();
    let mut mapped = Vec::new();
    for range in qemu_img(&["map", "-f", "qcow2"], path).as_array().unwrap() {
        let number = |name: &str| range[name].as_u64();
        if let Some(offset) = number("offset") {
            mapped.push((offset, number("start").unwrap(), number("length").unwrap()));
        } else {
            assert_eq!(range["zero"], true, "{range}");
        }
    }
    assert_eq!(joined(mapped), joined(holes));
    let expected = clusters.iter().map(|cluster| (cluster * CLUSTER, CLUSTER.min(size - cluster * CLUSTER)));
    let expected: u64 = expected.map(|(_, bytes)| bytes).sum();
    assert_eq!(chunks.write(path, 3 * step).iter().map(|(.., bytes)| bytes).sum::<u64>(), expected);
}

/// Joins neighbours.
fn joined(ranges: Vec<(u64, u64, u64)>) -> Vec<(u64, u64, u64)> {
    let mut joined: Vec<(u64, u64, u64)> = Vec::new();
    for (offset, start, len) in ranges {
        match joined.last_mut() {
            Some(last) if last.0 + last.2 == offset && last.1 + last.2 == start => last.2 += len,
            _ => joined.push((offset, start, len)),
        }
    }
    joined
}

#[test]
fn qemu_finds_every_cluster_of_random_versions_and_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..24 {
        let mut chance = Chance::from_seed(seed);
        let log2 = 16 + u8::try_from(chance.below(5)).unwrap();
        // Up to three tables of the second level, and mostly a last chunk that is shorter.
        let mut chunks = Chunks::new(log2, 1 + chance.below(3 << 20));
        for _ in 0..chance.below(200) {
            let index = chance.below(chunks.layout.chunk_count());
            let leaf = random_leaf(&mut chance, chunks.layout.chunk);
            chunks.set(index, leaf);
        }
        let step = 1 + usize::try_from(chance.below(1 << 20)).unwrap();
        check(&chunks, &folder.path().join(format!("{seed}.qcow2")), step);
    }
}

#[test]
fn a_disk_of_terabytes_has_several_clusters_of_the_first_level_and_of_counts() {
    let folder = tempfile::tempdir().unwrap();
    let mut chance = Chance::from_seed(1);
    let mut chunks = Chunks::new(24, 9 << 31);
    let data = loop {
        match random_leaf(&mut chance, chunks.layout.chunk) {
            leaf @ Leaf::Data(..) if leaf.sectors() == 1 << 15 => break leaf,
            _ => {}
        }
    };
    // 5 GiB of data: three blocks of counts.
    (0..320).for_each(|index| chunks.set(index, data.clone()));
    for _ in 0..40 {
        let index = chance.below(chunks.layout.chunk_count());
        chunks.set(index, data.clone());
    }
    chunks.set(chunks.layout.chunk_count() - 1, data);
    check(&chunks, &folder.path().join("large.qcow2"), 64 << 20);
}

#[test]
fn a_disk_without_data_is_a_header_and_tables_and_one_that_is_too_large_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut chunks = Chunks::new(18, 4096);
    chunks.set(0, Leaf::Zero(ChunkExtents::full(chunks.layout.chunk)));
    check(&chunks, &folder.path().join("empty.qcow2"), 1000);
    let large = Chunks::new(24, 1 << 53);
    let error = Qcow2Layout::of(&large.layout, large.within(0..0)).unwrap_err();
    assert_eq!(error.kind(), base::ErrorKind::Unsupported);
}
