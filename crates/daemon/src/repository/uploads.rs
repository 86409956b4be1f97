//! The running uploads. Each has a repository writer, whose lease keeps prunes from deleting objects that the client
//! has sent but not published yet.

use std::sync::Arc;
use std::time::Duration;

use base::{Instant, Result};
use net::clock::Clock;
use parking_lot::{Mutex, MutexGuard};
use store::{Repository, Stamp, Writer};

use crate::clock;

/// Maximum number of uploads; a new one replaces the upload that was idle for longest.
const UPLOADS_MAX: usize = 256;
/// An upload ends after this time without a request, by a clock that nobody sets.
const IDLE: Duration = Duration::from_secs(600);
/// Interval of a writer's heartbeats. Only requests trigger them, so the lease of an abandoned upload expires.
const BEAT: Duration = Duration::from_secs(60);

struct Upload {
    name: String,
    writer: Arc<Writer>,
    used: Instant,
    beaten: Instant,
}

/// The writers of uploads, by the names that the clients chose.
pub(crate) struct Uploads {
    running: Mutex<Vec<Upload>>,
    clock: Clock,
}

impl Uploads {
    /// No uploads.
    pub(crate) fn new() -> Self {
        Self { running: Mutex::default(), clock: Clock::start() }
    }

    /// The writer of the upload `name`; starts the upload if it does not run. Blocks.
    pub(crate) fn writer(&self, repository: &Repository, name: &str) -> Result<Arc<Writer>> {
        let now = self.clock.now();
        let mut uploads = self.uploads();
        uploads.retain(|upload| now.since(upload.used) < IDLE && !upload.writer.is_revoked());
        if let Some(upload) = uploads.iter_mut().find(|upload| upload.name == name) {
            upload.used = now;
            let writer = Arc::clone(&upload.writer);
            let is_due = now.since(upload.beaten) >= BEAT;
            if is_due {
                upload.beaten = now;
            }
            // The heartbeat writes to the repository, so the lock is released first.
            drop(uploads);
            if is_due {
                writer.beat()?;
            }
            return Ok(writer);
        }
        if uploads.len() == UPLOADS_MAX {
            let oldest = uploads.iter().enumerate().min_by_key(|(_, upload)| upload.used).map(|(at, _)| at);
            oldest.into_iter().for_each(|at| drop(uploads.swap_remove(at)));
        }
        let stamp = Stamp { created: clock::now_rfc3339(), creator: format!("upload {name}") };
        let writer = Arc::new(Writer::begin_without_heartbeat(repository, &stamp)?);
        let name = name.to_owned();
        uploads.push(Upload { name, writer: Arc::clone(&writer), used: now, beaten: now });
        Ok(writer)
    }

    /// Forgets the upload `name`. Its writer ends with its last running request.
    pub(crate) fn end(&self, name: &str) {
        self.uploads().retain(|upload| upload.name != name);
    }

    fn uploads(&self) -> MutexGuard<'_, Vec<Upload>> {
        self.running.lock()
    }
}
