//! The filesystems that can grow, and how each does.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::path::Path;

use base::units::show_bytes;
use base::{Error, ErrorKind, Result};

use crate::Filesystem;
use crate::tools::{self, Mounted, number_after, run};

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
    ("ext2", Way::Ext, &["e2fsck", "resize2fs", "tune2fs", "e2image"]),
    ("ext3", Way::Ext, &["e2fsck", "resize2fs", "tune2fs", "e2image"]),
    ("ext4", Way::Ext, &["e2fsck", "resize2fs", "tune2fs", "e2image"]),
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
            enlarge_ext(device)?;
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
            run(
                "ntfsresize",
                &["--force", "--force", "--bad-sectors", "--no-progress-bar"],
                &[device],
                Some("y\n"),
            )?;
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

/// Enlarges ext, after a trial where resize2fs would have to move blocks: it may give up in the middle of that, and the
/// filesystem is damaged then.
fn enlarge_ext(device: &Path) -> Result<()> {
    let mut file = File::open(device).map_err(|error| Error::from_io("open a filesystem", error))?;
    let bytes = file.seek(SeekFrom::End(0)).map_err(|error| Error::from_io("measure a filesystem", error))?;
    drop(file);
    let told = run("tune2fs", &["-l"], &[device], None)?;
    if moves_blocks(&told, bytes).unwrap_or(true) {
        try_ext(device, bytes)?;
    }
    run("resize2fs", &[], &[device], None).map(drop)
}

/// Whether the table of groups of an ext of `bytes` takes more blocks than its mkfs left free for that. `told`: what
/// tune2fs tells of it today.
fn moves_blocks(told: &str, bytes: u64) -> Option<bool> {
    let has_groups_apart = told.lines().any(|line| line.contains("features:") && line.contains("meta_bg"));
    let number = |words| number_after(told, words);
    let (block, group, count) =
        (number("Block size:")?, number("Blocks per group:")?, number("Block count:")?);
    let descriptor = number("Group descriptor size:").unwrap_or(32);
    let reserved = number("Reserved GDT blocks:").unwrap_or(0);
    let blocks_of_table =
        |blocks: u64| Some((blocks.div_ceil(group).checked_mul(descriptor)?).div_ceil(block));
    let needed = blocks_of_table(bytes.checked_div(block)?)?;
    Some(!has_groups_apart && needed > blocks_of_table(count)? + reserved)
}

/// Does with a sparse copy of the filesystem's metadata what is to be done with the filesystem. `Io` if that fails or
/// does not leave a sound filesystem.
fn try_ext(device: &Path, bytes: u64) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("diskcast-trial-").tempdir();
    let folder = folder.map_err(|error| Error::from_io("make a folder for a trial of resize2fs", error))?;
    let copy = folder.path().join("metadata");
    run("e2image", &["-r"], &[device, &copy], None)?;
    let lengthened = File::options().write(true).open(&copy).and_then(|file| file.set_len(bytes));
    lengthened.map_err(|error| Error::from_io(format!("make a trial of {}", show_bytes(bytes)), error))?;
    let tried = run("resize2fs", &[], &[&copy], None);
    let checked = tried.and_then(|_| run("e2fsck", &["-f", "-n"], &[&copy], None));
    checked
        .map(drop)
        .map_err(|error| error.within(format!("the filesystem can't be made one of {}", show_bytes(bytes))))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resize2fs_moves_blocks_where_the_table_of_groups_outgrows_its_room() {
        let told = |features: &str, reserved: &str| {
            format!(
                "Filesystem features:      {features}\nBlock count:              23040\n{reserved}Block size:  \
                 4096\nBlocks per group:         32768\nGroup descriptor size:    64\n"
            )
        };
        let small = told("resize_inode", "Reserved GDT blocks:      11\n");
        // Twelve blocks of 64 groups of 128 MiB.
        assert_eq!(moves_blocks(&small, 96 << 30), Some(false));
        assert_eq!(moves_blocks(&small, (96 << 30) + 4096), Some(true));
        assert_eq!(moves_blocks(&told("", ""), 9 << 30), Some(true));
        assert_eq!(moves_blocks(&told("meta_bg", ""), 900 << 30), Some(false));
        assert_eq!(moves_blocks("", 1 << 30), None);
    }
}
