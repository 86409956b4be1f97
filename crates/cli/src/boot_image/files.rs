//! Copies and writes files of the system in memory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::exit::Result;

/// The files that the folder has in the end, and that machines load.
pub(super) const KERNEL: &str = "vmlinuz";
pub(super) const SYSTEM: &str = "initrd.img";

/// Everything below `folder`, each folder before what it holds, in order of the names.
pub(super) fn walk(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut entries: Vec<_> = fs::read_dir(folder)?.collect::<std::io::Result<_>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        found.push(entry.path());
        if entry.file_type()?.is_dir() {
            found.extend(walk(&entry.path())?);
        }
    }
    Ok(found)
}

/// Copies a file, a link or an empty folder, and makes the folders above it.
pub(super) fn copy_entry(from: &Path, to: &Path) -> Result<()> {
    let failed = |error| base::Error::from_io(format!("copy `{}`", from.display()), error);
    let copy = || -> std::io::Result<()> {
        let kind = fs::symlink_metadata(from)?.file_type();
        if kind.is_dir() {
            return fs::create_dir_all(to);
        }
        fs::create_dir_all(to.parent().expect("it is below a folder"))?;
        if to.symlink_metadata().is_ok() {
            return Ok(());
        }
        if kind.is_symlink() {
            return std::os::unix::fs::symlink(fs::read_link(from)?, to);
        }
        fs::copy(from, to).map(drop)
    };
    Ok(copy().map_err(failed)?)
}

/// Writes a small file, which may be a program, and makes the folders above it.
pub(super) fn write(path: &Path, text: &str, runs: bool) -> Result<()> {
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(path.parent().expect("it is below a folder"))?;
        fs::write(path, text)?;
        fs::set_permissions(path, fs::Permissions::from_mode(if runs { 0o755 } else { 0o644 }))
    };
    Ok(write().map_err(|error| base::Error::from_io(format!("write `{}`", path.display()), error))?)
}
