//! What was received and not looked at yet. Payloads go past it into the memory that they are meant for.

use std::io::{self, IoSliceMut};

use crate::nbd::handshake::OPTION_BYTES_MAX;
use crate::nbd::transport::Transport;

/// As large as an option may be, and as some requests with a small payload are together.
const INPUT_BYTES: usize = 2 * OPTION_BYTES_MAX;

/// See the module.
pub(super) struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    /// Nothing was received yet.
    #[must_use]
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; INPUT_BYTES].into(), start: 0, end: 0 }
    }

    /// What is there.
    #[must_use]
    pub(super) fn ready(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Forgets the first `count` bytes of what is there.
    pub(super) fn consume(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "no more is consumed than there is");
        self.start += count;
    }

    /// Receives until `count` bytes are there, at most [`OPTION_BYTES_MAX`]. False if the end comes before.
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

    /// Fills `into`, and keeps what came behind. False if the end comes before.
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

    /// Passes over `count` bytes. False if the end comes before.
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
