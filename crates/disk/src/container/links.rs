//! Which other files a disk in a foreign format names, before a program that would open them all gets it.
//!
//! Sources: QEMU's `docs/interop/qcow2`, `docs/interop/qed_spec` and VMware's Virtual Disk Format 5.0.

use std::path::Path;

use base::{Error, Result};

use crate::{ReadAt, Source};

/// Bytes of a VMDK that may hold its descriptor: VMware's limit is 20 sectors, and programs put it at the beginning.
const DESCRIPTOR_BYTES: usize = 64 << 10;

/// The name of another file that the disk in `source` needs, in the format that QEMU calls `format`, unless it lies in
/// the same folder and belongs to the disk. `None` if it needs none. `Io`.
pub fn needs_others(source: &Source, format: &str) -> Result<Option<String>> {
    let size = usize::try_from(source.geometry().size_bytes).unwrap_or(usize::MAX);
    let mut front = vec![0; DESCRIPTOR_BYTES.min(size)];
    source
        .read_exact_at(&mut front, 0)
        .map_err(|e| Error::within(e, format!("look into `{}`", source.name())))?;
    Ok(match format {
        "qcow2" => of_qcow2(&front),
        "qed" => of_qed(&front),
        "vmdk" => of_vmdk(&front),
        _ => None,
    })
}

fn of_qcow2(front: &[u8]) -> Option<String> {
    let number = |at: usize| {
        front.get(at..at + 8).map_or(0, |bytes| u64::from_be_bytes(bytes.try_into().expect("eight")))
    };
    let version = number(0) & 0xFFFF_FFFF;
    if number(8) != 0 {
        return Some("its backing file".to_owned());
    }
    // Incompatible feature 2: the data lie in a file of their own. Version 1 has its backing file at the same place.
    (version >= 3 && number(72) & (1 << 2) != 0).then(|| "its data file".to_owned())
}

fn of_qed(front: &[u8]) -> Option<String> {
    let features = front.get(16..24).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().expect("eight")));
    (features & 1 != 0).then(|| "its backing file".to_owned())
}

fn of_vmdk(front: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(front);
    text.lines().find_map(|line| {
        let line = line.trim();
        if let Some(parent) = line.strip_prefix("parentFileNameHint") {
            return Some(parent.trim_start_matches(['=', ' ']).to_owned());
        }
        let is_extent = ["RW ", "RDONLY ", "NOACCESS "].iter().any(|access| line.starts_with(access));
        let name = line.split('"').nth(1).filter(|_| is_extent)?;
        // A name with a folder, or with a colon, by which QEMU may take it for something other than a file.
        let is_beside = Path::new(name).file_name().is_some_and(|last| last == name) && !name.contains(':');
        (!is_beside).then(|| format!("`{name}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_beside_a_disk_belong_to_it() {
        let vmdk = |lines: &str| of_vmdk(format!("# Disk DescriptorFile\n{lines}\n").as_bytes());
        assert_eq!(vmdk("RW 8192 SPARSE \"disk-s001.vmdk\""), None);
        assert_eq!(vmdk("RW 8192 ZERO"), None);
        for name in ["/etc/shadow", "../up", "a/b", "nbd:host:1", "json:{}", ".."] {
            assert!(vmdk(&format!("RW 8192 FLAT \"{name}\" 0")).is_some(), "{name}");
        }
        assert!(vmdk("parentFileNameHint=\"base.vmdk\"").is_some());
        let mut qcow2 = [0; 104];
        qcow2[7] = 3;
        assert_eq!(of_qcow2(&qcow2), None);
        qcow2[79] = 4;
        assert!(of_qcow2(&qcow2).is_some());
        qcow2[79] = 8;
        qcow2[15] = 104;
        assert!(of_qcow2(&qcow2).is_some());
        assert_eq!(of_qcow2(&[0; 3]), None);
        let mut qed = [0; 64];
        assert_eq!(of_qed(&qed), None);
        qed[16] = 1;
        assert!(of_qed(&qed).is_some());
    }
}
