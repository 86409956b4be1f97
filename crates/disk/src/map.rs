//! The result of a survey: the map of a disk, with its partitions, filesystems, and the sectors that matter.

use base::{Extent, ExtentSet};

use crate::Geometry;

/// The kind of partition table that a disk begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// None: the disk is one filesystem, or nothing known.
    None,
    /// A master boot record, with or without extended partitions.
    Mbr,
    /// A GUID partition table.
    Gpt,
}

impl TableKind {
    /// Its name: `none`, `mbr`, `gpt`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mbr => "mbr",
            Self::Gpt => "gpt",
        }
    }
}

/// A filesystem, or another format that fills a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filesystem {
    /// Its name, usually as in `blkid`: `ext4`, `vfat`, `swap`, `xfs`, `LVM2_member`.
    pub kind: &'static str,
    /// Its UUID or serial number, in the form that `blkid` prints.
    pub uuid: Option<String>,
    /// Its label, if it has one.
    pub label: Option<String>,
    /// Its unit of allocation in bytes (block, cluster, page); 0 if not known.
    pub block_bytes: u32,
    /// Whether its free space is known, so that only allocated sectors are captured.
    pub understood: bool,
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its number as the kernel counts: from 1; MBR logical partitions from 5. 0 stands for the disk itself, if it has
    /// no table but a known format.
    pub number: u32,
    /// Its position, in sectors of 512 bytes from the start of the disk.
    pub extent: Extent,
    /// Its type: a GUID in lower case (GPT), or two hexadecimal digits (MBR). Empty for number 0.
    pub type_id: String,
    /// Its name (GPT only).
    pub name: Option<String>,
    /// What Linux calls PARTUUID.
    pub uuid: Option<String>,
    /// Its contents, if recognised. Always `None` in a raw survey.
    pub filesystem: Option<Filesystem>,
}

/// The map of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskMap {
    /// Size and sector sizes of the disk.
    pub geometry: Geometry,
    /// The kind of its partition table.
    pub table: TableKind,
    /// The GUID of its GPT, or the 8 hexadecimal digits of its MBR's signature.
    pub disk_id: Option<String>,
    /// Its partitions by ascending number, including those that were not captured. Of an MBR's extended partition only
    /// the logical partitions in it are listed.
    pub partitions: Vec<Partition>,
    /// What the image covers: the whole disk, or one partition.
    pub window: Extent,
    /// The sectors that matter, counted from the start of the disk, all inside `window`, aligned to logical sectors.
    pub allocated: ExtentSet,
    /// Notes for the user: why a partition is captured whole, which table was damaged.
    pub warnings: Vec<String>,
}

/// What to survey.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SurveyOptions {
    /// Take all sectors, without looking at filesystems.
    pub raw: bool,
    /// Take only the partition with this number.
    pub partition: Option<u32>,
    /// Leave out the contents of these partitions.
    pub skip: Vec<u32>,
}
