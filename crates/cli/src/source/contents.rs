//! The disk that a source holds: as it is, compressed, or in a format of virtual machines. What counts is the content,
//! never the name.

use std::io::{IsTerminal as _, Read};
use std::path::{Path, PathBuf};

use base::ErrorKind;
use disk::{Container, ContainerKind, ReadAt, Source, VirtualDisk};
use image::{Progress as _, Stage};
use mirror::nbd::{ExportAddress, NbdDisk};

use super::foreign::{self, Foreign};
use super::not_raw;
use crate::args::{SourceForm, Taking};
use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};
use crate::ui::progress::Meter;

/// The source that stands for standard input.
const STDIN: &str = "-";
/// Where temporary files go unless TMPDIR says otherwise: they are large, and `/tmp` may lie in memory.
const SCRATCH: &str = "/var/tmp";

/// Hint for a source that is damaged.
const COPY_AGAIN: &str = "no version was made; copy it again from where it came";

const NEEDS_QEMU: &str = "install qemu-nbd, by which diskcast reads it, or ";

/// Whether `path` stands for standard input.
fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == STDIN
}

/// Whether the source at `path` is a file or device of this machine.
pub(crate) fn is_local(path: &Path) -> bool {
    !is_stdin(path) && export(path).is_none()
}

/// The address of an NBD export, if `path` is one.
pub(crate) fn export(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| ExportAddress::is_one(text))
}

/// Opens the disk that an NBD server exports as `address`. Refused if somebody may write to it meanwhile, unless
/// `taking` allows that, and if it holds a disk in another format than raw.
pub(crate) fn open_export(address: &str, taking: &Taking) -> Result<NbdDisk> {
    if taking.freeze || taking.backing {
        let text =
            format!("`{address}` is on another machine: --freeze and --backing are for files and devices");
        return Err(Failure::new(Exit::Usage, text));
    }
    let disk = NbdDisk::open(&ExportAddress::parse(address)?)?.with_sectors_by_table();
    if !disk.is_read_only() && !taking.live {
        let text = format!("others may write to `{address}` meanwhile: its server exports it for writing");
        return Err(Failure::new(Exit::Refused, text).hint(
            "export it read-only (qemu-nbd --read-only); --live takes it as it is, and marks the version",
        ));
    }
    if let Some(found) = disk::container_of(&disk).filter(|_| taking.format != Some(SourceForm::Raw)) {
        let text = format!("`{address}` is not a raw disk, but {}", found.name);
        let hint = "let the server read the format (qemu-nbd -f); --format raw takes the bytes as they are";
        return Err(Failure::new(Exit::Refused, text).hint(hint));
    }
    Ok(disk)
}

/// Opens the source at `path`. Standard input is read to its end, and decompressed if it is compressed.
pub(crate) fn open(context: &Context, path: &Path, taking: &Taking, raw: bool) -> Result<Source> {
    if !is_stdin(path) {
        return Ok(disk::open_source(path)?);
    }
    let is_raw = taking.format == Some(SourceForm::Raw);
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(Failure::new(Exit::Usage, "standard input is a terminal: pipe a disk into it"));
    }
    let source = unpack(context, stdin.lock(), ("standard input", 0), is_raw)?;
    // A stream that breaks off ends like any other.
    match disk::length_by_table(&source)? {
        Some(bytes) if bytes > source.geometry().size_bytes && !raw && !is_raw => {
            let (has, needs) = (source.geometry().size_bytes, bytes);
            let text =
                format!("standard input ends early: {has} bytes came, but its partition table says {needs}");
            Err(Failure::new(Exit::Refused, text).hint("--raw takes what came"))
        }
        _ => Ok(source),
    }
}

/// The disk in a source.
pub(crate) enum Contents<'a> {
    /// The source itself.
    Raw(&'a Source),
    /// What it held after decompression.
    Unpacked(Source),
    /// A disk that is read through a format.
    Virtual(VirtualDisk),
    /// A disk that another program reads.
    Foreign(Foreign),
}

impl<'a> Contents<'a> {
    /// Finds the disk in `source`, and decompresses it to a temporary file if it has to. Refuses formats that diskcast
    /// does not read.
    pub(crate) fn of(context: &Context, source: &'a Source, taking: &Taking) -> Result<Self> {
        let container = disk::container_of(source).filter(|_| taking.format != Some(SourceForm::Raw));
        let Some(container) = container else {
            refuse_member(source, taking)?;
            return Ok(Self::Raw(source));
        };
        let ContainerKind::Compressed(_) = container.kind else {
            return open_virtual(source, container, taking);
        };
        let (path, bytes) = (source.path().display(), source.geometry().size_bytes);
        let unpacked = unpack(context, source.stream(), (&format!("{path}, unpacked"), bytes), false)?;
        match disk::container_of(&unpacked) {
            None => {
                refuse_member(source, taking)?;
                Ok(Self::Unpacked(unpacked))
            }
            Some(inner) => open_virtual(&unpacked, inner, taking),
        }
    }

    /// The disk.
    pub(crate) fn disk(&self) -> &dyn ReadAt {
        match self {
            Self::Raw(source) => *source,
            Self::Unpacked(source) => source,
            Self::Virtual(disk) => disk,
            Self::Foreign(disk) => disk,
        }
    }

    /// The other files that the disk consists of.
    pub(crate) fn linked(&self) -> &[PathBuf] {
        match self {
            Self::Virtual(disk) => disk.linked(),
            Self::Foreign(disk) => disk.linked(),
            _ => &[],
        }
    }
}

/// The folder for large temporary files.
pub(crate) fn scratch_folder() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from(SCRATCH), PathBuf::from)
}

/// Reads `packed`, of `bytes` bytes if that is known (else 0), into a temporary file; decompresses it unless it
/// `is_raw`.
fn unpack(context: &Context, packed: impl Read, (name, bytes): (&str, u64), is_raw: bool) -> Result<Source> {
    let scratch = scratch_folder();
    let meter = Meter::new(context.output, context.global.quiet);
    meter.begin(Stage::Unpack, bytes);
    let unpacked = disk::unpack(Metered { packed, meter: &meter }, name, &scratch, !is_raw);
    meter.finish();
    unpacked.map_err(|error| match error.kind() {
        ErrorKind::Full => {
            Failure::from(error).hint("set TMPDIR to a folder that has room for the whole disk")
        }
        ErrorKind::Corrupt => Failure::from(error).hint(COPY_AGAIN),
        _ => error.into(),
    })
}

/// Counts what is read.
struct Metered<'a, R> {
    packed: R,
    meter: &'a Meter,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.packed.read(into)?;
        self.meter.advance(Stage::Unpack, count as u64);
        Ok(count)
    }
}

/// Opens a disk in another format: by diskcast's own means, else through `qemu-nbd`.
fn open_virtual<'a>(source: &Source, container: Container, taking: &Taking) -> Result<Contents<'a>> {
    let format = match container.kind {
        ContainerKind::VirtualDisk(format) => {
            refuse_member(source, taking)?;
            format
        }
        ContainerKind::Appliance => return open_member(source, container, taking),
        _ => return Err(not_raw(source, container, "")),
    };
    let explain = |failure: Failure| match failure.exit {
        Exit::Verification => failure.hint(COPY_AGAIN),
        // Others are refused for what they are: encrypted, corrupt.
        Exit::Refused if !taking.backing && failure.message.contains(disk::NEEDS_ANOTHER) => {
            failure.hint("--backing reads other files, too; the maker of the disk chose their names")
        }
        _ => failure,
    };
    if let "qcow2" | "vmdk" = format {
        match disk::open_virtual_disk(source, format == "qcow2", taking.backing) {
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            opened => return opened.map(Contents::Virtual).map_err(|error| explain(error.into())),
        }
    }
    match foreign::open(source, None, format, taking.backing).map_err(explain)? {
        Some(disk) => Ok(Contents::Foreign(disk)),
        None => Err(not_raw(source, container, NEEDS_QEMU)),
    }
}

/// Refuses the name of a disk in an OVA for what is none.
fn refuse_member(source: &Source, taking: &Taking) -> Result<()> {
    let text = || format!("`{}` is not an OVA: it has no members", source.path().display());
    if taking.member.is_some() { Err(Failure::new(Exit::Usage, text())) } else { Ok(()) }
}

/// Opens a disk of an OVA: the one that is named, or the only one.
fn open_member<'a>(source: &Source, container: Container, taking: &Taking) -> Result<Contents<'a>> {
    let disks: Vec<_> = disk::members_of_appliance(source)?
        .into_iter()
        .filter_map(|member| disk::container_of(&member).map(|found| (member, found)))
        .collect();
    let refused = |text: String| Failure::new(Exit::Refused, format!("`{}` {text}", source.path().display()));
    let names = disks.iter().map(|(disk, _)| disk.name()).collect::<Vec<_>>().join(", ");
    let chosen = match (&taking.member, &disks[..]) {
        (_, []) => return Err(refused("is an OVA without a disk that is known".to_owned())),
        (None, [only]) => only,
        (None, all) => {
            let text = format!("is an OVA with {} disks: {names}", all.len());
            return Err(refused(text).hint("choose one by --member NAME"));
        }
        (Some(wanted), all) => all
            .iter()
            .find(|(disk, _)| disk.name() == wanted)
            .ok_or_else(|| refused(format!("has no disk `{wanted}`; it has {names}")))?,
    };
    let ContainerKind::VirtualDisk(format) = chosen.1.kind else {
        return Err(refused(format!("holds its disk as {}", chosen.1.name)).hint("unpack it first: tar -xf"));
    };
    match foreign::open(source, Some(&chosen.0), format, false)? {
        Some(disk) => Ok(Contents::Foreign(disk)),
        None => Err(not_raw(source, container, NEEDS_QEMU)),
    }
}
