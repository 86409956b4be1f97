//! Install: writes a version to a target. It writes a chunk only after both digests, of the object and of the plain
//! bytes, were found right.
//!
//! A receiver pushes objects ([`Installer::offer`]), or the install pulls them from a source ([`Installer::pull`]).
//! Worker threads decode and write them. At the same time another thread makes zeros and discards free space.
//! [`Installer::finish`] returns after the target is durable and was read back.

mod blank;
mod check;
mod finish;
mod old;
mod options;
mod plan;
mod reuse;
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
pub use old::{OldSignature, left_out, old_signatures};
pub use options::{FreeSpace, InstallOptions, Reuse};
use plan::Plan;
use shared::{Shared, State};
use writer::Writer;

/// What an install did. Fields that end in `_bytes` count bytes of the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InstallReport {
    /// Content of chunks that was written.
    pub written_bytes: u64,
    /// Content of chunks that the target held already, found by `InstallOptions::reuse`.
    pub kept_bytes: u64,
    /// Content of chunks that the target held in other places and that was copied.
    pub moved_bytes: u64,
    /// Zeros that were made: allocated ones, and free space with [`FreeSpace::Zero`].
    pub zeroed_bytes: u64,
    /// Free space that was discarded.
    pub discarded_bytes: u64,
    /// Free space that was left unchanged.
    pub skipped_bytes: u64,
    /// Content and allocated zeros that were read back and found right.
    pub verified_bytes: u64,
    /// Number of old signatures that were erased in free space.
    pub erased_signatures: u64,
    /// Whether the backup of the GPT was moved to the end of a larger target.
    pub moved_gpt: bool,
    /// Whether the target was read back, and each read came from the medium, not from the page cache.
    pub past_cache: bool,
}

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

/// A running install, which takes objects in any order.
pub struct Installer {
    shared: Arc<Shared>,
    options: InstallOptions,
    threads: usize,
    /// Verified objects for the workers. `None` after `join` has closed it.
    queue: Option<Sender<Item>>,
    workers: Vec<JoinHandle<()>>,
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
        preflight(&catalogue, &*target)?;
        let chunk_bytes = u64::from(catalogue.layout().chunk.bytes());
        // One half of the memory is for the threads, each with a buffer for a chunk and 256 KiB for the decoder's
        // tables. The other half is for objects in the queue.
        let threads = thread_count(options.threads, options.memory_bytes, 2 * (chunk_bytes + (256 << 10)));
        let waiting = usize::try_from(options.memory_bytes / 2 / chunk_bytes).unwrap_or(usize::MAX);
        let (queue, objects) = crossbeam_channel::bounded(waiting.min(4096).max(threads));
        let shared = Arc::new(Shared::new(Plan::of(&catalogue)?, catalogue, target, progress));
        // Before any chunk is written: so a power cut leaves either the old content, or no old signature.
        if options.decode && !options.keep_signatures {
            erase_old(&shared)?;
        }
        let looks = match options.reuse {
            Reuse::Never => false,
            Reuse::IfItPays => reuse::pays(&shared)?,
            Reuse::InPlace | Reuse::Always => true,
        };
        if looks && options.decode {
            reuse::reuse(&shared, threads, &options)?;
        }
        let counters = &shared.counters;
        let there = counters.kept.load(Ordering::Relaxed) + counters.moved.load(Ordering::Relaxed);
        shared.progress.begin(Stage::Install, shared.plan.bytes() - there);
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

    /// The numbers of the chunk objects that are still needed, as ascending ranges that do not touch.
    #[must_use]
    pub fn missing(&self) -> Vec<Range<u64>> {
        self.shared.missing()
    }

    /// Whether object `id` is a chunk that is still needed.
    #[must_use]
    pub fn needs(&self, id: u64) -> bool {
        self.shared.is_needed(id)
    }

    /// Takes the bytes of object `id` and verifies their digest. Waits while the queue is full. An error means that the
    /// install has failed and can't continue: it is the first error of any thread.
    pub fn offer(&self, id: u64, bytes: Bytes) -> Result<Offer> {
        self.take(id, bytes, |queue, item| {
            queue.send(item).map_err(|unsent| TrySendError::Disconnected(unsent.into_inner()))
        })
    }

    /// Like [`Installer::offer`], but never waits: returns [`Offer::Full`] if the queue is full and the object is still
    /// needed.
    pub fn try_offer(&self, id: u64, bytes: Bytes) -> Result<Offer> {
        // Checked first, because `take` would hash the object before it finds the queue full.
        if self.queue.as_ref().is_some_and(Sender::is_full) && self.shared.is_needed(id) {
            return self.healthy().map(|()| Offer::Full);
        }
        self.take(id, bytes, Sender::try_send)
    }

    /// Verifies the object and passes it to the workers with `send`.
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
        // Several threads may offer the same object at the same time; only one of them queues it.
        if !self.shared.change(id, State::Needed, State::Taken) {
            return Ok(Offer::Known);
        }
        if !self.options.decode {
            return write_one(&self.shared, None, id, &object).map(|()| Offer::Taken);
        }
        let queue = self.queue.as_ref().expect("the queue is open until the end");
        match send(queue, (id, object)) {
            Ok(()) => Ok(Offer::Taken),
            // Another thread filled the queue after the check in `try_offer`.
            Err(TrySendError::Full(_)) => {
                self.shared.change(id, State::Taken, State::Needed);
                Ok(Offer::Full)
            }
            Err(TrySendError::Disconnected(_)) => {
                self.healthy()?;
                Err(Error::new(ErrorKind::Io, "the threads of the install have ended"))
            }
        }
    }

    /// The first error of any thread, if there is one.
    fn healthy(&self) -> Result<()> {
        self.shared.group.restated().map_or(Ok(()), Err)
    }

    /// Fetches all missing objects from `source`, verifies and writes them, on threads of its own. Stops at the first
    /// error and returns it: of the source, of the target, or `Corrupt` for a bad object.
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

    /// Waits until all objects that were taken are written and durable. Then reads the target back if
    /// `InstallOptions::verify`, moves the GPT's backup and erases old signatures that are left.
    ///
    /// Errors: the first error of any thread; `Incomplete` if objects are missing; `Verification` if the target differs
    /// from what was written. After an error the target holds a part of the image.
    pub fn finish(mut self) -> Result<InstallReport> {
        self.join();
        let shared = &*self.shared;
        if let Some(error) = shared.group.take() {
            return Err(error);
        }
        match shared.unfinished() {
            0 => {}
            count => {
                return Err(Error::new(ErrorKind::Incomplete, format!("{count} chunks have not arrived")));
            }
        }
        // Durable first, because `read_back_at` reads the medium, past the page cache.
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
            moved_bytes: count(&counters.moved),
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

    /// Starts a thread for `job`. Its error stops the others.
    fn spawn(&mut self, job: impl FnOnce(&Shared) -> Result<()> + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        self.workers.push(std::thread::spawn(move || {
            if let Err(error) = job(&shared) {
                shared.group.fail(error);
            }
        }));
    }

    /// Closes the queue, so that the workers end when it is empty, and waits for all threads.
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
    /// Stops the threads and waits for them, so that no thread writes to the target afterwards.
    fn drop(&mut self) {
        self.shared.group.stop();
        self.join();
    }
}

/// An entry of the queue: the number of an object, and the object.
type Item = (u64, Verified);

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

/// Erases old signatures in free space (`old.rs`), durably.
fn erase_old(shared: &Shared) -> Result<()> {
    let mut old = Old::on(&shared.catalogue, shared.target.geometry().size_bytes)?;
    old.spare_backup(&shared.catalogue, &*shared.target)?;
    let count = old.erase(&*shared.target)?;
    shared.counters.erased.fetch_add(count, Ordering::Relaxed);
    Ok(())
}

/// Writes objects from the queue until it is closed. After a failure it still empties the queue: an `offer` that waits
/// for room could not return otherwise.
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

/// Writes one verified object and marks it as done. Without a `writer`, when the install does not decode, the object is
/// dropped.
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
