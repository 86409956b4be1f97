//! The filesystems that can grow, and how each does.

use std::path::Path;

use base::{Error, ErrorKind, Result};

use crate::Filesystem;
use crate::tools::{self, Mounted, run};

/// What a filesystem can be grown by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Ext,
    Xfs,
    Btrfs,
    Ntfs,
    Swap,
    Lvm,
}

/// Kinds of filesystems that can grow, the way, and the tools that it needs.
pub(super) const WAYS: &[(&str, Way, &[&str])] = &[
    ("ext2", Way::Ext, &["e2fsck", "resize2fs"]),
    ("ext3", Way::Ext, &["e2fsck", "resize2fs"]),
    ("ext4", Way::Ext, &["e2fsck", "resize2fs"]),
    ("xfs", Way::Xfs, &["mount", "umount", "xfs_growfs"]),
    ("btrfs", Way::Btrfs, &["mount", "umount", "btrfs"]),
    ("ntfs", Way::Ntfs, &["ntfsresize"]),
    ("swap", Way::Swap, &["mkswap"]),
    ("LVM2_member", Way::Lvm, &["pvresize", "lvextend", "vgs"]),
];
/// Keeps LVM from writing down the group in `/etc/lvm`, where one of this machine may have the same name.
pub(super) const NO_BACKUP: [&str; 2] = ["--config", "backup { backup=0 archive=0 }"];

/// Makes the `filesystem` fill `device`.
pub(super) fn enlarge(way: Way, device: &Path, filesystem: Option<&Filesystem>) -> Result<()> {
    match way {
        Way::Ext => {
            // 1: it corrected something, such as a journal that was not replayed.
            tools::run_with(&[0, 1], "e2fsck", &["-f", "-p"], &[device], None)?;
            run("resize2fs", &[], &[device], None)?;
        }
        Way::Xfs => {
            let mounted = Mounted::at(device, "xfs", "nouuid,nosuid,nodev,noexec")?;
            run("xfs_growfs", &["-d"], &[mounted.path()], None)?;
            mounted.end()?;
        }
        Way::Btrfs => {
            let mounted = Mounted::at(device, "btrfs", "nosuid,nodev,noexec")?;
            run("btrfs", &["filesystem", "resize", "max"], &[mounted.path()], None)?;
            mounted.end()?;
        }
        Way::Ntfs => {
            run("ntfsresize", &["--force", "--force", "--no-progress-bar"], &[device], Some("y\n"))?;
        }
        Way::Swap => {
            let mut arguments = Vec::new();
            if let Some(uuid) = filesystem.and_then(|swap| swap.uuid.as_deref()) {
                arguments.extend(["--uuid", uuid]);
            }
            if let Some(label) = filesystem.and_then(|swap| swap.label.as_deref()) {
                arguments.extend(["--label", label]);
            }
            run("mkswap", &arguments, &[device], None)?;
        }
        Way::Lvm => {
            let devices = format!("--devices={}", device.display());
            run("pvresize", &[&NO_BACKUP[..], &[&devices]].concat(), &[device], None)?;
        }
    }
    Ok(())
}

/// Refuses if a btrfs with the UUID of `filesystem`, which is at `place`, is mounted on this machine: the kernel would
/// take both for parts of one.
pub(super) fn refuse_mounted(filesystem: Option<&Filesystem>, place: &str) -> Result<()> {
    let uuid = filesystem.and_then(|found| found.uuid.clone()).unwrap_or_default();
    if uuid.is_empty() || !Path::new("/sys/fs/btrfs").join(&uuid).exists() {
        return Ok(());
    }
    let text =
        format!("the btrfs in {place} can't be mounted: one with the same UUID, {uuid}, is mounted here");
    Err(Error::new(ErrorKind::Refused, text))
}
