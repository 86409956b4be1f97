//! What others get from the target of a fetch: the chunks that memory does not keep for them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use base::RunSet;
use bytes::Bytes;
use image::{Catalogue, Installer, Recoder};
use parking_lot::{Mutex, RwLock};

use crate::peer::Node;

/// How an object is made from what is on the target.
type Read = dyn Fn(&Recoder, u64) -> Option<Bytes> + Send + Sync;

/// The first so many objects that memory does not keep must be such as can be made again.
const SAMPLES: u8 = 3;
/// One of them was not: another encoder made them.
const FOREIGN: u8 = u8::MAX;

/// A target of a fetch, for others. Each object that is read from it has its own digest: what is not written yet, or
/// has changed since, nobody gets.
pub struct OnTarget {
    read: RwLock<Option<Box<Read>>>,
    recoder: OnceLock<Recoder>,
    samples: AtomicU8,
    /// Chunks that memory does not keep, and that may not be written yet, in the order in which they came.
    coming: Mutex<VecDeque<u64>>,
}

impl OnTarget {
    /// The target that `read` reads, and to which the fetch writes.
    #[must_use]
    pub fn new(read: impl Fn(&Recoder, u64) -> Option<Bytes> + Send + Sync + 'static) -> Self {
        Self {
            read: RwLock::new(Some(Box::new(read))),
            recoder: OnceLock::new(),
            samples: AtomicU8::new(0),
            coming: Mutex::default(),
        }
    }

    /// Reads the target by `read` from now on, and lets go of what was open.
    pub fn read_by(&self, read: impl Fn(&Recoder, u64) -> Option<Bytes> + Send + Sync + 'static) {
        *self.read.write() = Some(Box::new(read));
    }

    /// Waits for reads that are under way, and lets go of what was open.
    pub fn close(&self) {
        *self.read.write() = None;
    }

    /// The same, after it was said that nobody gets anything of the target from `node` now.
    pub fn leave(&self, node: &Node) {
        node.spool().clear_shelf();
        self.close();
    }

    /// The target holds the whole version: others may get all of it from `node`, as far as it can be made again.
    pub fn is_whole(&self, node: &Node) {
        let Some(recoder) = self.recoder.get() else { return };
        let chunks = recoder.chunks();
        let makes = match self.samples.load(Ordering::Relaxed) {
            SAMPLES => true,
            // No object, or too few, arrived that told.
            0..SAMPLES => self.makes_some(chunks.clone()),
            _ => false,
        };
        if makes {
            chunks.for_each(|id| node.spool().offer(id));
        }
    }

    /// The tree is known. It takes a moment.
    pub(super) fn learn(&self, catalogue: &Arc<Catalogue>) {
        // A tree that contradicts itself ends the fetch.
        let _ = Recoder::new(Arc::clone(catalogue)).map(|recoder| self.recoder.set(recoder));
    }

    /// The install begins. Chunks that are not `missing` are on the target already.
    pub(super) fn begin(self: &Arc<Self>, missing: &RunSet, node: &Node) {
        let Some(recoder) = self.recoder.get() else { return };
        let target = Arc::clone(self);
        node.spool().back(move |id| target.object(id));
        let here: Vec<u64> = missing.gaps(recoder.chunks()).flatten().collect();
        if self.makes_some(here.iter().copied()) {
            here.into_iter().for_each(|id| node.spool().offer(id));
        }
    }

    /// Whether some of these chunks, which are on the target, can be made again.
    fn makes_some(&self, chunks: impl Iterator<Item = u64>) -> bool {
        let mut first = chunks.take(SAMPLES.into()).peekable();
        first.peek().is_some() && first.all(|id| self.object(id).is_some())
    }

    /// Chunk `id` has arrived as `object`, and goes to the target. Returns whether it can be had from there.
    fn takes(&self, id: u64, object: &Bytes) -> bool {
        let Some(recoder) = self.recoder.get() else { return false };
        let samples = self.samples.load(Ordering::Relaxed);
        if samples < SAMPLES {
            let next = if recoder.makes(id, object) { samples + 1 } else { FOREIGN };
            // Of several threads each tells of one.
            let _ = self.samples.compare_exchange(samples, next, Ordering::Relaxed, Ordering::Relaxed);
        }
        samples == SAMPLES
    }

    fn object(&self, id: u64) -> Option<Bytes> {
        // Held until the disk is let go of.
        let read = self.read.read();
        read.as_ref()?(self.recoder.get()?, id)
    }

    /// Offers what has been written since it came.
    fn offer_written(&self, node: &Node, installer: &Installer) {
        let mut coming = self.coming.lock();
        while let Some(&id) = coming.front().filter(|id| installer.has_written(**id)) {
            coming.pop_front();
            node.spool().offer(id);
        }
    }
}

/// Keeps chunk `id`, which has arrived as `object` and goes to `installer`, for others: in memory, or else where it is
/// written.
pub(super) fn keep(
    node: &Node,
    (target, installer): (Option<&OnTarget>, &Installer),
    id: u64,
    object: &Bytes,
) {
    let is_kept = node.spool().put(id, object);
    let Some(target) = target else { return };
    if !is_kept && target.takes(id, object) {
        target.coming.lock().push_back(id);
    }
    target.offer_written(node, installer);
}

impl std::fmt::Debug for OnTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OnTarget({:?})", self.recoder)
    }
}
