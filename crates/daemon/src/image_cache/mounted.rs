//! Overlays over versions in a mount (`docs/mount.md`): their content comes when it is read.

use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use base::{Digest, Error, ErrorKind, Result};
use disk::Geometry;

use super::overlay::lay_over;
use super::there::There;
use crate::private_file::io_error;

/// The file of a mount that takes commands and answers them.
const CONTROL: &str = "_control";

/// A version, as a file in a mount on this host.
#[derive(Debug)]
pub struct MountedVersion {
    path: PathBuf,
    size_bytes: u64,
    sector_bytes: u32,
}

impl MountedVersion {
    /// Version `number` of `image` in the mount at `folder`, with the content that is named `root`. `NotFound` if
    /// nothing is mounted there; `Refused` if the mount has another content by that name, or none; `Io`.
    pub fn find(folder: &Path, image: &str, number: u64, root: Digest) -> Result<Self> {
        let answer = ask(folder, &format!("content {image}@{number}\n"))?;
        let words: Vec<&str> = answer.split_ascii_whitespace().collect();
        let refused = |text: String| Error::new(ErrorKind::Refused, text);
        match words[..] {
            ["content", _, name, size, sector] if name == root.to_hex() => {
                let size_bytes = size.parse().ok();
                let sector_bytes = sector.parse().ok();
                let (Some(size_bytes), Some(sector_bytes)) = (size_bytes, sector_bytes) else {
                    return Err(refused(format!("the mount at `{}` says `{answer}`", folder.display())));
                };
                let path = folder.join(image).join(number.to_string());
                Ok(Self { path, size_bytes, sector_bytes })
            }
            ["content", name, ..] => Err(refused(format!(
                "the mount at `{}` has another {name}: it is of another repository",
                folder.display()
            ))),
            _ => Err(refused(format!("the mount at `{}`: {}", folder.display(), answer.trim()))),
        }
    }

    /// Makes `target` a QCOW2 that has what differs from it, and is at least `size_bytes` long. `Refused` if something
    /// is there that may not be; `Io`.
    pub fn overlay(&self, target: &Path, size_bytes: Option<u64>, there: There) -> Result<()> {
        there.check(target)?;
        let geometry = Geometry {
            size_bytes: self.size_bytes.max(size_bytes.unwrap_or(0)),
            logical_sector_bytes: self.sector_bytes,
            physical_sector_bytes: self.sector_bytes,
        };
        lay_over(&self.path, (target, there), geometry, || Ok(()))
    }
}

/// What the mount at `folder` answers to `line`.
fn ask(folder: &Path, line: &str) -> Result<String> {
    let path = folder.join(CONTROL);
    let mut file = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| {
        let text = format!("no images are mounted at `{}` on this host", folder.display());
        match error.kind() {
            std::io::ErrorKind::NotFound => Error::new(ErrorKind::NotFound, text),
            _ => io_error("open", &path, error),
        }
    })?;
    // If the command fails, the answer says why.
    let done = file.write_all(line.as_bytes());
    let mut answer = String::new();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_string(&mut answer));
    read.map_err(|error| io_error("read", &path, error))?;
    match done {
        Err(error) if answer.trim().is_empty() => Err(io_error("write to", &path, error)),
        _ => Ok(answer),
    }
}
