//! Images that a host keeps.

use std::ffi::OsString;
use std::path::PathBuf;

use daemon::image_cache::Bounds;

use super::parse::parse_size;
use crate::exit::Result;
use crate::repository;

/// Where images are kept, and how many.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Keeping {
    /// Folder of the images that this host keeps [default: /var/lib/diskcast/kept for root, else in the user's data
    /// folder]
    #[arg(long, value_name = "FOLDER", env = "DISKCAST_KEPT", hide_env_values = true)]
    kept: Option<PathBuf>,
    /// Maximum size of all these images; an image that a machine uses is never removed
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "200G",
        env = "DISKCAST_KEPT_SIZE", hide_env_values = true)]
    kept_size: u64,
    /// Bytes that stay free on their filesystem
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "5G",
        env = "DISKCAST_KEEP_FREE", hide_env_values = true)]
    keep_free: u64,
}

impl Keeping {
    pub(crate) fn folder(&self) -> Result<PathBuf> {
        self.kept.clone().map_or_else(repository::default_kept_folder, Ok)
    }

    /// The same for another program of ours.
    pub(crate) fn arguments(&self) -> Result<Vec<OsString>> {
        let (size, free) = (self.kept_size.to_string().into(), self.keep_free.to_string().into());
        let folder = self.folder()?.into_os_string();
        Ok(vec!["--kept".into(), folder, "--kept-size".into(), size, "--keep-free".into(), free])
    }

    pub(crate) fn bounds(&self) -> Bounds {
        Bounds { size: self.kept_size, keep_free: self.keep_free }
    }
}
