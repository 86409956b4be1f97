//! Options that make an installed disk a machine of its own.

use std::path::PathBuf;

use disk::personal::Personal;

/// The heading of these options in the help.
const HEADING: &str = "The machine's own";

/// What a disk gets of its own after the image.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Own {
    /// New identifiers of disk and partitions (references change, too), new SSH host keys, a new machine-id
    #[arg(long, help_heading = HEADING)]
    pub new_identity: bool,
    /// Give a new identity even if files that can't be changed name old identifiers: the machine may not start
    #[arg(long, help_heading = HEADING, requires = "new_identity")]
    pub accept_stale_ids: bool,
    /// Host name of the machine
    #[arg(long, help_heading = HEADING, value_name = "NAME")]
    pub hostname: Option<String>,
    /// Folder with files for cloud-init: user-data, meta-data, network-config, vendor-data
    #[arg(long, help_heading = HEADING, value_name = "FOLDER")]
    pub cloud_init: Option<PathBuf>,
    /// Copy a file of this machine onto the disk; may be repeated
    #[arg(long = "copy", help_heading = HEADING, value_name = "FROM:TO", value_parser = parse_copy)]
    pub copies: Vec<(PathBuf, PathBuf)>,
    /// Shell script to run in the disk's root filesystem at the end
    #[arg(long = "run", help_heading = HEADING, value_name = "SCRIPT")]
    pub script: Option<PathBuf>,
    /// Put a boot loader at the default place, where UEFI looks if it has no boot entry for the disk
    #[arg(long, help_heading = HEADING)]
    pub uefi_fallback: bool,
    /// Add a boot entry for the disk to the firmware of this machine, if that is UEFI: last in the boot order, and used
    /// once for the next start
    #[arg(long, help_heading = HEADING)]
    pub boot_entry: bool,
}

impl Own {
    /// The same for the disk.
    pub(crate) fn personal(&self) -> Personal {
        Personal {
            new_identity: self.new_identity,
            accepts_stale: self.accept_stale_ids,
            host_name: self.hostname.clone(),
            seed: self.cloud_init.clone(),
            copies: self.copies.clone(),
            script: self.script.clone(),
            uefi_fallback: self.uefi_fallback,
            boot_entry: self.boot_entry,
        }
    }
}

fn parse_copy(text: &str) -> Result<(PathBuf, PathBuf), String> {
    match text.rsplit_once(':') {
        Some((from, to)) if !from.is_empty() && to.starts_with('/') => Ok((from.into(), to.into())),
        _ => Err("two paths with a colon between them, the second one absolute".to_owned()),
    }
}
