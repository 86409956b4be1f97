//! Options of every command.

use std::path::PathBuf;

use super::parse::parse_cache;

/// Options that every command takes.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Global {
    /// Folder of the repository, s3://BUCKET/PREFIX, cluster://HOST:PORT or https://SERVER [default: the system's state
    /// folder for root, else the user's data folder]
    #[arg(long, global = true, value_name = "URL|FOLDER", env = "DISKCAST_REPO", hide_env_values = true)]
    pub repo: Option<String>,
    /// File with the token of a cluster://
    #[arg(long, global = true, value_name = "FILE", env = "DISKCAST_CLUSTER_TOKEN", hide_env_values = true)]
    pub cluster_token: Option<PathBuf>,
    /// Folder for the cache: data read from a repository in S3, and, for a repository in a folder, which files were
    /// checked within the last day; or `off` [default: /var/cache/diskcast for root, else the user's cache folder]
    #[arg(long, global = true, value_name = "FOLDER|off", env = "DISKCAST_CACHE", hide_env_values = true)]
    pub cache: Option<String>,
    /// Maximum size of the cache
    #[arg(long, global = true, value_name = "SIZE", value_parser = parse_cache, default_value = "4G",
          env = "DISKCAST_CACHE_SIZE", hide_env_values = true)]
    pub cache_size: u64,
    /// Print one JSON object per line, each with a `type`
    #[arg(long, global = true)]
    pub json: bool,
    /// Print errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print more details
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Overwrite disks and remove data without asking; needed for that where standard input is not a terminal
    #[arg(short, long, global = true)]
    pub yes: bool,
    /// Show what would be done, but change nothing. What can be checked is checked. A command that can't tell refuses
    #[arg(short = 'n', long, global = true)]
    pub dry_run: bool,
    #[command(flatten)]
    pub keys: Keys,
}

/// Keys that sign, that encrypt, and those that are trusted. They come from files only.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Keys")]
pub(crate) struct Keys {
    /// Sign versions and tags with the key in this file, made by `diskcast key new`
    #[arg(long, global = true, value_name = "FILE", env = "DISKCAST_SIGN_KEY", hide_env_values = true)]
    pub sign_key: Option<PathBuf>,
    /// Key of an encrypted repository, local or on the server
    #[arg(long, global = true, value_name = "FILE", env = "DISKCAST_ENCRYPTION_KEY", hide_env_values = true)]
    pub encryption_key: Option<PathBuf>,
    /// Reject everything that none of these keys signed: a file of public keys, or a folder of *.pub; may be repeated
    #[arg(
        long,
        global = true,
        value_name = "FILE|FOLDER",
        env = "DISKCAST_TRUST",
        value_delimiter = ':',
        hide_env_values = true
    )]
    pub trust: Vec<PathBuf>,
    /// Warn instead of rejecting what no trusted key signed
    #[arg(long, global = true)]
    pub allow_untrusted: bool,
    /// Accept an older version, or an older move of a tag, than this machine has seen, and another repository at an
    /// address that it knows; from then on it remembers these
    #[arg(long, global = true)]
    pub allow_older: bool,
    /// File that remembers the newest versions that trusted keys signed, or `off` [default: seen.json in the system's
    /// state folder for root, else in the user's data folder]
    #[arg(long, global = true, value_name = "FILE|off", env = "DISKCAST_SEEN", hide_env_values = true)]
    pub seen: Option<PathBuf>,
}
