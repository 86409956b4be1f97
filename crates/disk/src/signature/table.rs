//! The table of signatures. Places and magic bytes are those of util-linux 2.41 (libblkid/src/superblocks,
//! libblkid/src/partitions), and those of Linux (block/partitions) for tables that libblkid does not know. Most magics
//! that may occur by chance, because they are short or common, have a function in [`super::check`] that looks at the
//! fields around them.

use super::check;
use crate::volume::Volume;

/// The place of magic bytes in a volume.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// This number of bytes from the start.
    Start(u64),
    /// `before` bytes before the end, where the volume's length is first rounded down to a multiple of `unit` bytes.
    End { unit: u64, before: u64 },
}

/// Whether the magic bytes at this offset of the volume really belong to the format. `Io` if the disk fails.
type Check = fn(&Volume, u64) -> Result<bool>;

/// One row of the table: a format and one of its magics.
#[derive(Clone, Copy)]
pub(super) struct Signature {
    pub(super) kind: &'static str,
    pub(super) magic: &'static [u8],
    pub(super) places: &'static [Place],
    /// The distance in bytes between repetitions of the magic; 0 if there is only one.
    pub(super) step_bytes: usize,
    /// How often the magic may occur from each place on, the place itself included: at least 1.
    pub(super) repeat: usize,
    pub(super) check: Check,
    pub(super) is_copy: bool,
}

impl Signature {
    const fn new(kind: &'static str, magic: &'static [u8], places: &'static [Place]) -> Self {
        Self { kind, magic, places, step_bytes: 0, repeat: 1, check: |_, _| Ok(true), is_copy: false }
    }

    const fn checked(mut self, check: Check) -> Self {
        self.check = check;
        self
    }

    const fn repeated(mut self, step_bytes: usize, repeat: usize) -> Self {
        self.step_bytes = step_bytes;
        self.repeat = repeat;
        self
    }

    const fn copy(mut self) -> Self {
        self.is_copy = true;
        self
    }
}

use Place::{End, Start};
use base::Result;

const fn row(kind: &'static str, magic: &'static [u8], places: &'static [Place]) -> Signature {
    Signature::new(kind, magic, places)
}

/// `before` bytes before the end of the last whole sector.
const fn end(before: u64) -> Place {
    End { unit: 512, before }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The ends of the first page, for each page size: the signature of swap space is there.
const PAGE_ENDS: &[Place] =
    &[Start(4096 - 10), Start(8192 - 10), Start(16_384 - 10), Start(32_768 - 10), Start(65_536 - 10)];
/// ZFS has four labels of 256 KiB: two at each end of the volume. This is the ring of uberblocks in each label.
const ZFS_RINGS: &[Place] = &[
    Start(128 * KIB),
    Start(384 * KIB),
    End { unit: 256 * KIB, before: 384 * KIB },
    End { unit: 256 * KIB, before: 128 * KIB },
];
/// The list of the pool's properties (an nvlist) in each label of ZFS.
const ZFS_LISTS: &[Place] = &[
    Start(16 * KIB + 20),
    Start(272 * KIB + 20),
    End { unit: 256 * KIB, before: 496 * KIB - 20 },
    End { unit: 256 * KIB, before: 240 * KIB - 20 },
];
/// The magic numbers in the superblocks of the variants of UFS.
const UFS: &[Place] =
    &[Start(0x55C), Start(8 * KIB + 0x55C), Start(64 * KIB + 0x55C), Start(256 * KIB + 0x55C)];
const SYSV: &[Place] =
    &[Start(512 + 504), Start(9 * KIB + 512 + 504), Start(15 * KIB + 512 + 504), Start(18 * KIB + 512 + 504)];
const DRBD: &[Place] = &[end(4096 - 60), End { unit: 1024, before: 4096 - 60 }];
const BCACHEFS: &[u8] = b"\xC6\x85\x73\xF6\x66\xCE\x90\xA9\xD9\x6A\x60\xCF\x80\x3D\xF7\xEF";
/// The places of the record of Promise's controllers: they depend on the capacity and the model.
const PROMISE: &[Place] = &[
    end(63 * 512),
    end(255 * 512),
    end(256 * 512),
    end(16 * 512),
    end(399 * 512),
    end(591 * 512),
    end(675 * 512),
    end(735 * 512),
    end(911 * 512),
    end(974 * 512),
    end(991 * 512),
    end(951 * 512),
    end(3087 * 512),
];
/// The places of the second header of LUKS2: they depend on the size of the first.
const LUKS2_SECOND: &[Place] = &[
    Start(16 * KIB),
    Start(32 * KIB),
    Start(64 * KIB),
    Start(128 * KIB),
    Start(256 * KIB),
    Start(512 * KIB),
    Start(MIB),
    Start(2 * MIB),
    Start(4 * MIB),
];

/// Formats of whole volumes: filesystems, members of RAID arrays, containers of other volumes.
pub(super) const FORMATS: &[Signature] = &[
    // Formats whose allocation maps this crate reads.
    row("ext", b"\x53\xEF", &[Start(0x438)]),
    row("vfat", b"\x55\xAA", &[Start(510)]).checked(check::fat),
    row("vfat", b"MSDOS", &[Start(0x36)]),
    row("vfat", b"FAT12   ", &[Start(0x36)]),
    row("vfat", b"FAT16   ", &[Start(0x36)]),
    row("vfat", b"FAT     ", &[Start(0x36)]),
    row("vfat", b"MSWIN", &[Start(0x52)]),
    row("vfat", b"FAT32   ", &[Start(0x52)]),
    row("swap", b"SWAP-SPACE", PAGE_ENDS),
    row("swap", b"SWAPSPACE2", PAGE_ENDS),
    row("swap", b"S1SUSPEND", PAGE_ENDS),
    row("swap", b"S2SUSPEND", PAGE_ENDS),
    row("swap", b"ULSUSPEND", PAGE_ENDS),
    row("swap", b"LINHIB0001", PAGE_ENDS),
    row("swap", b"\xED\xC3\x02\xE9\x98\x56\xE5\x0C", PAGE_ENDS),
    row("swsuspend", b"\xED\xC3\x02\xE9\x98\x56\xE5\x0C", &[Start(0)]),
    // RAID arrays: those of Linux, then those of controllers' firmware, most of which have their record at the end.
    row(
        "linux_raid_member",
        b"\xFC\x4E\x2B\xA9",
        &[Start(0), Start(4096), End { unit: 4096, before: 8192 }, End { unit: 64 * KIB, before: 64 * KIB }],
    ),
    row("linux_raid_member", b"\xA9\x2B\x4E\xFC", &[End { unit: 64 * KIB, before: 64 * KIB }]),
    row("ddf_raid_member", b"\xDE\x11\xDE\x11", &[end(512), end(257 * 512)]),
    row("isw_raid_member", b"Intel Raid ISM Cfg Sig. ", &[end(1024), End { unit: 4096, before: 8192 }]),
    row("lsi_mega_raid_member", b"$XIDE$", &[end(512)]),
    row("via_raid_member", b"\x55\xAA", &[end(512)]).checked(check::via),
    row("silicon_medley_raid_member", b"\0\0\0\x2F", &[end(512 - 0x60)]).checked(check::silicon),
    row("nvidia_raid_member", b"NVIDIA  ", &[end(1024)]),
    row("promise_fasttrack_raid_member", b"Promise Technology, Inc.", PROMISE),
    row("hpt45x_raid_member", b"\xF3\x16\x78\x5A", &[end(11 * 512)]),
    row("hpt45x_raid_member", b"\xFD\x16\x78\x5A", &[end(11 * 512)]),
    row("hpt37x_raid_member", b"\xF0\x16\x78\x5A", &[Start(4096 + 544)]),
    row("hpt37x_raid_member", b"\xFD\x16\x78\x5A", &[Start(4096 + 544)]),
    row("adaptec_raid_member", b"\x37\xFC\x4D\x1E", &[end(512)]),
    row("jmicron_raid_member", b"JM", &[end(512)]).checked(check::jmicron),
    // Containers of other volumes.
    row("bcache", b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA\x82\x65\xF5\x7F\x48\xBA\x6D\x81", &[Start(4096 + 24)]),
    row("ceph_bluestore", b"bluestore block device", &[Start(0)]),
    row("drbd", b"\x83\x74\x02\x6B", DRBD),
    row("drbd", b"\x83\x74\x02\x6C", DRBD),
    row("drbd", b"\x83\x74\x02\x6D", DRBD),
    row("drbdmanage_control_volume", b"$DRBDmgr=q", &[Start(0)]),
    row("drbdproxy_datalog", b"DRBDdlh*", &[Start(0)]),
    row("LVM2_member", b"LVM2 001", &[Start(0x18)]).repeated(512, 4),
    row("LVM1_member", b"HM", &[Start(0)]).checked(check::lvm1),
    row("DM_snapshot_cow", b"SnAp", &[Start(0)]),
    row("DM_verity_hash", b"verity\0\0", &[Start(0)]),
    row("DM_integrity", b"integrt\0", &[Start(0)]),
    row("crypto_LUKS", b"LUKS\xBA\xBE", &[Start(0)]),
    row("crypto_LUKS", b"SKUL\xBA\xBE", LUKS2_SECOND),
    row("BitLocker", b"-FVE-FS-", &[Start(3)]),
    // BitLocker To Go has a boot sector like that of FAT, with this GUID inside.
    row(
        "BitLocker",
        b"\x3B\xD6\x67\x49\x29\x2E\xD8\x4A\x83\x99\xF6\xA3\x39\xE3\xD0\x01",
        &[Start(160), Start(424)],
    ),
    row("cs_fvault2", b"CS\x01\0\0\0", &[Start(88)]),
    row("VMFS_volume_member", b"\x0D\xD0\x01\xC0", &[Start(MIB)]),
    row("ubi", b"UBI#", &[Start(0)]),
    row("vdo", b"dmvdo001", &[Start(0)]),
    row("stratis", b"!Stra0tis\x86\xFF\x02^\x41rh", &[Start(512 + 4), Start(9 * 512 + 4)]),
    row("oracleasm", b"ORCLDISK", &[Start(32)]),
    row("zfs_member", b"\x0C\xB1\xBA\0\0\0\0\0", ZFS_RINGS).repeated(1024, 128),
    row("zfs_member", b"\0\0\0\0\0\xBA\xB1\x0C", ZFS_RINGS).repeated(1024, 128),
    row("zfs_member", b"\0\0\0\x07version\0", ZFS_LISTS),
    // Filesystems.
    row("xfs", b"XFSB", &[Start(0)]),
    row("xfs_external_log", b"\xFE\xED\xBA\xBE", &[Start(0)]).repeated(512, 512).checked(check::xfs_log),
    row("exfs", b"EXFS", &[Start(0)]),
    row("btrfs", b"_BHRfS_M", &[Start(64 * KIB + 0x40)]),
    row("btrfs", b"_BHRfS_M", &[Start(64 * MIB + 0x40), Start((256 << 30) + 0x40)]).copy(),
    row("bcachefs", BCACHEFS, &[Start(4096 + 24), Start(2 * MIB + 24)]),
    row("bcachefs", BCACHEFS, &[end(MIB - 24), End { unit: 1024, before: MIB - 24 }]),
    row("ntfs", b"NTFS    ", &[Start(3)]),
    row("exfat", b"EXFAT   ", &[Start(3)]),
    row("ReFS", b"\0\0\0ReFS\0", &[Start(0)]),
    row("hpfs", b"\x49\xE8\x95\xF9", &[Start(0x2000)]),
    row("apfs", b"NXSB", &[Start(32)]),
    row("hfs", b"BD", &[Start(KIB)]).checked(check::hfs),
    row("hfsplus", b"H+", &[Start(KIB)]).checked(check::hfsplus),
    row("hfsplus", b"HX", &[Start(KIB)]).checked(check::hfsplus),
    row("reiserfs", b"ReIsEr", &[Start(8 * KIB + 20), Start(8 * KIB + 0x34), Start(64 * KIB + 0x34)]),
    row("reiser4", b"ReIsEr4", &[Start(64 * KIB)]),
    row("jfs", b"JFS1", &[Start(32 * KIB)]),
    row("nilfs2", b"\x34\x34", &[Start(KIB + 6), end(4096 - 6), End { unit: 4096, before: 4096 - 6 }])
        .checked(check::nilfs),
    // Linux uses the second superblock of F2FS if the first is bad, so it is not marked as a copy.
    row("f2fs", b"\x10\x20\xF5\xF2", &[Start(KIB), Start(5 * KIB)]),
    row("iso9660", b"CD001", &[Start(32 * KIB + 1)]),
    row("iso9660", b"CDROM", &[Start(32 * KIB + 9)]),
    row("udf", b"BEA01", &[Start(32 * KIB + 1)]),
    row("udf", b"BOOT2", &[Start(32 * KIB + 1)]),
    row("udf", b"CDW02", &[Start(32 * KIB + 1)]),
    row("udf", b"NSR02", &[Start(32 * KIB + 1)]),
    row("udf", b"NSR03", &[Start(32 * KIB + 1)]),
    row("udf", b"TEA01", &[Start(32 * KIB + 1)]),
    row("ufs", b"\x54\x19\x01\0", UFS),
    row("ufs", b"\0\x01\x19\x54", UFS),
    row("ufs", b"\x19\x01\x54\x19", UFS),
    row("ufs", b"\x19\x54\x01\x19", UFS),
    row("ufs", b"\x12\x56\x19\0", UFS),
    row("ufs", b"\0\x19\x56\x12", UFS),
    row("ufs", b"\x14\x50\x09\0", UFS),
    row("ufs", b"\0\x09\x50\x14", UFS),
    row("ufs", b"\x95\x21\x61\0", UFS),
    row("ufs", b"\0\x61\x21\x95", UFS),
    row("ufs", b"\x94\x19\x23\x05", UFS),
    row("ufs", b"\x05\x23\x19\x94", UFS),
    row("sysv", b"\x20\x7E\x18\xFD", SYSV),
    row("sysv", b"\xFD\x18\x7E\x20", SYSV),
    row("xenix", b"\x2B\x55\x44", &[Start(2 * KIB)]),
    row("xenix", b"\x44\x55\x2B", &[Start(2 * KIB)]),
    row("minix", b"\x7F\x13", &[Start(KIB + 0x10)]).checked(check::minix),
    row("minix", b"\x8F\x13", &[Start(KIB + 0x10)]).checked(check::minix),
    row("minix", b"\x13\x7F", &[Start(KIB + 0x10)]).checked(check::minix),
    row("minix", b"\x13\x8F", &[Start(KIB + 0x10)]).checked(check::minix),
    row("minix", b"\x68\x24", &[Start(KIB + 0x10)]).checked(check::minix),
    row("minix", b"\x78\x24", &[Start(KIB + 0x10)]).checked(check::minix),
    row("minix", b"\x24\x68", &[Start(KIB + 0x10)]).checked(check::minix),
    row("minix", b"\x24\x78", &[Start(KIB + 0x10)]).checked(check::minix),
    row("minix", b"\x5A\x4D", &[Start(KIB + 0x18)]).checked(check::minix3),
    row("minix", b"\x4D\x5A", &[Start(KIB + 0x18)]).checked(check::minix3),
    row("gfs", b"\x01\x16\x19\x70", &[Start(64 * KIB)]),
    row("ocfs", b"OracleCFS", &[Start(8 * KIB)]),
    row("ocfs2", b"OCFSV2", &[Start(KIB), Start(2 * KIB), Start(4 * KIB), Start(8 * KIB)]),
    row("vxfs", b"\xF5\xFC\x01\xA5", &[Start(KIB)]),
    row("vxfs", b"\xA5\x01\xFC\xF5", &[Start(8 * KIB)]),
    row("VMFS", b"\x5E\xF1\xAB\x2F", &[Start(2 * MIB)]),
    row("scoutfs", b"\x8B\x42\x3C\x10", &[Start(64 * KIB + 4)]),
    row("squashfs", b"hsqs", &[Start(0)]),
    row("squashfs", b"sqsh", &[Start(0)]),
    row("cramfs", b"\x45\x3D\xCD\x28", &[Start(0), Start(512)]),
    row("cramfs", b"\x28\xCD\x3D\x45", &[Start(0), Start(512)]),
    row("romfs", b"-rom1fs-", &[Start(0)]),
    row("erofs", b"\xE2\xE1\xF5\xE0", &[Start(KIB)]),
    row("nss", b"SPB5", &[Start(4 * KIB)]),
    row("ubifs", b"\x31\x18\x10\x06", &[Start(0)]),
    row("bfs", b"\xCE\xFA\xAD\x1B", &[Start(0)]),
    row("befs", b"BFS1", &[Start(32), Start(512 + 32)]),
    row("befs", b"1SFB", &[Start(32), Start(512 + 32)]),
    row("mpool", b"mpoolDev", &[Start(0)]),
    row("zonefs", b"SFOZ", &[Start(0)]),
];

/// Partition tables.
pub(super) const TABLES: &[Signature] = &[
    row("mbr", b"\x55\xAA", &[Start(510)]).checked(check::mbr),
    // The header is in the second and in the last block of the disk. The size of a block is not known here.
    row(
        "gpt",
        b"EFI PART",
        &[
            Start(512),
            Start(KIB),
            Start(2 * KIB),
            Start(4 * KIB),
            end(512),
            End { unit: KIB, before: KIB },
            End { unit: 2 * KIB, before: 2 * KIB },
            End { unit: 4 * KIB, before: 4 * KIB },
        ],
    ),
    row("aix", b"\xC9\xC2\xD4\xC1", &[Start(0)]),
    row("sgi", b"\x0B\xE5\xA9\x41", &[Start(0)]),
    row("sun", b"\xDA\xBE", &[Start(508)]).checked(check::sun),
    row("mac", b"PM\0\0", &[Start(512), Start(KIB), Start(2 * KIB), Start(4 * KIB)]),
    row("bsd", b"\x57\x45\x56\x82", &[Start(512), Start(64), Start(128)]),
    row("bsd", b"\x59\x4C\x46\xC4", &[Start(512)]),
    row("ultrix", b"\x57\x29\x03\0", &[Start(16_384 - 72)]),
    row("unixware", b"\x0D\x60\xE5\xCA", &[Start(29 * 512 + 4)]),
    row("solaris", b"\xEE\xDE\x0D\x60", &[Start(512 + 12)]),
    row("atari", b"", &[Start(0x1C6)]).checked(check::atari),
    row("amiga", b"RDSK", &[Start(0)]).repeated(512, 16),
    row("ldm", b"PRIVHEAD", &[Start(6 * 512)]),
];
