//! Collects replies while more requests are already received, and sends them together.

use std::io;

use crate::nbd::transport::Transport;

const BATCH_BYTES: usize = 256 << 10;

/// See the module.
pub(super) struct Batch {
    bytes: Box<[u8]>,
    used: usize,
}

impl Batch {
    /// An empty batch.
    #[must_use]
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; BATCH_BYTES].into(), used: 0 }
    }

    /// Room for a reply of at most `count` bytes. If there is not enough, the collected replies are sent first. Call
    /// [`Batch::keep`] after filling it.
    pub(super) fn room(&mut self, transport: &Transport, count: usize) -> io::Result<&mut [u8]> {
        if self.bytes.len() - self.used < count {
            self.send(transport)?;
        }
        Ok(&mut self.bytes[self.used..][..count])
    }

    /// Adds the first `count` bytes of the last room as a reply.
    pub(super) fn keep(&mut self, count: usize) {
        self.used += count;
        assert!(self.used <= self.bytes.len(), "no more is kept than there is room for");
    }

    /// Adds a reply.
    pub(super) fn push(&mut self, transport: &Transport, reply: &[u8]) -> io::Result<()> {
        self.room(transport, reply.len())?.copy_from_slice(reply);
        self.keep(reply.len());
        Ok(())
    }

    /// Sends the collected replies.
    pub(super) fn send(&mut self, transport: &Transport) -> io::Result<()> {
        if self.used > 0 {
            transport.turn().send(&self.bytes[..self.used])?;
            self.used = 0;
        }
        Ok(())
    }
}
