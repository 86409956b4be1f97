//! What may be where a copy is to be: a file that somebody has stays as it is.

use std::fs::{self, File};
use std::io::{ErrorKind as IoErrorKind, Read as _};
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};

use crate::private_file::io_error;

/// Bytes that are compared at a time.
const BLOCK_BYTES: usize = 1 << 20;

/// What may be where a copy is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum There {
    /// Nothing, or an empty file.
    Nothing,
    /// The same copy, too, as nobody has written to it yet: an earlier attempt may have made it.
    Same,
    /// Anything: it is replaced.
    Anything,
}

impl There {
    /// `Refused` if something is at `target` that may not be. What may be the same copy is not compared yet.
    pub fn check(self, target: &Path) -> Result<()> {
        match self {
            Self::Nothing if holds_something(target) => Err(exists(target)),
            _ => Ok(()),
        }
    }

    /// Whether the copy is at `target` already, of which `is_same` tells. `Refused` if something else is there that
    /// must stay; `Io`.
    pub(super) fn is_made(self, target: &Path, is_same: impl FnOnce() -> Result<bool>) -> Result<bool> {
        match self {
            Self::Same if holds_something(target) => match is_same()? {
                true => Ok(true),
                false => Err(exists(target)),
            },
            _ => self.check(target).map(|()| false),
        }
    }

    /// Makes an empty file if nothing is there. Returns whether it did. `Refused` if something is there that may not
    /// be; `Io`.
    pub(super) fn begin(self, target: &Path) -> Result<bool> {
        match File::create_new(target) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == IoErrorKind::AlreadyExists => match self {
                Self::Anything => Ok(false),
                Self::Nothing | Self::Same => Self::Nothing.check(target).map(|()| false),
            },
            Err(error) => Err(io_error("make", target, error)),
        }
    }

    /// Gives the finished copy `part` its name. `Refused` if something is there that may not be; `Io`.
    pub(super) fn name(self, part: &Path, target: &Path) -> Result<()> {
        // Whoever makes a file there in between finds this one in the way.
        self.begin(target)?;
        fs::rename(part, target).map_err(|error| io_error("name", target, error))
    }
}

/// The name that the copy at `target` has until it is finished.
pub(super) fn part_of(target: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(".diskcast-part");
    target.with_file_name(name)
}

/// Removes `path` if it is there.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != IoErrorKind::NotFound => Err(io_error("remove", path, error)),
        _ => Ok(()),
    }
}

fn exists(target: &Path) -> Error {
    let text = format!("`{}` exists: a copy is a new file", target.display());
    Error::new(ErrorKind::Refused, text)
}

/// Whether anything is there but an empty file.
fn holds_something(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| !found.is_file() || found.len() > 0)
}

/// Whether the file `other` holds what `one` does, and zeros behind it, `size` bytes together.
pub(super) fn is_same(one: &Path, other: &Path, size: u64) -> Result<bool> {
    let open = |path: &Path| {
        let file = File::open(path).map_err(|error| io_error("open", path, error))?;
        let found = file.metadata().map_err(|error| io_error("look at", path, error))?;
        Ok::<_, Error>((file, found))
    };
    let ((one_file, _), (mut other_file, found)) = (open(one)?, open(other)?);
    if !found.is_file() || found.len() != size {
        return Ok(false);
    }
    let mut wanted = one_file.chain(std::io::repeat(0));
    let (mut block, mut beside) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    let mut left = size;
    while left > 0 {
        let len = usize::try_from(left).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
        let (block, beside) = (&mut block[..len], &mut beside[..len]);
        wanted.read_exact(block).map_err(|error| io_error("read", one, error))?;
        other_file.read_exact(beside).map_err(|error| io_error("read", other, error))?;
        if block != beside {
            return Ok(false);
        }
        left -= len as u64;
    }
    Ok(true)
}
