//! The survey of a disk: partition table, filesystems, and which sectors matter.

use base::limits::SECTOR_BYTES;
use base::{Extent, ExtentSet};

use crate::map::{DiskMap, SurveyOptions, TableKind};
use crate::{ReadAt, Result};

/// Surveys `source`. For now every disk is taken whole.
pub fn survey(source: &dyn ReadAt, _options: &SurveyOptions) -> Result<DiskMap> {
    let geometry = source.geometry();
    let window = Extent::new(0, geometry.size_bytes / SECTOR_BYTES);
    Ok(DiskMap {
        geometry,
        table: TableKind::None,
        disk_id: None,
        partitions: Vec::new(),
        window,
        allocated: ExtentSet::of(window),
        warnings: Vec::new(),
    })
}
