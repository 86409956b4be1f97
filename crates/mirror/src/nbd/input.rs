//! The buffer of received bytes that were not parsed yet. Payloads bypass it and go directly into their own memory.

use std::io::{self, IoSliceMut};

use crate::nbd::handshake::OPTION_BYTES_MAX;
use crate::nbd::transport::Transport;

/// Large enough for the longest option, and for several requests with small payloads.
const INPUT_BYTES: usize = 2 * OPTION_BYTES_MAX;

/// See the module.
pub(super) struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    /// An empty buffer.
    #[must_use]
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; INPUT_BYTES].into(), start: 0, end: 0 }
    }

    /// The received bytes.
    #[must_use]
    pub(super) fn ready(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Removes the first `count` received bytes.
    pub(super) fn consume(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "no more is consumed than there is");
        self.start += count;
    }

    /// Receives until there are `count` bytes, at most [`OPTION_BYTES_MAX`]. False if the connection ends before.
    pub(super) fn fill(&mut self, transport: &Transport, count: usize) -> io::Result<bool> {
        assert!(count <= OPTION_BYTES_MAX, "there is room for what is asked");
        if self.start == self.end || self.bytes.len() - self.start < count {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.ready().len() < count {
            match transport.receive(&mut [IoSliceMut::new(&mut self.bytes[self.end..])])? {
                0 => return Ok(false),
                received => self.end += received,
            }
        }
        Ok(true)
    }

    /// Fills `into`, and keeps bytes that were received after it. False if the connection ends before.
    pub(super) fn take(&mut self, transport: &Transport, mut into: &mut [u8]) -> io::Result<bool> {
        let count = into.len().min(self.ready().len());
        into[..count].copy_from_slice(&self.ready()[..count]);
        self.consume(count);
        into = &mut into[count..];
        while !into.is_empty() {
            (self.start, self.end) = (0, 0);
            let parts = &mut [IoSliceMut::new(into), IoSliceMut::new(&mut self.bytes)];
            let received = transport.receive(parts)?;
            if received == 0 {
                return Ok(false);
            }
            let filled = received.min(into.len());
            self.end = received - filled;
            into = &mut into[filled..];
        }
        Ok(true)
    }

    /// Skips `count` bytes. False if the connection ends before.
    pub(super) fn skip(&mut self, transport: &Transport, mut count: usize) -> io::Result<bool> {
        loop {
            let passed = count.min(self.ready().len());
            self.consume(passed);
            count -= passed;
            if count == 0 {
                return Ok(true);
            }
            if !self.fill(transport, 1)? {
                return Ok(false);
            }
        }
    }
}
