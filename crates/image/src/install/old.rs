//! Signatures of earlier contents of a target, in space that the image leaves free. Through them the kernel and tools
//! would see filesystems that no longer exist.
//!
//! They are erased before the first chunk is written. Only free space is ever searched. An install writes nothing there
//! but zeros and the backup of a GPT, which is recognised by its GUID and kept. So an install that is resumed cannot
//! erase what it wrote before, and needs no journal for that.

use base::limits::SECTOR_BYTES;
use base::{Extent, ExtentSet, Result};
use disk::stale::{self, Stale};
use disk::{ReadAt, WriteAt, backup_gpt};

use crate::catalogue::Catalogue;

use super::blank::{Blank, for_each_blank};

/// A signature of an earlier content of a target, in space that the image leaves free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldSignature {
    /// The format, with the name that `blkid` uses.
    pub kind: &'static str,
    /// The partition in which it would be visible; `None` for the whole target.
    pub partition: Option<u32>,
    /// Its first byte, from the start of the target.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// The old signatures that an install of `catalogue`'s version would erase on `target`, assuming its size is
/// `size_bytes`; by ascending offset. Space after the present end of `target` holds none. Nothing is written.
pub fn old_signatures(
    catalogue: &Catalogue,
    target: &dyn ReadAt,
    size_bytes: u64,
) -> Result<Vec<OldSignature>> {
    let mut old = Old::on(catalogue, size_bytes)?;
    old.spare_backup(catalogue, target)?;
    let found = old.find(|buf, offset| target.read_exact_at(buf, offset))?;
    Ok(found.iter().map(|one| old.describe(one)).collect())
}

/// Where old signatures may stand.
pub(super) struct Old {
    size_bytes: u64,
    /// Space that the image leaves free, without partitions that the image does not describe.
    free: ExtentSet,
    /// The volumes to search: the target, and its partitions.
    volumes: Vec<Extent>,
    /// The numbers of the partitions among them.
    numbers: Vec<Option<u32>>,
}

impl Old {
    /// On a target of `size_bytes` with the partitions that the version has.
    pub(super) fn on(catalogue: &Catalogue, size_bytes: u64) -> Result<Self> {
        let sectors = size_bytes / SECTOR_BYTES;
        let mut free = ExtentSet::new();
        for_each_blank(catalogue, sectors, false, |kind, runs| {
            if kind == Blank::Free {
                runs.iter().for_each(|run| free.insert(*run));
            }
            Ok(())
        })?;
        let whole = Extent::new(0, sectors);
        let mut old = Self { size_bytes, free, volumes: vec![whole], numbers: vec![None] };
        // The image of a single partition contains no other partitions.
        if catalogue.origin().start_sector == 0 {
            let records = catalogue.disk().partitions.iter().filter(|partition| partition.number > 0);
            for record in records {
                old.add(record.number, Extent::new(record.start_sector, record.sectors));
            }
        }
        Ok(old)
    }

    /// Also searches the partition at `extent`. If the image holds nothing of it, it was excluded from the capture, and
    /// the install must not change it.
    pub(super) fn add(&mut self, number: u32, extent: Extent) {
        let Some(extent) = extent.intersection(self.volumes[0]) else { return };
        if self.free.contains(extent) {
            self.free.remove(extent);
        } else if !self.volumes.contains(&extent) {
            self.volumes.push(extent);
            self.numbers.push(Some(number));
        }
    }

    /// Protects what an earlier install of this disk has moved to the end of `target`.
    pub(super) fn spare_backup(&mut self, catalogue: &Catalogue, target: &dyn ReadAt) -> Result<()> {
        let Some(id) = &catalogue.disk().id else { return Ok(()) };
        let larger = self.size_bytes > catalogue.layout().size_bytes();
        if larger && is_whole_disk(catalogue) && target.geometry().size_bytes == self.size_bytes {
            let unit = catalogue.layout().logical_sector_bytes;
            let found = backup_gpt::find_at_end(target, unit, id)
                .map_err(|error| error.within("look for a backup of the GPT"))?;
            self.spare(found);
        }
        Ok(())
    }

    /// Excludes these sectors from the search.
    pub(super) fn spare(&mut self, sectors: Option<Extent>) {
        sectors.into_iter().for_each(|sectors| self.free.remove(sectors));
    }

    /// The signatures that were found.
    pub(super) fn find(
        &self,
        read: impl Fn(&mut [u8], u64) -> Result<()> + Send + Sync,
    ) -> Result<Vec<Stale>> {
        stale::find(self.size_bytes, &self.volumes, &self.free, read)
            .map_err(|error| error.within("look for old signatures"))
    }

    /// Erases the signatures durably; returns their number.
    pub(super) fn erase(&self, target: &dyn WriteAt) -> Result<u64> {
        let found = self.find(|buf, offset| target.read_exact_at(buf, offset))?;
        for one in &found {
            stale::erase(target, one).map_err(|error| {
                error.within(format!("erase the signature of {} at offset {}", one.kind, one.offset))
            })?;
        }
        if !found.is_empty() {
            target.sync().map_err(|e| e.within(format!("make `{}` durable", target.name())))?;
        }
        Ok(found.len() as u64)
    }

    /// Translates a signature from volumes to partitions.
    pub(super) fn describe(&self, one: &Stale) -> OldSignature {
        let (kind, offset, len) = (one.kind, one.offset, one.len);
        OldSignature { kind, partition: self.numbers[one.volume], offset, len }
    }
}

/// Whether the image holds a whole disk, and not a single partition.
pub(super) fn is_whole_disk(catalogue: &Catalogue) -> bool {
    let (origin, layout) = (catalogue.origin(), catalogue.layout());
    origin.start_sector == 0 && origin.disk_sectors == layout.size_sectors
}
