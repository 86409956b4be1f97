//! Replies that one thread collects while more requests are there already, and sends together.

use std::io;

use crate::nbd::transport::Transport;

const BATCH_BYTES: usize = 256 << 10;

/// See the module.
pub(super) struct Batch {
    bytes: Box<[u8]>,
    used: usize,
}

impl Batch {
    /// Empty.
    #[must_use]
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; BATCH_BYTES].into(), used: 0 }
    }

    /// Room for a reply of `count` bytes at most, after sending what would be too much. [`Batch::keep`] takes it in.
    pub(super) fn room(&mut self, transport: &Transport, count: usize) -> io::Result<&mut [u8]> {
        if self.bytes.len() - self.used < count {
            self.send(transport)?;
        }
        Ok(&mut self.bytes[self.used..][..count])
    }

    /// The first `count` bytes of the room last given are a reply.
    pub(super) fn keep(&mut self, count: usize) {
        self.used += count;
        assert!(self.used <= self.bytes.len(), "no more is kept than there is room for");
    }

    /// Takes in a reply.
    pub(super) fn push(&mut self, transport: &Transport, reply: &[u8]) -> io::Result<()> {
        self.room(transport, reply.len())?.copy_from_slice(reply);
        self.keep(reply.len());
        Ok(())
    }

    /// Sends what there is.
    pub(super) fn send(&mut self, transport: &Transport) -> io::Result<()> {
        if self.used > 0 {
            transport.turn().send(&self.bytes[..self.used])?;
            self.used = 0;
        }
        Ok(())
    }
}
