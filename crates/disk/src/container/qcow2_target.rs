//! A QCOW2 file as a target: version 3, without a backing file, with clusters for what is written alone. By the crate
//! `imago`.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use base::{Error, Result};
use imago::file::File;
use imago::qcow2::Qcow2;
use imago::{
    DenyImplicitOpenGate, FormatAccess, FormatCreateBuilder as _, FormatDriverBuilder as _,
    StorageOpenOptions,
};
use rustix::fs::Advice;

use crate::file::io_error;
use crate::{Geometry, ReadAt, WriteAt};

/// A QCOW2 file, open for writing.
#[derive(Debug)]
pub struct Qcow2Target {
    disk: FormatAccess<File>,
    /// For what `imago` does not do: to make the file durable.
    file: std::fs::File,
    name: String,
    geometry: Geometry,
}

/// Makes an empty QCOW2 file at `path` for a disk of `geometry`; what the file held is lost. With `resume`, opens the
/// one that is there. `Refused` if that has another size; `Corrupt` if it is no QCOW2; `Io`.
pub fn open_qcow2_target(path: &Path, geometry: Geometry, resume: bool) -> Result<Qcow2Target> {
    let name = path.display().to_string();
    let failed = |e: io::Error| Error::from_io(format!("make the QCOW2 `{name}`"), e);
    let resume = resume && path.metadata().is_ok_and(|found| found.len() > 0);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(!resume)
        .open(path)
        .map_err(|e| io_error("open", path, e))?;
    if resume && !super::virtual_disk::check_qcow2(&file, &name)?.is_alone {
        let text = format!("`{name}` has a backing file, a data file or snapshots: write a new one");
        return Err(Error::new(base::ErrorKind::Refused, text));
    }
    let handle = file.try_clone().map_err(failed)?;
    let storage =
        File::from_open_file(handle, StorageOpenOptions::new().write(true).filename(path)).map_err(failed)?;
    let open = |storage| Qcow2::<File>::builder(storage).backing(None).write(true);
    let disk = if resume {
        open(storage).open(DenyImplicitOpenGate::default())
    } else {
        let builder = Qcow2::<File>::create_builder(storage).size(geometry.size_bytes);
        builder.create_open(DenyImplicitOpenGate::default(), |storage| Ok(open(storage)))
    };
    let disk = FormatAccess::new(disk.map_err(failed)?);
    if disk.size() != geometry.size_bytes {
        let text = format!("`{name}` has a disk of {} bytes, the image {}", disk.size(), geometry.size_bytes);
        return Err(Error::new(base::ErrorKind::Refused, text));
    }
    Ok(Qcow2Target { disk, file, name, geometry })
}

impl Qcow2Target {
    fn failed(&self, what: &str, len: u64, offset: u64, error: io::Error) -> Error {
        Error::from_io(format!("{what} {len} bytes at offset {offset} of `{}`", self.name), error)
    }
}

impl ReadAt for Qcow2Target {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.geometry.size_bytes) {
            return Err(self.failed("read", len, offset, io::ErrorKind::UnexpectedEof.into()));
        }
        self.disk.read(buf, offset).map_err(|e| self.failed("read", len, offset, e))
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn next_data(&self, offset: u64) -> u64 {
        super::virtual_disk::next_data(&self.disk, offset, self.geometry.size_bytes)
    }
}

impl WriteAt for Qcow2Target {
    fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.disk.write(buf, offset).map_err(|e| self.failed("write", buf.len() as u64, offset, e))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        // What has no cluster reads as zeros, and stays without one.
        let end = offset.saturating_add(len);
        let mut at = self.next_data(offset);
        while at < end {
            let part = (end - at).min(ZERO_BYTES);
            self.disk.write_zeroes(at, part).map_err(|e| self.failed("zero", part, at, e))?;
            at = self.next_data(at + part);
        }
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        // A file that was just made holds nothing to give back.
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let failed = |e| Error::from_io(format!("sync `{}`", self.name), e);
        self.disk.flush().map_err(failed)?;
        self.file.sync_all().map_err(failed)
    }

    fn read_back_at(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        // Whatever the kernel can drop comes from the medium then.
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
        self.read_exact_at(buf, offset).map(|()| false)
    }
}

/// Zeros are written in ranges of this size.
const ZERO_BYTES: u64 = 1 << 20;
