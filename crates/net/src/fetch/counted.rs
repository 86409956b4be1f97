//! The server as a source of objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{ErrorKind, Result};
use bytes::Bytes;
use image::{ObjectRef, ObjectSource};

use crate::client::Client;

/// The server as a source of objects; counts the bytes that it delivers.
pub(super) struct Counted {
    client: Arc<Client>,
    bytes: AtomicU64,
}

impl Counted {
    pub(super) fn new(client: &Arc<Client>) -> Self {
        Self { client: Arc::clone(client), bytes: AtomicU64::new(0) }
    }

    /// Bytes that were delivered so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl ObjectSource for Counted {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        let bytes = self.client.fetch(object)?;
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    fn mend(&self, object: &ObjectRef, damaged: Vec<u8>) -> Result<Bytes> {
        if damaged.len() != object.len as usize {
            return self.fetch(object);
        }
        let mended = self.client.mended(object, damaged).and_then(|(bytes, sent)| {
            self.bytes.fetch_add(sent, Ordering::Relaxed);
            object.verify(&bytes)?;
            Ok(bytes)
        });
        match mended {
            Err(error) if !matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Stopped) => {
                self.fetch(object)
            }
            mended => mended,
        }
    }
}
