//! The catalogue of a version: the list of its distinct objects, which gives each object a number.
//! `formats/image.md`, "Numbers of objects".
//!
//! The numbers depend on the tree alone, so server and receivers use the same ones. Nodes come first: breadth first
//! from the root, each where it first appears. Chunks follow, in the order of their first appearance on the disk. A
//! server reads the tree from its store; a receiver builds the catalogue from the nodes as they arrive.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

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
    /// Decrypted; a node's number is its index.
    nodes: Vec<Verified>,
    objects: Vec<ObjectRef>,
    ids: HashMap<Digest, u32>,
}

impl Catalogue {
    /// Builds the catalogue of the version of `manifest`. Reads all nodes from `source` and decrypts them with
    /// `cipher`. Errors are those of `source`, of [`CatalogueBuilder::learn`] and of [`CatalogueBuilder::finish`].
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

    /// How many of the objects are nodes. These have the numbers from 0 to `heads() - 1`.
    #[must_use]
    pub fn heads(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// All objects, nodes first; an object's number is its index.
    #[must_use]
    pub fn objects(&self) -> &[ObjectRef] {
        &self.objects
    }

    /// How the objects are encrypted.
    #[must_use]
    pub fn cipher(&self) -> &Cipher {
        &self.cipher
    }

    /// The number of the object with this digest; `None` if the version does not contain it.
    #[must_use]
    pub fn id_of(&self, digest: &Digest) -> Option<u64> {
        self.ids.get(digest).map(|&id| u64::from(id))
    }

    /// Length of all objects together, in bytes: what a receiver without any of them has to fetch.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| u64::from(object.len)).sum()
    }

    /// How the image is divided into chunks.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Where the image lay on its disk.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Whether the image is of a whole disk, not of one partition.
    pub(crate) fn is_whole_disk(&self) -> bool {
        self.origin.start_sector == 0 && self.origin.disk_sectors == self.layout.size_sectors
    }

    /// What the capture found on that disk.
    pub(crate) fn disk(&self) -> &DiskRecord {
        &self.disk
    }

    /// The chunks that are not free, in ascending order. [`CatalogueBuilder::finish`] checked that they lie inside
    /// the image.
    pub fn leaves(&self) -> Leaves<&Self> {
        Leaves::new(self, self.layout.chunk, &self.root)
    }

    /// The same for the chunks in `range` only.
    pub fn leaves_within(&self, range: Range<u64>) -> Leaves<&Self> {
        Leaves::within(self, self.layout.chunk, &self.root, range)
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
    /// The children of all nodes before this number have their numbers.
    expanded: usize,
    /// Nodes that arrived before their names were known, by number. Nothing has verified them yet.
    early: BTreeMap<u64, Bytes>,
}

/// A node whose name is known.
#[derive(Debug)]
struct Slot {
    object: ObjectRef,
    level: u8,
    /// The decrypted node; `None` until it arrives.
    bytes: Option<Verified>,
}

impl CatalogueBuilder {
    /// A builder that knows only the root's name, and decrypts nodes with `cipher`. `Corrupt` if the manifest
    /// contradicts itself.
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

    /// The numbers of the nodes whose names are known and whose bytes are missing, ascending. Empty when all nodes
    /// are there.
    pub fn needed(&self) -> impl Iterator<Item = u64> + '_ {
        let slots = self.nodes.iter().enumerate().skip(self.expanded);
        slots.filter(|(_, slot)| slot.bytes.is_none()).map(|(id, _)| id as u64)
    }

    /// Whether all nodes are there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.expanded == self.nodes.len()
    }

    /// The name of node `id`; `None` while its parent, or a node with a lower number than its parent, is missing.
    #[must_use]
    pub fn object(&self, id: u64) -> Option<ObjectRef> {
        usize::try_from(id).ok().and_then(|id| self.nodes.get(id)).map(|slot| slot.object)
    }

    /// The number of the node with this digest; `None` if none is known by it yet.
    #[must_use]
    pub fn id_of(&self, digest: &Digest) -> Option<u64> {
        self.ids.get(digest).map(|&id| u64::from(id))
    }

    /// Whether the bytes of node `id` arrived. They are not verified before its name is known.
    #[must_use]
    pub fn has(&self, id: u64) -> bool {
        let slot = usize::try_from(id).ok().and_then(|id| self.nodes.get(id));
        slot.is_some_and(|slot| slot.bytes.is_some()) || self.early.contains_key(&id)
    }

    /// Accepts the bytes of node `id`, in any order: a node whose name is not known yet is kept until it is known.
    /// Returns the kept nodes that then turned out to be damaged, with their names; the caller has to fetch them
    /// again. Errors about node `id` are those of [`Self::learn`].
    pub fn take(&mut self, id: u64, bytes: Bytes) -> Result<Vec<(u64, ObjectRef)>> {
        if self.object(id).is_none() {
            self.early.insert(id, bytes);
            return Ok(Vec::new());
        }
        self.learn(id, bytes)?;
        let mut damaged = Vec::new();
        // Names become known in ascending order, so the first kept node without a name ends the search.
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

    /// Accepts the bytes of node `id`, whose name must be known. `Corrupt` if they are not that node or not a valid
    /// node: the builder is unchanged then. Also `Corrupt` if the tree contradicts itself: the catalogue can't be
    /// completed then. `NotFound` if the name is not known; `Refused` if the node is encrypted and there is no key;
    /// `Unsupported` if it has a newer format, or the tree has more than `SESSION_OBJECTS_MAX` nodes.
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

    /// Numbers the children of each node, in the order of the nodes, up to the first node that is missing.
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

    /// Gives `object` the next number if it is new. `Corrupt` if the tree names it elsewhere with another length or
    /// at another level.
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

    /// The finished catalogue. `Incomplete` if nodes are missing; `Corrupt` if leaves lie outside the image or
    /// contradict each other; `Unsupported` if the tree has more than `SESSION_OBJECTS_MAX` entries, where the
    /// entries of a node count each time the node is named.
    pub fn finish(self) -> Result<Catalogue> {
        if !self.is_complete() {
            return Err(Error::new(ErrorKind::Incomplete, "nodes of the tree are missing"));
        }
        // `number_chunks` visits every leaf, so check first that there are not too many.
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
    /// `objects` with the chunks appended, and the numbers of the chunks.
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
    /// `Unsupported` if a walk over the leaves would take more than `SESSION_OBJECTS_MAX` steps. A tree may name one
    /// subtree many times, so a few hostile nodes could describe a walk that never ends in practice.
    fn check_walk(&self) -> Result<()> {
        let mut below = vec![0u64; self.nodes.len()];
        // Children have higher numbers than their parents, so their counts are ready first. The counts saturate,
        // since a hostile tree can multiply them beyond 64 bits.
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
