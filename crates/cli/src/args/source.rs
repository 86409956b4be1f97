//! Options for reading a source.

/// How a source is taken.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Taking {
    /// Freeze the disk's mounted filesystems while it is read: programs that write to them wait
    #[arg(long)]
    pub freeze: bool,
    /// Capture a disk although it is in use or changes while it is read. The version is marked: its content may combine
    /// sectors from different points in time
    #[arg(long)]
    pub live: bool,
    /// Capture a snapshot of a logical volume: programs that write to it go on meanwhile, and see no change. It is
    /// removed at the end
    #[arg(long, conflicts_with_all = ["freeze", "live"])]
    pub snapshot: bool,
    /// Treat the source as a raw disk although it begins like a file of another format, such as QCOW2
    #[arg(long, value_enum)]
    pub format: Option<SourceForm>,
    /// Also read the files that a QCOW2 or VMDK names: its backing files, and extents in other folders. The
    /// maker of the file chose these names
    #[arg(long)]
    pub backing: bool,
    /// Which disk of an OVA, if it has several: its name in the archive
    #[arg(long, value_name = "NAME")]
    pub member: Option<String>,
}

/// Forms of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SourceForm {
    /// The disk, byte by byte
    Raw,
}
