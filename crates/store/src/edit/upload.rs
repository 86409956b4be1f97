//! Uploads the objects of one write and publishes its version, under a shared lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{Error, ErrorKind, Result};
use bytes::Bytes;
use image::{Manifest, ObjectRef, ObjectSink};

use crate::backend::Created;
use crate::lease::writer::{Writer, again};
use crate::names::ImageName;
use crate::record::Stamp;
use crate::repository::Repository;

/// One write under way.
pub(super) struct Upload<'a> {
    repository: &'a Repository,
    writer: Arc<Writer>,
    bytes: AtomicU64,
}

impl<'a> Upload<'a> {
    /// Call this before reading anything that the write is based on: the lease protects only what is read later.
    pub(super) fn begin(repository: &'a Repository, stamp: &Stamp) -> Result<Self> {
        let writer = Writer::share(repository, &repository.blobs().writer, stamp)?;
        Ok(Self { repository, writer, bytes: AtomicU64::new(0) })
    }

    /// Runs `work` with an upload, and again from its start with a new one if a prune revoked its lease.
    pub(super) fn retrying<T>(
        repository: &Repository,
        stamp: &Stamp,
        work: impl FnMut(&Upload<'_>) -> Result<T>,
    ) -> Result<T> {
        // The lease tells, too: the error may be about an object that the prune has deleted. And the error tells if
        // the lease can't be used since the outcome of another write under it is not known.
        let is_lost = |upload: &Upload<'_>, error: &Error| {
            error.kind() == ErrorKind::Revoked || upload.writer.is_revoked()
        };
        again(|| Upload::begin(repository, stamp), is_lost, || (), work)
    }

    /// Makes everything put before durable; shares one flush with other threads that call this at the same time.
    pub(super) fn flush(&self) -> Result<()> {
        self.repository.flush()
    }

    /// See [`Repository::create_version`].
    pub(super) fn create(&self, image: &ImageName, manifest: &Manifest, bytes: &Bytes) -> Result<Created> {
        self.bytes.fetch_add(bytes.len() as u64, Relaxed);
        self.writer.create(image, manifest, bytes)
    }

    /// Bytes that were sent to the store.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

impl ObjectSink for Upload<'_> {
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        self.writer.contains(object)
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> Result<()> {
        self.bytes.fetch_add(bytes.len() as u64, Relaxed);
        self.writer.put(object, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Location;

    #[test]
    fn a_write_under_a_lease_that_can_not_be_used_any_more_begins_again() {
        let repository = Repository::create(&Location::Memory).unwrap();
        let stamp = Stamp { created: "now".to_owned(), creator: "a test".to_owned() };
        let failing = |kind| {
            let mut starts = 0;
            let error = Upload::retrying(&repository, &stamp, |_| -> Result<()> {
                starts += 1;
                Err(Error::new(kind, "on purpose"))
            });
            (error.unwrap_err().kind(), starts)
        };
        assert_eq!(failing(ErrorKind::Revoked), (ErrorKind::Revoked, 3));
        assert_eq!(failing(ErrorKind::NotFound), (ErrorKind::NotFound, 1));
    }
}
