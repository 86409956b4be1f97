//! Options that select attached disks and their folder.

use std::path::PathBuf;

use daemon::attached::Quiesce;

use super::parse::{parse_lifetime, parse_quiesce};

/// What can be frozen, in help texts.
pub(crate) const QUIESCE: &str = "agent:SOCKET|monitor:SOCKET|mount:PATH";

/// Where disks are kept.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DisksFolder {
    /// Folder of all attached disks [default: next to the default repository]
    #[arg(long, value_name = "FOLDER", env = "DISKCAST_DISKS", hide_env_values = true)]
    pub folder: Option<PathBuf>,
}

/// A disk that runs.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RunningDisk {
    /// Use this attached disk
    #[arg(long, value_name = "NAME", conflicts_with = "to")]
    pub disk: Option<String>,
    #[command(flatten)]
    pub place: DisksFolder,
    /// Freeze the machine's filesystems for the moment, and thaw them in every case: `agent:SOCKET` by QEMU's guest
    /// agent at this Unix socket, `mount:PATH` the filesystem that is mounted there on this host; `monitor:SOCKET`
    /// stops the machine by QEMU's monitor
    #[arg(long, value_name = QUIESCE, value_parser = parse_quiesce, requires = "disk")]
    pub quiesce: Option<Quiesce>,
    /// Maximum time for freezing the filesystems
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "10s", requires = "quiesce")]
    pub quiesce_limit: std::time::Duration,
}
