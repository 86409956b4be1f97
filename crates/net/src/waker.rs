//! Wakes a thread that waits for its sockets, from another thread (`eventfd(2)`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// One of the things that a driver waits for, beside its sockets.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// One that nobody has woken yet.
    ///
    /// # Errors
    /// Those of `eventfd(2)`.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Ends the wait that is going on, or the next.
    pub fn wake(&self) {
        // It fails only when the counter is full: then a wake-up is pending already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Forgets all wake-ups so far; to be called before looking at what they are about.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
