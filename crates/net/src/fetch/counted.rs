//! The server as a source of objects, and what of them has arrived.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{ErrorKind, Result};
use bytes::Bytes;
use image::{ObjectRef, ObjectSource};

use crate::client::Client;

/// Bytes that have arrived, to be shown while a fetch runs.
#[derive(Debug, Default)]
pub struct Arrived {
    multicast: AtomicU64,
    peers: AtomicU64,
    unicast: AtomicU64,
}

impl Arrived {
    /// Payload of blocks that came by multicast, each counted once. Blocks of incomplete objects are included.
    #[must_use]
    pub fn multicast_bytes(&self) -> u64 {
        self.multicast.load(Ordering::Relaxed)
    }

    /// Bytes of objects that came from other machines.
    #[must_use]
    pub fn peer_bytes(&self) -> u64 {
        self.peers.load(Ordering::Relaxed)
    }

    /// Bytes of objects that came from the server by unicast.
    #[must_use]
    pub fn unicast_bytes(&self) -> u64 {
        self.unicast.load(Ordering::Relaxed)
    }

    /// By multicast, from other machines, and from the server by unicast.
    #[must_use]
    pub fn ways(&self) -> [u64; 3] {
        [self.multicast_bytes(), self.peer_bytes(), self.unicast_bytes()]
    }

    /// All together.
    #[must_use]
    pub fn all_bytes(&self) -> u64 {
        self.ways().into_iter().fold(0, u64::saturating_add)
    }

    /// Counts `bytes` that came by unicast.
    pub fn add_unicast(&self, bytes: u64) {
        self.unicast.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn add_peers(&self, bytes: u64) {
        self.peers.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn add_multicast(&self, bytes: u64) {
        self.multicast.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// A source whose objects come from a server by unicast, for an install without a fetch.
pub struct Counting<'a> {
    source: &'a dyn ObjectSource,
    arrived: &'a Arrived,
}

impl<'a> Counting<'a> {
    /// `source`, whose bytes are counted in `arrived`.
    #[must_use]
    pub fn new(source: &'a dyn ObjectSource, arrived: &'a Arrived) -> Self {
        Self { source, arrived }
    }
}

impl ObjectSource for Counting<'_> {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        let bytes = self.source.fetch(object)?;
        self.arrived.add_unicast(bytes.len() as u64);
        Ok(bytes)
    }
}

/// The server as a source of objects; counts the bytes that it delivers.
pub(super) struct Counted {
    client: Arc<Client>,
    bytes: AtomicU64,
    arrived: Arc<Arrived>,
}

impl Counted {
    pub(super) fn new(client: &Arc<Client>, arrived: &Arc<Arrived>) -> Self {
        Self { client: Arc::clone(client), bytes: AtomicU64::new(0), arrived: Arc::clone(arrived) }
    }

    /// Bytes that were delivered so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.arrived.add_unicast(bytes);
    }
}

impl ObjectSource for Counted {
    fn fetch(&self, object: &ObjectRef) -> Result<Bytes> {
        let bytes = self.client.fetch(object)?;
        self.add(bytes.len() as u64);
        Ok(bytes)
    }

    fn mend(&self, object: &ObjectRef, damaged: Vec<u8>) -> Result<Bytes> {
        if damaged.len() != object.len as usize {
            return self.fetch(object);
        }
        let mended = self.client.mended(object, damaged).and_then(|(bytes, sent)| {
            self.add(sent);
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
