//! Turns a write into a version: uploads its chunks in parallel, based on the newest version at that time, and when
//! its turn comes rebases them onto the version that is newest then. formats/repository.md, "Writing".

use std::sync::Arc;

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use image::manifest::Statistics;
use image::{Layout, Manifest, Root, TreeEditor};
use parking_lot::MutexGuard;

use super::apply::{Edit, Leafs};
use super::commit_queue::{CommitQueue, Head, Outcome, Tip, Turn};
use super::compose::Content;
use super::describe;
use super::dirty_ranges::{DirtyRanges, Step};
use super::ranges::bytes_of;
use super::staging::Staging;
use super::upload::Upload;
use crate::names::{ImageName, Reference};
use crate::parallel::cores;
use crate::record::{self, Stamp};
use crate::repository::Repository;
use crate::versions::newest::Newest;
use crate::versions::{RACES_MAX, next};

/// How often a queue checks whether other processes have stopped publishing, before it goes on anyway.
const LOOKS_MAX: u32 = 64;

/// Result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The version, as it was published.
    pub manifest: Manifest,
    /// How often another process took the number, so that the write was rebased.
    pub retries: u32,
    /// Chunks that another writer wrote at the same time, and that were merged byte by byte.
    pub merged_chunks: u64,
    /// Bytes that were sent to the store: chunks, nodes and manifests.
    pub stored_bytes: u64,
}

/// What a caller wants to write.
pub(super) struct Write<'a> {
    pub(super) dirty: DirtyRanges,
    pub(super) content: &'a dyn Content,
    /// The image is extended to at least this size, in bytes.
    pub(super) grows_to: u64,
    /// If set, the number of the only version on which this write may be published.
    pub(super) expected: Option<u64>,
    pub(super) stamp: &'a Stamp,
}

/// The tree of a write, based on a version.
struct Prepared<'a> {
    over: Arc<Tip>,
    layout: Layout,
    root: Root,
    statistics: Statistics,
    /// Nodes of the tree that are not uploaded yet.
    staging: Staging<'a>,
    /// Chunks that were composed again because another writer had written them too.
    merged_chunks: u64,
}

/// A version that is ready to be published when its turn comes.
struct Ready {
    tip: Arc<Tip>,
    bytes: Bytes,
}

/// One write while it is carried out.
pub(super) struct Job<'a> {
    repository: &'a Repository,
    image: &'a ImageName,
    write: &'a Write<'a>,
    upload: &'a Upload<'a>,
}

/// Publishes `write` as the next version of `image`.
pub(super) fn publish(repository: &Repository, image: &ImageName, write: &Write<'_>) -> Result<Committed> {
    Upload::retrying(repository, write.stamp, |upload| Job { repository, image, write, upload }.run())
}

impl<'a> Job<'a> {
    fn run(&self) -> Result<Committed> {
        let queue = self.repository.blobs().queues.of(self.image);
        let over = self.current(&queue, &mut queue.head(), false)?;
        let mut prepared = self.prepare(over)?;
        for retries in 0..RACES_MAX {
            let (ready, turn) = self.build(&queue, &mut prepared)?;
            // Everything that the manifest names must be durable before the manifest is created.
            self.upload.flush()?;
            let manifest = &ready.tip.manifest;
            match turn.publish(|| self.upload.create(self.image, manifest, &ready.bytes))? {
                Outcome::Lost => {}
                Outcome::Published => {
                    *queue.seen() = Some(Arc::clone(&ready.tip));
                    let manifest = ready.tip.manifest.clone();
                    let (merged_chunks, stored_bytes) = (prepared.merged_chunks, self.upload.bytes());
                    return Ok(Committed { manifest, retries, merged_chunks, stored_bytes });
                }
            }
        }
        Err(self.crowded())
    }

    fn crowded(&self) -> Error {
        Error::new(ErrorKind::Io, format!("write `{}`: too many other writers publish now", self.image))
    }

    fn failed(&self, error: Error) -> Error {
        error.within(format!("write `{}`", self.image))
    }

    /// The version to build on: the one that this process knows, if the store has no newer one. If `about` to publish
    /// and the store has a newer version, waits until other processes pause, because a writer that starts between
    /// their versions would lose the race.
    fn current(&self, queue: &CommitQueue, head: &mut MutexGuard<'_, Head>, about: bool) -> Result<Arc<Tip>> {
        let known = queue.tip(head);
        if let Some((tip, true)) = known {
            return Ok(tip);
        }
        let newest = || self.repository.newest_seen(self.image);
        let mut found = newest()?;
        if let Some((tip, _)) = known.filter(|(tip, _)| tip.is(&found)) {
            return Ok(tip);
        }
        for _ in 0..if about { LOOKS_MAX } else { 0 } {
            self.repository.backend.rest(queue.losses())?;
            if std::mem::replace(&mut found, newest()?) == found {
                break;
            }
        }
        let tip = self.repository.tip_of(self.image, &found)?;
        queue.refresh(head, Arc::clone(&tip));
        Ok(tip)
    }

    /// Builds the version on the head of the queue, and takes the place after it.
    fn build<'l>(&self, queue: &'l CommitQueue, prepared: &mut Prepared<'a>) -> Result<(Ready, Turn<'l>)> {
        let mut head = queue.head();
        for _ in 0..RACES_MAX {
            let tip = self.current(queue, &mut head, true)?;
            if !Arc::ptr_eq(&prepared.over, &tip) {
                *prepared = self.move_onto(tip, prepared)?;
            }
            prepared.staging.store().map_err(|error| self.failed(error))?;
            let ready = self.ready(prepared)?;
            if let Some(turn) = queue.queue(&mut head, Arc::clone(&ready.tip)) {
                return Ok((ready, turn));
            }
        }
        Err(self.crowded())
    }

    /// The layout of the image after this write onto `tip`. `Refused` if the write does not fit, or if another
    /// version was expected.
    fn layout_on(&self, tip: &Tip) -> Result<Layout> {
        let number = tip.manifest.number;
        if let Some(expected) = self.write.expected.filter(|&expected| expected != number) {
            let text = format!("`{}` is at version {number} by now, not at {expected}", self.image);
            return Err(Error::new(ErrorKind::Refused, text));
        }
        let mut layout = tip.layout;
        let end = self.write.dirty.all.end();
        let unit = u64::from(layout.logical_sector_bytes);
        let reach = self.write.grows_to.next_multiple_of(unit) / SECTOR_BYTES;
        layout.size_sectors = layout.size_sectors.max(reach);
        if end > layout.size_bytes() {
            let text = format!("write `{}` up to byte {end}: it has {}", self.image, layout.size_bytes());
            return Err(Error::new(ErrorKind::Refused, text));
        }
        Ok(layout)
    }

    /// Composes and uploads the written chunks, based on `over`, and builds the tree.
    fn prepare(&self, over: Arc<Tip>) -> Result<Prepared<'a>> {
        let layout = self.layout_on(&over)?;
        let staging = Staging::new(self.repository, self.upload);
        let manifest = &over.manifest;
        let tree = (&manifest.root, manifest.statistics);
        let made = self.edit(&staging).over(&layout, tree, &|_| false);
        let (root, statistics) = made.map_err(|error| self.failed(error))?;
        Ok(Prepared { over, layout, root, statistics, staging, merged_chunks: 0 })
    }

    fn edit<'e>(&'e self, staging: &'e Staging<'a>) -> Edit<'e> {
        Edit {
            nodes: (staging, staging),
            chunks: (self.repository, self.upload),
            cipher: self.repository.cipher(),
            codecs: &self.repository.blobs().codecs,
            threads: cores(),
            dirty: &self.write.dirty,
            content: self.write.content,
        }
    }

    /// Rebases `prepared` onto `tip`: merges the nodes, keeps chunks that no other writer changed, and composes
    /// chunks again that both changed.
    fn move_onto(&self, tip: Arc<Tip>, prepared: &Prepared<'a>) -> Result<Prepared<'a>> {
        let before = &prepared.over;
        let same_cut = (tip.layout.chunk, tip.layout.logical_sector_bytes)
            == (before.layout.chunk, before.layout.logical_sector_bytes);
        if !same_cut {
            return self.prepare(tip);
        }
        let layout = self.layout_on(&tip)?;
        let staging = Staging::new(self.repository, self.upload);
        let mut merged_chunks = prepared.merged_chunks;
        let made = (|| {
            let manifest = &tip.manifest;
            let cipher = self.repository.cipher();
            let mut onto = TreeEditor::new(
                (&staging, &staging),
                cipher,
                layout.chunk,
                &manifest.root,
                manifest.statistics,
            );
            onto.grow(layout.chunk_count());
            let mut base = Leafs::new((&staging, &staging), cipher, &before.layout, &before.manifest.root);
            let through = (&prepared.staging as _, &prepared.staging as _);
            let mut mine = Leafs::new(through, cipher, &prepared.layout, &prepared.root);
            let dirty = &self.write.dirty;
            for step in dirty.steps(&layout) {
                let index = match step {
                    Step::Compose(index) => index,
                    Step::Free(chunks) => {
                        onto.free(chunks)?;
                        continue;
                    }
                };
                let (theirs, base, mine) = (onto.get(index)?, base.get(index)?, mine.get(index)?);
                // If no other writer changed the chunk, or this write replaces all of it, the chunk composed before
                // is still right.
                let leaf = if theirs == base || dirty.all.contains(&bytes_of(layout.chunk_extent(index))) {
                    mine
                } else {
                    merged_chunks += 1;
                    self.edit(&staging).compose(&layout, &[(index, theirs)], &|_| false)?.remove(0)
                };
                onto.set(index, leaf)?;
            }
            onto.finish()
        })();
        let (root, statistics) = made.map_err(|error| self.failed(error))?;
        Ok(Prepared { over: tip, layout, root, statistics, staging, merged_chunks })
    }

    /// Builds the manifest of the version.
    fn ready(&self, prepared: &Prepared<'_>) -> Result<Ready> {
        let over = &prepared.over;
        let mut manifest = Manifest {
            number: over.next,
            nonce: record::nonce()?,
            made: Some(self.repository.made_from(&over.manifest)?),
            root: prepared.root,
            statistics: prepared.statistics,
            ..describe::child(over, self.write.stamp)
        };
        describe::mark(&mut manifest, &self.write.dirty.all, prepared.layout.size_sectors);
        let (bytes, digest) = self.repository.seal_version(&mut manifest)?;
        let next = next(manifest.number, self.image)?;
        let tip = Arc::new(Tip { manifest, digest, layout: prepared.layout, next });
        Ok(Ready { tip, bytes })
    }
}

impl Repository {
    /// The newest version of `image`. `NotFound` if there is none.
    pub(super) fn newest_tip(&self, image: &ImageName) -> Result<Arc<Tip>> {
        self.tip_of(image, &self.newest_seen(image)?)
    }

    /// The newest version of `image`, if `newest` is where its numbers end. `NotFound` if there is none.
    fn tip_of(&self, image: &ImageName, newest: &Newest) -> Result<Arc<Tip>> {
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no image `{image}`"));
        let number = newest.live.ok_or_else(missing)?;
        let queue = self.blobs().queues.of(image);
        let seen = queue.seen().clone();
        if let Some(tip) = seen.filter(|tip| tip.is(newest)) {
            return Ok(tip);
        }
        let (sealed, _) = self.signed_manifest(&Reference::Version(image.clone(), number))?;
        let layout = sealed.manifest.layout();
        let layout = layout.map_err(|error| error.within(format!("read `{image}@{number}`")))?;
        let (digest, next) = (sealed.digest(), next(newest.highest, image)?);
        let tip = Arc::new(Tip { manifest: sealed.manifest, digest, layout, next });
        *queue.seen() = Some(Arc::clone(&tip));
        Ok(tip)
    }
}
