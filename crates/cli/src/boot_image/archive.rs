//! The archive that a kernel unpacks into memory: `cpio` in its new form, compressed by zstd.
//!
//! Source: the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`.

use std::fs::{self, File};
use std::io::{BufWriter, Read as _, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use base::{Error, ErrorKind};
use cpio::newc::{Builder, trailer};

use super::files::walk;
use crate::exit::Result;

/// Kinds of files in a mode (`inode(7)`).
const FOLDER: u32 = 0o040_000;
const LINK: u32 = 0o120_000;
const REGULAR: u32 = 0o100_000;

/// Packs everything below `system` into the file `out`. The same files give the same bytes: owners and times are zero,
/// and names are in order.
pub(super) fn pack(system: &Path, out: &Path, level: i32) -> Result<()> {
    let mut encoder = zstd::Encoder::new(BufWriter::new(File::create(out)?), level)?;
    // What the kernel's decoder holds at most.
    encoder.window_log(25)?;
    let mut inode = 0;
    for entry in walk(system)? {
        inode += 1;
        let name = entry.strip_prefix(system).expect("it was found there").to_string_lossy().into_owned();
        let found = fs::symlink_metadata(&entry)?;
        let kind = found.file_type();
        let (mode, content) = if kind.is_dir() {
            (FOLDER | 0o755, Vec::new())
        } else if kind.is_symlink() {
            (LINK | 0o777, fs::read_link(&entry)?.into_os_string().into_encoded_bytes())
        } else {
            let mut content = Vec::new();
            File::open(&entry)?.read_to_end(&mut content)?;
            (REGULAR | 0o644 | (found.mode() & 0o111), content)
        };
        let too_long = |_| Error::new(ErrorKind::Unsupported, format!("`{name}` is too long for an archive"));
        let bytes = u32::try_from(content.len()).map_err(too_long)?;
        let mut file = Builder::new(&name).ino(inode).mode(mode).nlink(1).mtime(0).write(&mut encoder, bytes);
        file.write_all(&content)?;
        file.finish()?;
    }
    trailer(&mut encoder)?;
    encoder.finish()?.flush()?;
    Ok(())
}
