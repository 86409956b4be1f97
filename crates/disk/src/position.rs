//! The place of a filesystem on its disk, which the boot sectors of FAT and NTFS hold: the number of sectors before the
//! partition. Loaders of DOS and Windows read it. `BPB_HiddSec`, Microsoft's FAT specification, section 3.1; NTFS has
//! it in the same place.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use base::Extent;
use base::limits::SECTOR_BYTES;

/// Where the number stands in a boot sector.
const HIDDEN: std::ops::Range<usize> = 0x1C..0x20;
/// FAT32's second boot sector.
const SECOND: u64 = 6;

/// Corrects the number in all boot sectors of the filesystem at `volume` of `file`: `is`, in logical sectors of `unit`
/// bytes. With `was`, only where it was that. Returns how many were changed; 0 for other filesystems.
pub fn set_hidden_sectors(
    file: &File,
    volume: Extent,
    unit: u32,
    was: Option<u32>,
    is: u32,
) -> io::Result<u32> {
    let (start, end) = (volume.offset_bytes(), volume.end() * SECTOR_BYTES);
    let mut changed = 0;
    // The boot sector, FAT32's copy of it, and NTFS's in the partition's last sector.
    for place in [start, start + SECOND * u64::from(unit), end.saturating_sub(u64::from(unit))] {
        let mut sector = [0; 512];
        if place < start || place + sector.len() as u64 > end {
            continue;
        }
        file.read_exact_at(&mut sector, place)?;
        let before = u32::from_le_bytes(sector[HIDDEN].try_into().expect("four bytes"));
        if is_boot_sector(&sector) && before != is && was.is_none_or(|was| was == before) {
            file.write_all_at(&is.to_le_bytes(), place + HIDDEN.start as u64)?;
            changed += 1;
        }
    }
    Ok(changed)
}

/// Whether it is a boot sector of NTFS, or of FAT with the name of its kind.
fn is_boot_sector(sector: &[u8; 512]) -> bool {
    let is_ntfs = &sector[3..11] == b"NTFS    ";
    let is_fat = &sector[54..57] == b"FAT" || &sector[82..87] == b"FAT32";
    sector[510..] == [0x55, 0xAA] && matches!(sector[0], 0xEB | 0xE9) && (is_ntfs || is_fat)
}
