//! Which other files a disk in a foreign format names, before a program that would open them all gets it.
//!
//! Sources: QEMU's `docs/interop/qcow2`, `docs/interop/qed_spec` and `block/vmdk.c`, and VMware's Virtual Disk
//! Format 5.0.

use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};

use super::NEEDS_ANOTHER;
use crate::ReadAt;

/// Bytes at the start of a VMDK that may hold a descriptor.
const FRONT_BYTES: u64 = 64 << 10;
/// What a sparse extent of a VMDK begins with.
const SPARSE: &[u8] = b"KDMV";
/// Longest descriptor of a VMDK that is read; VMware's limit is 20 sectors.
const DESCRIPTOR_BYTES_MAX: u64 = 1 << 20;

/// The other files of `disk`, which is in the format that QEMU calls `format` and lies in a file at `path`: extents of
/// a VMDK that are regular files in the same folder. `Refused` if it names a file elsewhere, or any in a way that QEMU
/// could take for something else, unless `elsewhere` allows it; and if it has a backing file. `Io`.
pub fn linked_files(disk: &dyn ReadAt, path: &Path, format: &str, elsewhere: bool) -> Result<Vec<PathBuf>> {
    let texts = texts(disk).map_err(|e| e.within(format!("look into `{}`", disk.name())))?;
    let refused = |why: &str| Error::new(ErrorKind::Refused, format!("`{}` {why}", disk.name()));
    let has_backing = match format {
        "qcow2" => of_qcow2(&texts[0]),
        "qed" => of_qed(&texts[0]),
        "vmdk" => texts.iter().any(|text| has_parent(text)),
        _ => false,
    };
    if has_backing {
        return Err(refused("has a backing file: flatten it first (qemu-img convert)"));
    }
    if format != "vmdk" || is_alone(&texts[0]) {
        return Ok(Vec::new());
    }
    let own = path.canonicalize().ok();
    let folder = own.as_deref().and_then(Path::parent).unwrap_or(Path::new(".")).to_owned();
    let mut files = Vec::new();
    for name in texts.iter().flat_map(|text| extents(text)) {
        let path = folder.join(&name);
        let is_beside = Path::new(&name).file_name().is_some_and(|last| last == name.as_str())
            && !name.contains(':')
            && path.symlink_metadata().is_ok_and(|found| found.is_file());
        if !is_beside && !elsewhere {
            return Err(refused(&format!("{NEEDS_ANOTHER}, `{name}`")));
        }
        if !files.contains(&path) && own.as_ref() != Some(&path) {
            files.push(path);
        }
    }
    Ok(files)
}

/// The start of `disk`, and the descriptor in it if it is a sparse extent of a VMDK.
fn texts(disk: &dyn ReadAt) -> Result<Vec<Vec<u8>>> {
    let size = disk.geometry().size_bytes;
    let read = |offset: u64, len: u64| {
        let len = len.min(size.saturating_sub(offset));
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        disk.read_exact_at(&mut bytes, offset).map(|()| bytes)
    };
    let front = read(0, FRONT_BYTES)?;
    // The header of a sparse extent says where its descriptor is, in sectors.
    let inside = front.starts_with(SPARSE).then(|| (number(&front, 28), number(&front, 36)));
    let place = inside.and_then(|(offset, len)| Some((offset.checked_mul(512)?, len.checked_mul(512)?)));
    Ok(match place {
        Some((offset, len)) => vec![front, read(offset, len.min(DESCRIPTOR_BYTES_MAX))?],
        None => vec![front],
    })
}

fn number(front: &[u8], at: usize) -> u64 {
    front.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

/// Whether a VMDK is a sparse extent that holds a whole disk: QEMU opens no other, whatever its descriptor names. One
/// without a size is a descriptor to it.
fn is_alone(front: &[u8]) -> bool {
    front.starts_with(SPARSE) && number(front, 12) != 0
}

/// Whether a QCOW2 has a backing file, or a file for its data.
fn of_qcow2(front: &[u8]) -> bool {
    let number = |at: usize| {
        front.get(at..at + 8).map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().expect("eight bytes")))
    };
    let version = number(0) & 0xFFFF_FFFF;
    // Incompatible feature 2: the data lie in a file of their own. Version 1 has its backing file at the same place.
    number(8) != 0 || (version >= 3 && number(72) & (1 << 2) != 0)
}

fn of_qed(front: &[u8]) -> bool {
    let features =
        front.get(16..24).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
    features & 1 != 0
}

fn has_parent(text: &[u8]) -> bool {
    String::from_utf8_lossy(text).contains("parentFileNameHint")
}

/// Whatever a reader may take for the name of an extent: what stands in quotes in a line without an equals sign before
/// it.
fn extents(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let lines = text.split(['\n', '\r', '\0']);
    let name = |line: &str| {
        let (before, behind) = line.split_once('"')?;
        let is_setting = before.contains('=');
        let is_extent = ["RW", "RDONLY", "NOACCESS"].contains(&before.split_whitespace().next()?);
        (is_extent || !is_setting).then(|| behind.split('"').next().unwrap_or_default().to_owned())
    };
    lines.filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_however_they_are_written() {
        let found = |lines: &str| extents(format!("# Disk DescriptorFile\nCID=\"1\"\n{lines}\n").as_bytes());
        assert_eq!(found("RW 8192 SPARSE \"disk-s001.vmdk\""), ["disk-s001.vmdk"]);
        assert_eq!(found("RW\t8192\tFLAT\t\"/dev/sda\"\t0"), ["/dev/sda"]);
        assert_eq!(found("  RDONLY 1 X=1 \"a\""), ["a"]);
        assert_eq!(found("RW 8192 ZERO\nddb.adapterType = \"ide\""), [""; 0]);
        assert_eq!(found("what \"b\""), ["b"]);
        let mut sparse = [SPARSE, &[0; 508]].concat();
        assert!(!is_alone(&sparse));
        sparse[12] = 1;
        assert!(is_alone(&sparse) && !is_alone(&sparse[1..]));
        assert!(has_parent(b"x\nparentFileNameHint=\"base.vmdk\""));
        let mut qcow2 = [0; 104];
        qcow2[7] = 3;
        assert!(!of_qcow2(&qcow2));
        qcow2[79] = 4;
        assert!(of_qcow2(&qcow2));
        (qcow2[79], qcow2[15]) = (8, 104);
        assert!(of_qcow2(&qcow2) && !of_qcow2(&[0; 3]));
        let mut qed = [0; 64];
        assert!(!of_qed(&qed));
        qed[16] = 1;
        assert!(of_qed(&qed));
    }
}
