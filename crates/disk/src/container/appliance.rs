//! Disks in appliances of virtual machines (OVA): tar files that begin with a description in OVF.
//!
//! Source: DMTF's Open Virtualization Format 2.1 (DSP0243), section 5, and POSIX's `pax` for the archive.

use std::io::{BufReader, Seek as _};

use base::{Error, Result};
use tar::Archive;

use crate::{Geometry, ReadAt, Source};

/// Where the archive says that it is one.
const MAGIC_AT: usize = 257;
const MAGIC: &[u8] = b"ustar";
/// Longest name in the first header.
const NAME_BYTES: usize = 100;

/// A member of an appliance that may be a disk: a part of its file.
pub struct ArchivedDisk<'a> {
    archive: &'a Source,
    name: String,
    offset: u64,
    bytes: u64,
}

impl ArchivedDisk<'_> {
    /// Where it lies in the file: offset and length in bytes.
    #[must_use]
    pub fn place(&self) -> (u64, u64) {
        (self.offset, self.bytes)
    }
}

impl ReadAt for ArchivedDisk<'_> {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.bytes, logical_sector_bytes: 512, physical_sector_bytes: 512 }
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.bytes) {
            let error = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            return Err(Error::from_io(format!("read `{}` at offset {offset}", self.name), error));
        }
        self.archive.read_exact_at(buf, self.offset + offset)
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// Whether a file that begins with `front` is an appliance: its first member is the description.
pub(super) fn is_appliance(front: &[u8]) -> bool {
    let name = front[..NAME_BYTES].split(|byte| *byte == 0).next().unwrap_or_default();
    front[MAGIC_AT..].starts_with(MAGIC) && name.to_ascii_lowercase().ends_with(b".ovf")
}

/// The files in an appliance, in the order of the archive. `Io`, also if the archive breaks off.
pub fn members_of_appliance(source: &Source) -> Result<Vec<ArchivedDisk<'_>>> {
    let size = source.geometry().size_bytes;
    let read = || -> std::io::Result<Vec<_>> {
        let mut file = source.file();
        file.rewind()?;
        let mut archive = Archive::new(BufReader::new(file));
        let mut members = Vec::new();
        for entry in archive.entries_with_seek()? {
            let entry = entry?;
            let (offset, bytes) = (entry.raw_file_position(), entry.size());
            if offset.checked_add(bytes).is_none_or(|end| end > size) {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            // Nothing but plain files is a disk.
            if entry.header().entry_type().is_file() {
                members.push(ArchivedDisk { archive: source, name, offset, bytes });
            }
        }
        Ok(members)
    };
    read().map_err(|error| Error::from_io(format!("read the archive `{}`", source.name()), error))
}
