//! Recognises files that are not raw disks: disk formats of virtual machines, compressed files, archives, and images of
//! other programs. If such a file were captured as a raw disk, no machine could boot from the image. An ISO image is a
//! raw disk: many start from a stick as well, and their partition tables say so.
//!
//! Sources of the signatures: QEMU's `docs/interop` (qcow2, qed, parallels) and `block/*.c`, VMware's Virtual Disk
//! Format 5.0, Microsoft's VHD specification and MS-VHDX, `Storage/VDICore.h` of VirtualBox, DMTF's DSP0243 (OVA);
//! RFC 1952 (gzip), RFC 8878 (zstd), the `xz` and lz4 frame specifications, bzip2's manual, PKWARE's APPNOTE (zip); the
//! headers that partclone, ntfsclone, partimage, fsarchiver, wimlib, Proxmox, libewf, Android, lzop, lzip and lrzip
//! write.

mod appliance;
mod links;
mod qcow2_header;
mod qcow2_stream;
mod qcow2_target;
mod unpack;
mod virtual_disk;

use std::path::Path;

pub use appliance::{ArchivedDisk, members_of_appliance};
pub use links::linked_files;
pub use qcow2_header::Qcow2Header;
pub use qcow2_stream::{Qcow2Stream, Qcow2Written};
pub use qcow2_target::{
    Qcow2Target, make_overlay_of_raw, open_qcow2_overlay, open_qcow2_target, qcow2_backing,
};
pub use unpack::{Compression, unpack};
pub use virtual_disk::{VirtualDisk, open_virtual_disk};

use crate::ReadAt;

/// In the refusal of a disk because of a file that it names, which may be allowed.
pub const NEEDS_ANOTHER: &str = "needs another file";

/// The format of a file that holds a disk in another form than raw bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Container {
    /// The usual name of the format.
    pub name: &'static str,
    /// What reads it.
    pub kind: ContainerKind,
}

/// What reads a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerKind {
    /// A compressed file: [`unpack`].
    Compressed(Compression),
    /// A disk of a virtual machine, which QEMU knows by this name. [`open_virtual_disk`] reads `qcow2` and some kinds
    /// of `vmdk`.
    VirtualDisk(&'static str),
    /// An archive that holds disks of a virtual machine: [`members_of_appliance`].
    Appliance,
    /// This command, in which `{}` is the path, makes a raw disk of it, or what else can be captured.
    Command(&'static str),
}

/// The number of bytes that are examined at the start and at the end of the file.
const FRONT_BYTES: usize = 512;

/// Signatures at the start: offset, magic bytes, format.
const FRONTS: &[(usize, &[u8], Container)] = &[
    (0, b"QFI\xfb", qemu("QCOW2", "qcow2")),
    (0, b"QED\0", qemu("QED", "qed")),
    (0, b"KDMV", qemu("VMDK", "vmdk")),
    (0, b"COWD", qemu("VMDK", "vmdk")),
    (0, b"\xbe\xba\xfe\xca\0\0\0\0", qemu("VMDK", "vmdk")),
    (0, b"# Disk DescriptorFile", qemu("VMDK", "vmdk")),
    (0x40, b"\x7f\x10\xda\xbe", qemu("VDI", "vdi")),
    (0, b"conectix", qemu("VHD", "vpc")),
    (0, b"vhdxfile", qemu("VHDX", "vhdx")),
    (0, b"WithoutFreeSpace", qemu("Parallels", "parallels")),
    (0, b"WithouFreSpacExt", qemu("Parallels", "parallels")),
    (0, b"Bochs Virtual HD Image", qemu("Bochs", "bochs")),
    (0, b"\x1f\x8b\x08", packed("gzip", Compression::Gzip)),
    (0, b"\xfd7zXZ\0", packed("xz", Compression::Xz)),
    (0, b"\x28\xb5\x2f\xfd", packed("zstd", Compression::Zstd)),
    (0, b"\x04\x22\x4d\x18", by("lz4", "lz4 -dc {} > disk.raw")),
    (0, b"\x02\x21\x4c\x18", by("lz4", "lz4 -dc {} > disk.raw")),
    (4, b"1AY&SY", packed("bzip2", Compression::Bzip2)),
    (0, b"7z\xbc\xaf\x27\x1c", by("7-Zip", "7z x -so {} > disk.raw")),
    (0, b"PK\x03\x04", by("zip", "unzip -p {} > disk.raw")),
    (0, b"Rar!\x1a\x07", by("RAR", "unrar p -inul {} > disk.raw")),
    (0, b"\x89LZO\0\r\n\x1a\n", by("lzop", "lzop -dc {} > disk.raw")),
    (0, b"LZIP", by("lzip", "lzip -dc {} > disk.raw")),
    (0, b"LRZI", by("lrzip", "lrzip -d -o disk.raw {}")),
    (0, b"partclone-image", by("a partclone image", "partclone.restore -W -s {} -o partition.raw")),
    (0, b"\0ntfsclone-image", by("an ntfsclone image", "ntfsclone -r -O partition.raw {}")),
    (0, b"PaRtImAgE-VoLuMe", by("a partimage image", "partimage restore PARTITION {}")),
    (0, b"FsA0", by("an FSArchiver archive", "fsarchiver restfs {} id=0,dest=PARTITION")),
    (0, b"MSWIM\0\0\0", by("a WIM", "wimapply {} 1 PARTITION")),
    (0, b"WLPWM\0\0\0", by("a WIM", "wimapply {} 1 PARTITION")),
    (0, b"VMA\0", by("a VMA of Proxmox", "vma extract {} FOLDER")),
    (0, b"EVF\x09\r\n\xff\0", by("an EWF image", "ewfexport -f raw -t disk {}")),
    (0, b"\x3a\xff\x26\xed", by("an Android sparse image", "simg2img {} disk.raw")),
];

/// Signatures 512 bytes before the end: a VHD of fixed size is the raw disk with a footer after it.
const ENDS: &[(&[u8], Container)] = &[(b"conectix", qemu("VHD", "vpc")), (b"koly", qemu("DMG", "dmg"))];

const fn qemu(name: &'static str, format: &'static str) -> Container {
    Container { name, kind: ContainerKind::VirtualDisk(format) }
}

const fn packed(name: &'static str, compression: Compression) -> Container {
    Container { name, kind: ContainerKind::Compressed(compression) }
}

const fn by(name: &'static str, command: &'static str) -> Container {
    Container { name, kind: ContainerKind::Command(command) }
}

impl Container {
    /// A command for the user that converts the file at `path` to a raw disk.
    #[must_use]
    pub fn conversion(&self, path: &Path) -> String {
        let path = path.display();
        match self.kind {
            ContainerKind::VirtualDisk(_) => format!("qemu-img convert -O raw {path} disk.raw"),
            ContainerKind::Compressed(_) => format!("{} -dc {path} > disk.raw", self.name),
            ContainerKind::Appliance => format!("tar -xf {path}, and then qemu-img"),
            ContainerKind::Command(command) => command.replace("{}", &path.to_string()),
        }
    }
}

/// The compression of a stream that begins with `front`.
fn compression_of(front: &[u8]) -> Option<Compression> {
    FRONTS.iter().find_map(|(at, magic, found)| match found.kind {
        ContainerKind::Compressed(compression) => {
            front.get(*at..).is_some_and(|front| front.starts_with(magic)).then_some(compression)
        }
        _ => None,
    })
}

/// The format of `disk` if it is not raw; `None` also if the disk cannot be read or is shorter than 512 bytes.
#[must_use]
pub fn container_of(disk: &dyn ReadAt) -> Option<Container> {
    let size = disk.geometry().size_bytes;
    let mut front = [0; FRONT_BYTES];
    if size < FRONT_BYTES as u64 || disk.read_exact_at(&mut front, 0).is_err() {
        return None;
    }
    let stands = |at: usize, magic: &[u8]| front[at..].starts_with(magic);
    let found = FRONTS.iter().find(|(at, magic, _)| stands(*at, magic)).map(|(.., found)| *found);
    // Some programs write blanks or other lines before the first line of a VMDK descriptor.
    let descriptor = || {
        let text = front.windows(21).take(64).any(|window| window == b"# Disk DescriptorFile");
        text.then_some(qemu("VMDK", "vmdk"))
    };
    let archive = || {
        appliance::archive_of(disk, &front).map(|is_appliance| match is_appliance {
            true => Container { name: "OVA", kind: ContainerKind::Appliance },
            false => by("a tar archive", "tar -xf {}"),
        })
    };
    found.or_else(descriptor).or_else(archive).or_else(|| {
        let mut end = [0; FRONT_BYTES];
        disk.read_exact_at(&mut end, size - FRONT_BYTES as u64).ok()?;
        ENDS.iter().find(|(magic, _)| end.starts_with(magic)).map(|(_, found)| *found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemoryDisk;

    #[test]
    fn each_signature_counts_at_its_place_alone() {
        let disk = |at: usize, magic: &[u8]| {
            let mut bytes = vec![0; 4096];
            bytes[at..at + magic.len()].copy_from_slice(magic);
            container_of(&MemoryDisk::new(bytes)).map(|found| found.name)
        };
        for (at, magic, found) in FRONTS {
            assert_eq!(disk(*at, magic), Some(found.name));
            assert_eq!(disk(at + 1024, magic), None);
        }
        for (magic, found) in ENDS {
            assert_eq!(disk(4096 - 512, magic), Some(found.name));
        }
        assert_eq!(disk(3, b"# Disk DescriptorFile"), Some("VMDK"));
        assert_eq!(container_of(&MemoryDisk::new(vec![0; 4096])), None);
        assert_eq!(container_of(&MemoryDisk::new(Vec::new())), None);
        let path = Path::new("a.vdi");
        assert_eq!(qemu("VDI", "vdi").conversion(path), "qemu-img convert -O raw a.vdi disk.raw");
        let lz4 = FRONTS.iter().find(|(.., found)| found.name == "lz4").unwrap().2;
        assert_eq!(lz4.conversion(path), "lz4 -dc a.vdi > disk.raw");
        assert_eq!(packed("gzip", Compression::Gzip).conversion(path), "gzip -dc a.vdi > disk.raw");
    }
}
