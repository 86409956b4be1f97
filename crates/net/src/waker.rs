//! Wakes a thread that waits for its sockets (`eventfd(2)`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A driver waits for it in addition to its sockets; another thread wakes the driver by it.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// A waker without a pending wake-up.
    ///
    /// # Errors
    /// Those of `eventfd(2)`.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Ends the present wait, or the next one.
    pub fn wake(&self) {
        // It fails only if the counter is full; then a wake-up is pending already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Clears all wake-ups. Call it before checking for work, so that no wake-up for later work is lost.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
