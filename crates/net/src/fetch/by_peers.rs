//! Gets the objects of a fetch from other machines, and from the server what none of them has.

use std::time::Duration;

use base::{ErrorKind, Result};
use bytes::Bytes;
use image::{Catalogue, CatalogueBuilder, Installer, ObjectRef, ObjectSource, Offer};
use parking_lot::Mutex;

use super::counted::Arrived;
use super::on_target::{OnTarget, keep};
use crate::clock::Stop;
use crate::peer::{Node, Pulled, Taker, Want};

/// What all pulls of a fetch share.
pub(super) struct Peers<'a> {
    pub(super) node: &'a Node,
    pub(super) server: &'a dyn ObjectSource,
    /// Most objects that are fetched from the server at the same time.
    pub(super) at_once: usize,
    pub(super) object_bytes: u32,
    pub(super) stop: &'a Stop,
    /// Whether to end when others are found to lack the same.
    pub(super) alone: bool,
    pub(super) limit: Option<Duration>,
    pub(super) arrived: &'a Arrived,
    pub(super) on_target: Option<&'a OnTarget>,
}

impl Peers<'_> {
    /// Gets the nodes that are needed now. Their parents are there, so their names are known.
    pub(super) fn nodes(
        &self,
        builder: &mut CatalogueBuilder,
        kept: &mut Vec<(u64, Bytes)>,
    ) -> Result<Pulled> {
        let needed: Vec<u64> = builder.needed().filter(|&id| builder.object(id).is_some()).collect();
        let objects = super::by_unicast::runs(&needed).collect();
        let taker = TreeTaker(Mutex::new((builder, kept)));
        self.pull(objects, &taker)
    }

    /// Gets the chunks that the install lacks.
    pub(super) fn chunks(&self, catalogue: &Catalogue, installer: &Installer) -> Result<Pulled> {
        let Self { node, on_target, .. } = *self;
        self.pull(installer.missing(), &ChunkTaker { node, catalogue, installer, on_target })
    }

    fn pull(&self, objects: Vec<std::ops::Range<u64>>, taker: &dyn Taker) -> Result<Pulled> {
        self.node.pull(&Want {
            objects,
            taker,
            server: self.server,
            at_once: self.at_once,
            object_bytes: self.object_bytes,
            stop: self.stop,
            alone: self.alone,
            limit: self.limit,
            demands: None,
            arrived: &|bytes| self.arrived.add_peers(bytes),
        })
    }
}

struct TreeTaker<'a>(Mutex<(&'a mut CatalogueBuilder, &'a mut Vec<(u64, Bytes)>)>);

impl Taker for TreeTaker<'_> {
    fn object(&self, id: u64) -> Option<ObjectRef> {
        self.0.lock().0.object(id)
    }

    fn take(&self, id: u64, bytes: Bytes) -> Result<bool> {
        let (builder, kept) = &mut *self.0.lock();
        match builder.learn(id, bytes.clone()) {
            Ok(()) => kept.push((id, bytes)),
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }
}

struct ChunkTaker<'a> {
    node: &'a Node,
    catalogue: &'a Catalogue,
    installer: &'a Installer,
    on_target: Option<&'a OnTarget>,
}

impl Taker for ChunkTaker<'_> {
    fn object(&self, id: u64) -> Option<ObjectRef> {
        self.catalogue.objects().get(usize::try_from(id).ok()?).copied()
    }

    fn take(&self, id: u64, bytes: Bytes) -> Result<bool> {
        match self.installer.offer(id, bytes.clone())? {
            Offer::Taken => keep(self.node, (self.on_target, self.installer), id, &bytes),
            Offer::Known | Offer::Full => {}
            Offer::Wrong(_) => return Ok(false),
        }
        Ok(true)
    }
}
