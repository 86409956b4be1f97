//! Makes changes durable. Threads that come while a commit runs share the next one: whoever finds none running does it
//! for all that wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex};

use super::file::ObjectFile;
use super::tables::{Change, Tables};

/// A change, and the file whose content must be durable before it.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) change: Change,
    pub(super) file: Option<Arc<ObjectFile>>,
}

/// The batch in which a change is made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// The queue of changes.
#[derive(Debug)]
pub(super) struct Commits {
    tables: Arc<Tables>,
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pending: Vec<Pending>,
    /// The batch that `pending` will be.
    next: u64,
    /// Batches before this one are durable.
    durable: u64,
    running: bool,
    /// Why nothing can be made durable any more. What the disk holds is then unknown until the next start.
    broken: Option<String>,
}

impl Commits {
    pub(super) fn new(tables: Arc<Tables>) -> Self {
        Self { tables, state: Mutex::default(), done: Condvar::new() }
    }

    /// Takes changes, in this order behind all that were taken before. They are durable after [`Self::wait`].
    pub(super) fn enqueue(&self, changes: Vec<Pending>) -> Ticket {
        let mut state = self.state.lock();
        state.pending.extend(changes);
        Ticket(state.next)
    }

    /// Waits until the changes of `ticket` are durable.
    ///
    /// # Errors
    /// `Io` if the disk failed: then the device takes no change any more.
    pub(super) fn wait(&self, ticket: Ticket) -> Result<()> {
        let mut state = self.state.lock();
        loop {
            if state.durable > ticket.0 {
                return Ok(());
            }
            if let Some(why) = &state.broken {
                let text = format!(
                    "the device's disk failed earlier ({why}); it takes changes again after a restart"
                );
                return Err(Error::new(ErrorKind::Io, text));
            }
            if state.running {
                self.done.wait(&mut state);
                continue;
            }
            state.running = true;
            let batch = std::mem::take(&mut state.pending);
            state.next += 1;
            drop(state);
            let outcome = self.commit(batch);
            state = self.state.lock();
            state.running = false;
            match outcome {
                Ok(()) => state.durable = state.next,
                Err(error) => state.broken = Some(with_cause(&error)),
            }
            self.done.notify_all();
        }
    }

    /// Makes changes durable that are complete in themselves.
    pub(super) fn now(&self, changes: Vec<Change>) -> Result<()> {
        let pending = changes.into_iter().map(|change| Pending { change, file: None }).collect();
        self.wait(self.enqueue(pending))
    }

    /// Why the device takes no changes, if it does not.
    pub(super) fn broken(&self) -> Option<String> {
        self.state.lock().broken.clone()
    }

    fn commit(&self, batch: Vec<Pending>) -> Result<()> {
        let mut files: BTreeMap<*const ObjectFile, Arc<ObjectFile>> = BTreeMap::new();
        for pending in &batch {
            if let Some(file) = &pending.file {
                files.insert(Arc::as_ptr(file), Arc::clone(file));
            }
        }
        files.values().try_for_each(|file| file.sync())?;
        self.tables.apply(batch.into_iter().map(|pending| pending.change).collect())
    }
}

fn with_cause(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
