//! Files and folders that only their owner may read.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use base::{Error, ErrorKind, Result};

const FILE_BYTES_MAX: u64 = 64 << 10;

/// Makes the folder at `path` with mode 0700 if it is missing.
pub fn make_folder(path: &Path) -> Result<()> {
    let failed =
        |error| Error::from_source(ErrorKind::Io, format!("make the folder `{}`", path.display()), error);
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)
}

/// Makes the file at `path`, of mode 0600, with `bytes` in it. `Refused` if there is one.
pub fn make_private(path: &Path, bytes: &[u8]) -> Result<()> {
    make_draft(path, bytes).map_err(|error| match error.kind() {
        IoKind::AlreadyExists => {
            Error::new(ErrorKind::Refused, format!("`{}` exists already", path.display()))
        }
        _ => io_error("make", path, error),
    })
}

/// Writes `bytes` to a draft of mode 0600, makes it durable, then links it to `path`, which fails if that exists.
pub(crate) fn make_draft(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let _ = std::fs::remove_file(&draft);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    let linked = std::fs::hard_link(&draft, path);
    std::fs::remove_file(&draft)?;
    linked.map_err(|error| match error.kind() {
        // The draft could be made there, so what is refused is the link.
        IoKind::PermissionDenied | IoKind::Unsupported | IoKind::TooManyLinks => {
            let text = "its filesystem has no hard links (exFAT, FAT or SMB?) and perhaps no permissions, which keep \
                        secrets: choose a folder on another one";
            std::io::Error::new(IoKind::Unsupported, text)
        }
        _ => error,
    })?;
    sync_folder_of(path)
}

/// The bytes of the file at `path`, at most 64 KiB. `Refused` if others than its owner may read or write it.
pub fn read_private(path: &Path) -> Result<Vec<u8>> {
    read_open(path, File::open(path).map_err(|error| io_error("open", path, error))?)
}

pub(crate) fn read_open(path: &Path, file: File) -> Result<Vec<u8>> {
    let metadata = file.metadata().map_err(|error| io_error("look at", path, error))?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(Error::new(
            ErrorKind::Refused,
            format!("`{}` can be read by others: its mode must be 0600", path.display()),
        ));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| io_error("read", path, error))?;
    Ok(bytes)
}

/// Writes `text` to the file at `path`, which has mode 0600 afterwards, also if it existed. A concurrent reader sees
/// the old or the new content, never a mixture. Special files (`/dev/stdout`) are written directly.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    let is_special = std::fs::metadata(path).is_ok_and(|found| !found.is_file());
    let write = || -> std::io::Result<()> {
        if !is_special {
            return replace_private(path, text.as_bytes());
        }
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|error| io_error("write", path, error))
}

fn replace_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    // If `path` is a symbolic link, its target is replaced, not the link.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let _ = std::fs::remove_file(&draft);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if let Err(error) = written.and_then(|()| std::fs::rename(&draft, &path)) {
        let _ = std::fs::remove_file(&draft);
        return Err(error);
    }
    sync_folder_of(&path)
}

fn sync_folder_of(path: &Path) -> std::io::Result<()> {
    // The parent of a bare file name is the empty path, which means the current folder.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

pub(crate) fn io_error(doing: &str, path: &Path, error: std::io::Error) -> Error {
    Error::from_source(ErrorKind::Io, format!("{doing} `{}`", path.display()), error)
}
