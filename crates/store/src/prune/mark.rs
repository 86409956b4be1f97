//! Marking: finds the objects that versions need. Chunks go into a filter of fixed memory with false positives, which
//! keep an object that is not needed. Visited nodes are remembered exactly: a false positive there would skip a whole
//! subtree.

use std::collections::{BTreeMap, HashMap, HashSet};

use base::{Digest, Error, ErrorKind, Result};
use image::{ChunkSize, ObjectKind, Root};

use crate::layout;
use crate::lease::Commit;
use crate::lease::filter::Filter;
use crate::names::ImageName;
use crate::repository::Repository;
use crate::versions::gaps;
use crate::walk::walk;

use super::candidates::in_folder;

/// Memory for marks: 64 bits per object for 16 million objects, fewer bits for more objects.
const MARKS_BYTES_MAX: u64 = 128 << 20;
const MARKS_BITS: u64 = 64;
/// Least number of objects for which the filter has room.
const OBJECTS_MIN: u64 = 16 << 10;
/// Number of folders whose objects are counted, to estimate the total.
const SAMPLE: usize = 4;

/// The versions that were removed when a prune began.
#[derive(Debug)]
pub(super) struct Tombstones(BTreeMap<ImageName, Removed>);

/// The removed versions of one image.
#[derive(Debug, Default)]
struct Removed {
    /// All versions up to this number are removed.
    floor: u64,
    /// Removed versions that have a tombstone, ascending.
    numbers: Vec<u64>,
}

impl Tombstones {
    pub(super) fn list(repository: &Repository) -> Result<Self> {
        let mut removed = BTreeMap::<_, Removed>::new();
        for image in names(repository.backend.folders(&layout::all_removed())?) {
            let numbers = repository.tombstones(&image)?;
            removed.insert(image, Removed { floor: 0, numbers });
        }
        // List floors after tombstones: tombstones are deleted only below a floor that was stored before.
        for image in names(repository.backend.folders(&layout::all_floors())?) {
            let floor = repository.floor(&image)?;
            removed.entry(image).or_default().floor = floor;
        }
        Ok(Self(removed))
    }

    pub(super) fn holds(&self, image: &ImageName, number: u64) -> bool {
        let (floor, numbers) = self.of(image);
        number <= floor || numbers.binary_search(&number).is_ok()
    }

    /// The floor of `image`, and the numbers of its tombstones, ascending.
    fn of(&self, image: &ImageName) -> (u64, &[u64]) {
        self.0.get(image).map_or((0, &[]), |removed| (removed.floor, &removed.numbers))
    }

    /// The highest possible floor of each image: all versions up to there are removed.
    pub(super) fn floors(&self) -> impl Iterator<Item = (&ImageName, u64)> {
        self.0.iter().map(|(image, Removed { floor, numbers })| {
            let next = |floor: u64, number: &u64| if *number == floor + 1 { *number } else { floor };
            (image, numbers.iter().fold(*floor, next))
        })
    }
}

fn names(folders: Vec<String>) -> impl Iterator<Item = ImageName> {
    folders.into_iter().filter_map(|name| name.parse().ok())
}

/// The marks: objects that versions need.
#[derive(Debug)]
pub(super) struct Marks<'a> {
    repository: &'a Repository,
    window: usize,
    live: Filter,
    nodes: HashSet<[u8; 16]>,
    /// The version numbers that lists showed, removed or not.
    seen: HashMap<ImageName, Vec<u64>>,
    marked: HashMap<ImageName, HashSet<u64>>,
}

impl<'a> Marks<'a> {
    pub(super) fn new(repository: &'a Repository, window: usize) -> Result<Self> {
        let seed = u64::from_str_radix(&crate::record::nonce()?[..16], 16).expect("hexadecimal digits");
        Ok(Self {
            repository,
            window,
            live: Filter::new(estimate(repository)?, MARKS_BITS, MARKS_BYTES_MAX, seed),
            nodes: HashSet::new(),
            seen: HashMap::new(),
            marked: HashMap::new(),
        })
    }

    /// Marks the objects of all versions that lists show and that are not in `removed`. Returns the number of these
    /// versions.
    pub(super) fn versions(&mut self, removed: &Tombstones) -> Result<u64> {
        let mut count = 0;
        for image in names(self.repository.backend.folders(&layout::versions())?) {
            let numbers = self.repository.manifests(&image)?;
            let unlisted = self.unlisted(&image, &numbers, removed)?;
            let all = numbers.iter().chain(&unlisted);
            for &number in all.filter(|&&number| !removed.holds(&image, number)) {
                count += 1;
                // A version never changes, so marks from the first pass are still right.
                if !self.marked.get(&image).is_some_and(|marked| marked.contains(&number)) {
                    self.version(&image, number)?;
                    self.marked.entry(image.clone()).or_default().insert(number);
                }
            }
            self.seen.insert(image, numbers);
        }
        Ok(count)
    }

    /// Versions that exist below the highest listed number and that the list does not show yet. `NotFound` if a
    /// version was lost: a repair may restore its manifest later, but could not restore its objects.
    fn unlisted(&self, image: &ImageName, listed: &[u64], removed: &Tombstones) -> Result<Vec<u64>> {
        let (floor, tombstones) = removed.of(image);
        let mut used = [listed, tombstones].concat();
        used.sort_unstable();
        let mut unlisted = Vec::new();
        for (first, last) in gaps(floor, &used) {
            for number in first..=last {
                if self.repository.backend.exists(&layout::version(image, number))? {
                    unlisted.push(number);
                } else if !self.repository.backend.exists(&layout::removed(image, number))? {
                    let text =
                        format!("`{image}@{number}` was lost: it has neither a manifest nor a tombstone");
                    return Err(Error::new(ErrorKind::NotFound, text));
                }
            }
        }
        Ok(unlisted)
    }

    fn version(&mut self, image: &ImageName, number: u64) -> Result<()> {
        let manifest = self.repository.read_manifest(image, number)?.0.manifest;
        let layout = manifest.layout().map_err(|error| error.within(format!("read `{image}@{number}`")))?;
        self.root(manifest.root, layout.chunk)
    }

    /// Marks the nodes and chunks of a tree; skips subtrees that are marked already.
    pub(super) fn root(&mut self, root: Root, size: ChunkSize) -> Result<()> {
        let Self { repository, window, live, nodes, .. } = self;
        let walked = walk(repository, (&root, size), *window, &mut |object| {
            let is_new = match object.kind {
                ObjectKind::Chunk => false,
                ObjectKind::Node => nodes.insert(*object.digest.first_half()),
            };
            if is_new || object.kind == ObjectKind::Chunk {
                live.insert(&object.digest, 0);
            }
            is_new
        });
        walked.map_err(|error| error.within("mark the objects of a version"))
    }

    pub(super) fn is_live(&self, digest: &Digest) -> bool {
        self.live.contains(digest, 0)
    }

    /// Whether lists have shown the versions of all `commits`.
    pub(super) fn has_seen_all(&self, commits: &[Commit]) -> bool {
        let shown = |commit: &Commit| self.seen.get(&commit.image)?.binary_search(&commit.number).ok();
        commits.iter().all(|commit| shown(commit).is_some())
    }
}

/// Estimates the number of objects. With many objects, their digests spread them evenly over all folders.
fn estimate(repository: &Repository) -> Result<u64> {
    let chunks = layout::objects(ObjectKind::Chunk);
    let folders = repository.backend.folders(&chunks)?;
    if folders.len() < 256 {
        return Ok(OBJECTS_MIN);
    }
    let mut counted = 0;
    for folder in &folders[..SAMPLE] {
        counted += in_folder(repository, &chunks.clone().join(folder.as_str()))?.len() as u64;
    }
    // A quarter more, for nodes and for random differences between folders.
    Ok((counted * folders.len() as u64 / SAMPLE as u64 * 5 / 4).max(OBJECTS_MIN))
}
