//! The numbers of a version's objects, by which members ask each other for them. A number is known once all nodes
//! before it are; what arrives before is kept until then.

use std::collections::HashMap;
use std::time::Duration;

use base::{Digest, Result};
use bytes::Bytes;
use image::{Catalogue, CatalogueBuilder, ObjectRef};
use net::multicast::order::NODES_MAX;
use parking_lot::{Condvar, Mutex};

/// Most bytes of objects that wait for their numbers.
const EARLY_BYTES_MAX: usize = 64 << 20;

pub(super) struct Numbers {
    /// Number of objects of the version, as the server says.
    objects: u32,
    tree: Mutex<Tree>,
    /// The tree is whole, or never will be.
    settled: Condvar,
}

enum Tree {
    Growing(Growing),
    Whole(Catalogue),
    /// It cannot be read, is too large, or is not needed any more.
    Never,
}

struct Growing {
    builder: CatalogueBuilder,
    /// Verified objects that have no number yet.
    early: HashMap<Digest, Bytes>,
    early_bytes: usize,
}

impl Numbers {
    pub(super) fn new(builder: CatalogueBuilder, objects: u32) -> Self {
        let growing = Growing { builder, early: HashMap::new(), early_bytes: 0 };
        Self { objects, tree: Mutex::new(Tree::Growing(growing)), settled: Condvar::new() }
    }

    /// The number of an object, if it is known; waits at most `limit` until all numbers are.
    pub(super) fn of_soon(&self, object: &ObjectRef, limit: Duration) -> Option<u64> {
        let mut tree = self.tree.lock();
        if tree.number(object).is_none() {
            self.settled.wait_while_for(&mut tree, |tree| matches!(tree, Tree::Growing(_)), limit);
        }
        tree.number(object)
    }

    /// The name of an object, if it is known.
    pub(super) fn object(&self, id: u64) -> Option<ObjectRef> {
        match &*self.tree.lock() {
            Tree::Growing(growing) => growing.builder.object(id),
            Tree::Whole(catalogue) => catalogue.objects().get(usize::try_from(id).ok()?).copied(),
            Tree::Never => None,
        }
    }

    /// The nodes that are missing and whose names are known; empty once no more are needed.
    pub(super) fn needed(&self) -> Vec<(u64, ObjectRef)> {
        let tree = self.tree.lock();
        let Tree::Growing(Growing { builder, .. }) = &*tree else { return Vec::new() };
        builder.needed().filter_map(|id| Some((id, builder.object(id)?))).collect()
    }

    /// Takes a verified object. Returns what has a number now, with it.
    pub(super) fn learn(&self, object: &ObjectRef, bytes: &Bytes) -> Vec<(u64, Bytes)> {
        let mut tree = self.tree.lock();
        let number = tree.number(object);
        let Tree::Growing(growing) = &mut *tree else {
            return number.map(|number| (number, bytes.clone())).into_iter().collect();
        };
        let Some(number) = number else {
            if growing.early_bytes + bytes.len() <= EARLY_BYTES_MAX
                && growing.early.insert(object.digest, bytes.clone()).is_none()
            {
                growing.early_bytes += bytes.len();
            }
            return Vec::new();
        };
        let mut all = vec![(number, bytes.clone())];
        let learnt = growing.builder.learn(number, bytes.clone());
        let too_large = growing.builder.needed().last().is_some_and(|last| last >= NODES_MAX);
        if learnt.is_err() || too_large {
            *tree = Tree::Never;
        } else if growing.builder.is_complete() {
            let Tree::Growing(growing) = std::mem::replace(&mut *tree, Tree::Never) else { return all };
            if let Some((catalogue, early)) = growing.finish(self.objects) {
                all.extend(early);
                *tree = Tree::Whole(catalogue);
            }
        }
        self.settled.notify_all();
        all
    }

    /// No more numbers will be known.
    pub(super) fn give_up(&self) {
        *self.tree.lock() = Tree::Never;
        self.settled.notify_all();
    }

    /// Whether all numbers are known.
    pub(super) fn are_known(&self) -> bool {
        matches!(&*self.tree.lock(), Tree::Whole(_))
    }
}

impl Tree {
    fn number(&self, object: &ObjectRef) -> Option<u64> {
        match self {
            Self::Growing(growing) => growing.builder.id_of(&object.digest),
            Self::Whole(catalogue) => catalogue.id_of(&object.digest),
            Self::Never => None,
        }
    }
}

impl Growing {
    /// The catalogue, and the objects that arrived early. `None` if it is not that of a version with `objects` objects.
    fn finish(self, objects: u32) -> Option<(Catalogue, Vec<(u64, Bytes)>)> {
        let catalogue: Result<Catalogue> = self.builder.finish();
        let catalogue = catalogue.ok().filter(|all| all.objects().len() == objects as usize)?;
        let early = self.early.into_iter();
        let early = early.filter_map(|(digest, bytes)| Some((catalogue.id_of(&digest)?, bytes))).collect();
        Some((catalogue, early))
    }
}
