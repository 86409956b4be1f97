//! A version that is read for long, such as one that a server sends to machines. What it needs stays until the reading
//! ends, even if the version is removed and a prune runs. To a prune, whoever reads is a writer that adds nothing.
//! formats/repository.md, "Readers".

use std::sync::Arc;

use base::{Error, ErrorKind, Result};

use crate::layout;
use crate::lease::{Heartbeat, Lease, Purpose};
use crate::names::ImageName;
use crate::record::Stamp;
use crate::repository::Repository;

/// See the module. Drop it when the reading has ended.
#[derive(Debug)]
pub struct Reading {
    repository: Repository,
    image: ImageName,
    number: u64,
    // Declared before the lease, so that it is dropped and stopped before the lease is closed.
    _heartbeat: Heartbeat,
    lease: Arc<Lease>,
}

impl Reading {
    /// Begins to read `image@number`. `stamp` shows users who reads and since when. `NotFound` if the version was
    /// removed before. `Refused` where this program may not write, or has no key of an encrypted repository: then
    /// nothing protects the version.
    pub fn begin(repository: &Repository, image: &ImageName, number: u64, stamp: &Stamp) -> Result<Self> {
        let reads = Some(format!("{image}@{number}"));
        let (lease, _) = Lease::take_to_read(repository, Purpose::Write, stamp, reads)?;
        let lease = Arc::new(lease);
        // A prune that does not know of the lease began before, and deletes what was removed before that.
        if !is_there(repository, image, number)? {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("the version `{image}@{number}` was removed"),
            ));
        }
        let heartbeat = Heartbeat::start(Arc::clone(&lease))?;
        Ok(Self {
            repository: repository.clone(),
            image: image.clone(),
            number,
            _heartbeat: heartbeat,
            lease,
        })
    }

    /// Goes on under a new lease if a prune has begun since, so that this prune does not wait for the reading; but if
    /// the version was removed, the prune does. Returns whether the version is still there. Call it every few seconds.
    /// `Revoked` if a prune took this program for dead.
    pub fn renew(&mut self, stamp: &Stamp) -> Result<bool> {
        let (repository, is_open) = (&self.repository, self.lease.is_open());
        if is_open && !repository.backend.exists(&layout::prune_begin(self.lease.epoch() + 1))? {
            return Ok(true);
        }
        if is_open && !is_there(repository, &self.image, self.number)? {
            return Ok(false);
        }
        match Self::begin(repository, &self.image, self.number, stamp) {
            Err(error) if is_open && error.kind() == ErrorKind::NotFound => Ok(false),
            next => {
                *self = next?;
                Ok(true)
            }
        }
    }
}

/// Whether the version exists and is not removed. A prune deletes the manifest of a removed version before its
/// tombstone.
fn is_there(repository: &Repository, image: &ImageName, number: u64) -> Result<bool> {
    let exists = |path| repository.backend.exists(&path);
    Ok(!exists(layout::removed(image, number))? && exists(layout::version(image, number))?)
}
