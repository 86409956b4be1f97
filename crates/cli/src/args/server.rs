//! Options for a server: its address, its token, its state folder and its transport.

use std::path::PathBuf;

use super::parse::parse_lifetime;

/// A server that does it, in its repository.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct There {
    /// Use the repository of this server
    #[arg(long, value_name = "SERVER")]
    pub to: Option<String>,
    #[command(flatten)]
    pub access: ServerAccess,
}

/// A server that `--repo` may name, for commands that read images.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FromServer {
    /// Set from `--repo` (`at_server.rs`).
    #[arg(skip)]
    pub server: Option<String>,
    #[command(flatten)]
    pub access: ServerAccess,
}

/// How to reach a server. The token itself is never an argument, since every user of the machine could read that.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ServerAccess {
    /// File with the server's token, `-` for standard input [or the token itself in DISKCAST_TOKEN]
    #[arg(long, value_name = "FILE", env = "DISKCAST_TOKEN_FILE", hide_env_values = true)]
    pub token_file: Option<PathBuf>,
    /// How long to wait for the server's first answer; if the server has answered before, the wait is two minutes
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime, default_value = "20s")]
    pub wait: std::time::Duration,
}

/// Where the server keeps its certificate and secret.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StateFolder {
    /// Folder for the server's certificate and secret [default: next to the default repository]
    #[arg(long, value_name = "FOLDER", env = "DISKCAST_STATE", hide_env_values = true)]
    pub state: Option<PathBuf>,
}

/// Ways to get an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Transport {
    /// Multicast, other machines and unicast: the best of them at the moment
    Auto,
    /// Multicast only: fail if it does not work
    Multicast,
    /// Unicast only
    Unicast,
}
