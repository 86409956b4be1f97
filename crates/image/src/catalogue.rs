//! The catalogue of a version: its distinct objects, with numbers that everybody who has the tree computes alike.
//! `formats/image.md`, "Numbers of objects".
//!
//! First the nodes, breadth first from the root, each at its first appearance; then the chunks, in the order of their
//! first appearance on the disk. A server reads the tree from its store; a receiver gets it node by node.

use std::collections::{BTreeMap, HashMap};

use base::limits::SESSION_OBJECTS_MAX;
use base::{Digest, Error, ErrorKind, Result};
use bytes::Bytes;

use crate::cipher::Cipher;
use crate::layout::Layout;
use crate::leaf::Leaf;
use crate::manifest::{DiskRecord, Manifest, Origin};
use crate::node::{Child, Node};
use crate::object::{ObjectRef, Verified};
use crate::objects::ObjectSource;
use crate::tree::{Leaves, NodeSource, Root};

/// The numbered objects of a version, and the tree itself.
#[derive(Debug)]
pub struct Catalogue {
    layout: Layout,
    origin: Origin,
    disk: Box<DiskRecord>,
    root: Root,
    cipher: Cipher,
    /// The nodes, decrypted.
    nodes: Vec<Verified>,
    objects: Vec<ObjectRef>,
    ids: HashMap<Digest, u32>,
}

impl Catalogue {
    /// Reads the catalogue of the version of `manifest`: its nodes come from `source` and are decrypted with `cipher`.
    pub fn load(manifest: &Manifest, source: &dyn ObjectSource, cipher: &Cipher) -> Result<Self> {
        let mut builder = CatalogueBuilder::from_manifest(manifest, cipher.clone())?;
        loop {
            let needed: Vec<u64> = builder.needed().collect();
            if needed.is_empty() {
                return builder.finish();
            }
            for id in needed {
                let object = builder.object(id).expect("what is needed has a name");
                builder.learn(id, source.fetch(&object)?)?;
            }
        }
    }

    /// Number of nodes: objects 0 up to this number are nodes.
    #[must_use]
    pub fn heads(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// All objects, nodes first; an object's number is its index.
    #[must_use]
    pub fn objects(&self) -> &[ObjectRef] {
        &self.objects
    }

    /// How its objects are encrypted.
    #[must_use]
    pub fn cipher(&self) -> &Cipher {
        &self.cipher
    }

    /// The number of the object of this digest.
    #[must_use]
    pub fn id_of(&self, digest: &Digest) -> Option<u64> {
        self.ids.get(digest).map(|&id| u64::from(id))
    }

    /// Bytes of all objects together: the cost of one transfer to a host that has none of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| u64::from(object.len)).sum()
    }

    /// Sizes of the image and its chunks.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Position of the image on its disk.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Partition table, partitions and filesystems of that disk.
    pub(crate) fn disk(&self) -> &DiskRecord {
        &self.disk
    }

    /// The chunks that are not free, ascending. All are known to lie inside the image.
    pub fn leaves(&self) -> Leaves<&Self> {
        Leaves::new(self, self.layout.chunk, &self.root)
    }
}

impl NodeSource for &Catalogue {
    fn node(&self, object: &ObjectRef) -> Result<Verified> {
        let node = self.id_of(&object.digest).and_then(|id| self.nodes.get(usize::try_from(id).ok()?));
        node.cloned().ok_or_else(|| Error::corrupt(format!("{object} is not in the catalogue")))
    }
}

/// A catalogue whose nodes are still arriving.
#[derive(Debug)]
pub struct CatalogueBuilder {
    layout: Layout,
    origin: Origin,
    disk: Box<DiskRecord>,
    root: Root,
    cipher: Cipher,
    nodes: Vec<Slot>,
    ids: HashMap<Digest, u32>,
    /// The children of all nodes before this one have numbers.
    expanded: usize,
    /// Bytes of nodes that arrived before the nodes that contain their digests.
    early: BTreeMap<u64, Bytes>,
}

#[derive(Debug)]
struct Slot {
    object: ObjectRef,
    level: u8,
    bytes: Option<Verified>,
}

impl CatalogueBuilder {
    /// Knows only the root's digest so far; nodes are decrypted with `cipher`. `Corrupt` if the manifest contradicts
    /// itself.
    pub fn from_manifest(manifest: &Manifest, cipher: Cipher) -> Result<Self> {
        let (layout, root) = (manifest.layout()?, manifest.root);
        let (origin, disk) = (manifest.origin, Box::new(manifest.disk.clone()));
        let (nodes, ids) = (Vec::new(), HashMap::new());
        let mut builder =
            Self { layout, origin, disk, root, cipher, nodes, ids, expanded: 0, early: BTreeMap::new() };
        if let Some(object) = root.child.object() {
            builder.add(object, root.height - 1)?;
        }
        Ok(builder)
    }

    /// The numbers of nodes whose digests are known and whose bytes are missing, ascending. Empty if no node is
    /// missing.
    pub fn needed(&self) -> impl Iterator<Item = u64> + '_ {
        let slots = self.nodes.iter().enumerate().skip(self.expanded);
        slots.filter(|(_, slot)| slot.bytes.is_none()).map(|(id, _)| id as u64)
    }

    /// Whether all nodes have arrived.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.expanded == self.nodes.len()
    }

    /// Digest and length of node `id`, if they are known by now.
    #[must_use]
    pub fn object(&self, id: u64) -> Option<ObjectRef> {
        usize::try_from(id).ok().and_then(|id| self.nodes.get(id)).map(|slot| slot.object)
    }

    /// Whether the bytes of node `id` have arrived, even if its digest is not known yet.
    #[must_use]
    pub fn has(&self, id: u64) -> bool {
        let slot = usize::try_from(id).ok().and_then(|id| self.nodes.get(id));
        slot.is_some_and(|slot| slot.bytes.is_some()) || self.early.contains_key(&id)
    }

    /// Accepts the bytes of node `id`, in any order. A node whose digest is not known yet is kept until its parent
    /// arrives. Returns the kept nodes whose bytes contradict the digests in their parents; they must be fetched again.
    /// `Corrupt` if `bytes` are not node `id`; then nothing changes.
    pub fn take(&mut self, id: u64, bytes: Bytes) -> Result<Vec<(u64, ObjectRef)>> {
        if self.object(id).is_none() {
            self.early.insert(id, bytes);
            return Ok(Vec::new());
        }
        self.learn(id, bytes)?;
        let mut damaged = Vec::new();
        while let Some((&id, _)) = self.early.first_key_value() {
            let Some(name) = self.object(id) else { break };
            let bytes = self.early.remove(&id).expect("just seen");
            match self.learn(id, bytes) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Corrupt => damaged.push((id, name)),
                Err(error) => return Err(error),
            }
        }
        Ok(damaged)
    }

    /// Accepts the bytes of node `id`, one of those needed. `Corrupt` if they have another digest or are no valid node;
    /// then nothing changes. `NotFound` if the digest of node `id` is not known.
    pub fn learn(&mut self, id: u64, bytes: Bytes) -> Result<()> {
        let slot = usize::try_from(id).ok().and_then(|id| self.nodes.get_mut(id));
        let slot =
            slot.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("node {id} has no name yet")))?;
        if slot.bytes.is_some() {
            return Ok(());
        }
        let node = self.cipher.decrypt_object(slot.object.kind, &slot.object.verified(bytes)?)?;
        Node::decode(&node, slot.level, self.layout.chunk)?;
        slot.bytes = Some(node);
        self.expand()
    }

    /// Gives numbers to the children of all nodes that have arrived and whose predecessors have.
    fn expand(&mut self) -> Result<()> {
        while let Some(Slot { level, bytes: Some(bytes), .. }) = self.nodes.get(self.expanded) {
            let level = *level;
            if let Node::Children(children) = Node::decode(bytes, level, self.layout.chunk)? {
                for object in children.iter().filter_map(Child::object) {
                    self.add(object, level - 1)?;
                }
            }
            self.expanded += 1;
        }
        Ok(())
    }

    fn add(&mut self, object: ObjectRef, level: u8) -> Result<()> {
        if let Some(&id) = self.ids.get(&object.digest) {
            let known = &self.nodes[id as usize];
            let same = known.level == level && known.object == object;
            return same
                .then_some(())
                .ok_or_else(|| Error::corrupt(format!("{object} is named in two ways")));
        }
        self.ids.insert(object.digest, next_id(self.nodes.len())?);
        self.nodes.push(Slot { object, level, bytes: None });
        Ok(())
    }

    /// The catalogue. `Incomplete` if nodes are missing; `Corrupt` if leaves lie outside the image or contradict each
    /// other; `Unsupported` if there are more than `SESSION_OBJECTS_MAX` chunks that are not free.
    pub fn finish(self) -> Result<Catalogue> {
        if !self.is_complete() {
            return Err(Error::new(ErrorKind::Incomplete, "nodes of the tree are missing"));
        }
        self.check_walk()?;
        let objects: Vec<ObjectRef> = self.nodes.iter().map(|slot| slot.object).collect();
        let nodes = self.nodes.into_iter().filter_map(|slot| slot.bytes).collect();
        let Self { layout, origin, disk, root, cipher, ids, .. } = self;
        let mut catalogue = Catalogue { layout, origin, disk, root, cipher, nodes, objects: Vec::new(), ids };
        let (objects, chunks) = catalogue.number_chunks(objects)?;
        catalogue.objects = objects;
        catalogue.ids.extend(chunks);
        Ok(catalogue)
    }
}

impl Catalogue {
    /// The objects with those of chunks added, and the numbers of these.
    fn number_chunks(&self, mut objects: Vec<ObjectRef>) -> Result<(Vec<ObjectRef>, HashMap<Digest, u32>)> {
        let mut ids = HashMap::new();
        for run in self.leaves() {
            let run = run?;
            self.layout.check_run(&run)?;
            let Leaf::Data(_, chunk) = &run.leaf else { continue };
            let object = chunk.object();
            if let Some(&id) = ids.get(&object.digest).or_else(|| self.ids.get(&object.digest)) {
                if objects[id as usize] != object {
                    return Err(Error::corrupt(format!("{object} is named in two ways")));
                }
                continue;
            }
            ids.insert(object.digest, next_id(objects.len())?);
            objects.push(object);
        }
        Ok((objects, ids))
    }
}

impl CatalogueBuilder {
    /// `Unsupported` if a walk over the leaves would be too long. A tree may refer to one subtree many times, so a few
    /// hostile nodes could make a walk endless.
    fn check_walk(&self) -> Result<()> {
        let mut below = vec![0u64; self.nodes.len()];
        // Children have larger numbers than their parents.
        for (id, slot) in self.nodes.iter().enumerate().rev() {
            let Some(bytes) = &slot.bytes else { continue };
            below[id] = match Node::decode(bytes, slot.level, self.layout.chunk)? {
                Node::Leaves(leaves) => leaves.len() as u64,
                Node::Children(children) => {
                    let names = children.iter().filter_map(Child::object);
                    let counts =
                        names.filter_map(|object| self.ids.get(&object.digest)).map(|&id| below[id as usize]);
                    children.len() as u64 + counts.fold(0, u64::saturating_add)
                }
            };
        }
        match below.first() {
            Some(&count) if count > SESSION_OBJECTS_MAX => Err(too_many()),
            _ => Ok(()),
        }
    }
}

fn next_id(count: usize) -> Result<u32> {
    let id = u32::try_from(count).ok().filter(|&id| u64::from(id) < SESSION_OBJECTS_MAX);
    id.ok_or_else(too_many)
}

fn too_many() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("an image of more than {SESSION_OBJECTS_MAX} allocated chunks"),
    )
}
