//! Digests of versions as files, in the algorithms that clients of images compare. Each is computed once, when somebody
//! asks for it, and kept in the server's folder: a version never changes, and neither does its file.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use base::{Error, ErrorKind, Result};
use md5::{Digest as _, Md5};
use parking_lot::Mutex;
use ring::digest::{Context as Sha, SHA256, SHA512};
use serde::{Deserialize, Serialize};
use store::Form;
use tokio::sync::{Semaphore, watch};

use super::key::FileKey;
use crate::private_file::{make_folder, read_private, write_private};

/// Files whose digests are computed or wait for it.
const JOBS_MAX: usize = 256;
/// What is read and hashed at a time.
const PIECE_BYTES: u64 = 8 << 20;

/// The length of a file, and its digests in hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sums {
    pub bytes: u64,
    pub md5: String,
    pub sha256: String,
    pub sha512: String,
}

/// What became of a job; `None` while it is not done.
pub(crate) type Outcome = Option<std::result::Result<Arc<Sums>, String>>;

/// The digests that are kept, and those that are being computed.
pub(crate) struct Checksums {
    folder: PathBuf,
    jobs: Mutex<HashMap<FileKey, watch::Receiver<Outcome>>>,
    /// One file at a time: others wait, and answers to clients go on.
    turn: Semaphore,
    is_over: AtomicBool,
}

impl Checksums {
    /// The digests in `folder`, which is made if it is missing.
    pub(crate) fn of(folder: PathBuf) -> Result<Self> {
        make_folder(&folder)?;
        let (jobs, turn) = (Mutex::default(), Semaphore::new(1));
        Ok(Self { folder, jobs, turn, is_over: AtomicBool::new(false) })
    }

    /// The digests of the file, if they are kept. Blocks. A damaged record counts as none.
    pub(crate) fn known(&self, key: &FileKey) -> Option<Sums> {
        read_private(&self.path(key)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok())
    }

    /// The job that computes the digests of `form`, begun now if there is none. `None` if there are too many. Call it
    /// on a thread of the runtime.
    pub(crate) fn begin(
        self: &Arc<Self>,
        form: Arc<Form>,
        key: &FileKey,
    ) -> Option<watch::Receiver<Outcome>> {
        let mut jobs = self.jobs.lock();
        if let Some(running) = jobs.get(key) {
            return Some(running.clone());
        }
        if jobs.len() >= JOBS_MAX {
            return None;
        }
        let (done, outcome) = watch::channel(None);
        jobs.insert(key.clone(), outcome.clone());
        let (all, key) = (Arc::clone(self), key.clone());
        tokio::spawn(async move {
            let turn = all.turn.acquire().await.expect("the semaphore is never closed");
            let (here, of) = (Arc::clone(&all), key.clone());
            let work = tokio::task::spawn_blocking(move || here.compute_and_keep(&form, &of));
            let computed = match work.await {
                Ok(computed) => computed.map(Arc::new).map_err(|error| base::chain(&error)),
                Err(_) => Err("the computation of a checksum failed unexpectedly".to_owned()),
            };
            drop(turn);
            all.jobs.lock().remove(&key);
            done.send_replace(Some(computed));
        });
        Some(outcome)
    }

    /// Ends all jobs.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Relaxed);
    }

    fn compute_and_keep(&self, form: &Form, key: &FileKey) -> Result<Sums> {
        let sums = compute(form, &self.is_over)?;
        let text = serde_json::to_string(&sums).expect("digests are plain data");
        write_private(&self.path(key), &text)?;
        Ok(sums)
    }

    fn path(&self, key: &FileKey) -> PathBuf {
        self.folder.join(key.to_string())
    }
}

/// Reads all of the file. While one piece is hashed by each algorithm on a thread of its own, the next one is read.
/// `Stopped` if `is_over` becomes true; errors of reading.
fn compute(form: &Form, is_over: &AtomicBool) -> Result<Sums> {
    let bytes = form.file_bytes();
    let (mut md5, mut sha256, mut sha512) = (Md5::new(), Sha::new(&SHA256), Sha::new(&SHA512));
    let read = |offset: u64| -> Result<Vec<u8>> {
        let len = usize::try_from((bytes - offset).min(PIECE_BYTES)).expect("a piece fits memory");
        let mut piece = vec![0; len];
        form.read_at(offset, &mut piece)?;
        Ok(piece)
    };
    let (mut piece, mut next) = (read(0)?, PIECE_BYTES);
    while !piece.is_empty() {
        if is_over.load(Relaxed) {
            return Err(Error::new(ErrorKind::Stopped, "the server stops"));
        }
        piece = std::thread::scope(|scope| {
            scope.spawn(|| md5.update(&piece));
            scope.spawn(|| sha256.update(&piece));
            scope.spawn(|| sha512.update(&piece));
            read(next.min(bytes))
        })?;
        next = next.saturating_add(PIECE_BYTES);
    }
    Ok(Sums {
        bytes,
        md5: base::hex::encode(&md5.finalize()),
        sha256: base::hex::encode(sha256.finish().as_ref()),
        sha512: base::hex::encode(sha512.finish().as_ref()),
    })
}
