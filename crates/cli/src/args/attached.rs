//! The command line of attached disks.

use std::path::PathBuf;

use clap::Args;
use daemon::attached::Quiesce;

use super::{parse_lifetime, parse_rate};

/// Run a machine's disk from an image that is still on its way
///
/// Serves the disk by NBD at once: what is read comes first, and stays; what is written stays here, until `diskcast commit
/// --disk` makes a version of it. Ends on SIGINT or SIGTERM; the same command, or the disk's name alone, goes on
/// afterwards, also after a crash, with the disk's clients still there if they connect again (QEMU's reconnect-delay).
/// Options that were given once are kept with the disk. The repository is asked before servers if it is a folder here,
/// and behind them if it is in S3; with --from there is none unless --repo or DISKCAST_REPO names it. Where --cache names a
/// folder, what servers send is kept there for all disks that name it, too.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast attach classroom:stable --name vm1 --from https://10.0.0.1:7717 --token-file join.token
  qemu-system-x86_64 ... -drive file=nbd:unix:/var/lib/diskcast/disks/vm1/nbd.sock,format=raw,if=virtio
  diskcast attach vm1                       go on with it")]
pub struct Attach {
    /// What a new disk begins as: image, image:tag or image@version; or the name of a disk that is there
    pub image: String,
    /// What the disk is called here [default: as its image]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub place: DisksFolder,
    /// Server that has the image; may be repeated, in the order in which they are asked
    #[arg(long, value_name = "SERVER")]
    pub from: Vec<String>,
    /// File that holds the servers' token; repeated, one for each server [or the token itself in DISKCAST_TOKEN]
    #[arg(
        long,
        value_name = "FILE",
        env = "DISKCAST_TOKEN_FILE",
        value_delimiter = ':',
        hide_env_values = true,
        requires = "from"
    )]
    pub token_file: Vec<PathBuf>,
    /// How long to wait for a server's first answer when a new disk begins [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime)]
    pub wait: Option<std::time::Duration>,
    /// Unix socket for NBD clients [default: nbd.sock in the disk's folder]
    #[arg(long, value_name = "PATH")]
    pub nbd: Option<PathBuf>,
    /// Serve NBD by TCP as well; without TLS on a loopback address only
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<std::net::SocketAddr>,
    /// Certificate for TCP clients, who then have to speak TLS: a file of PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Keep the disk's bytes on this block device, all of which is overwritten, instead of in a file
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<PathBuf>,
    /// Take it although the image was captured from it
    #[arg(long, requires = "device")]
    pub onto_source: bool,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Let a read fail after so long without a source that answers [default: it waits]
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime)]
    pub give_up: Option<std::time::Duration>,
    /// Fetch all that is not asked for as well, at this rate, until the disk needs no source any more; `off` not to
    #[arg(long, value_name = "RATE|off", value_parser = parse_background)]
    pub background: Option<u64>,
    /// Most chunks that are read ahead of a stream; 0 for none [default: 32]
    #[arg(long, value_name = "COUNT")]
    pub ahead: Option<u64>,
    /// Prefetch nothing because other machines read it, and keep nothing of what this one reads
    #[arg(long)]
    pub no_profile: bool,
    /// Take no part in multicast: when many machines start, the first server sends what they read once for all
    #[arg(long, conflicts_with = "interface")]
    pub no_multicast: bool,
    /// Network interface for multicast, by name or address [default: the one that leads to the server]
    #[arg(long, value_name = "INTERFACE")]
    pub interface: Option<String>,
    /// Make the disk, or change its options, but do not run it: for a service that does
    #[arg(long)]
    pub prepare: bool,
}

/// End an attached disk, once it is durable
///
/// Its clients are told. Without --discard the disk stays, and `diskcast attach NAME` goes on with it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast detach vm1
  diskcast detach vm1 --discard")]
pub struct Detach {
    /// The disk
    pub name: String,
    #[command(flatten)]
    pub place: DisksFolder,
    /// Delete the disk; refused if something was written to it since the last commit
    #[arg(long)]
    pub discard: bool,
    /// Even then
    #[arg(long, requires = "discard")]
    pub force: bool,
}

/// List attached disks
///
/// HERE is how much of the disk is here; DIRTY what was written since its base version; DEMANDED what somebody waited for,
/// PREFETCHED what was fetched before, UNUSED of that what nobody has read yet, in encoded bytes since its process began.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  diskcast disks
  diskcast disks vm1 --json")]
pub struct Disks {
    /// This one only
    pub name: Option<String>,
    #[command(flatten)]
    pub place: DisksFolder,
}

/// Where disks are kept.
#[derive(Debug, Clone, Args)]
pub struct DisksFolder {
    /// Folder of all attached disks [default: beside the default repository]
    #[arg(long, value_name = "FOLDER", env = "DISKCAST_DISKS", hide_env_values = true)]
    pub folder: Option<PathBuf>,
}

/// A disk that runs.
#[derive(Debug, Clone, Args)]
pub struct RunningDisk {
    /// An attached disk
    #[arg(long, value_name = "NAME", conflicts_with = "to")]
    pub disk: Option<String>,
    #[command(flatten)]
    pub place: DisksFolder,
    /// Freeze the machine's file systems for the moment, and thaw them whatever happens: `agent:SOCKET` by QEMU's guest agent
    /// at this Unix socket, `mount:PATH` what is mounted there on this host
    #[arg(long, value_name = "agent:SOCKET|mount:PATH", value_parser = parse_quiesce, requires = "disk")]
    pub quiesce: Option<Quiesce>,
    /// How long freezing them may take
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "10s", requires = "quiesce")]
    pub quiesce_limit: std::time::Duration,
}

fn parse_quiesce(text: &str) -> Result<Quiesce, String> {
    match text.split_once(':') {
        Some(("agent", path)) if !path.is_empty() => Ok(Quiesce::Agent(path.into())),
        Some(("mount", path)) if !path.is_empty() => Ok(Quiesce::Mount(path.into())),
        _ => Err("expected agent:SOCKET or mount:PATH".to_owned()),
    }
}

/// Bytes a second.
fn parse_background(text: &str) -> Result<u64, String> {
    match text {
        "off" => Ok(0),
        rate => parse_rate(rate).map(|bits| bits / 8).map_err(|why| format!("{why}, or `off`")),
    }
}
