//! Disks in appliances of virtual machines (OVA): tar files that begin with a description in OVF.
//!
//! Source: DMTF's Open Virtualization Format 2.1 (DSP0243), section 5, and POSIX's `pax` for the archive.

use std::io::{BufReader, Read, Seek, SeekFrom};

use base::{Error, Result};
use tar::{Archive, Header};

use crate::{Geometry, ReadAt, Source};

/// Where a header has the sum of its bytes, which counts as blanks itself.
const SUM: std::ops::Range<usize> = 148..156;
/// How many members are looked at for the description, which is the first one.
const MEMBERS_MAX: usize = 64;

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

/// Whether `disk`, which begins with `front`, is an appliance: one of its first members is a description. `None` if it
/// is no archive. Programs put other headers before the first member, such as those of POSIX's `pax`.
pub(super) fn archive_of(disk: &dyn ReadAt, front: &[u8]) -> Option<bool> {
    let header = Header::from_byte_slice(front.first_chunk::<512>()?);
    let sum = front.iter().enumerate().map(|(at, byte)| if SUM.contains(&at) { b' ' } else { *byte });
    let sum: u32 = sum.map(u32::from).sum();
    if front[0] == 0 || header.cksum().ok() != Some(sum) {
        return None;
    }
    let mut archive = Archive::new(BufReader::new(Stream { disk, at: 0 }));
    let entries = archive.entries_with_seek().into_iter().flatten();
    // One that is damaged is an archive, too.
    let names =
        entries.map_while(std::result::Result::ok).map(|entry| entry.path_bytes().to_ascii_lowercase());
    Some(names.take(MEMBERS_MAX).any(|name| name.ends_with(b".ovf")))
}

/// A disk from its first byte to its last.
struct Stream<'a> {
    disk: &'a dyn ReadAt,
    at: u64,
}

impl Read for Stream<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let left = self.disk.geometry().size_bytes.saturating_sub(self.at);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.disk.read_exact_at(&mut buf[..len], self.at).map_err(std::io::Error::other)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for Stream<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.disk.geometry().size_bytes.checked_add_signed(by),
        };
        self.at = at.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
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
