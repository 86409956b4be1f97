//! The trees of versions, checked from the roots to the chunks: every distinct object is read and decoded once. Where
//! the objects come from is the caller's business ([`Objects`]).

use std::collections::{HashMap, HashSet};

use base::limits::TREE_HEIGHT_MAX;
use base::{Digest, Result};
use image::node::Node;
use image::{
    Child, ChunkExtents, ChunkRef, ChunkSize, Cipher, Decoder, Leaf, ObjectKind, ObjectRef, Verified,
};

use crate::layout;
use crate::maintain::findings::{Damage, Findings, Tree};
use crate::names::Reference;
use crate::parallel::parallel_by;

/// Leaf nodes whose chunks are verified together: limits memory, and gives enough work for many cores.
const WINDOW_NODES: usize = 64;

/// Where a walk reads objects. Many threads call it at the same time.
pub(super) trait Objects: Sync {
    /// A good copy of `object` as it is stored. Counts what it read, and may report damage that does not concern the
    /// versions.
    fn read(&self, object: &ObjectRef) -> Result<Verified>;

    /// The same for an object that was read before. Counts and reports nothing.
    fn read_again(&self, object: &ObjectRef) -> Result<Verified>;
}

/// The distinct objects that were visited.
#[derive(Default)]
pub(super) struct Visited {
    pub(super) nodes: HashSet<Digest>,
    pub(super) chunks: HashSet<ChunkKey>,
}

/// The first half of a chunk's encoded digest, and a quarter of its plain digest: enough to recognize it.
type ChunkKey = ([u8; 16], [u8; 8]);

/// A node to check, and the chunk size of its tree.
type NodeItem = (ObjectRef, ChunkSize);

/// Checks trees. Damage goes to `findings`.
pub(super) struct Walk<'a> {
    pub(super) objects: &'a dyn Objects,
    pub(super) cipher: &'a Cipher,
    pub(super) findings: &'a Findings<'a>,
    /// Objects that are read at the same time.
    pub(super) threads: usize,
}

impl Walk<'_> {
    /// Visits `trees`, level by level from the top, each distinct object once.
    pub(super) fn check(&self, trees: &[Tree]) -> Visited {
        let mut visited = Visited::default();
        let mut levels: Vec<Vec<NodeItem>> = vec![Vec::new(); usize::from(TREE_HEIGHT_MAX)];
        for Tree { root, size, .. } in trees {
            let node = root.child.object().map(|object| (object, *size));
            levels[usize::from(root.height) - 1].extend(node);
        }
        for level in (1..TREE_HEIGHT_MAX).rev() {
            let nodes = visited.new_nodes(std::mem::take(&mut levels[usize::from(level)]));
            let below = parallel_by(self.threads, &nodes, || (), |(), item| self.node(item, level));
            for (node, (_, size)) in below.into_iter().zip(&nodes) {
                let Some(Node::Children(children)) = node else { continue };
                let objects = children.iter().filter_map(Child::object).map(|object| (object, *size));
                levels[usize::from(level) - 1].extend(objects);
            }
        }
        let leaf_nodes = visited.new_nodes(std::mem::take(&mut levels[0]));
        for window in leaf_nodes.chunks(WINDOW_NODES) {
            let read = parallel_by(self.threads, window, || (), |(), item| self.node(item, 0));
            let chunks = visited.new_chunks(read.into_iter().flatten());
            parallel_by(self.threads, &chunks, Scratch::default, |scratch, (extents, chunk)| {
                self.chunk(scratch, extents, chunk);
            });
        }
        visited
    }

    /// Adds to all damage which of `trees` need what is damaged.
    pub(super) fn concern(&self, trees: &[Tree]) {
        let mut damaged = self.findings.damaged.lock();
        if damaged.is_empty() {
            return;
        }
        for Tree { version, root, size } in trees {
            self.mark(&mut damaged, &mut HashSet::new(), root.child, root.height - 1, *size, version);
        }
    }

    fn node(&self, (object, size): &NodeItem, level: u8) -> Option<Node> {
        let read = self.objects.read(object).and_then(|stored| self.decode(&stored, level, *size));
        self.or_damage(object, read)
    }

    fn chunk(&self, scratch: &mut Scratch, extents: &ChunkExtents, chunk: &ChunkRef) {
        let object = chunk.object();
        let opened = self.objects.read(&object);
        let opened = opened.and_then(|stored| self.cipher.decrypt_object(ObjectKind::Chunk, &stored));
        self.or_damage(&object, opened.and_then(|opened| scratch.decode(&opened, extents, chunk)));
    }

    fn decode(&self, stored: &Verified, level: u8, size: ChunkSize) -> Result<Node> {
        Node::decode(&self.cipher.decrypt_object(ObjectKind::Node, stored)?, level, size)
    }

    fn or_damage<T>(&self, object: &ObjectRef, result: Result<T>) -> Option<T> {
        result
            .map_err(|error| {
                let path = layout::object(object.kind, &object.digest).to_string();
                self.findings.damage(path, &error.within(format!("verify {object}")), Vec::new());
            })
            .ok()
    }

    /// Adds `concerned` to all damage at or below `child`.
    fn mark(
        &self,
        damaged: &mut HashMap<String, Damage>,
        visited: &mut HashSet<Digest>,
        child: Child,
        level: u8,
        size: ChunkSize,
        concerned: &Reference,
    ) {
        let Some(object) = child.object().filter(|object| visited.insert(object.digest)) else { return };
        mark_one(damaged, &object, concerned);
        let stored = self.objects.read_again(&object);
        match stored.and_then(|stored| self.decode(&stored, level, size)) {
            Err(_) => {}
            Ok(Node::Children(children)) => {
                for child in children {
                    self.mark(damaged, visited, child, level - 1, size, concerned);
                }
            }
            Ok(Node::Leaves(leaves)) => {
                for leaf in leaves {
                    if let Leaf::Data(_, chunk) = leaf {
                        mark_one(damaged, &chunk.object(), concerned);
                    }
                }
            }
        }
    }
}

impl Visited {
    fn new_nodes(&mut self, mut nodes: Vec<NodeItem>) -> Vec<NodeItem> {
        nodes.retain(|(object, _)| self.nodes.insert(object.digest));
        nodes
    }

    fn new_chunks(&mut self, nodes: impl Iterator<Item = Node>) -> Vec<(ChunkExtents, ChunkRef)> {
        let mut chunks = Vec::new();
        for node in nodes {
            let Node::Leaves(leaves) = node else { continue };
            for leaf in leaves {
                if let Leaf::Data(extents, chunk) = leaf
                    && self.chunks.insert(key(&chunk))
                {
                    chunks.push((extents, chunk));
                }
            }
        }
        chunks
    }
}

fn mark_one(damaged: &mut HashMap<String, Damage>, object: &ObjectRef, concerned: &Reference) {
    let path = layout::object(object.kind, &object.digest);
    if let Some(damage) = damaged.get_mut(path.as_ref())
        && damage.versions.last() != Some(concerned)
    {
        damage.versions.push(concerned.clone());
    }
}

fn key(chunk: &ChunkRef) -> ChunkKey {
    (*chunk.encoded.first_half(), *chunk.plain.0.first_chunk().expect("a digest has 32 bytes"))
}

/// What one thread needs to decode chunks.
#[derive(Default)]
struct Scratch {
    decoder: Option<Decoder>,
    plain: Vec<u8>,
}

impl Scratch {
    fn decode(&mut self, object: &Verified, extents: &ChunkExtents, chunk: &ChunkRef) -> Result<()> {
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            none => none.insert(Decoder::new()?),
        };
        self.plain.resize(extents.len_bytes() as usize, 0);
        decoder.decode(object, extents, chunk.plain, &mut self.plain)
    }
}
