//! Folders for locks and sockets of programs that run now. Only this user can write there: in a folder of all users
//! anybody could have made these names before, as links to files of others, or hold their locks.

use std::fs::{DirBuilder, Metadata};
use std::io::ErrorKind as IoKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};

/// Root's folder.
const SYSTEM: &str = "/run/diskcast";
/// Bits of a mode: who else may write, who else may do anything, and the sticky bit, with which only owners of names
/// change them.
const WRITABLE: u32 = 0o022;
const ALL: u32 = 0o077;
const STICKY: u32 = 0o1000;

/// This user's folder for `what`, made with mode 0700 if it is missing. `Refused` if others can do anything there.
pub(crate) fn folder_for(what: &str) -> Result<PathBuf> {
    // An administrator may let a group into the folder above, for sockets of disks (docs/attached-disks.md).
    own(own(place(), WRITABLE)?.join(what), ALL)
}

fn place() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return SYSTEM.into();
    }
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    // Who became another user may have the variable of the one before.
    let is_ours = |path: &PathBuf| path.metadata().is_ok_and(|found| is_own(&found));
    match named.filter(is_ours) {
        Some(folder) => folder.join("diskcast"),
        None => std::env::temp_dir().join(format!("diskcast-{}", user.as_raw())),
    }
}

/// Makes `folder` if it is missing. `Refused` if it is another's or a link, if its mode has bits of `denied`, or if
/// others can rename it.
fn own(folder: PathBuf, denied: u32) -> Result<PathBuf> {
    let failed = |error| Error::from_io(format!("make the folder `{}`", folder.display()), error);
    if let Err(error) = DirBuilder::new().mode(0o700).create(&folder)
        && error.kind() != IoKind::AlreadyExists
    {
        return Err(failed(error));
    }
    let above = folder.parent().unwrap_or(Path::new("/")).metadata().map_err(failed)?;
    let found = folder.symlink_metadata().map_err(failed)?;
    let can_be_renamed = above.mode() & WRITABLE != 0 && above.mode() & STICKY == 0;
    let has_good_owner = above.uid() == 0 || is_own(&above);
    let is_private = found.is_dir() && is_own(&found) && found.mode() & denied == 0;
    if is_private && has_good_owner && !can_be_renamed {
        return Ok(folder);
    }
    let text = format!(
        "`{}` is for this user alone, but others can change it: remove it, or let XDG_RUNTIME_DIR name another folder",
        folder.display()
    );
    Err(Error::new(ErrorKind::Refused, text))
}

fn is_own(found: &Metadata) -> bool {
    found.uid() == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_folder_that_others_can_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks");
        assert_eq!(own(path.clone(), ALL).unwrap(), path);
        assert!(own(path.clone(), ALL).is_ok(), "it is there");
        for (mode, is_good) in [(0o2750, true), (0o755, true), (0o770, false), (0o777, false)] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(own(path.clone(), WRITABLE).is_ok(), is_good, "{mode:o}");
            assert_eq!(own(path.clone(), ALL).unwrap_err().kind(), ErrorKind::Refused);
        }
        let link = folder.path().join("link");
        symlink(folder.path(), &link).unwrap();
        assert!(own(link, ALL).is_err(), "a link leads where somebody else wants");
        set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        // Who can rename a folder can put another one in its place, unless the sticky bit is set as in /tmp.
        for (mode, is_good) in [(0o777, false), (0o1777, true), (0o770, false), (0o755, true)] {
            set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            assert_eq!(own(path.clone(), ALL).is_ok(), is_good, "{mode:o}");
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            assert!(own(path, ALL).is_err(), "another user made it first");
        }
    }
}
