//! Finds and erases old signatures: those of earlier content of a target, in space that the image leaves free. With
//! them, the kernel and tools would detect a filesystem, RAID or table that no longer exists.
//!
//! They are erased before the first chunk is written. The search covers only free space. There an install itself writes
//! nothing but zeros and the backup of a GPT, which is recognised by its GUID and left alone. So a resumed install
//! can't erase what an earlier attempt wrote, and needs no journal.

use base::limits::SECTOR_BYTES;
use base::{Extent, ExtentSet, Result};
use disk::stale::{self, Stale};
use disk::{ReadAt, WriteAt, backup_gpt};

use crate::catalogue::Catalogue;

use super::blank::{Blank, for_each_blank};

/// A signature of earlier content of a target, in space that the image leaves free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldSignature {
    /// The type of the earlier content, in `blkid`'s words.
    pub kind: &'static str,
    /// The number of the partition in which tools would detect it; `None` for the whole target.
    pub partition: Option<u32>,
    /// The offset of its first byte from the start of the target.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// Returns the old signatures that an install of `catalogue`'s version would erase on `target`, by ascending offset,
/// and writes nothing. `size_bytes` is the size that the target will have; bytes after its present end have no
/// signatures. Errors are those of a damaged tree, or `Io` if the target fails.
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

/// The numbers of the partitions of which the image of `catalogue` holds nothing: they were left out of the capture,
/// and an install leaves alone what the target has there. Errors are those of a damaged tree.
pub fn left_out(catalogue: &Catalogue) -> Result<Vec<u32>> {
    let old = Old::on(catalogue, catalogue.layout().size_bytes())?;
    let records = catalogue.disk().partitions.iter().filter(|partition| partition.number > 0);
    Ok(records.map(|record| record.number).filter(|number| !old.numbers.contains(&Some(*number))).collect())
}

/// The places where old signatures may lie.
pub(super) struct Old {
    size_bytes: u64,
    /// The space that the image leaves free, without partitions that were left out of the image.
    free: ExtentSet,
    /// The extents in which tools look for signatures: the whole target first, then its partitions.
    volumes: Vec<Extent>,
    /// The partition number of each volume; `None` for the whole target.
    numbers: Vec<Option<u32>>,
}

impl Old {
    /// The places on a target of `size_bytes` with the partitions in the manifest. Errors are those of a damaged tree.
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
        // An image of one partition, which starts later on its disk, has no partitions inside.
        if catalogue.origin().start_sector == 0 {
            let records = catalogue.disk().partitions.iter().filter(|partition| partition.number > 0);
            for record in records {
                old.add(record.number, Extent::new(record.start_sector, record.sectors));
            }
        }
        Ok(old)
    }

    /// Adds the partition at `extent` to the search. If the image has no sector of it, the partition was left out of
    /// the capture: then excludes it, because the install must not change what the target has there.
    pub(super) fn add(&mut self, number: u32, extent: Extent) {
        let Some(extent) = extent.intersection(self.volumes[0]) else { return };
        if self.free.contains(extent) {
            self.free.remove(extent);
        } else if !self.volumes.contains(&extent) {
            self.volumes.push(extent);
            self.numbers.push(Some(number));
        }
    }

    /// Excludes the backup of the GPT that an earlier install of this image may have moved to the end of `target`.
    pub(super) fn spare_backup(&mut self, catalogue: &Catalogue, target: &dyn ReadAt) -> Result<()> {
        let Some(id) = &catalogue.disk().id else { return Ok(()) };
        // On a target of the image's size the backup lies inside the image and is part of its content.
        let larger = self.size_bytes > catalogue.layout().size_bytes();
        if larger && catalogue.is_whole_disk() && target.geometry().size_bytes == self.size_bytes {
            let unit = catalogue.layout().logical_sector_bytes;
            let found = backup_gpt::find_at_end(target, unit, id)
                .map_err(|error| error.within("look for a backup of the GPT"))?;
            self.spare(found);
        }
        Ok(())
    }

    /// Excludes `sectors` from the search.
    pub(super) fn spare(&mut self, sectors: Option<Extent>) {
        sectors.into_iter().for_each(|sectors| self.free.remove(sectors));
    }

    /// Returns the old signatures that `read` finds, by ascending offset.
    pub(super) fn find(
        &self,
        read: impl Fn(&mut [u8], u64) -> Result<()> + Send + Sync,
    ) -> Result<Vec<Stale>> {
        stale::find(self.size_bytes, &self.volumes, &self.free, read)
            .map_err(|error| error.within("look for old signatures"))
    }

    /// Erases all old signatures and syncs the target. Returns their number.
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

    /// Names the partition of a signature by its number.
    pub(super) fn describe(&self, one: &Stale) -> OldSignature {
        let (kind, offset, len) = (one.kind, one.offset, one.len);
        OldSignature { kind, partition: self.numbers[one.volume], offset, len }
    }
}
