//! A QCOW2 file as a target: version 3, with clusters for what is written alone, and a backing file if it is asked for.
//! By the crate `imago`.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use base::{Error, ErrorKind, Result};
use imago::file::File;
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::{
    DenyImplicitOpenGate, FormatAccess, FormatCreateBuilder as _, FormatDriverBuilder as _,
    StorageOpenOptions,
};
use rustix::fs::Advice;

use super::virtual_disk::{BACKING_LEN_MAX, Qcow2Header, check_qcow2};
use crate::file::{claim, io_error};
use crate::{ContainerKind, Geometry, ReadAt, WriteAt, container_of, open_source};

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
    open(path, geometry, resume, None)
}

/// Like [`open_qcow2_target`], but what the file lacks is read from `base`, a raw disk or a QCOW2 without a base of its
/// own. The file names it as its backing file.
pub fn open_qcow2_overlay(path: &Path, geometry: Geometry, resume: bool, base: &Path) -> Result<Qcow2Target> {
    let source = open_source(base)?;
    let format = match container_of(&source).map(|found| found.kind) {
        None => RAW,
        Some(ContainerKind::VirtualDisk(QCOW2)) => QCOW2,
        Some(_) => {
            let text = format!("`{}` is neither a raw disk nor a QCOW2", base.display());
            return Err(Error::new(ErrorKind::Refused, text));
        }
    };
    open(path, geometry, resume, Some((base, format)))
}

/// Makes an empty overlay at `path` over `base`, which is a raw disk, whatever it begins with; what the file held is
/// lost. `Io`.
pub fn make_overlay_of_raw(path: &Path, geometry: Geometry, base: &Path) -> Result<Qcow2Target> {
    open(path, geometry, false, Some((base, RAW)))
}

/// What the QCOW2 at `path` calls its backing file, whatever else is wrong with it; `None` if it has none, or is no
/// QCOW2. `Io`.
pub fn qcow2_backing(path: &Path) -> Result<Option<String>> {
    let failed = |e: io::Error| io_error("read", path, e);
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut header = [0; 20];
    match file.read_exact_at(&mut header, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read.map_err(failed)?,
    }
    let offset = u64::from_be_bytes(header[8..16].try_into().expect("eight bytes"));
    let len = u32::from_be_bytes(header[16..].try_into().expect("four bytes"));
    if !header.starts_with(b"QFI\xfb") || offset == 0 {
        return Ok(None);
    }
    let mut name = vec![0; len.min(BACKING_LEN_MAX) as usize];
    file.read_exact_at(&mut name, offset).map_err(failed)?;
    Ok(Some(String::from_utf8_lossy(&name).into_owned()))
}

/// Names of formats in the header of a QCOW2.
const RAW: &str = "raw";
const QCOW2: &str = "qcow2";

/// What an overlay at `path` calls its base: by its name alone if both lie in one folder, so that both can be moved.
fn base_name(path: &Path, base: &Path) -> Result<String> {
    let whole = |path: &Path| std::path::absolute(path).map_err(|e| io_error("find", path, e));
    let base_path = base.canonicalize().map_err(|e| io_error("find", base, e))?;
    let folder = whole(path)?.parent().and_then(|folder| folder.canonicalize().ok());
    let beside = folder.is_some() && base_path.parent() == folder.as_deref();
    let name = if beside { base_path.file_name().map(Path::new) } else { Some(&*base_path) };
    // A colon would make it the address of another protocol.
    let name = name.and_then(Path::to_str).filter(|name| !name.contains(':'));
    name.map(str::to_owned).ok_or_else(|| {
        let text = format!(
            "`{}` can't be the base of a QCOW2: its name has a colon or is not UTF-8",
            base.display()
        );
        Error::new(ErrorKind::Refused, text)
    })
}

/// Opens the base of an overlay for reading.
fn open_base(base: &Path, format: &str) -> Result<FormatAccess<File>> {
    let name = base.display().to_string();
    let failed = |e: io::Error| Error::from_io(format!("open `{name}`"), e);
    let opened = std::fs::File::open(base).map_err(failed)?;
    let is_alone = |header: Qcow2Header| header.is_single && header.backing.is_none();
    if format == QCOW2 && !is_alone(check_qcow2(&opened, &name)?) {
        let text = format!("`{name}` has a base of its own, a data file or snapshots: it can't be a base");
        return Err(Error::new(ErrorKind::Refused, text));
    }
    let storage = File::from_open_file(opened, StorageOpenOptions::new().filename(base)).map_err(failed)?;
    let gate = DenyImplicitOpenGate::default();
    if format == RAW {
        Raw::<File>::builder(storage).open(gate).map(FormatAccess::new).map_err(failed)
    } else {
        Qcow2::<File>::builder(storage).backing(None).open(gate).map(FormatAccess::new).map_err(failed)
    }
}

fn open(path: &Path, geometry: Geometry, resume: bool, base: Option<(&Path, &str)>) -> Result<Qcow2Target> {
    let name = path.display().to_string();
    let failed = |e: io::Error| Error::from_io(format!("make the QCOW2 `{name}`"), e);
    let refused = |text: String| Err(Error::new(ErrorKind::Refused, text));
    let resume = resume && path.metadata().is_ok_and(|found| found.len() > 0);
    let backing = base.map(|(base, format)| open_base(base, format)).transpose()?;
    let backing_name = base.map(|(base, _)| base_name(path, base)).transpose()?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|e| io_error("open", path, e))?;
    claim(&file, path)?;
    if resume {
        let header = check_qcow2(&file, &name)?;
        if header.backing != backing_name || !header.is_single {
            return refused(format!(
                "`{name}` has another backing file, a data file or snapshots: write a new one"
            ));
        }
    } else {
        file.set_len(0).map_err(|e| io_error("empty", path, e))?;
    }
    let handle = file.try_clone().map_err(failed)?;
    let storage =
        File::from_open_file(handle, StorageOpenOptions::new().write(true).filename(path)).map_err(failed)?;
    let open = |storage| Qcow2::<File>::builder(storage).backing(backing).write(true);
    let disk = if resume {
        open(storage).open(DenyImplicitOpenGate::default())
    } else {
        let builder = Qcow2::<File>::create_builder(storage).size(geometry.size_bytes);
        let builder = match (backing_name, base) {
            (Some(name), Some((_, format))) => builder.backing(name, format.to_owned()),
            _ => builder,
        };
        builder.create_open(DenyImplicitOpenGate::default(), |storage| Ok(open(storage)))
    };
    let disk = FormatAccess::new(disk.map_err(failed)?);
    if disk.size() != geometry.size_bytes {
        return refused(format!(
            "`{name}` has a disk of {} bytes, the image {}",
            disk.size(),
            geometry.size_bytes
        ));
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
