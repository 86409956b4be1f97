//! Install: puts a version on a target. A chunk is written only after both of its digests were verified.
//!
//! Objects are offered as they arrive ([`Installer::offer`]). Worker threads decode
//! and write; another thread writes zeros and frees space at the same time. [`Installer::finish`] returns when the
//! target is durable and was read back.

mod blank;
mod check;
mod finish;
mod old;
mod options;
mod plan;
mod shared;
mod writer;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, TrySendError};
use disk::WriteAt;

use crate::catalogue::Catalogue;
use crate::object::Verified;
use crate::objects::ObjectSource;
use crate::progress::{Progress, Stage};
use crate::workers::thread_count;
use old::Old;
pub use old::{OldSignature, old_signatures};
pub use options::{FreeSpace, InstallOptions};
use plan::Plan;
use shared::{Shared, State};
use writer::Writer;

/// The result of an install, in bytes of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InstallReport {
    /// Content written.
    pub written_bytes: u64,
    /// Content that was already correct.
    pub kept_bytes: u64,
    /// Zeros written: allocated ones, and free space if requested.
    pub zeroed_bytes: u64,
    /// Free space discarded.
    pub discarded_bytes: u64,
    /// Free space that was not changed.
    pub skipped_bytes: u64,
    /// Content and allocated zeros that were read back and verified.
    pub verified_bytes: u64,
    /// Signatures of earlier contents that were erased in free space.
    pub erased_signatures: u64,
    /// Whether the backup of the GPT was moved to the end of a larger target.
    pub moved_gpt: bool,
    /// Whether everything that was read back came from the medium; false if some of it came from the page cache, or
    /// nothing was read.
    pub past_cache: bool,
}

/// The result of an offer.
#[derive(Debug)]
pub enum Offer {
    /// The object is correct and will be written.
    Taken,
    /// The object is not needed: it is a node, or was offered before.
    Known,
    /// The queue is full now. Only from [`Installer::try_offer`].
    Full,
    /// These are not the bytes of that object; it is still needed.
    Wrong(Error),
}

/// An install that accepts objects in any order.
pub struct Installer {
    shared: Arc<Shared>,
    options: InstallOptions,
    threads: usize,
    queue: Option<Sender<Item>>,
    workers: Vec<JoinHandle<()>>,
}

impl Installer {
    /// Begins to install the version of `catalogue` on `target`: checks sizes, erases signatures of earlier contents,
    /// searches for correct content if requested, and starts the threads.
    ///
    /// `Refused`, with nothing written, if the target is too small or can't address the image's sectors; `Corrupt` if
    /// the tree contradicts itself.
    pub fn begin(
        catalogue: Arc<Catalogue>,
        target: Arc<dyn WriteAt>,
        options: InstallOptions,
        progress: Arc<dyn Progress>,
    ) -> Result<Self> {
        preflight(&catalogue, &*target)?;
        let chunk_bytes = u64::from(catalogue.layout().chunk.bytes());
        // A buffer for a chunk, the decoder's tables, and the same amount again for queued objects.
        let threads = thread_count(options.threads, options.memory_bytes, 2 * (chunk_bytes + (256 << 10)));
        let waiting = usize::try_from(options.memory_bytes / 2 / chunk_bytes).unwrap_or(usize::MAX);
        let (queue, objects) = crossbeam_channel::bounded(waiting.clamp(threads, 4096));
        let shared = Arc::new(Shared::new(Plan::of(&catalogue)?, catalogue, target, progress));
        if options.decode && !options.keep_signatures {
            erase_old(&shared)?;
        }
        if options.resume {
            check::keep_what_is_right(&shared, threads)?;
        }
        let kept = shared.counters.kept.load(Ordering::Relaxed);
        shared.progress.begin(Stage::Install, shared.plan.bytes() - kept);
        let mut installer = Self { shared, options, threads, queue: Some(queue), workers: Vec::new() };
        if options.decode {
            for _ in 0..threads {
                let objects = objects.clone();
                installer.spawn(move |shared| write_all(shared, &objects));
            }
            installer.spawn(move |shared| blank::make_all(shared, options.free));
        }
        Ok(installer)
    }

    /// The numbers of the objects that are still needed, as ascending ranges with gaps between them.
    #[must_use]
    pub fn missing(&self) -> Vec<Range<u64>> {
        self.shared.missing()
    }

    /// Whether object `id` is still needed.
    #[must_use]
    pub fn needs(&self, id: u64) -> bool {
        self.shared.is_needed(id)
    }

    /// Accepts the bytes of object `id`; waits while the queue is full. The object is verified before this returns. An
    /// error means that the install has failed.
    pub fn offer(&self, id: u64, bytes: Bytes) -> Result<Offer> {
        self.take(id, bytes, |queue, item| {
            queue.send(item).map_err(|unsent| TrySendError::Disconnected(unsent.into_inner()))
        })
    }

    /// The same without waiting: [`Offer::Full`] if the queue is full; the object is still needed then.
    pub fn try_offer(&self, id: u64, bytes: Bytes) -> Result<Offer> {
        if self.queue.as_ref().is_some_and(Sender::is_full) && self.shared.is_needed(id) {
            return self.healthy().map(|()| Offer::Full);
        }
        self.take(id, bytes, Sender::try_send)
    }

    fn take(
        &self,
        id: u64,
        bytes: Bytes,
        send: impl FnOnce(&Sender<Item>, Item) -> std::result::Result<(), TrySendError<Item>>,
    ) -> Result<Offer> {
        self.healthy()?;
        let Some(chunk) = self.shared.plan.chunk(id).filter(|_| self.shared.is_needed(id)) else {
            return Ok(Offer::Known);
        };
        let object = match chunk.object.verified(bytes) {
            Ok(object) => object,
            Err(error) => return Ok(Offer::Wrong(error)),
        };
        if !self.shared.change(id, State::Needed, State::Taken) {
            return Ok(Offer::Known);
        }
        if !self.options.decode {
            return write_one(&self.shared, None, id, &object).map(|()| Offer::Taken);
        }
        let queue = self.queue.as_ref().expect("the queue is open until the end");
        match send(queue, (id, object)) {
            Ok(()) => Ok(Offer::Taken),
            Err(TrySendError::Full(_)) => {
                self.shared.change(id, State::Taken, State::Needed);
                Ok(Offer::Full)
            }
            Err(TrySendError::Disconnected(_)) => {
                self.healthy()?;
                Err(Error::new(ErrorKind::Io, "the threads of the install are gone"))
            }
        }
    }

    fn healthy(&self) -> Result<()> {
        self.shared.group.restated().map_or(Ok(()), Err)
    }

    /// Fetches all missing objects from `source`, verifies and writes them. Stops at the first error.
    pub fn pull(&self, source: &dyn ObjectSource) -> Result<()> {
        let shared = &*self.shared;
        let missing = shared.missing();
        let ids = parking_lot::Mutex::new(missing.into_iter().flatten());
        let next = || ids.lock().next();
        let work = || -> Result<()> {
            let mut writer = self.options.decode.then(|| Writer::new(shared)).transpose()?;
            while !shared.group.is_stopped() {
                let Some(id) = next() else { break };
                let chunk = shared.plan.chunk(id).expect("chunks are missing, not nodes");
                let object = source.verified(&chunk.object)?;
                if shared.change(id, State::Needed, State::Taken) {
                    write_one(shared, writer.as_mut(), id, &object)?;
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| work().unwrap_or_else(|error| shared.group.fail(error)));
            }
        });
        self.healthy()
    }

    /// Waits until everything accepted is written and durable, and reads it back if requested.
    ///
    /// `Incomplete` if objects are missing; `Verification` if the target holds other bytes than were written; otherwise
    /// the first error of any thread. After an error the target holds a part of the image.
    pub fn finish(mut self) -> Result<InstallReport> {
        self.join();
        let shared = &*self.shared;
        if let Some(error) = shared.group.take() {
            return Err(error);
        }
        match shared.unfinished() {
            0 => {}
            count => return Err(Error::new(ErrorKind::Incomplete, format!("{count} chunks never came"))),
        }
        shared.target.sync().map_err(|e| e.within(format!("make `{}` durable", shared.target.name())))?;
        if self.options.verify && self.options.decode {
            check::verify(shared, self.threads)?;
        }
        if self.options.decode {
            finish::finalize(shared, &self.options)?;
        }
        Ok(self.report())
    }

    fn report(&self) -> InstallReport {
        let counters = &self.shared.counters;
        let count = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        InstallReport {
            written_bytes: count(&counters.written),
            kept_bytes: count(&counters.kept),
            zeroed_bytes: count(&counters.zeroed),
            discarded_bytes: count(&counters.discarded),
            skipped_bytes: count(&counters.skipped),
            verified_bytes: count(&counters.verified),
            erased_signatures: count(&counters.erased),
            moved_gpt: counters.moved_gpt.load(Ordering::Relaxed),
            past_cache: self.options.verify
                && self.options.decode
                && !counters.through_cache.load(Ordering::Relaxed),
        }
    }

    fn spawn(&mut self, job: impl FnOnce(&Shared) -> Result<()> + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        self.workers.push(std::thread::spawn(move || {
            if let Err(error) = job(&shared) {
                shared.group.fail(error);
            }
        }));
    }

    fn join(&mut self) {
        self.queue = None;
        for worker in std::mem::take(&mut self.workers) {
            if worker.join().is_err() {
                self.shared.group.fail(Error::new(ErrorKind::Io, "a thread of the install panicked"));
            }
        }
    }
}

impl Drop for Installer {
    /// Stops the threads and waits for them, so that none writes to the target afterwards.
    fn drop(&mut self) {
        self.shared.group.stop();
        self.join();
    }
}

/// An entry of the write queue: the number of an object, and the object.
type Item = (u64, Verified);

/// `Refused` unless the image fits on `target` and its extents can be addressed there.
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

/// Erases signatures through which the kernel and tools would see earlier contents.
fn erase_old(shared: &Shared) -> Result<()> {
    let mut old = Old::on(&shared.catalogue, shared.target.geometry().size_bytes)?;
    old.spare_backup(&shared.catalogue, &*shared.target)?;
    let count = old.erase(&*shared.target)?;
    shared.counters.erased.fetch_add(count, Ordering::Relaxed);
    Ok(())
}

/// Writes objects from the queue until it is closed. After a failure it only empties the queue, so that no other thread
/// blocks.
fn write_all(shared: &Shared, objects: &Receiver<Item>) -> Result<()> {
    let mut writer = Writer::new(shared)?;
    for (id, object) in objects {
        if !shared.group.is_stopped()
            && let Err(error) = write_one(shared, Some(&mut writer), id, &object)
        {
            shared.group.fail(error);
        }
    }
    Ok(())
}

/// Without a writer the verified object is dropped.
fn write_one(shared: &Shared, writer: Option<&mut Writer>, id: u64, object: &Verified) -> Result<()> {
    let chunk = shared.plan.chunk(id).expect("only chunks are taken");
    if let Some(writer) = writer {
        writer.write(shared, chunk, object)?;
        shared.counters.written.fetch_add(chunk.bytes(), Ordering::Relaxed);
    }
    shared.change(id, State::Taken, State::Done);
    shared.progress.advance(Stage::Install, chunk.bytes());
    Ok(())
}
