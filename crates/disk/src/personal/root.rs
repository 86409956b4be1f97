//! Files below a folder that somebody else filled: no symbolic link in it leads out of it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use base::{Error, Result};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, openat2, statat, unlinkat,
};
use rustix::io::Errno;

/// The longest file that is read.
const BYTES_MAX: u64 = 4 << 20;

/// A folder that all paths begin at, and that none leaves.
pub(super) struct Root(OwnedFd);

impl Root {
    pub(super) fn at(folder: &Path) -> Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat2(CWD, folder, flags, Mode::empty(), ResolveFlags::empty());
        opened.map(Self).map_err(|error| failed("open", folder, error))
    }

    /// The folder `name` in this one. `None` if there is none, if it is a symbolic link, or if something is mounted
    /// there.
    pub(super) fn below(&self, name: &str) -> Option<Self> {
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let name = if name.is_empty() { "." } else { name };
        openat2(&self.0, name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), how).ok().map(Self)
    }

    fn open(&self, path: &Path, flags: OFlags, mode: u32) -> rustix::io::Result<OwnedFd> {
        // Never waits: a file may be a named pipe. To look at it does not open it.
        let still = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
        let flags = flags | OFlags::CLOEXEC | still;
        let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(mode) } else { Mode::empty() };
        openat2(&self.0, path, flags, mode, ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
    }

    /// Whether something is at `path`.
    pub(super) fn has(&self, path: impl AsRef<Path>) -> bool {
        self.open(path.as_ref(), OFlags::PATH, 0).is_ok()
    }

    /// The content of a regular file; `None` if there is none, or if it is longer than any that is meant.
    pub(super) fn read(&self, path: impl AsRef<Path>) -> Result<Option<Vec<u8>>> {
        self.read_up_to(path, BYTES_MAX)
    }

    /// The same for a file of at most `most` bytes.
    pub(super) fn read_up_to(&self, path: impl AsRef<Path>, most: u64) -> Result<Option<Vec<u8>>> {
        let path = path.as_ref();
        let file = match self.open(path, OFlags::RDONLY, 0) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO) => return Ok(None),
            Err(error) => return Err(failed("open", path, error)),
        };
        let found = file.metadata().map_err(|error| failed("look at", path, error))?;
        if !found.is_file() || found.len() > most {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes).map_err(|error| failed("read", path, error))?;
        Ok(Some(bytes))
    }

    /// Writes a file, whose folders must exist. One that is there keeps its owner and mode; a new one gets `mode`.
    pub(super) fn write(&self, path: impl AsRef<Path>, bytes: &[u8], mode: u32) -> Result<()> {
        let path = path.as_ref();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let opened = self.open(path, flags, mode).map_err(|error| failed("write", path, error))?;
        let mut file = File::from(opened);
        let is_file = file.metadata().is_ok_and(|found| found.is_file());
        let written =
            if is_file { file.write_all(bytes) } else { Err(std::io::ErrorKind::InvalidInput.into()) };
        written.map_err(|error| failed("write", path, error))
    }

    /// Makes a folder, and those above it.
    pub(super) fn make_folder(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if self.open(path, OFlags::DIRECTORY | OFlags::PATH, 0).is_ok() {
            return Ok(());
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        self.make_folder(parent)?;
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let above = self.open(parent, OFlags::DIRECTORY | OFlags::RDONLY, 0);
        let above = above.map_err(|error| failed("open", parent, error))?;
        mkdirat(&above, name, Mode::from_raw_mode(0o755)).map_err(|error| failed("make folder", path, error))
    }

    /// Removes a file or a symbolic link; nothing happens if there is none.
    pub(super) fn remove(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
        match self.open(parent, OFlags::DIRECTORY | OFlags::RDONLY, 0) {
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(error) => Err(failed("open", parent, error)),
            Ok(above) => match unlinkat(&above, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(error) => Err(failed("remove", path, error)),
            },
        }
    }

    /// The regular files in `folder`, and in the folders in it down to `depth`, sorted. No symbolic link is followed,
    /// and no subvolume of a btrfs is entered: each has its root.
    pub(super) fn files(&self, folder: &str, depth: u32) -> Vec<PathBuf> {
        let device = |root: &Self| fstat(&root.0).map(|found| found.st_dev).ok();
        let below = self.below(folder).filter(|below| device(below) == device(self));
        let Some(inside) = below.and_then(|below| Dir::read_from(&below.0).ok()) else { return Vec::new() };
        let mut files = Vec::new();
        for entry in inside.filter_map(std::result::Result::ok) {
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            let path = Path::new(folder).join(&name);
            let kind = match entry.file_type() {
                FileType::Unknown => self.kind_of(&path),
                known => known,
            };
            match kind {
                FileType::RegularFile => files.push(path),
                FileType::Directory if depth > 0 && name != "." && name != ".." => {
                    // A path that is no text is none of those that a machine starts by.
                    files.extend(path.to_str().map(|path| self.files(path, depth - 1)).unwrap_or_default());
                }
                _ => {}
            }
        }
        files.sort();
        files
    }

    /// What is at `path`, where its folder does not tell.
    fn kind_of(&self, path: &Path) -> FileType {
        let found = statat(&self.0, path, AtFlags::SYMLINK_NOFOLLOW);
        found.map_or(FileType::Unknown, |found| FileType::from_raw_mode(found.st_mode))
    }

    /// Names in a folder, sorted; none if there is no such folder.
    pub(super) fn list(&self, path: impl AsRef<Path>) -> Vec<OsString> {
        let opened = self.open(path.as_ref(), OFlags::DIRECTORY | OFlags::RDONLY, 0);
        let Some(folder) = opened.ok().and_then(|folder| Dir::new(folder).ok()) else { return Vec::new() };
        let names = folder.filter_map(std::result::Result::ok);
        let names = names.map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_vec()));
        let mut names: Vec<_> = names.filter(|name| name != "." && name != "..").collect();
        names.sort();
        names
    }
}

fn failed(what: &str, path: &Path, error: impl Into<std::io::Error>) -> Error {
    Error::from_io(format!("{what} `{}` on the installed disk", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_inside() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("root"), folder.path().join("outside"));
        std::fs::create_dir_all(inside.join("etc")).unwrap();
        std::fs::write(&outside, "mine").unwrap();
        for (name, leads) in [("etc/up", "../../outside"), ("etc/there", outside.to_str().unwrap())] {
            std::os::unix::fs::symlink(leads, inside.join(name)).unwrap();
        }
        std::os::unix::fs::symlink("/", inside.join("etc/slash")).unwrap();
        let root = Root::at(&inside).unwrap();
        for name in ["etc/up", "etc/there", "etc/slash/../../outside"] {
            assert_ne!(root.read(name).unwrap().as_deref(), Some(&b"mine"[..]), "{name}");
            let _ = root.write(name, b"yours", 0o644);
            root.remove(name).unwrap();
        }
        assert_eq!(std::fs::read(&outside).unwrap(), b"mine");
        assert!(root.below("etc").is_some() && root.below("").is_some());
        assert!(root.below("etc/slash").is_none() && root.below("etc/there").is_none());
        root.make_folder("a/b/c").unwrap();
        root.write("a/b/c/file", b"text", 0o600).unwrap();
        assert_eq!(root.read("etc/slash/a/b/c/file").unwrap().unwrap(), b"text");
        assert_eq!(root.list("a/b/c"), ["file"]);
        rustix::fs::mknodat(
            CWD,
            inside.join("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert_eq!(root.read("pipe").unwrap(), None);
        assert!(root.write("pipe", b"x", 0o644).is_err());
    }
}
