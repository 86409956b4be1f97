//! Folders for locks and sockets of programs that run now, which only this user can write.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Folder for locks of programs that run now. All users may write there.
const LOCKS: &str = "/run/lock";

/// This user's folder for `what`.
pub(super) fn folder_for(what: &str) -> io::Result<PathBuf> {
    let locks = if Path::new(LOCKS).is_dir() { PathBuf::from(LOCKS) } else { std::env::temp_dir() };
    own(locks.join(format!("diskcast-{what}-{}", rustix::process::geteuid().as_raw())))
}

/// Makes `folder` if it is missing. An error if it is another's, or others can write there.
pub(super) fn own(folder: PathBuf) -> io::Result<PathBuf> {
    if let Err(error) = DirBuilder::new().mode(0o700).create(&folder)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    let found = folder.symlink_metadata()?;
    let is_own = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
    if !found.is_dir() || !is_own {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "others can write there"));
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks");
        assert_eq!(own(path.clone()).unwrap(), path);
        assert!(own(path.clone()).is_ok(), "it is there");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(own(path).is_err());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        assert!(own(link).is_err());
    }
}
