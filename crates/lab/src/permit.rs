//! Counted permits for what fills a core by itself, such as a machine in emulation: tests of one program run side by
//! side, more of them than there are cores.

use std::thread::available_parallelism;

use parking_lot::{Condvar, Mutex};

/// Permits that are taken.
static TAKEN: Mutex<usize> = Mutex::new(0);
static RETURNED: Condvar = Condvar::new();

/// One of three permits for each two cores; dropping it gives it back. Whoever holds one does not wait for another.
/// There are more than cores, since who holds one often waits: for a machine to be missed, or for its firmware.
#[derive(Debug)]
pub struct Permit(());

impl Permit {
    /// Waits until one is free.
    #[must_use]
    pub fn take() -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        let mut taken = TAKEN.lock();
        RETURNED.wait_while(&mut taken, |taken| *taken >= cores + cores / 2);
        *taken += 1;
        Self(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *TAKEN.lock() -= 1;
        RETURNED.notify_one();
    }
}
