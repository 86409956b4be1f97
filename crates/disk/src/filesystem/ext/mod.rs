//! Reads ext2, ext3 and ext4 (Linux Documentation/filesystems/ext4; e2fsprogs lib/ext2fs). The superblock tells which
//! of the three it is and whether it is clean; the block bitmaps tell which blocks are in use.

mod bad;
mod groups;
mod superblock;

use base::Result;
use base::limits::SECTOR_BYTES;

use self::superblock::Superblock;
use super::{Allocation, AllocationReader, Why, require};
use crate::Filesystem;
use crate::volume::Volume;

/// Reads ext2, ext3 and ext4.
pub(super) struct Ext;

impl AllocationReader for Ext {
    fn family(&self) -> &'static str {
        "ext"
    }

    fn probe(&self, volume: &Volume) -> Result<Option<Filesystem>> {
        let Some(superblock) = Superblock::read(volume)? else { return Ok(None) };
        Ok(Some(Filesystem {
            kind: superblock.features.kind(),
            uuid: crate::text::some_uuid(&superblock.uuid),
            label: superblock.label.clone(),
            block_bytes: u32::try_from(superblock.block_bytes()).unwrap_or(0),
            understood: false,
        }))
    }

    fn end_bytes(&self, volume: &Volume) -> Result<Option<u64>> {
        Ok(Superblock::read(volume)?.map(|found| found.blocks.saturating_mul(found.block_bytes())))
    }

    fn allocated(&self, volume: &Volume, _: bool) -> std::result::Result<Allocation, Why> {
        let superblock =
            Superblock::read(volume)?.ok_or_else(|| Why::Whole("it has no superblock".to_owned()))?;
        superblock.check_known()?;
        superblock.check_sound(volume)?;
        check_multiple_mount(volume, &superblock)?;
        let used = groups::read(volume, &superblock)?;
        Ok(Allocation {
            used,
            end_sectors: superblock.blocks * superblock.block_bytes() / SECTOR_BYTES,
            doubts: Vec::new(),
        })
    }
}

/// Checks multiple mount protection, if the filesystem has it: another machine may have it mounted right now.
fn check_multiple_mount(volume: &Volume, superblock: &Superblock) -> std::result::Result<(), Why> {
    // `EXT4_MMP_MAGIC` and `EXT4_MMP_SEQ_CLEAN` of Linux, fs/ext4/ext4.h.
    const MAGIC: u32 = 0x004D_4D50;
    const CLEAN: u32 = 0xFF4D_4D50;
    let Some(block) = superblock.multiple_mount_block()? else { return Ok(()) };
    let mut fields = [0; 8];
    volume.read(&mut fields, block * superblock.block_bytes())?;
    let mut reader = base::wire::Reader::new(&fields);
    let (magic, sequence) = (reader.u32()?, reader.u32()?);
    require(magic == MAGIC && sequence == CLEAN, || {
        "its multiple mount protection says that it is in use".to_owned()
    })
}
