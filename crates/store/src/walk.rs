//! Walks the tree of a version and shows its objects.

use base::Result;
use image::node::Node;
use image::tree::NodeSource as _;
use image::{Child, ChunkSize, Leaf, Manifest, ObjectRef, Root};

use crate::nodes::Nodes;
use crate::parallel::{cores, parallel_by};
use crate::repository::Repository;

/// Nodes that are read together.
const WINDOW_NODES: usize = 64;
/// Nodes that are read at the same time from a store behind a network.
const READERS_FAR: usize = 32;

/// Calls `each` with every object of the tree at `root`, a node before what is below it. Nodes for which `each` returns
/// false are not read. `each` gets an object again if several nodes name it. At most `window` nodes are read together.
pub(crate) fn walk(
    repository: &Repository,
    (root, size): (&Root, ChunkSize),
    window: usize,
    each: &mut dyn FnMut(&ObjectRef) -> bool,
) -> Result<()> {
    let threads = if repository.backend.is_far() { READERS_FAR } else { cores() };
    let mut waiting = Vec::new();
    waiting.extend(root.child.object().filter(|object| each(object)).map(|object| (object, root.height - 1)));
    while !waiting.is_empty() {
        // The last nodes first (depth first), which keeps the list of waiting nodes short.
        let together = waiting.split_off(waiting.len().saturating_sub(window));
        let read = parallel_by(
            threads,
            &together,
            || (),
            |(), (object, level)| {
                let node = Nodes(repository).node(object).and_then(|node| Node::decode(&node, *level, size));
                node.map_err(|error| error.within(format!("read {object}")))
            },
        );
        for (node, (_, level)) in read.into_iter().zip(&together) {
            match node? {
                Node::Children(children) => {
                    let objects = children.iter().filter_map(Child::object).filter(|object| each(object));
                    waiting.extend(objects.map(|object| (object, level - 1)));
                }
                Node::Leaves(leaves) => leaves.iter().for_each(|leaf| {
                    if let Leaf::Data(_, chunk) = leaf {
                        each(&chunk.object());
                    }
                }),
            }
        }
    }
    Ok(())
}

impl Repository {
    /// Calls `each` with the objects of a version: the nodes of its tree and its chunks, a node before what is below
    /// it. Nodes for which `each` returns false are not read, so what is below them is left out. An object that the
    /// tree names several times may come several times. The error of the first node that cannot be read.
    pub fn objects_of(&self, version: &Manifest, each: &mut dyn FnMut(&ObjectRef) -> bool) -> Result<()> {
        let size = version.layout()?.chunk;
        walk(self, (&version.root, size), WINDOW_NODES, each)
    }
}
