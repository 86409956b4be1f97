//! The command line of mounts.

use std::path::PathBuf;

use clap::Args;

use super::{parse_lifetime, parse_rate, parse_size};

/// Show all versions as files in a folder, and make writable disks of them
///
/// /IMAGE/NUMBER is a version's disk, /IMAGE/latest and /IMAGE/TAG lead to one; what is read of them is fetched first and
/// stays in the folder of --folder. `echo clone NAME IMAGE > DIR/_control` makes the writable disk DIR/_clones/NAME, `echo
/// commit NAME > DIR/_control` a version of what was written to it. Ends when it is unmounted, or on SIGINT or SIGTERM;
/// writable disks are there again with the next mount. The repository is asked before servers if it is a folder here, and
/// behind them if it is in S3; with --from there is none unless --repo or DISKCAST_REPO names it. See docs/mount.md.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast mount /mnt/images
  diskcast mount /mnt/images --from https://10.0.0.1:7717 --token-file join.token
  mount -o ro,loop,offset=1048576 /mnt/images/debian/latest /mnt/debian
  echo clone vm1 debian:stable > /mnt/images/_control")]
pub struct Mount {
    /// Where; an empty folder
    pub dir: PathBuf,
    /// Server that has images; may be repeated, in the order in which they are asked
    #[arg(long, value_name = "SERVER")]
    pub from: Vec<String>,
    /// File that holds the servers' token [or the token itself in DISKCAST_TOKEN]
    #[arg(long, value_name = "FILE", env = "DISKCAST_TOKEN_FILE", hide_env_values = true, requires = "from")]
    pub token_file: Option<PathBuf>,
    /// How long to wait for a server's first answer
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "20s")]
    pub wait: std::time::Duration,
    /// Folder that keeps what was fetched, and writable disks; one for each mount [default: beside the default repository]
    #[arg(long, value_name = "FOLDER", env = "DISKCAST_MOUNT", hide_env_values = true)]
    pub folder: Option<PathBuf>,
    /// Most bytes that versions take there; the longest unused go first
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64G")]
    pub keep: u64,
    /// Let a read fail after so long without a source that answers; nobody who waits can be killed before
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "60s")]
    pub give_up: std::time::Duration,
    /// Fetch all that is not asked for of disks in use as well, at this rate
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub background: Option<u64>,
    /// Most chunks that are read ahead of a stream; 0 for none
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    pub ahead: u64,
    /// User and group to whom all files belong, by number [default: whoever mounts]
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    pub owner: Option<(u32, u32)>,
    /// Do not let the kernel read versions by itself that are all here
    #[arg(long)]
    pub no_passthrough: bool,
}

fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let ids = text.split_once(':').and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
    ids.ok_or_else(|| "expected two numbers, such as 1000:1000".to_owned())
}
