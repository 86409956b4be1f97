//! Formats that are recognised, so that a warning can name them, but whose free space is not read. Signatures as in
//! util-linux (libblkid/src/superblocks).

use crate::volume::Volume;
use crate::{Filesystem, Result};

/// A signature: what it is called, where it stands, and its bytes.
type Signature = (&'static str, u64, &'static [u8]);

const SIGNATURES: [Signature; 24] = [
    ("xfs", 0, b"XFSB"),
    ("btrfs", 0x1_0040, b"_BHRfS_M"),
    ("ntfs", 3, b"NTFS    "),
    ("exfat", 3, b"EXFAT   "),
    ("BitLocker", 3, b"-FVE-FS-"),
    ("crypto_LUKS", 0, b"LUKS\xBA\xBE"),
    ("LVM2_member", 0, b"LABELONE"),
    ("LVM2_member", 512, b"LABELONE"),
    ("LVM2_member", 1024, b"LABELONE"),
    ("LVM2_member", 1536, b"LABELONE"),
    ("linux_raid_member", 0, &[0xFC, 0x4E, 0x2B, 0xA9]),
    ("linux_raid_member", 4096, &[0xFC, 0x4E, 0x2B, 0xA9]),
    ("f2fs", 1024, &[0x10, 0x20, 0xF5, 0xF2]),
    ("squashfs", 0, b"hsqs"),
    ("erofs", 1024, &[0xE2, 0xE1, 0xF5, 0xE0]),
    ("iso9660", 0x8001, b"CD001"),
    ("jfs", 0x8000, b"JFS1"),
    ("reiserfs", 0x1_0034, b"ReIsEr"),
    ("apfs", 32, b"NXSB"),
    ("hfsplus", 1024, b"H+"),
    ("bcache", 4120, &[0xC6, 0x85, 0x73, 0xF6, 0x4E, 0x1A, 0x45, 0xCA]),
    ("bcachefs", 4120, &[0xC6, 0x85, 0x73, 0xF6, 0x66, 0xCE, 0x90, 0xA9]),
    ("zfs_member", 0x2_0000, &[0x0C, 0xB1, 0xBA, 0x00]),
    ("ufs", 0x1_055C, &[0x19, 0x01, 0x54, 0x19]),
];

/// Which of these formats the volume bears the signature of, each once.
pub(super) fn probe(volume: &Volume) -> Result<Vec<Filesystem>> {
    let mut found: Vec<Filesystem> = Vec::new();
    for (kind, offset, magic) in SIGNATURES {
        let bears = volume.peek(offset, magic.len())?.is_some_and(|bytes| bytes == magic);
        if bears && found.iter().all(|filesystem| filesystem.kind != kind) {
            found.push(Filesystem { kind, uuid: None, label: None, block_bytes: 0, understood: false });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemoryDisk;

    #[test]
    fn names_each_format_once() {
        for (kind, offset, magic) in SIGNATURES {
            let mut bytes = vec![0; 1 << 18];
            let at = usize::try_from(offset).unwrap();
            bytes[at..at + magic.len()].copy_from_slice(magic);
            let found = probe(&Volume::whole(&MemoryDisk::new(bytes))).unwrap();
            assert_eq!(found.iter().map(|filesystem| filesystem.kind).collect::<Vec<_>>(), [kind]);
        }
        assert!(probe(&Volume::whole(&MemoryDisk::new(vec![0; 512]))).unwrap().is_empty());
    }
}
