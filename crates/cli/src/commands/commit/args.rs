//! The arguments of `diskcast commit`.

use std::path::PathBuf;

use crate::args::parse::{parse_range, parse_size};
use crate::args::{RunningDisk, SourceForm, There};

/// Store the changes of a disk as a new version of its image
///
/// Without --range, --at, --free or --append the whole disk becomes the next version, as if it were captured.
/// Its filesystems tell which sectors are free, in the way in which the newest version was captured (--raw, --skip,
/// --partition). The disk has the size of the image. Only changed chunks are stored.
///
/// With these options only a part of the image changes. Several programs may commit parts to the same image at the same
/// time; each commit makes a version that contains all earlier ones.
///
/// With --disk the source is an attached disk, which keeps running: the version has its content at one moment, and is
/// published where the disk's image came from. It follows the version that the disk began as, or was last committed as.
/// It is refused if somebody else has published a version since then, unless --merge is given and they changed other
/// sectors.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast commit lab-pc disk.img                       the disk as it is now
  diskcast commit lab-pc disk.img --range 1M+4096 --range 3G+64K --expect 7
  diskcast commit web vm2.qcow2 --backing               an overlay over another file
  diskcast commit lab-pc part.img --at 1M               a whole file, at this offset
  diskcast commit archive day.tar --append              after the end of the image
  diskcast commit lab-pc disk.img --free-holes          also free what the guest discarded
  diskcast commit lab-pc disk.img --range 1M+4096 --to https://10.0.0.1:7717 --token-file write.token
  diskcast commit --disk vm1 --quiesce agent:/run/vm1.qga                      an attached disk")]
pub(crate) struct Args {
    /// Image that gets the new version [with --disk the default: that of the disk's base]
    #[arg(required_unless_present = "disk")]
    pub name: Option<String>,
    /// Disk with the changes: a block device, a raw file, QCOW2, and the other forms that `capture` reads
    #[arg(required_unless_present = "disk", conflicts_with = "disk")]
    pub source: Option<PathBuf>,
    #[command(flatten)]
    pub running: RunningDisk,
    /// Commit also if others have published a version since then, as long as they changed other sectors
    #[arg(long, requires = "disk")]
    pub merge: bool,
    /// Write these bytes of SOURCE at the same offset of the image; may be repeated
    #[arg(
        long = "range",
        value_name = "OFFSET+LENGTH",
        value_parser = parse_range,
        conflicts_with_all = ["at", "append", "disk"]
    )]
    pub ranges: Vec<std::ops::Range<u64>>,
    /// Write all of SOURCE at this offset of the image
    #[arg(long, value_name = "OFFSET", value_parser = parse_size, conflicts_with_all = ["append", "disk"])]
    pub at: Option<u64>,
    /// Append all of SOURCE to the image, which grows by whole sectors: the rest of the last one is zeros
    #[arg(long, conflicts_with_all = ["expect", "disk"])]
    pub append: bool,
    /// Mark these bytes as free: they read as zeros, and are neither stored nor installed; may be repeated
    #[arg(
        long = "free",
        value_name = "OFFSET+LENGTH",
        value_parser = parse_range,
        conflicts_with_all = ["append", "disk"]
    )]
    pub freed: Vec<std::ops::Range<u64>>,
    /// Mark holes of SOURCE as free, too, instead of storing them as zeros, except in filesystems that say themselves
    /// what is free. Only for disks whose holes were discarded: others have zeros there that an install must write
    #[arg(long, conflicts_with_all = ["at", "append", "ranges", "freed", "disk"])]
    pub free_holes: bool,
    /// Survey the disk as `capture` does without options, whatever the newest version records
    #[arg(long, conflicts_with_all = ["raw", "skip", "partition", "at", "append", "ranges", "freed", "disk"])]
    pub whole: bool,
    /// Commit every sector, without reading filesystems
    #[arg(long, conflicts_with_all = ["at", "append", "ranges", "freed", "disk"])]
    pub raw: bool,
    /// Commit only this partition of SOURCE
    #[arg(
        long,
        value_name = "NUMBER",
        conflicts_with_all = ["skip", "at", "append", "ranges", "freed", "disk"]
    )]
    pub partition: Option<u32>,
    /// Leave out the content of this partition; may be repeated
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["at", "append", "ranges", "freed", "disk"])]
    pub skip: Vec<u32>,
    /// Refuse unless the newest version has this number
    #[arg(long, value_name = "NUMBER", conflicts_with = "disk")]
    pub expect: Option<u64>,
    /// Treat SOURCE as a raw disk although it begins like a file of another format, such as QCOW2
    #[arg(long, value_enum, conflicts_with = "disk")]
    pub format: Option<SourceForm>,
    /// Also read the files that a QCOW2 or VMDK names, such as the base of an overlay. The maker of the file
    /// chose these names
    #[arg(long, conflicts_with = "disk")]
    pub backing: bool,
    #[command(flatten)]
    pub there: There,
}

impl Args {
    /// Whether the disk is committed as a whole: no option names a part of the image.
    pub(super) fn is_whole(&self) -> bool {
        self.at.is_none() && !self.append && self.ranges.is_empty() && self.freed.is_empty()
    }
}
