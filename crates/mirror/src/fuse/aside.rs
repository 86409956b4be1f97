//! Disks of versions that stood in the cache folder in the place of another one: of another repository, or with a
//! journal that can't be read. Their sources may be away, so they are set aside and go first when room is needed.
//!
//! ```text
//! FOLDER/aside/NAME@NUMBER-COPY/   what was in versions/NAME/NUMBER
//! ```

use std::fs::DirEntry;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::{Error, Result};

/// Most disks of one version that are set aside; the last one gives way.
const COPIES_MAX: u32 = 16;

fn folder(cache: &Path) -> PathBuf {
    cache.join("aside")
}

/// Moves the disk of a version out of the way.
pub(super) fn set_aside(cache: &Path, disk: &Path, name: &str) -> Result<()> {
    let failed = |error: io::Error| Error::from_io(format!("set `{}` aside", disk.display()), error);
    let aside = folder(cache);
    std::fs::create_dir_all(&aside).map_err(failed)?;
    let place = |copy: u32| aside.join(format!("{name}-{copy}"));
    let target =
        (1..COPIES_MAX).map(place).find(|place| !place.exists()).unwrap_or_else(|| place(COPIES_MAX));
    if target.exists() {
        std::fs::remove_dir_all(&target).map_err(failed)?;
    }
    std::fs::rename(disk, &target).map_err(failed)
}

/// The disks that were set aside, with their sizes in bytes.
pub(super) fn all(cache: &Path) -> Vec<(PathBuf, u64)> {
    let entries = std::fs::read_dir(folder(cache)).into_iter().flatten().flatten();
    let disk = |entry: DirEntry| {
        let bytes = std::fs::metadata(entry.path().join("data")).map_or(0, |data| data.blocks() * 512);
        (entry.path(), bytes)
    };
    entries.map(disk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_set_aside_stays_until_many_of_the_same_version_come() {
        let cache = tempfile::tempdir().unwrap();
        let disk = cache.path().join("versions/web/1");
        for number in 0..COPIES_MAX + 2 {
            std::fs::create_dir_all(&disk).unwrap();
            std::fs::write(disk.join("data"), vec![1; 5000 + number as usize]).unwrap();
            set_aside(cache.path(), &disk, "web@1").unwrap();
            assert!(!disk.exists());
        }
        let all = all(cache.path());
        assert_eq!(all.len(), COPIES_MAX as usize);
        assert!(all.iter().all(|(path, bytes)| path.join("data").exists() && *bytes >= 4096));
    }
}
