//! The result of a survey: the map of a disk, with its partitions and filesystems and the sectors that matter.

use base::{Extent, ExtentSet};

use crate::Geometry;

/// The kind of partition table that a disk begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// No table: the disk is one filesystem, or its contents are not known.
    None,
    /// A master boot record, with or without extended partitions.
    Mbr,
    /// A GUID partition table.
    Gpt,
}

impl TableKind {
    /// The name of the kind: `none`, `mbr` or `gpt`.
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
    /// Its name, in most cases the one that `blkid` prints: `ext4`, `vfat`, `swap`, `xfs`, `LVM2_member`.
    pub kind: &'static str,
    /// Its UUID or serial number, in the form that `blkid` prints.
    pub uuid: Option<String>,
    /// Its label, if it has one.
    pub label: Option<String>,
    /// Its unit of allocation in bytes (block, cluster, page); 0 if not known.
    pub block_bytes: u32,
    /// Whether its free space is known, so that only its allocated sectors are captured.
    pub understood: bool,
}

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Its number, as the kernel counts: from 1; MBR logical partitions from 5. Number 0 is the disk itself, if it has
    /// a known format and no table.
    pub number: u32,
    /// Its place, in sectors of 512 bytes from the start of the disk.
    pub extent: Extent,
    /// Its type: a GUID in lower case (GPT), or two hexadecimal digits (MBR). Empty for number 0.
    pub type_id: String,
    /// Its name (GPT only).
    pub name: Option<String>,
    /// The value that Linux calls PARTUUID.
    pub uuid: Option<String>,
    /// The filesystem or other format in it, if recognised. Always `None` in a raw survey.
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
    /// Its partitions with sectors in `window`, by ascending number, including those that the options skip. An MBR's
    /// extended partition is not in the list; the logical partitions in it are.
    pub partitions: Vec<Partition>,
    /// The part of the disk that the image covers: the whole disk, or one partition.
    pub window: Extent,
    /// The sectors to capture, counted from the start of the disk. All lie inside `window`, and runs are widened to
    /// whole logical sectors.
    pub allocated: ExtentSet,
    /// Messages for the user: why a partition is captured whole, which table is damaged.
    pub warnings: Vec<String>,
}

/// What to survey. The default is the whole disk, without its free space.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SurveyOptions {
    /// Capture all sectors, and do not look at filesystems.
    pub raw: bool,
    /// Capture only the partition with this number.
    pub partition: Option<u32>,
    /// Capture no contents of the partitions with these numbers.
    pub skip: Vec<u32>,
    /// Something may write to it meanwhile: a filesystem that has no mark of that is captured whole.
    pub live: bool,
}
