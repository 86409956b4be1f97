//! Some space of the disk that nobody else can use, so that a full repository can free itself: a removal and a prune
//! write records before they free anything. It is a file in the folder of the repository.
//! formats/repository.md, "A full disk".

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use base::Chance;
use rustix::fs::{Mode, OFlags};

/// Name of the file.
const NAME: &str = "reserve";
/// How long it is, unless the disk has no room for it, and how much of it is given at a time.
const BYTES: u64 = 1 << 20;
const PIECE: usize = 128 << 10;

/// See the module.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    /// How many removals and prunes of this process run.
    freeing: AtomicU32,
}

impl Reserve {
    pub(super) fn of(root: &Path) -> Self {
        Self { path: root.join(NAME), freeing: AtomicU32::new(0) }
    }

    /// A removal or a prune begins.
    pub(super) fn begin(&self) {
        self.freeing.fetch_add(1, Relaxed);
    }

    /// It ends.
    pub(super) fn end(&self) {
        self.freeing.fetch_sub(1, Relaxed);
        self.keep();
    }

    /// Makes the file as long as there is room for, unless it is needed now. Without a reserve all works but on a full
    /// disk, so errors do not count.
    pub(super) fn keep(&self) {
        let is_long = || self.path.symlink_metadata().is_ok_and(|found| found.len() >= BYTES);
        if self.freeing.load(Relaxed) == 0 && !is_long() {
            let _ = self.lengthen();
        }
    }

    fn lengthen(&self) -> std::io::Result<()> {
        let file = self.open(true)?;
        // No filesystem stores random bytes in less space.
        let (mut bytes, mut chance) = (vec![0; PIECE], Chance::from_seed(0));
        let mut at = file.metadata()?.len();
        while at < BYTES {
            chance.fill(&mut bytes);
            let piece = &bytes[..PIECE.min(usize::try_from(BYTES - at).unwrap_or(PIECE))];
            file.write_all_at(piece, at)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Gives a piece of the file back to the disk. False if no removal or prune runs, or if nothing is left.
    pub(super) fn give(&self) -> bool {
        self.freeing.load(Relaxed) > 0 && self.shorten().is_ok_and(|given| given)
    }

    fn shorten(&self) -> std::io::Result<bool> {
        let file = self.open(false)?;
        let bytes = file.metadata()?.len();
        file.set_len(bytes.saturating_sub(PIECE as u64))?;
        // A journal keeps blocks until it is committed.
        file.sync_all()?;
        Ok(bytes > 0)
    }

    fn open(&self, creates: bool) -> std::io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let flags = if creates { flags | OFlags::CREATE } else { flags };
        Ok(rustix::fs::open(&self.path, flags, Mode::RUSR | Mode::WUSR)?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_given_only_while_something_is_freed_and_then_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = || std::fs::metadata(folder.path().join(NAME)).map_or(0, |found| found.len());
        let reserve = Reserve::of(folder.path());
        reserve.keep();
        assert_eq!(bytes(), BYTES);
        assert!(!reserve.give());
        reserve.begin();
        let given = std::iter::from_fn(|| reserve.give().then(bytes)).collect::<Vec<_>>();
        assert_eq!(given, (0..8).rev().map(|left| left * PIECE as u64).collect::<Vec<_>>());
        reserve.keep();
        assert_eq!(bytes(), 0, "it is needed now");
        reserve.end();
        assert_eq!(bytes(), BYTES);
    }

    #[test]
    fn something_else_under_its_name_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other");
        std::fs::write(&other, b"of the user").unwrap();
        std::os::unix::fs::symlink(&other, folder.path().join(NAME)).unwrap();
        let reserve = Reserve::of(folder.path());
        reserve.begin();
        assert!(!reserve.give());
        reserve.end();
        assert_eq!(std::fs::read(&other).unwrap(), b"of the user");
    }
}
