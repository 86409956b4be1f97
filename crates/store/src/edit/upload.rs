//! Uploads the objects of one write and publishes its version, under a shared lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::Result;
use bytes::Bytes;
use image::{Manifest, ObjectRef, ObjectSink};

use crate::backend::Created;
use crate::lease::writer::Writer;
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
