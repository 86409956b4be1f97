//! Creates a record in a folder, under a name that no other record has.
//!
//! The bytes go into a temporary file beside the name, which is flushed and then gets the name, by the first of these
//! ways that the filesystem has:
//!
//! 1. `link`, which fails if something has the name;
//! 2. a rename with `RENAME_NOREPLACE`: FAT, exFAT and SMB know no links;
//! 3. a look and a rename, under a lock on the folder of the repository. This counts only on a disk of this machine
//!    behind a FUSE driver (exfat-fuse), since the lock holds among the processes of one machine.
//!
//! A file that is created under its name and then written would do without all this. But others would read the first
//! half of it, and a power cut could leave that. See link(2), rename(2), flock(2), proc_pid_mountinfo(5).

use std::fs::File;
use std::io::{ErrorKind as Io, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};
use rustix::fs::{CWD, FlockOperation, RenameFlags};
use rustix::io::Errno;

/// How often the folder for a file is created again, after a prune removed it because it was empty.
pub(super) const FOLDERS_MAX: u32 = 5;
/// What Linux calls a filesystem of a FUSE driver on a block device of this machine.
const LOCAL_FUSE: &str = "fuseblk";

/// Creates the file `name` in the folder `root`, durably, if there is none. `Exists` if something has the name.
/// `Unsupported` if the filesystem can't promise that, or does not keep the name.
pub(super) fn create(root: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let failed = |error: std::io::Error| Error::from_io(format!("create `{name}`"), error);
    let path = root.join(name);
    let draft = Draft::write(root, &path, bytes).map_err(failed)?;
    check_dots(root, name)?;
    match draft.take_name(&path) {
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => draft.take_name_alone(root, &path)?,
        named => named.map_err(|error| failed(error.into()))?,
    }
    sync_folder(folder_of(&path)).map_err(failed)
}

/// A name for a temporary file next to `name`: formats/repository.md, "Durability".
pub(super) fn beside(name: &Path) -> rustix::io::Result<PathBuf> {
    let mut number = [0; 8];
    rustix::rand::getrandom(&mut number, rustix::rand::GetRandomFlags::empty())?;
    let mut beside = name.as_os_str().to_owned();
    beside.push(format!("#{}", u64::from_ne_bytes(number)));
    Ok(beside.into())
}

/// A temporary file, deleted when dropped.
struct Draft(PathBuf);

impl Drop for Draft {
    fn drop(&mut self) {
        // After a rename there is none. If this fails, a prune deletes it.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Draft {
    /// Writes and flushes the temporary file for `path`.
    fn write(root: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<Self> {
        let draft = Self(beside(path)?);
        let mut file = draft.open(root)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(draft)
    }

    fn open(&self, root: &Path) -> std::io::Result<File> {
        let mut opened = File::create_new(&self.0);
        // A prune may remove the folder just after it was created, because it is empty.
        for _ in 0..FOLDERS_MAX {
            if !opened.as_ref().is_err_and(|error| error.kind() == Io::NotFound) {
                break;
            }
            make_folders(root, folder_of(&self.0))?;
            opened = File::create_new(&self.0);
        }
        opened
    }

    /// The first two ways.
    fn take_name(&self, name: &Path) -> rustix::io::Result<()> {
        match rustix::fs::link(&self.0, name) {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
                rustix::fs::renameat_with(CWD, &self.0, CWD, name, RenameFlags::NOREPLACE)
            }
            linked => linked,
        }
    }

    /// The third way.
    fn take_name_alone(&self, root: &Path, name: &Path) -> Result<()> {
        let kind = filesystem_of(root).unwrap_or_default();
        if kind != LOCAL_FUSE {
            let text = format!(
                "its filesystem ({kind}) has no hard links, and no rename that keeps what is there, so writers would \
                 overwrite each other's versions: use a folder of a disk, or the S3 store behind it directly"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let named = || -> std::io::Result<()> {
            // Opened anew, since a lock belongs to an open file.
            let lock = File::open(root)?;
            rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive))?;
            match name.symlink_metadata() {
                Ok(_) => Err(Io::AlreadyExists.into()),
                Err(error) if error.kind() == Io::NotFound => std::fs::rename(&self.0, name),
                Err(error) => Err(error),
            }
        };
        named().map_err(|error| Error::from_io(format!("create `{}`", name.display()), error))
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().expect("a record lies in the folder of a repository")
}

/// Makes `folder`, which is below `root`, and the folders above it, durably.
fn make_folders(root: &Path, folder: &Path) -> std::io::Result<()> {
    if folder == root {
        return Err(Io::NotFound.into());
    }
    let above = folder_of(folder);
    let made = match std::fs::create_dir(folder) {
        Err(error) if error.kind() == Io::NotFound => {
            make_folders(root, above)?;
            std::fs::create_dir(folder)
        }
        made => made,
    };
    match made {
        // The process that made it may not have flushed it yet.
        Err(error) if error.kind() != Io::AlreadyExists => Err(error),
        _ => sync_folder(above),
    }
}

fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

/// FAT, exFAT and Windows drop dots at the end of a name, so that `debian.` would be `debian`.
fn check_dots(root: &Path, name: &str) -> Result<()> {
    let mut folder = root.to_owned();
    for part in name.split('/') {
        let is_kept = || Ok(std::fs::read_dir(&folder)?.flatten().any(|entry| entry.file_name() == *part));
        let failed = |error: std::io::Error| Error::from_io(format!("look for `{part}`"), error);
        if part.ends_with('.') && !is_kept().map_err(failed)? {
            let text = format!("this filesystem drops the dot at the end of `{part}`: choose another name");
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        folder.push(part);
    }
    Ok(())
}

/// What kind of filesystem `folder` is on.
fn filesystem_of(folder: &Path) -> Option<String> {
    let device = folder.metadata().ok()?.dev();
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|mount| {
        let (place, kind) = mount.split_once(" - ")?;
        let is_here = place.split(' ').nth(2) == Some(&device);
        is_here.then(|| kind.split(' ').next().map(str::to_owned))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_given_once_and_leaves_nothing_beside() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        create(root, "a/b/c", b"first").unwrap();
        assert_eq!(create(root, "a/b/c", b"second").unwrap_err().kind(), ErrorKind::Exists);
        assert_eq!(std::fs::read(root.join("a/b/c")).unwrap(), b"first");
        assert_eq!(std::fs::read_dir(root.join("a/b")).unwrap().count(), 1);
        let gone = root.join("gone");
        assert_eq!(create(&gone, "a", b"").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_dot_that_a_filesystem_drops_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        create(root, "versions/debian./1", b"").unwrap();
        std::fs::rename(root.join("versions/debian."), root.join("versions/debian")).unwrap();
        assert_eq!(check_dots(root, "versions/debian./1").unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_network_behind_fuse_is_not_taken_for_a_disk() {
        assert_eq!(filesystem_of(Path::new("/proc")).as_deref(), Some("proc"));
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("name");
        let draft = Draft::write(folder.path(), &name, b"").unwrap();
        let refused = draft.take_name_alone(folder.path(), &name).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
    }
}
