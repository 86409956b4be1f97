//! Which other files a disk in a foreign format names, before a program that would open them all gets it.
//!
//! Sources: QEMU's `docs/interop/qcow2`, `docs/interop/qed_spec`, and VMware's Virtual Disk Format 5.0.

use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};

use super::NEEDS_ANOTHER;
use crate::{ReadAt, Source};

/// Bytes at the start of a VMDK that may hold a descriptor.
const FRONT_BYTES: u64 = 64 << 10;
/// Longest descriptor of a VMDK that is read; VMware's limit is 20 sectors.
const DESCRIPTOR_BYTES_MAX: u64 = 1 << 20;

/// The other files of the disk in `source`, in the format that QEMU calls `format`: extents of a VMDK that are regular
/// files in the same folder. `Refused` if it names a file elsewhere, or any in a way that QEMU could take for something
/// else, unless `elsewhere` allows it; and if it has a backing file. `Io`.
pub fn linked_files(source: &Source, format: &str, elsewhere: bool) -> Result<Vec<PathBuf>> {
    let size = source.geometry().size_bytes;
    let read = |offset: u64, len: u64| {
        let len = len.min(size.saturating_sub(offset));
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        source.read_exact_at(&mut bytes, offset).map(|()| bytes)
    };
    let look = || -> Result<Vec<Vec<u8>>> {
        let front = read(0, FRONT_BYTES)?;
        let number = |at: usize| {
            front
                .get(at..at + 8)
                .map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
        };
        // The header of a sparse extent says where its descriptor is, in sectors.
        let inside = front.starts_with(b"KDMV").then(|| (number(28), number(36)));
        let place = inside.and_then(|(offset, len)| Some((offset.checked_mul(512)?, len.checked_mul(512)?)));
        Ok(match place {
            Some((offset, len)) => vec![read(offset, len.min(DESCRIPTOR_BYTES_MAX))?, front],
            None => vec![front],
        })
    };
    let texts = look().map_err(|e| e.within(format!("look into `{}`", source.name())))?;
    let refused = |why: &str| Error::new(ErrorKind::Refused, format!("`{}` {why}", source.name()));
    let has_backing = match format {
        "qcow2" => of_qcow2(&texts[0]),
        "qed" => of_qed(&texts[0]),
        "vmdk" => texts.iter().any(|text| has_parent(text)),
        _ => false,
    };
    if has_backing {
        return Err(refused("has a backing file: flatten it first (qemu-img convert)"));
    }
    if format != "vmdk" {
        return Ok(Vec::new());
    }
    let folder = source.path().canonicalize().ok();
    let folder = folder.as_deref().and_then(Path::parent).unwrap_or(Path::new(".")).to_owned();
    let mut files = Vec::new();
    for name in texts.iter().flat_map(|text| extents(text)) {
        let path = folder.join(&name);
        let is_beside = Path::new(&name).file_name().is_some_and(|last| last == name.as_str())
            && !name.contains(':')
            && path.symlink_metadata().is_ok_and(|found| found.is_file());
        if !is_beside && !elsewhere {
            return Err(refused(&format!("{NEEDS_ANOTHER}, `{name}`")));
        }
        if !files.contains(&path) && source.path().canonicalize().ok().as_ref() != Some(&path) {
            files.push(path);
        }
    }
    Ok(files)
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
