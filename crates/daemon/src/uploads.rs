//! Uploads under way: the writer of each, so that no prune deletes what its client has sent and not published yet.

use std::sync::Arc;

use base::Result;
use parking_lot::{Mutex, MutexGuard};
use store::{Repository, Stamp, Writer};

use crate::clock;

/// Most uploads that are remembered; the one that was quiet for longest goes.
const UPLOADS_MAX: usize = 256;
/// After so many seconds without a request an upload is over.
const IDLE_SECONDS: u64 = 600;
/// How often a writer says that it lives, as long as requests come. One whose client is gone falls silent by itself.
const BEAT_SECONDS: u64 = 60;

struct Upload {
    name: String,
    writer: Arc<Writer>,
    used: u64,
    beaten: u64,
}

/// The writers of uploads, by the names that clients gave them.
#[derive(Default)]
pub(crate) struct Uploads(Mutex<Vec<Upload>>);

impl Uploads {
    /// The writer of the upload `name`, which begins if there is none. Blocks.
    pub(crate) fn writer(&self, repository: &Repository, name: &str) -> Result<Arc<Writer>> {
        let now = clock::unix_seconds();
        let mut uploads = self.uploads();
        uploads
            .retain(|upload| now.saturating_sub(upload.used) < IDLE_SECONDS && !upload.writer.is_revoked());
        if let Some(upload) = uploads.iter_mut().find(|upload| upload.name == name) {
            upload.used = now;
            let writer = Arc::clone(&upload.writer);
            let is_due = now.saturating_sub(upload.beaten) >= BEAT_SECONDS;
            if is_due {
                upload.beaten = now;
            }
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

    /// Forgets the upload `name`, whose writer ends with its last request.
    pub(crate) fn end(&self, name: &str) {
        self.uploads().retain(|upload| upload.name != name);
    }

    fn uploads(&self) -> MutexGuard<'_, Vec<Upload>> {
        self.0.lock()
    }
}
