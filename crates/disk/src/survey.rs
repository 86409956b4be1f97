//! Surveys a disk: finds its partition table, its filesystems and the sectors that matter. A sector is free only if the
//! reader of its filesystem says so and no other signature claims that filesystem's space. All other sectors are
//! allocated, including those that hold zeros.

use base::limits::{PARTITIONS_MAX, SECTOR_BYTES};
use base::{Error, ErrorKind, Extent, ExtentSet, Result};

use crate::coverage::Coverage;
use crate::filesystem::{Contents, identify, inspect};
use crate::map::{DiskMap, Partition, SurveyOptions, TableKind};
use crate::signature::{self, Claim};
use crate::table::{self, Entry, Table};
use crate::volume::{Volume, edges};
use crate::{Filesystem, ReadAt, Rescue, unreadable_sector};

/// Types of partitions that hold no filesystem by design: BIOS boot and Microsoft reserved. Capturing them whole gives
/// no warning.
const RAW_TYPES: [&str; 2] = ["21686148-6449-6e6f-744e-656564454649", "e3c9e316-0b5c-4db8-817d-f92df00215ae"];

/// Surveys `source`: reads its partition table and the allocation maps of its filesystems. Sectors outside partitions
/// are allocated. If there is any doubt about a partition or the disk, all its sectors are allocated, and a warning in
/// the map says why. `NotFound` if `options` name a partition that the table lacks, `Io` if the disk fails,
/// `Unsupported` if the disk has more partitions than an image can describe.
pub fn survey(source: &dyn ReadAt, options: &SurveyOptions) -> Result<DiskMap> {
    let table = table::read(source)?;
    check_numbers(source, &table, options)?;
    Survey::new(source, options, table).run()
}

/// Surveys as [`survey`] does a disk of which some sectors can't be read: a filesystem is captured whole if one of its
/// own sectors is among them, and a partition table counts as damaged.
pub fn survey_failing(rescue: &Rescue<'_>, options: &SurveyOptions) -> Result<DiskMap> {
    let table = table::read(&rescue.filled())?;
    check_numbers(rescue, &table, options)?;
    Survey { may_fail: true, ..Survey::new(rescue, options, table) }.run()
}

/// Checks that there are not too many partitions, and that those that `options` name exist.
fn check_numbers(source: &dyn ReadAt, table: &Table, options: &SurveyOptions) -> Result<()> {
    if table.entries.len() > PARTITIONS_MAX {
        let context = format!("`{}` has more than {PARTITIONS_MAX} partitions", source.name());
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    let known: Vec<_> = table.entries.iter().map(|entry| entry.number).collect();
    match options.partition.iter().chain(&options.skip).find(|number| !known.contains(number)) {
        None => Ok(()),
        Some(number) => {
            let numbers: Vec<_> = known.iter().map(u32::to_string).collect();
            let has = if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") };
            let context = format!("`{}` has no partition {number}; it has {has}", source.name());
            Err(Error::new(ErrorKind::NotFound, context))
        }
    }
}

/// The state of a survey.
struct Survey<'a> {
    source: &'a dyn ReadAt,
    options: &'a SurveyOptions,
    table: Table,
    /// All sectors of the disk.
    disk: Extent,
    window: Extent,
    partitions: Vec<Partition>,
    used: Coverage,
    warnings: Vec<String>,
    /// What can't be read is no error, but a reason to capture whole.
    may_fail: bool,
}

impl<'a> Survey<'a> {
    fn new(source: &'a dyn ReadAt, options: &'a SurveyOptions, mut table: Table) -> Self {
        let disk = Extent::new(0, source.geometry().size_bytes / SECTOR_BYTES);
        let chosen = table.entries.iter().find(|entry| Some(entry.number) == options.partition);
        let window = chosen.map_or(disk, |entry| entry.extent);
        let warnings = std::mem::take(&mut table.warnings);
        Self {
            source,
            options,
            table,
            disk,
            window,
            partitions: Vec::new(),
            used: Coverage::default(),
            warnings,
            may_fail: false,
        }
    }

    /// What was read, or the reason why it could not be, if that is no error.
    fn readable<T>(&self, read: Result<T>) -> Result<std::result::Result<T, String>> {
        match read {
            Err(error) if self.may_fail => match unreadable_sector(&error) {
                Some(sector) => Ok(Err(format!("sector {sector}, which describes it, can't be read"))),
                None => Err(error),
            },
            read => read.map(Ok),
        }
    }

    /// The format of `volume` and its sectors that matter.
    fn contents(&self, volume: &Volume) -> Result<Contents> {
        Ok(self.readable(inspect(volume, self.options.live))?.unwrap_or_else(|why| Contents {
            filesystem: identify(volume).ok().flatten(),
            used: Err(why),
            end_sectors: volume.sectors(),
            doubts: Vec::new(),
        }))
    }

    fn run(mut self) -> Result<DiskMap> {
        let mut entries = std::mem::take(&mut self.table.entries);
        let areas: ExtentSet = entries.iter().map(|entry| entry.extent).collect();
        let overlapping: Vec<_> = entries.iter().map(|entry| overlaps(entry, &entries)).collect();
        if !self.options.raw {
            self.judge_table(&entries)?;
        }
        // If the table cannot be trusted, neither can the bounds of its partitions, so nothing in them is free.
        let whole = self.options.raw || self.table.distrust.is_some();
        for (entry, overlaps) in entries.drain(..).zip(overlapping) {
            self.partition(entry, overlaps, whole)?;
        }
        if whole {
            self.used.add(self.disk);
        } else if self.table.kind != TableKind::None {
            self.edges(self.disk);
            areas.gaps_within(self.disk).runs().iter().for_each(|gap| self.used.add(*gap));
        }
        Ok(self.finish())
    }

    /// Examines the disk as one volume. Without a table it may be one filesystem; with a table and a second signature
    /// the table cannot be trusted.
    fn judge_table(&mut self, entries: &[Entry]) -> Result<()> {
        if self.table.kind == TableKind::None {
            return self.bare(&Volume::whole(self.source));
        }
        if self.table.distrust.is_none() {
            let stranger = self.readable(self.stranger(entries))?;
            self.table.distrust = stranger.map_or_else(Some, |claim| {
                let name = claim?.describe();
                Some(format!("there is a partition table, but also the signature of {name}"))
            });
        }
        if let Some(why) = &self.table.distrust {
            self.warnings.push(format!("the disk is captured whole: {why}"));
        }
        Ok(())
    }

    /// A claim to the whole disk that is not its table's. If a partition begins or ends with the disk, one place may
    /// be a known place of both; a signature there belongs to the partition.
    fn stranger(&self, entries: &[Entry]) -> Result<Option<Claim>> {
        for claim in signature::find(&Volume::whole(self.source))? {
            let at = Extent::new(claim.offset / SECTOR_BYTES, 1);
            let meets = |extent: &Extent| extent.intersection(at).is_some();
            let own = claim.is_copy || self.table.is_own(&claim);
            let of_partition = |extent: Extent| {
                let offset = claim.offset.checked_sub(extent.offset_bytes());
                let found = signature::find(&Volume::new(self.source, extent))?;
                Ok(found.iter().any(|other| other.kind == claim.kind && Some(other.offset) == offset))
            };
            let owner = entries.iter().map(|entry| entry.extent).find(meets);
            if !own && !owner.map_or(Ok(false), of_partition)? {
                return Ok(Some(claim));
            }
        }
        Ok(None)
    }

    /// Surveys a disk without a table. If its format is known, the map lists it as partition 0.
    fn bare(&mut self, volume: &Volume) -> Result<()> {
        if self.readable(identify(volume))? == Ok(None) {
            self.warnings
                .push("the disk is captured whole: it has no partition table and no known filesystem".into());
            self.used.add(self.disk);
            return Ok(());
        }
        let filesystem = self.take(self.contents(volume)?, self.disk, "the disk", false);
        if filesystem.is_some() {
            self.partitions.push(Partition {
                number: 0,
                extent: self.disk,
                type_id: String::new(),
                name: None,
                uuid: None,
                filesystem,
            });
        }
        Ok(())
    }

    /// Adds the partition `entry`. Its contents are not examined if `whole`, because then all sectors are allocated.
    fn partition(&mut self, entry: Entry, overlaps: Option<u32>, whole: bool) -> Result<()> {
        let Entry { number, extent, type_id, name, uuid, cut } = entry;
        if extent.intersection(self.window).is_none() {
            return Ok(());
        }
        let what = format!("partition {number}");
        let skipped = self.options.skip.contains(&number);
        let mut filesystem = None;
        if !whole {
            let doubt = match overlaps {
                _ if cut => Some("it passes the end of the disk".to_owned()),
                Some(other) => Some(format!("it overlaps partition {other}")),
                None => None,
            };
            let volume = Volume::new(self.source, extent);
            if skipped {
                filesystem = self.readable(identify(&volume))?.unwrap_or_default();
            } else {
                let mut contents = self.contents(&volume)?;
                if let Some(doubt) = doubt {
                    contents = distrusted(contents, doubt, extent.count);
                }
                filesystem = self.take(contents, extent, &what, RAW_TYPES.contains(&type_id.as_str()));
            }
        }
        self.partitions.push(Partition { number, extent, type_id, name, uuid, filesystem });
        Ok(())
    }

    /// Adds both ends of `extent`.
    fn edges(&mut self, extent: Extent) {
        edges(extent).into_iter().for_each(|edge| self.used.add(edge));
    }

    /// Adds the sectors that matter of the volume at `extent`. If these are all its sectors, adds a warning with the
    /// reason, unless `quiet` and no format is known.
    fn take(&mut self, contents: Contents, extent: Extent, what: &str, quiet: bool) -> Option<Filesystem> {
        match contents.used {
            Ok(used) => {
                self.used.add_moved(used, extent.start);
                // No map covers the sectors after the end of the filesystem.
                self.used.add(Extent::between(extent.start + contents.end_sectors, extent.end()));
                self.edges(extent);
                self.warnings.extend(contents.doubts.into_iter().map(|doubt| format!("{what}: {doubt}")));
            }
            Err(why) => {
                self.used.add(extent);
                if !(quiet && contents.filesystem.is_none()) {
                    let kind =
                        contents.filesystem.as_ref().map_or(String::new(), |fs| format!(" ({})", fs.kind));
                    self.warnings.push(format!("{what}{kind} is captured whole: {why}"));
                }
            }
        }
        contents.filesystem
    }

    /// Builds the map. Skipped partitions are removed last: only the table and other partitions keep sectors in them.
    fn finish(mut self) -> DiskMap {
        self.table.own.iter().for_each(|own| self.used.add(*own));
        let geometry = self.source.geometry();
        let unit_sectors = (u64::from(geometry.logical_sector_bytes) / SECTOR_BYTES).max(1);
        let mut allocated = self.used.into_set(unit_sectors, self.window);
        let mut partitions = self.partitions;
        partitions.sort_by_key(|partition| partition.number);
        for run in left_out(&partitions, &self.options.skip, &self.table.own).runs() {
            allocated.remove(*run);
        }
        DiskMap {
            geometry,
            table: self.table.kind,
            disk_id: self.table.disk_id,
            partitions,
            window: self.window,
            allocated,
            warnings: self.warnings,
        }
    }
}

/// The sectors of the partitions in `skip` that belong to no other partition, nor to the table.
fn left_out(partitions: &[Partition], skip: &[u32], own: &[Extent]) -> ExtentSet {
    let (skipped, kept): (Vec<_>, Vec<_>) =
        partitions.iter().partition(|partition| skip.contains(&partition.number));
    let mut sectors: ExtentSet = skipped.iter().map(|partition| partition.extent).collect();
    let kept = kept.iter().map(|partition| partition.extent);
    kept.chain(own.iter().copied()).for_each(|extent| sectors.remove(extent));
    sectors
}

/// The number of another partition that shares sectors with `entry`.
fn overlaps(entry: &Entry, entries: &[Entry]) -> Option<u32> {
    let shares =
        |other: &&Entry| other.number != entry.number && other.extent.intersection(entry.extent).is_some();
    entries.iter().find(shares).map(|other| other.number)
}

/// The contents of a volume whose bounds cannot be trusted: all its sectors matter.
fn distrusted(contents: Contents, why: String, sectors: u64) -> Contents {
    let filesystem = contents.filesystem.map(|filesystem| Filesystem { understood: false, ..filesystem });
    Contents { filesystem, used: Err(why), end_sectors: sectors, doubts: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemoryDisk;

    #[test]
    fn as_many_partitions_as_a_manifest_describes_are_surveyed() {
        let disk = MemoryDisk::new(vec![0; 1 << 20]);
        let mut table = table::read(&disk).unwrap();
        let entry = |number| Entry {
            number,
            extent: Extent::new(u64::from(number), 1),
            type_id: String::new(),
            name: None,
            uuid: None,
            cut: false,
        };
        table.entries.extend((1..=u32::try_from(PARTITIONS_MAX).unwrap()).map(entry));
        assert!(check_numbers(&disk, &table, &SurveyOptions::default()).is_ok());
        table.entries.push(entry(u32::MAX));
        assert!(check_numbers(&disk, &table, &SurveyOptions::default()).is_err());
    }
}
