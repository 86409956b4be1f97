//! What an agent is told.

use crate::args::{DisksFolder, Keeping};

/// Look after the images that this host keeps, and take jobs
///
/// `diskcast deploy --copy` keeps images on hosts, so that their next machines get copies at once. This removes those
/// that were used least recently when they are too many, or the disk is too full; never one that a machine or a
/// transfer uses. It may be stopped at any time: what it needs to know is in the folder.
///
/// With `--server` it also takes jobs of that server (`diskcast serve --agents`), which `diskcast deploy IMAGE HOSTS
/// --target TARGET` gives. An administrator admits this host first, by `diskcast hosts admit` and the fingerprint of
/// its key, which this shows when it starts. Everybody who manages that server can write to this host's disks.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast agent
  diskcast agent --kept /srv/images --kept-size 500G --keep-free 50G
  diskcast agent --list
  diskcast agent --server https://10.0.0.1:7717 --pin FINGERPRINT")]
pub(crate) struct Args {
    /// Show the images and end
    #[arg(long)]
    pub list: bool,
    /// Look once and end
    #[arg(long, conflicts_with = "list")]
    pub once: bool,
    /// Take jobs of this server
    #[arg(long, value_name = "URL", env = "DISKCAST_SERVER", hide_env_values = true,
        conflicts_with_all = ["list", "once"])]
    pub server: Option<String>,
    /// Fingerprint of its certificate: between the dots of its tokens
    #[arg(long, value_name = "FINGERPRINT", env = "DISKCAST_PIN", hide_env_values = true)]
    pub pin: Option<String>,
    /// Network interface by whose card the server knows this host [default: the one towards the server]
    #[arg(long, value_name = "NAME", requires = "server")]
    pub interface: Option<String>,
    #[command(flatten)]
    pub keeping: Keeping,
    #[command(flatten)]
    pub place: DisksFolder,
}
