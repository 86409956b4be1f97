//! The rules of prunes, checked only with the records of the store: at every moment, each version that is not removed
//! has a copy of every object that it needs; every version that was reported as published exists; and at the end
//! there is no garbage.

use std::collections::{BTreeMap, HashMap, HashSet};

use base::{Error, ErrorKind};
use bytes::Bytes;
use image::node::Node;
use image::{Child, ChunkSize, Leaf, ObjectKind, ObjectRef, SignedManifest};

use crate::Violation;
use crate::prune::world::Copies;

/// Maximum number of prune records at the end: the begins and ends of the newest two prunes.
const PRUNE_RECORDS_MAX: usize = 4;

/// The checker, with what it knows about the records.
#[derive(Debug, Default)]
pub(super) struct Checker {
    pub violations: Vec<Violation>,
    pub published: u64,
    pub deleted: u64,
    pub revoked: u64,
    /// The objects of each version that is not removed, by the paths of their first slots.
    live: BTreeMap<(String, u64), HashSet<String>>,
    removed: HashSet<(String, u64)>,
    /// Number of prunes that have begun.
    prunes: usize,
    /// The floor of each image: all versions up to this number are removed.
    floors: HashMap<String, u64>,
    /// Nonces of the versions that were reported as published.
    reported: HashMap<(String, u64), String>,
    manifests: HashMap<(String, u64), String>,
}

impl Checker {
    /// A record was put.
    pub(super) fn put(&mut self, step: u64, path: &str, bytes: &Bytes, copies: &Copies<'_>) {
        if let Some(name) = version_at(path, "removed/") {
            self.live.remove(&name);
            self.removed.insert(name);
        }
        if let Some((image, floor)) = version_at(path, "floors/") {
            let kept = (1..=floor).find(|&number| !self.removed.contains(&(image.clone(), number)));
            if let Some(kept) = kept {
                self.violate("all below a floor is removed", format!("{path}, but {image}@{kept}"));
            }
            let highest = self.floors.entry(image).or_default();
            *highest = floor.max(*highest);
        }
        if path.starts_with("leases/")
            && bytes.starts_with(br#"{"record":"lease","version":1,"entry":"revoked""#)
        {
            self.revoked += 1;
        }
        self.prunes += usize::from(path.starts_with("prunes/") && path.ends_with("/begin"));
        let Some(name) = version_at(path, "versions/") else { return };
        let manifest = SignedManifest::open(bytes).expect("writers write good manifests").manifest;
        if let Some(before) = self.manifests.get(&name).filter(|before| **before != manifest.nonce) {
            let text = format!("{}@{} was {before}, is {}", name.0, name.1, manifest.nonce);
            self.violate("numbers are not used twice", text);
        }
        self.published += 1;
        self.manifests.insert(name.clone(), manifest.nonce.clone());
        let size = ChunkSize::from_bytes(manifest.chunk_bytes).expect("a good size");
        let mut needs = HashSet::new();
        gather(manifest.root.child, manifest.root.height - 1, size, copies, &mut needs);
        // A removed version may appear again as a mere record, written by an actor that had slept.
        if !self.removed.contains(&name)
            && let Some(missing) = copies.missing(&needs)
        {
            let text = format!("{}@{} appears at step {step} without {missing}", name.0, name.1);
            self.violate("a version that can be seen is complete", text);
        }
        if !self.removed.contains(&name) {
            self.live.insert(name, needs);
        }
    }

    /// The record at `path` was deleted.
    pub(super) fn delete(&mut self, step: u64, path: &str, copies: &Copies<'_>) {
        if let Some((image, number)) = version_at(path, "versions/").or_else(|| version_at(path, "removed/"))
            && number > self.floors.get(&image).copied().unwrap_or(0)
        {
            self.violate("versions and tombstones above a floor stay", path.to_owned());
        }
        let Some(object) = object_at(path) else { return };
        self.deleted += 1;
        let hurt = self.live.iter().find(|(_, needs)| needs.contains(object));
        if let Some(((image, number), _)) = hurt
            && copies.find(object).is_none()
        {
            let text = format!("{path} is deleted at step {step}, and {image}@{number} needs it");
            self.violate("nothing live is deleted", text);
        }
    }

    /// A writer got the answer that its version is published.
    pub(super) fn reported(&mut self, image: &str, number: u64, nonce: &str) {
        self.reported.insert((image.to_owned(), number), nonce.to_owned());
    }

    /// A reader did not find an object of a version.
    pub(super) fn unread(&mut self, image: &str, number: u64, why: &str) {
        if self.live.contains_key(&(image.to_owned(), number)) {
            self.violate("a live version can be read", format!("{image}@{number}: {why}"));
        }
    }

    /// An actor got an error, which must come from a failing store or a revoked lease.
    pub(super) fn failed(&mut self, step: u64, error: &Error) {
        if ![ErrorKind::Io, ErrorKind::Revoked].contains(&error.kind()) {
            let text = format!("at step {step}: {}", base::chain(error));
            self.violate("errors are those of the store", text);
        }
    }

    /// Checks at the end, when all actors have ended and undisturbed prunes have run.
    pub(super) fn end(&mut self, records: &BTreeMap<&str, &Bytes>, deaths_show: bool) {
        let mut needed: HashSet<&str> = self.live.values().flatten().map(String::as_str).collect();
        let mut found = Vec::new();
        for path in records.keys() {
            // One copy of each needed object may stay; every other copy is garbage.
            if let Some(object) = object_at(path)
                && !needed.remove(object)
            {
                found.push(("all garbage goes", (*path).to_owned()));
            }
            if let Some((image, number)) = version_at(path, "removed/")
                && (1..number).all(|below| self.removed.contains(&(image.clone(), below)))
            {
                found.push(("tombstones go", (*path).to_owned()));
            }
            if path.starts_with("leases/") {
                found.push(("logs of leases go", (*path).to_owned()));
            }
        }
        let lists = records.keys().filter(|path| path.starts_with("candidates/")).count();
        if lists > if deaths_show { 0 } else { self.prunes } {
            found.push(("lists of candidates go", format!("{lists} of {} prunes", self.prunes)));
        }
        let prunes = records.keys().filter(|path| path.starts_with("prunes/")).count();
        if prunes > PRUNE_RECORDS_MAX {
            found.push(("records of prunes go", format!("{prunes} are left")));
        }
        for (name, nonce) in &self.reported {
            if self.manifests.get(name) != Some(nonce) {
                found.push(("what was reported is there", format!("{}@{}", name.0, name.1)));
            }
        }
        found.into_iter().take(20).for_each(|(rule, what)| self.violate(rule, what));
    }
}

fn version_at(path: &str, folder: &str) -> Option<(String, u64)> {
    let (image, number) = path.strip_prefix(folder)?.split_once('/')?;
    Some((image.to_owned(), number.parse().ok()?))
}

/// The path of the first slot of the object that has a copy at `path`.
fn object_at(path: &str) -> Option<&str> {
    let is_object = path.starts_with("chunks/") || path.starts_with("nodes/");
    is_object.then(|| path.split_once('.').map_or(path, |(object, _)| object))
}

fn path_of(object: &ObjectRef) -> String {
    let (folder, hex) =
        (if object.kind == ObjectKind::Chunk { "chunks" } else { "nodes" }, object.digest.to_hex());
    format!("{folder}/{}/{hex}", &hex[..2])
}

/// Adds the paths of all objects of a subtree.
fn gather(child: Child, level: u8, size: ChunkSize, copies: &Copies<'_>, needs: &mut HashSet<String>) {
    let Some(object) = child.object() else { return };
    let path = path_of(&object);
    let node = copies.find(&path).cloned();
    if !needs.insert(path) {
        return;
    }
    let Some(node) = node else { return };
    let node = object.verified(node).and_then(|node| Node::decode(&node, level, size));
    match node.expect("writers write good nodes") {
        Node::Children(children) => {
            children.into_iter().for_each(|child| gather(child, level - 1, size, copies, needs));
        }
        Node::Leaves(leaves) => needs.extend(leaves.iter().filter_map(|leaf| match leaf {
            Leaf::Data(_, chunk) => Some(path_of(&chunk.object())),
            _ => None,
        })),
    }
}
