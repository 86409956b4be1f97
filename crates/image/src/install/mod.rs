//! Install: writes a version to a target. It writes a chunk only after both digests, of the object and of the plain
//! bytes, were found right.
//!
//! A receiver pushes objects ([`Installer::offer`]), or the install pulls them from a source ([`Installer::pull`]).
//! Worker threads decode and write them. At the same time another thread makes zeros and discards free space.
//! [`Installer::finish`] returns after the target is durable and was read back.

mod blank;
mod check;
mod finish;
mod lane;
mod old;
mod options;
mod plan;
mod report;
mod reuse;
mod shared;
mod writer;

use std::iter::repeat_n;
use std::ops::Range;
use std::sync::Arc;

use base::{Error, ErrorKind, Extent, ExtentSet, Result};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use disk::WriteAt;

use crate::catalogue::Catalogue;
use crate::chunk::PlainHasher;
use crate::objects::ObjectSource;
use crate::progress::{Progress, Several, Stage};
use crate::workers::FirstError;
use lane::{Lane, Taken};
pub use old::{OldSignature, left_out, old_signatures};
pub use options::{FreeSpace, InstallOptions, Reuse};
use plan::Plan;
pub use report::InstallReport;
use writer::Writer;

/// How many threads of [`Installer::pull`] go ahead of those that decode: opening a cold file waits for the disk.
const READ_AHEAD_THREADS: usize = 2;

/// How many objects they are ahead at most: 22 MB if each has the size that chunks of 256 KiB have on average.
const READ_AHEAD_OBJECTS: usize = 256;

/// The result of [`Installer::offer`].
#[derive(Debug)]
pub enum Offer {
    /// The object's digest is right, and a worker will write it.
    Taken,
    /// The object is not needed: it is a tree node, a chunk that was taken or kept already, or the number is unknown.
    Known,
    /// The queue is full. Offer the object again later. Only [`Installer::try_offer`] returns this.
    Full,
    /// The bytes do not match the object's digest or length. The object is still needed.
    Wrong(Error),
}

/// A running install, which takes objects in any order and writes them to one target, or to several in the same pass.
/// A target that fails does not stop the others.
pub struct Installer {
    lanes: Vec<Lane>,
}

impl Installer {
    /// Begins to install the version of `catalogue` on `target`: checks sizes, erases old signatures, looks for chunks
    /// that the target holds already if `options.reuse`, and starts the threads.
    ///
    /// Errors: `Refused`, with nothing written, if the target is too small or has larger sectors than the image;
    /// `Corrupt` if the tree contradicts itself; `Io` if the target fails.
    pub fn begin(
        catalogue: Arc<Catalogue>,
        target: Arc<dyn WriteAt>,
        options: InstallOptions,
        progress: Arc<dyn Progress>,
    ) -> Result<Self> {
        Self::begin_several(catalogue, vec![target], options, progress)
    }

    /// Like [`Installer::begin`], on all of `targets` at once, at least one. They share the memory of `options`.
    pub fn begin_several(
        catalogue: Arc<Catalogue>,
        targets: Vec<Arc<dyn WriteAt>>,
        options: InstallOptions,
        progress: Arc<dyn Progress>,
    ) -> Result<Self> {
        targets.iter().try_for_each(|target| preflight(&catalogue, &**target))?;
        let plan = Arc::new(Plan::of(&catalogue)?);
        let count = targets.len() as u64;
        let options = InstallOptions { memory_bytes: options.memory_bytes / count.max(1), ..options };
        let shown: Arc<dyn Progress> = match targets.len() {
            1 => progress.clone(),
            _ => Arc::new(Several::new(progress.clone(), count)),
        };
        let begin = |target| Lane::begin(plan.clone(), catalogue.clone(), target, options, shown.clone());
        let lanes = at_once(targets, begin).into_iter().collect::<Result<Vec<_>>>()?;
        progress.begin(Stage::Install, lanes.iter().map(Lane::to_write).sum());
        Ok(Self { lanes })
    }

    /// The numbers of the chunk objects that are still needed, as ascending ranges that do not touch.
    #[must_use]
    pub fn missing(&self) -> Vec<Range<u64>> {
        let well = self.lanes.iter().filter(|lane| lane.is_well());
        let missing = well.flat_map(|lane| lane.shared.missing());
        let all: ExtentSet = missing.map(|range| Extent::between(range.start, range.end)).collect();
        all.runs().iter().map(|run| run.start..run.end()).collect()
    }

    /// Whether object `id` is a chunk that is still needed.
    #[must_use]
    pub fn needs(&self, id: u64) -> bool {
        self.needing(id).next().is_some()
    }

    /// Whether object `id` is a chunk that is on the first target, and not just on its way there.
    #[must_use]
    pub fn has_written(&self, id: u64) -> bool {
        self.lanes.first().is_some_and(|lane| lane.is_well() && lane.shared.is_there(id))
    }

    /// The targets that still need object `id`.
    fn needing(&self, id: u64) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().filter(move |lane| lane.is_well() && lane.shared.is_needed(id))
    }

    /// Takes the bytes of object `id` and verifies their digest. Waits while the queue is full. An error means that the
    /// install has failed and can't continue: it is the first error of any thread.
    pub fn offer(&self, id: u64, bytes: Bytes) -> Result<Offer> {
        self.take(id, bytes, true)
    }

    /// Like [`Installer::offer`], but never waits: returns [`Offer::Full`] if the queue is full and the object is still
    /// needed.
    pub fn try_offer(&self, id: u64, bytes: Bytes) -> Result<Offer> {
        // Checked first, because `take` would hash the object before it finds the queue full.
        if self.needing(id).any(Lane::is_full) {
            return self.healthy().map(|()| Offer::Full);
        }
        self.take(id, bytes, false)
    }

    /// Verifies the object and passes it to the workers of all targets that need it.
    fn take(&self, id: u64, bytes: Bytes, wait: bool) -> Result<Offer> {
        self.healthy()?;
        let Some(lane) = self.needing(id).next() else { return Ok(Offer::Known) };
        let chunk = lane.shared.plan.chunk(id).expect("chunks are needed, not nodes");
        let object = match chunk.object.verified(bytes) {
            Ok(object) => object,
            Err(error) => return Ok(Offer::Wrong(error)),
        };
        let mut offer = Offer::Known;
        for lane in self.needing(id) {
            offer = match (lane.take(id, &object, wait), offer) {
                (Taken::Queued, Offer::Full) | (Taken::Full, _) => Offer::Full,
                (Taken::Queued, _) => Offer::Taken,
                (Taken::Known, other) => other,
            };
        }
        self.healthy().map(|()| offer)
    }

    /// Takes the content of chunk `id`, its allocated bytes only, and writes it to all targets that need it before this
    /// returns. Does nothing if none does. `Corrupt` if it has another plain digest than the chunk; errors as of
    /// [`Installer::offer`].
    pub fn offer_plain(&self, id: u64, plain: &[u8]) -> Result<()> {
        self.healthy()?;
        let Some(lane) = self.needing(id).next() else { return Ok(()) };
        let chunk = lane.shared.plan.chunk(id).expect("chunks are needed, not nodes");
        let is_long = plain.len() as u64 == u64::from(chunk.extents.len_bytes());
        if !is_long || PlainHasher::default().digest(&chunk.extents, plain) != chunk.plain {
            return Err(Error::corrupt(format!("this is not the content of {}", chunk.object)));
        }
        let content = lane.decodes().then_some(plain);
        self.needing(id).for_each(|lane| lane.write(id, content));
        self.healthy()
    }

    /// The first error, if no target is well.
    fn healthy(&self) -> Result<()> {
        if self.lanes.iter().any(Lane::is_well) {
            return Ok(());
        }
        self.lanes.iter().find_map(|lane| lane.shared.group.restated()).map_or(Ok(()), Err)
    }

    /// Fetches all missing objects from `source`, verifies and writes them, on threads of its own. Stops at the first
    /// error and returns it: of the source, of the last target that was well, or `Corrupt` for a bad object.
    pub fn pull(&self, source: &dyn ObjectSource) -> Result<()> {
        let ids = parking_lot::Mutex::new(self.missing().into_iter().flatten());
        let first = &self.lanes[0];
        let chunk = |id| first.shared.plan.chunk(id).expect("chunks are missing, not nodes");
        let (soon, next) = crossbeam_channel::bounded(READ_AHEAD_OBJECTS);
        let failed = FirstError::default();
        let read_ahead = |soon: Sender<u64>| {
            while let Some(id) = { ids.lock().next() } {
                source.read_ahead(&chunk(id).object);
                if soon.send(id).is_err() {
                    break;
                }
            }
        };
        let work = |next: Receiver<u64>| -> Result<()> {
            let mut writer = first.decodes().then(|| Writer::new(&first.shared)).transpose()?;
            for id in next {
                if failed.is_stopped() || !self.lanes.iter().any(Lane::is_well) {
                    break;
                }
                let object = source.verified(&chunk(id).object)?;
                let plain = writer.as_mut().map(|writer| writer.decode(chunk(id), &object)).transpose()?;
                self.lanes.iter().for_each(|lane| lane.write(id, plain));
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            for soon in repeat_n(soon, READ_AHEAD_THREADS) {
                scope.spawn(move || read_ahead(soon));
            }
            for next in repeat_n(next, first.threads) {
                scope.spawn(|| work(next).unwrap_or_else(|error| failed.fail(error)));
            }
        });
        failed.take().map_or_else(|| self.healthy(), Err)
    }

    /// Waits until all objects that were taken are written and durable. Then reads the targets back if
    /// `InstallOptions::verify`, moves the GPT's backup and erases old signatures that are left. The report counts all
    /// targets together.
    ///
    /// Errors: the first error of any thread; `Incomplete` if objects are missing; `Verification` if a target differs
    /// from what was written. After an error the target that it names holds a part of the image; the error says how
    /// many others are complete.
    pub fn finish(self) -> Result<InstallReport> {
        let results = at_once(self.lanes, Lane::finish);
        let (all, right) = (results.len(), results.iter().filter(|result| result.is_ok()).count());
        let mut sum = InstallReport { past_cache: true, ..InstallReport::default() };
        for result in results {
            match result {
                Ok(report) => sum = sum.plus(&report),
                Err(error) if all == 1 => return Err(error),
                Err(error) => return Err(error.within(format!("{right} of {all} targets are complete"))),
            }
        }
        Ok(sum)
    }
}

/// What `job` returns for each of `items`, all at once, each on a thread of its own; a single one on this thread.
fn at_once<T: Send, R: Send>(items: Vec<T>, job: impl Fn(T) -> R + Sync) -> Vec<R> {
    if items.len() == 1 {
        return items.into_iter().map(job).collect();
    }
    let job = &job;
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || job(item))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a job returns its errors")).collect()
    })
}

/// `Refused` if the target is smaller than the image, or has larger logical sectors, so that it can't address the
/// image's extents.
fn preflight(catalogue: &Catalogue, target: &dyn WriteAt) -> Result<()> {
    let (layout, geometry, name) = (catalogue.layout(), target.geometry(), target.name());
    let refuse = |text: String| Err(Error::new(ErrorKind::Refused, text));
    if geometry.size_bytes < layout.size_bytes() {
        let (has, needs) = (geometry.size_bytes, layout.size_bytes());
        return refuse(format!("`{name}` has {has} bytes, the image needs {needs}"));
    }
    if geometry.logical_sector_bytes > layout.logical_sector_bytes {
        let (has, needs) = (geometry.logical_sector_bytes, layout.logical_sector_bytes);
        return refuse(format!(
            "`{name}` has sectors of {has} bytes, the image is of a disk with sectors of {needs}"
        ));
    }
    Ok(())
}
