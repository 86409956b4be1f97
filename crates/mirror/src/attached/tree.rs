//! The known part of the hash tree: decoded nodes by their place.

use std::collections::HashMap;
use std::sync::Arc;

use base::{Error, limits::TREE_FANOUT};
use base::{ErrorKind, Result};
use image::node::Node;
use image::{Child, Layout, Leaf, LeafRun, Manifest, ObjectRef, Root, Verified};

use crate::machine::NodePlace;

/// See the module.
pub(super) struct Tree {
    layout: Layout,
    root: Root,
    nodes: HashMap<NodePlace, Arc<Node>>,
    /// Grows each time the tree is replaced, so that a node of an old tree is not taken for one of the current tree.
    pub epoch: u64,
}

/// What the tree has at a place.
pub(super) enum Found {
    /// A node, stored as this object.
    Object(ObjectRef),
    /// Only free space or zeros.
    Empty,
    /// The parent is not known.
    Unknown,
}

impl Tree {
    pub(super) fn new(manifest: &Manifest, layout: Layout) -> Self {
        Self { layout, root: manifest.root, nodes: HashMap::new(), epoch: 0 }
    }

    /// Replaces the tree by that of another version with the same size and chunk size.
    pub(super) fn replace(&mut self, manifest: &Manifest) {
        self.root = manifest.root;
        self.nodes.clear();
        self.epoch += 1;
    }

    fn child(&self, place: NodePlace) -> Option<Child> {
        let Some((above, slot)) = place.parent(self.root.height) else { return Some(self.root.child) };
        match self.nodes.get(&above).map(Arc::as_ref) {
            Some(Node::Children(children)) => Some(children.get(slot).copied().unwrap_or(Child::Free)),
            Some(Node::Leaves(_)) => None,
            // Everything below an empty entry is empty.
            None => match self.child(above) {
                Some(empty @ (Child::Free | Child::Zero)) => Some(empty),
                _ => None,
            },
        }
    }

    /// What the tree has at `place`.
    pub(super) fn find(&self, place: NodePlace) -> Found {
        match self.child(place) {
            Some(child) => child.object().map_or(Found::Empty, Found::Object),
            None => Found::Unknown,
        }
    }

    /// Decodes the node at `place`. Also returns which of its entries are free or zero. `Corrupt` if it is not a
    /// valid node, or covers chunks after the image's end.
    pub(super) fn open(&self, place: NodePlace, object: &Verified) -> Result<(Arc<Node>, Vec<bool>)> {
        let node = Node::decode(object, place.level, self.layout.chunk)?;
        let each = TREE_FANOUT.pow(u32::from(place.level));
        let first = place.number * TREE_FANOUT * each;
        let room = self.layout.chunk_count().saturating_sub(first).div_ceil(each);
        if node.len() as u64 > room {
            let text = format!("the subtree of chunk {first} reaches past the end of the image");
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let empty = match &node {
            Node::Leaves(leaves) => {
                for (first, leaf) in (first..).zip(leaves) {
                    self.layout.check_run(&LeafRun { first, count: 1, leaf: leaf.clone() })?;
                }
                leaves.iter().map(|leaf| !matches!(leaf, Leaf::Data(..))).collect()
            }
            Node::Children(children) => children.iter().map(|child| child.object().is_none()).collect(),
        };
        Ok((Arc::new(node), empty))
    }

    pub(super) fn keep(&mut self, place: NodePlace, node: Arc<Node>) {
        self.nodes.insert(place, node);
    }

    /// The leaf of chunk `index`; `None` if it is not known yet.
    pub(super) fn leaf(&self, index: u64) -> Option<Leaf> {
        let place = NodePlace { level: 0, number: index / TREE_FANOUT };
        let slot = usize::try_from(index % TREE_FANOUT).expect("below the fan-out");
        match self.nodes.get(&place).map(Arc::as_ref) {
            Some(Node::Leaves(leaves)) => Some(leaves.get(slot).cloned().unwrap_or(Leaf::Free)),
            Some(Node::Children(_)) => None,
            None => matches!(self.find(place), Found::Empty).then_some(Leaf::Free),
        }
    }
}
