//! The work of an install on one target: its queue of objects, and the threads that decode, write and check them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use base::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, Sender, TrySendError};
use disk::WriteAt;

use crate::catalogue::Catalogue;
use crate::object::Verified;
use crate::progress::{Progress, Stage};
use crate::workers::thread_count;

use super::old::Old;
use super::options::{InstallOptions, Reuse};
use super::plan::{Plan, PlannedChunk};
use super::report::InstallReport;
use super::shared::{Shared, State};
use super::writer::Writer;
use super::{blank, check, finish, reuse};

/// What became of an object that was passed to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// A worker will write it.
    Queued,
    /// It was not needed.
    Known,
    /// The queue is full.
    Full,
}

/// The work on one target.
pub(super) struct Lane {
    pub(super) shared: Arc<Shared>,
    options: InstallOptions,
    pub(super) threads: usize,
    /// Verified objects for the workers. `None` after `join` has closed it.
    queue: Option<Sender<Item>>,
    workers: Vec<JoinHandle<()>>,
}

impl Lane {
    /// Begins to write the version of `plan` on `target`: erases old signatures, looks for chunks that the target holds
    /// already as `options.reuse` says, and starts the threads.
    pub(super) fn begin(
        plan: Arc<Plan>,
        catalogue: Arc<Catalogue>,
        target: Arc<dyn WriteAt>,
        options: InstallOptions,
        progress: Arc<dyn Progress>,
    ) -> Result<Self> {
        let chunk_bytes = u64::from(catalogue.layout().chunk.bytes());
        // One half of the memory is for the threads, each with a buffer for a chunk and 256 KiB for the decoder's
        // tables. The other half is for objects in the queue.
        let threads = thread_count(options.threads, options.memory_bytes, 2 * (chunk_bytes + (256 << 10)));
        let waiting = usize::try_from(options.memory_bytes / 2 / chunk_bytes).unwrap_or(usize::MAX);
        let (queue, objects) = crossbeam_channel::bounded(waiting.min(4096).max(threads));
        let shared = Arc::new(Shared::new(plan, catalogue, target, progress));
        // Before any chunk is written: so a power cut leaves either the old content, or no old signature.
        if options.decode && !options.keep_signatures {
            erase_old(&shared)?;
        }
        let looks = match options.reuse {
            Reuse::Never => false,
            Reuse::IfItPays => reuse::pays(&shared, threads)?,
            Reuse::InPlace | Reuse::Always => true,
        };
        if looks && options.decode {
            reuse::reuse(&shared, threads, &options)?;
        }
        let mut lane = Self { shared, options, threads, queue: Some(queue), workers: Vec::new() };
        if options.decode {
            for _ in 0..threads {
                let objects = objects.clone();
                lane.spawn(move |shared| write_all(shared, &objects));
            }
            lane.spawn(move |shared| blank::make_all(shared, options.free));
        }
        Ok(lane)
    }

    /// Bytes of content that were not on the target before.
    pub(super) fn to_write(&self) -> u64 {
        let counters = &self.shared.counters;
        let there = counters.kept.load(Ordering::Relaxed) + counters.moved.load(Ordering::Relaxed);
        self.shared.plan.bytes() - there
    }

    /// Whether a verified object would have to wait.
    pub(super) fn is_full(&self) -> bool {
        self.queue.as_ref().is_some_and(Sender::is_full)
    }

    /// Whether this target has not failed.
    pub(super) fn is_well(&self) -> bool {
        !self.shared.group.is_stopped()
    }

    /// Whether objects are decoded and written.
    pub(super) fn decodes(&self) -> bool {
        self.options.decode
    }

    /// Passes a verified object to the workers, if it is needed. With `wait`, waits while the queue is full.
    pub(super) fn take(&self, id: u64, object: &Verified, wait: bool) -> Taken {
        let shared = &*self.shared;
        // Several threads may offer the same object at the same time; only one of them queues it.
        if !shared.change(id, State::Needed, State::Taken) {
            return Taken::Known;
        }
        if !self.options.decode {
            done(shared, id);
            return Taken::Queued;
        }
        let queue = self.queue.as_ref().expect("the queue is open until the end");
        let item = (id, object.clone());
        let sent = match wait {
            true => queue.send(item).map_err(|unsent| TrySendError::Disconnected(unsent.into_inner())),
            false => queue.try_send(item),
        };
        match sent {
            Ok(()) => Taken::Queued,
            // Another thread filled the queue after the check in `try_offer`.
            Err(TrySendError::Full(_)) => {
                shared.change(id, State::Taken, State::Needed);
                Taken::Full
            }
            Err(TrySendError::Disconnected(_)) => {
                shared.group.fail(Error::new(ErrorKind::Io, "the threads of the install have ended"));
                Taken::Known
            }
        }
    }

    /// Writes `plain`, the content of chunk object `id`, if it is needed; marks it as done without writing if there is
    /// none, since nothing is decoded. An error of the target ends the work on this target.
    pub(super) fn write(&self, id: u64, plain: Option<&[u8]>) {
        let shared = &*self.shared;
        if !self.is_well() || !shared.change(id, State::Needed, State::Taken) {
            return;
        }
        match plain.map_or(Ok(()), |plain| write_everywhere(shared, id, plain)) {
            Ok(()) => done(shared, id),
            Err(error) => shared.group.fail(error),
        }
    }

    /// Waits until all objects that were taken are written and durable. Then reads the target back if
    /// `InstallOptions::verify`, moves the GPT's backup and erases old signatures that are left.
    ///
    /// Errors: the first error of any thread; `Incomplete` if objects are missing; `Verification` if the target differs
    /// from what was written. After an error the target holds a part of the image.
    pub(super) fn finish(mut self) -> Result<InstallReport> {
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

impl Drop for Lane {
    /// Stops the threads and waits for them, so that no thread writes to the target afterwards.
    fn drop(&mut self) {
        self.shared.group.stop();
        self.join();
    }
}

/// An entry of the queue: the number of an object, and the object.
type Item = (u64, Verified);

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
            && let Err(error) = write_one(shared, &mut writer, id, &object)
        {
            shared.group.fail(error);
        }
    }
    Ok(())
}

/// Decodes and writes one verified object that was taken, and marks it as done.
fn write_one(shared: &Shared, writer: &mut Writer, id: u64, object: &Verified) -> Result<()> {
    let chunk = shared.plan.chunk(id).expect("only chunks are taken");
    write_everywhere(shared, id, writer.decode(chunk, object)?)?;
    done(shared, id);
    Ok(())
}

/// Writes the content of chunk object `id` to all its places.
fn write_everywhere(shared: &Shared, id: u64, plain: &[u8]) -> Result<()> {
    let chunk = shared.plan.chunk(id).expect("only chunks are taken");
    chunk.places().try_for_each(|index| shared.write_chunk(chunk, index, plain))?;
    shared.counters.written.fetch_add(chunk.bytes(), Ordering::Relaxed);
    Ok(())
}

/// Marks object `id` as done.
fn done(shared: &Shared, id: u64) {
    shared.change(id, State::Taken, State::Done);
    let bytes = shared.plan.chunk(id).map_or(0, PlannedChunk::bytes);
    shared.progress.advance(Stage::Install, bytes);
}
