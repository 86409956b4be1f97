//! Options for writing a target.

use std::path::PathBuf;

use super::Own;
use disk::grow::Wish;

use super::parse::{parse_disk_rate, parse_memory, parse_size, parse_wish};

/// How a target is written.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Writing {
    /// Write this target, too, in the same pass; may be repeated
    #[arg(long, value_name = "TARGET", conflicts_with = "compress")]
    pub also: Vec<PathBuf>,
    /// Begin with what this file or volume holds, without copying it, and write only what differs: a file that shares
    /// its blocks, with --as qcow2 an overlay, of a logical volume a snapshot
    #[arg(long, value_name = "BASE", conflicts_with = "compress")]
    pub copy_of: Option<PathBuf>,
    /// Write the image of one partition into this partition of a disk or raw file
    #[arg(
        long,
        value_name = "NUMBER",
        conflicts_with_all = ["also", "copy_of", "create_volume", "compress", "form", "size", "grow", "keep_size"]
    )]
    pub into: Option<u32>,
    /// Make the logical volume /dev/GROUP/NAME if it is missing
    #[arg(long)]
    pub create_volume: bool,
    /// What to do with space that the image's filesystems do not use
    #[arg(long, value_enum, default_value_t = Free::Skip)]
    pub free: Free,
    /// Go on with an install that was interrupted: compare everything first; also in a file that is not empty
    #[arg(long)]
    pub resume: bool,
    /// Whether to look for what the target holds already, and to write only the rest
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Reuse::Auto)]
    pub reuse: Reuse,
    /// Do not read back what was written
    #[arg(long)]
    pub no_verify: bool,
    /// Keep signatures of old filesystems and partition tables where the image has free space
    #[arg(long)]
    pub keep_signatures: bool,
    /// Do not shorten a file that is longer than the image
    #[arg(long)]
    pub keep_size: bool,
    /// Do not move the backup GPT to the end of a larger disk
    #[arg(long)]
    pub keep_gpt: bool,
    /// Then grow the last partition, or the one with this number, and its filesystem to the end of a larger disk. In
    /// LVM one logical volume grows: the one that is named, or the only one that can grow
    #[arg(
        long,
        value_name = "PARTITION[/VOLUME]",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        value_parser = parse_wish,
        conflicts_with = "keep_gpt"
    )]
    pub grow: Option<Wish>,
    /// Format of a file that is written
    #[arg(long = "as", value_enum, value_name = "FORMAT", default_value_t = FileForm::Raw)]
    pub form: FileForm,
    /// Compress the QCOW2 (deflate), which takes much longer: it is written from its first byte to its last
    #[arg(long)]
    pub compress: bool,
    /// Size of a file that is to be larger than the image
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Overwrite a file that is not empty without asking; --resume does, too
    #[arg(long)]
    pub overwrite: bool,
    /// Allow writing to the disk or file that the image was captured from
    #[arg(long)]
    pub onto_source: bool,
    #[command(flatten)]
    pub own: Own,
}

/// How much of this machine to use.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Effort {
    /// Threads that compress or decompress [default: two per core, if memory permits]
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<std::num::NonZeroUsize>,
    /// Memory for data between the pipeline stages
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = "64M")]
    pub memory: u64,
    /// Maximum bytes per second to read from the source, or to write to and read back from the target
    #[arg(long, value_name = "SIZE", value_parser = parse_disk_rate)]
    pub disk_rate: Option<u64>,
}

/// When to look for what the target holds already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Reuse {
    /// If one half of a sample is right
    Auto,
    /// Always, and also in its free space, for chunks that moved
    Always,
    /// Write everything
    Never,
}

/// Formats of files that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FileForm {
    /// The disk, byte by byte, with holes
    Raw,
    /// A QCOW2 of version 3
    Qcow2,
}

/// What becomes of free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Free {
    /// Do not write it: fastest
    Skip,
    /// Fill it with zeros
    Zero,
    /// Discard it (TRIM)
    Discard,
}
