//! Locks of files that say which process has a disk or a mount.

use std::fs::{File, TryLockError};
use std::time::Duration;

/// How often the lock of another process is tried, and ([`LOCK_PAUSE`]) at what interval: two seconds in all.
const LOCK_LOOKS: u32 = 100;
/// See [`LOCK_LOOKS`].
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Locks `file`, and retries for two seconds: a process that is just ending, or a child that has inherited the file
/// until it runs another program, may still have the lock.
pub(crate) fn hold(file: &File) -> Result<(), TryLockError> {
    for _ in 0..LOCK_LOOKS {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::park_timeout(LOCK_PAUSE),
            done => return done,
        }
    }
    file.try_lock()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_released_within_a_moment_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let first = File::create(&path).unwrap();
        hold(&first).unwrap();
        let second = File::open(&path).unwrap();
        let waits = std::thread::spawn(move || hold(&second));
        drop(first);
        waits.join().unwrap().unwrap();
    }
}
