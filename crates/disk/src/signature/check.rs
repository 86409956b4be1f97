//! Checks the fields around magic bytes that are too short to identify a format. Fields and bounds are those of
//! util-linux (libblkid, in the file of each format). The offset that a check receives is that of the magic bytes.

use base::Result;
use base::limits::SECTOR_BYTES;

use crate::volume::Volume;

/// Reads `N` bytes from `offset`; `None` if the volume ends before.
fn bytes<const N: usize>(volume: &Volume, offset: u64) -> Result<Option<[u8; N]>> {
    Ok(volume.peek(offset, N)?.and_then(|bytes| bytes.try_into().ok()))
}

/// Whether `holds` is true for the `N` bytes from `offset`; false if the volume ends before.
fn holds<const N: usize>(volume: &Volume, offset: u64, holds: impl Fn(&[u8; N]) -> bool) -> Result<bool> {
    Ok(bytes(volume, offset)?.is_some_and(|bytes| holds(&bytes)))
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |field| u32::from_be_bytes(*field))
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    be32(bytes, at).swap_bytes()
}

/// The wrapping sum of the little-endian 16-bit words in `bytes`.
fn sum16(bytes: &[u8]) -> u16 {
    bytes.as_chunks().0.iter().fold(0, |sum: u16, &pair| sum.wrapping_add(u16::from_le_bytes(pair)))
}

/// FAT: a boot sector that begins with a jump instruction and describes a possible layout.
pub(super) fn fat(volume: &Volume, offset: u64) -> Result<bool> {
    holds::<24>(volume, offset - 510, |sector| {
        let sector_bytes = u16::from_le_bytes([sector[11], sector[12]]);
        matches!((sector[0], sector[2]), (0xEB, 0x90) | (0xE9, _))
            && sector_bytes.is_power_of_two()
            && (512..=4096).contains(&sector_bytes)
            && sector[13].is_power_of_two()
            && sector[14..16] != [0; 2]
            && (1..=4).contains(&sector[16])
            && (sector[21] == 0xF0 || sector[21] >= 0xF8)
    })
}

/// Master boot record: all four slots have a valid flag, and one holds a partition that begins inside the volume. The
/// boot sector of a filesystem has code or zeros in the place of the slots.
pub(super) fn mbr(volume: &Volume, offset: u64) -> Result<bool> {
    holds::<64>(volume, offset - 64, |slots| {
        let slots = slots.as_chunks::<16>().0;
        let is_used = |slot: &[u8; 16]| {
            let (start, count) = (le32(slot, 8), le32(slot, 12));
            slot[4] != 0 && count != 0 && u64::from(start) < volume.sectors()
        };
        slots.iter().all(|slot| matches!(slot[0], 0 | 0x80)) && slots.iter().any(is_used)
    })
}

/// Sun label: the XOR of all its 16-bit words is zero.
pub(super) fn sun(volume: &Volume, offset: u64) -> Result<bool> {
    holds::<512>(volume, offset - 508, |label| {
        label.as_chunks::<2>().0.iter().fold([0; 2], |[a, b], word| [a ^ word[0], b ^ word[1]]) == [0; 2]
    })
}

/// Atari table: the disk size is possible. One entry is in use, is named in letters and digits, and lies in the disk.
pub(super) fn atari(volume: &Volume, offset: u64) -> Result<bool> {
    holds::<52>(volume, offset - 4, |root| {
        let sectors = be32(root, 0);
        let credible = sectors >= 2 && u64::from(sectors) <= volume.sectors();
        let is_partition = |entry: &[u8; 12]| {
            let (start, count) = (be32(entry, 4), be32(entry, 8));
            entry[0] & 1 == 1
                && entry[1..4].iter().all(u8::is_ascii_alphanumeric)
                && (1..=sectors).contains(&start)
                && (1..=sectors - start).contains(&count)
        };
        credible && root[4..].as_chunks().0.iter().any(is_partition)
    })
}

/// VIA RAID: a known version and a correct sum of the bytes.
pub(super) fn via(volume: &Volume, offset: u64) -> Result<bool> {
    holds::<51>(volume, offset, |record| {
        let sum = record[..50].iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte));
        record[2] <= 2 && sum == record[50]
    })
}

/// Silicon Image RAID: a possible number of the disk and a correct sum of the words.
pub(super) fn silicon(volume: &Volume, offset: u64) -> Result<bool> {
    holds::<0x140>(volume, offset - 0x60, |record| {
        let sum = sum16(&record[..0x13E]).wrapping_neg();
        record[0x116] < 8 && sum.to_le_bytes() == record[0x13E..]
    })
}

/// JMicron RAID: a known mode and a correct sum of the words.
pub(super) fn jmicron(volume: &Volume, offset: u64) -> Result<bool> {
    holds::<0x80>(volume, offset, |record| record[0x30] <= 5 && matches!(sum16(record), 0 | 1))
}

/// LVM1: version 1 or 2.
pub(super) fn lvm1(volume: &Volume, offset: u64) -> Result<bool> {
    holds::<4>(volume, offset, |label| matches!(label[2..], [1 | 2, 0]))
}

/// XFS external log: a log record with a known version, a possible length and a known format.
pub(super) fn xfs_log(volume: &Volume, offset: u64) -> Result<bool> {
    holds::<304>(volume, offset, |record| {
        matches!(be32(record, 8), 1..=3)
            && (1..=i32::MAX.unsigned_abs()).contains(&be32(record, 12))
            && matches!(be32(record, 300), 1..=3)
    })
}

/// HFS: the block size is a multiple of a sector.
pub(super) fn hfs(volume: &Volume, offset: u64) -> Result<bool> {
    holds::<24>(volume, offset, |record| {
        let block_bytes = be32(record, 20);
        block_bytes != 0 && u64::from(block_bytes).is_multiple_of(SECTOR_BYTES)
    })
}

/// HFS+ and HFSX: version 4 or 5, and a block size that is a power of two.
pub(super) fn hfsplus(volume: &Volume, offset: u64) -> Result<bool> {
    holds::<44>(volume, offset, |header| {
        let block_bytes = be32(header, 40);
        matches!(header[2..4], [0, 4 | 5]) && block_bytes >= 512 && block_bytes.is_power_of_two()
    })
}

/// NILFS: revision 2, the only one in use.
pub(super) fn nilfs(volume: &Volume, offset: u64) -> Result<bool> {
    holds::<4>(volume, offset - 6, |revision| *revision == [2, 0, 0, 0])
}

/// Minix versions 1 and 2: it has an inode map, zones of one block and a known state. The magic number of ext must be
/// absent, because a count in an ext superblock may look like the magic number of Minix.
pub(super) fn minix(volume: &Volume, offset: u64) -> Result<bool> {
    holds::<58>(volume, offset - 16, |superblock| {
        let state = [superblock[18], superblock[19]];
        superblock[4..6] != [0; 2]
            && superblock[10..12] == [0; 2]
            && matches!(state, [0..=3, 0] | [0, 1..=3])
            && superblock[56..] != [0x53, 0xEF]
    })
}

/// Minix version 3: it has an inode map and zones of one block. As above, the magic number of ext must be absent.
pub(super) fn minix3(volume: &Volume, offset: u64) -> Result<bool> {
    holds::<58>(volume, offset - 24, |superblock| {
        superblock[6..8] != [0; 2] && superblock[12..14] == [0; 2] && superblock[56..] != [0x53, 0xEF]
    })
}
