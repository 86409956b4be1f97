//! Programs of one machine that bring the same image to hosts at the same time meet, so that their hosts share one
//! transfer. Each has a file under a lock while its host is on the way; of a program that is killed the kernel takes
//! the lock.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Digest;

use super::private;
use crate::clock::{Clock, Stop};

/// How often it is looked whether others are still on the way; more seldom if they are many, since all of them look.
const LOOK: Duration = Duration::from_millis(10);
/// Digits of an image's digest that name it here.
const NAME_DIGITS: usize = 32;

/// Where programs meet that bring one image to hosts.
#[derive(Debug, Clone)]
pub struct Meeting {
    folder: PathBuf,
    image: String,
    times: Times,
}

/// How long who has arrived waits for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// At most.
    pub window: Duration,
    /// Since another one arrived: hosts that log in at the same time arrive one after the other, and one that is away
    /// shall not keep all of them.
    pub quiet: Duration,
}

/// A host that is on the way. Dropped when it has arrived, or never will.
#[derive(Debug)]
pub(super) struct OnTheWay {
    _lock: File,
    path: PathBuf,
}

impl Meeting {
    /// Where the programs of this user meet that bring the version whose root is `image`.
    ///
    /// # Errors
    /// If there is no folder for it that only this user can write.
    pub fn of(image: Digest, times: Times) -> io::Result<Self> {
        Ok(Self::in_folder(private::folder_for("meetings")?, image, times))
    }

    fn in_folder(folder: PathBuf, image: Digest, times: Times) -> Self {
        Self { folder, image: image.to_hex()[..NAME_DIGITS].to_owned(), times }
    }

    /// A host is on the way.
    pub(super) fn set_out(&self) -> io::Result<OnTheWay> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let own = format!("{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let draft = self.folder.join(format!("draft.{own}"));
        let path = self.folder.join(format!("{}.{own}", self.image));
        let lock = File::create(&draft)?;
        lock.lock()?;
        // Under its name only when it is locked: what is not is removed by others.
        std::fs::rename(&draft, &path)?;
        Ok(OnTheWay { _lock: lock, path })
    }

    /// Waits until nobody is on the way any more, no longer than the meeting's times, or until `stop` is set.
    pub(super) fn wait(&self, stop: &Stop) {
        let clock = Clock::start();
        let (mut come, mut changed) = (self.others(), Duration::ZERO);
        let pause = |come: usize| LOOK * u32::try_from(come / 4 + 1).unwrap_or(1);
        while come > 0 && clock.elapsed() < self.times.window && stop.pause(pause(come)) {
            let others = self.others();
            if others != come {
                (come, changed) = (others, clock.elapsed());
            }
            if clock.elapsed().saturating_sub(changed) >= self.times.quiet {
                return;
            }
        }
    }

    /// How many are on the way.
    fn others(&self) -> usize {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return 0 };
        let of_image = entries.flatten().filter(|entry| {
            entry.file_name().to_string_lossy().split('.').next().is_some_and(|image| image == self.image)
        });
        of_image.filter(|entry| is_on_the_way(&entry.path())).count()
    }
}

/// Whether the program of this file runs. The file of one that does not is removed.
fn is_on_the_way(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => true,
        Ok(()) => {
            let _ = std::fs::remove_file(path);
            false
        }
        Err(TryLockError::Error(_)) => false,
    }
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);
    const TIMES: Times = Times { window: LONG, quiet: LONG };

    #[test]
    fn who_has_arrived_waits_for_those_on_the_way_and_for_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let meeting = |image: &[u8]| Meeting::in_folder(folder.path().to_owned(), Digest::of(image), TIMES);
        let (one, other) = (meeting(b"one"), meeting(b"other"));
        let _elsewhere = other.set_out().unwrap();
        one.wait(&Stop::new());

        let late = one.set_out().unwrap();
        assert_eq!(one.others(), 1);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| one.wait(&Stop::new()));
            assert!(!waits.is_finished());
            drop(late);
        });
        assert_eq!(one.others(), 0);

        // As after SIGKILL: the file is there, and nobody holds its lock.
        let path = folder.path().join(format!("{}.1.1", one.image));
        File::create(&path).unwrap();
        one.wait(&Stop::new());
        assert!(!path.exists());
    }

    #[test]
    fn a_stop_and_the_window_end_the_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let meeting = Meeting::in_folder(path.clone(), Digest::of(b"image"), TIMES);
        let _hangs = meeting.set_out().unwrap();
        let stop = Stop::new();
        stop.stop();
        meeting.wait(&stop);
        // One of many is away.
        let no_longer =
            |times| Meeting::in_folder(path.clone(), Digest::of(b"image"), times).wait(&Stop::new());
        no_longer(Times { window: Duration::ZERO, ..TIMES });
        no_longer(Times { quiet: Duration::ZERO, ..TIMES });
    }
}
