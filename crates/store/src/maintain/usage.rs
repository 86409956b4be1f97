//! Disk usage: the space that all images take together, that each takes alone, and that they share. Exact, and in
//! bounded memory: every distinct node is read once for its children, and chunks are counted in as many passes over
//! the leaf nodes as the memory limit requires.

use std::collections::HashMap;

use base::limits::{TREE_FANOUT, TREE_HEIGHT_MAX};
use base::{Digest, Error, ErrorKind, Result};
use image::node::Node;
use image::tree::NodeSource as _;
use image::{Child, ChunkSize, Leaf, ObjectRef};

use crate::names::ImageName;
use crate::nodes::Nodes;
use crate::parallel::parallel;
use crate::repository::Repository;

/// Most chunks in one pass: about 100 MiB of memory.
const PASS_CHUNKS: u64 = 2 << 20;
/// Most different sets of images that share objects.
const SETS_MAX: usize = 1 << 20;
/// Nodes that are read together.
const WINDOW_NODES: usize = 256;

/// Space that one image takes, in bytes of the store unless stated otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageUsage {
    /// The image.
    pub image: ImageName,
    /// Number of versions.
    pub versions: u64,
    /// Allocated bytes of the disk, summed over all versions: the size of full copies.
    pub logical_bytes: u64,
    /// Chunks, nodes and manifests that only this image needs. After the image is removed, a prune frees them.
    pub own_bytes: u64,
    /// Chunks and nodes that other images need too.
    pub shared_bytes: u64,
}

/// Space that all images take.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage {
    /// Each image, ascending by name.
    pub images: Vec<ImageUsage>,
    /// Bytes of all objects and manifests that versions name, each counted once.
    pub stored_bytes: u64,
    /// Bytes of objects that several images need, each counted once.
    pub shared_bytes: u64,
    /// Number of distinct objects.
    pub objects: u64,
}

/// A number for each set of images that need an object.
type SetId = u32;

/// All such sets, each once.
struct Sets {
    ids: HashMap<Vec<u32>, SetId>,
    members: Vec<Vec<u32>>,
    unions: HashMap<(SetId, SetId), SetId>,
    bytes: Vec<u64>,
    objects: u64,
}

impl Sets {
    fn new() -> Self {
        let (ids, members, unions) = (HashMap::new(), Vec::new(), HashMap::new());
        Self { ids, members, unions, bytes: Vec::new(), objects: 0 }
    }

    fn of(&mut self, members: Vec<u32>) -> Result<SetId> {
        if let Some(&id) = self.ids.get(&members) {
            return Ok(id);
        }
        let id = u32::try_from(self.members.len()).ok().filter(|_| self.members.len() < SETS_MAX);
        let id = id.ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "too many different sets of images share objects")
        })?;
        self.ids.insert(members.clone(), id);
        self.members.push(members);
        self.bytes.push(0);
        Ok(id)
    }

    fn union(&mut self, one: SetId, other: SetId) -> Result<SetId> {
        if one == other {
            return Ok(one);
        }
        let pair = (one.min(other), one.max(other));
        if let Some(&id) = self.unions.get(&pair) {
            return Ok(id);
        }
        let [one, other] = [one, other].map(|id| &self.members[id as usize]);
        let mut members = [&one[..], other].concat();
        members.sort_unstable();
        members.dedup();
        let id = self.of(members)?;
        self.unions.insert(pair, id);
        Ok(id)
    }

    fn book(&mut self, set: SetId, bytes: u64) {
        self.bytes[set as usize] += bytes;
        self.objects += 1;
    }
}

/// Objects of one tree level, and the images that need them.
type Level = HashMap<Digest, (ObjectRef, ChunkSize, SetId)>;

impl Repository {
    /// The space that the images of this repository take. Damage is an error here: use `verify` to find it.
    pub fn usage(&self) -> Result<Usage> {
        self.usage_by(PASS_CHUNKS)
    }

    /// [`Self::usage`] in passes over at most `pass_chunks` chunks.
    fn usage_by(&self, pass_chunks: u64) -> Result<Usage> {
        let mut sets = Sets::new();
        let mut levels: Vec<Level> = vec![Level::new(); usize::from(TREE_HEIGHT_MAX)];
        let mut images = Vec::new();
        for (at, image) in (0..).zip(self.images()?) {
            let own = sets.of(vec![at])?;
            let mut usage =
                ImageUsage { image, versions: 0, logical_bytes: 0, own_bytes: 0, shared_bytes: 0 };
            for number in self.versions(&usage.image)? {
                let (sealed, bytes) = self.read_manifest(&usage.image, number)?;
                let manifest = sealed.manifest;
                let layout = manifest.layout().map_err(failed)?;
                usage.versions += 1;
                usage.logical_bytes += manifest.statistics.allocated_bytes;
                sets.bytes[own as usize] += bytes.len() as u64;
                let level = &mut levels[usize::from(manifest.root.height) - 1];
                join(level, &mut sets, manifest.root.child, layout.chunk, own)?;
            }
            images.push(usage);
        }
        for height in (1..levels.len()).rev() {
            let level = std::mem::take(&mut levels[height]);
            let level_number = u8::try_from(height).expect("a tree has few levels");
            self.descend(level, level_number, &mut sets, &mut levels[height - 1])?;
        }
        self.count_chunks(std::mem::take(&mut levels[0]), &mut sets, pass_chunks)?;
        Ok(total(images, &sets))
    }

    /// Counts the nodes of `level` and passes their sets of images on to their children.
    fn descend(&self, level: Level, number: u8, sets: &mut Sets, below: &mut Level) -> Result<()> {
        let nodes: Vec<_> = level.into_values().collect();
        for window in nodes.chunks(WINDOW_NODES) {
            for ((object, size, set), node) in window.iter().zip(self.read_nodes(window, number)) {
                sets.book(*set, u64::from(object.len));
                let Node::Children(children) = node? else { continue };
                children.into_iter().try_for_each(|child| join(below, sets, child, *size, *set))?;
            }
        }
        Ok(())
    }

    fn count_chunks(&self, level: Level, sets: &mut Sets, pass_chunks: u64) -> Result<()> {
        let nodes: Vec<_> = level.into_values().collect();
        nodes.iter().for_each(|(object, _, set)| sets.book(*set, u64::from(object.len)));
        let passes = (nodes.len() as u64 * TREE_FANOUT).div_ceil(pass_chunks);
        for pass in 0..passes {
            let mut chunks: HashMap<[u8; 16], (u32, SetId)> = HashMap::new();
            for window in nodes.chunks(WINDOW_NODES) {
                for ((_, _, set), node) in window.iter().zip(self.read_nodes(window, 0)) {
                    let Node::Leaves(leaves) = node? else { continue };
                    for leaf in leaves {
                        let Leaf::Data(_, chunk) = leaf else { continue };
                        if prefix(&chunk.encoded) % passes != pass {
                            continue;
                        }
                        let key = *chunk.encoded.first_half();
                        let entry = chunks.entry(key).or_insert((chunk.encoded_len, *set));
                        entry.1 = sets.union(entry.1, *set)?;
                    }
                }
            }
            chunks.into_values().for_each(|(len, set)| sets.book(set, u64::from(len)));
        }
        Ok(())
    }

    fn read_nodes(&self, window: &[(ObjectRef, ChunkSize, SetId)], level: u8) -> Vec<Result<Node>> {
        parallel(
            window,
            || (),
            |(), (object, size, _)| {
                let read = Nodes(self).node(object).and_then(|node| Node::decode(&node, level, *size));
                read.map_err(failed)
            },
        )
    }
}

fn failed(error: Error) -> Error {
    error.within("count what images take")
}

/// Eight bytes of a digest as a number.
fn prefix(digest: &Digest) -> u64 {
    u64::from_le_bytes(*digest.0.last_chunk().expect("a digest has 32 bytes"))
}

/// Adds `set` to the images that need `child`.
fn join(level: &mut Level, sets: &mut Sets, child: Child, size: ChunkSize, set: SetId) -> Result<()> {
    let Some(object) = child.object() else { return Ok(()) };
    let entry = level.entry(object.digest).or_insert((object, size, set));
    entry.2 = sets.union(entry.2, set)?;
    Ok(())
}

fn total(mut images: Vec<ImageUsage>, sets: &Sets) -> Usage {
    let (mut stored_bytes, mut shared_bytes) = (0, 0);
    for (members, &bytes) in sets.members.iter().zip(&sets.bytes) {
        stored_bytes += bytes;
        let own = members.len() == 1;
        shared_bytes += if own { 0 } else { bytes };
        for &member in members {
            let image = &mut images[member as usize];
            *(if own { &mut image.own_bytes } else { &mut image.shared_bytes }) += bytes;
        }
    }
    Usage { images, stored_bytes, shared_bytes, objects: sets.objects }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Location, Shape, Stamp};

    #[test]
    fn many_passes_count_what_one_counts() {
        let repository = Repository::create(&Location::Memory).unwrap();
        let stamp = Stamp { created: "2026-11-20T14:00:00Z".to_owned(), creator: "test".to_owned() };
        let (one, other) =
            (repository.blob(&"one".parse().unwrap()), repository.blob(&"other".parse().unwrap()));
        one.create(&Shape { size_bytes: 1 << 40, ..Shape::default() }, &stamp).unwrap();
        for at in 1..40u64 {
            one.write(at << 30, &at.to_le_bytes(), &stamp).unwrap();
            if at == 20 {
                other.clone_from(&"one".parse().unwrap(), &stamp).unwrap();
            }
        }
        let usage = repository.usage().unwrap();
        assert_eq!(repository.usage_by(3).unwrap(), usage);
        assert!(usage.shared_bytes > 0 && usage.images[0].own_bytes > usage.images[1].own_bytes);
    }
}
