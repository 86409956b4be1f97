//! The programs of the system in memory, and the libraries that they need.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::files::{copy_entry, walk, write};
use super::tree::{Tree, libraries_here};
use crate::exit::{Exit, Failure, Result};

/// Where programs may lie.
const FOLDERS: &[&str] = &["bin", "sbin", "usr/bin", "usr/sbin"];
/// What the init, `install`, `grow` and `personalize` call. Busybox has the rest.
const PROGRAMS: &[&str] = &[
    "blkdiscard",
    "blkid",
    "blockdev",
    "btrfs",
    "busybox",
    "dmsetup",
    "e2fsck",
    "e2image",
    "efibootmgr",
    "fsck.fat",
    "kmod",
    "losetup",
    "lsblk",
    "lvm",
    "mke2fs",
    "mkfs.fat",
    "mkswap",
    "mount",
    "mtools",
    "ntfs-3g",
    "ntfsfix",
    "ntfsresize",
    "partx",
    "resize2fs",
    "sfdisk",
    "ssh-keygen",
    "swaplabel",
    "tune2fs",
    "udevadm",
    "umount",
    "wipefs",
    "xfs_admin",
    "xfs_db",
    "xfs_growfs",
    "xfs_repair",
];
/// Other names of these, as links.
const LINKS: &[(&str, &str)] = &[
    ("modprobe", "/bin/kmod"),
    ("depmod", "/bin/kmod"),
    ("lsmod", "/bin/kmod"),
    ("mount.ntfs-3g", "/bin/ntfs-3g"),
    ("mount.ntfs", "/bin/ntfs-3g"),
    ("mdir", "/usr/bin/mtools"),
    ("mcopy", "/usr/bin/mtools"),
    ("mmd", "/usr/bin/mtools"),
    ("lvs", "/sbin/lvm"),
    ("vgs", "/sbin/lvm"),
    ("pvs", "/sbin/lvm"),
    ("lvcreate", "/sbin/lvm"),
    ("lvextend", "/sbin/lvm"),
    ("lvremove", "/sbin/lvm"),
    ("pvresize", "/sbin/lvm"),
    ("vgchange", "/sbin/lvm"),
    ("fsck.ext4", "/sbin/e2fsck"),
    ("mkfs.ext4", "/sbin/mke2fs"),
];
/// Where diskcast and its libraries lie.
const OWN: &str = "usr/lib/diskcast";
/// What udev needs besides its program.
const UDEV: &[&str] = &["lib/udev", "etc/udev", "usr/lib/udev"];
/// The names of files on FAT, as mtools needs them: code pages 437 and 850.
const CODE_PAGES: &str = "usr/lib/x86_64-linux-gnu/gconv";
const CODE_PAGE_FILES: &[&str] =
    &["gconv-modules", "gconv-modules.d/gconv-modules-extra.conf", "IBM437.so", "IBM850.so"];
/// Texts that udev does not need to find devices: names of makers for people.
const UDEV_WITHOUT: &str = "hwdb.d";

/// Copies all programs to `system`.
pub(super) fn copy(tree: &Tree, system: &Path) -> Result<()> {
    let mut libraries = BTreeSet::new();
    let mut add = |inside: &str| -> Result<()> {
        // A link is followed: what matters is the name by which it is called.
        let from = tree.path(inside);
        let from = match fs::read_link(&from) {
            Ok(to) if to.is_absolute() => tree.path(&to.to_string_lossy()[1..]),
            _ => fs::canonicalize(&from)?,
        };
        copy_entry(&from, &system.join(inside))?;
        libraries.extend(tree.libraries_of(inside)?);
        Ok(())
    };
    for program in PROGRAMS {
        let places: Vec<String> = FOLDERS.iter().map(|folder| format!("{folder}/{program}")).collect();
        let found = places.iter().find(|place| tree.path(place).symlink_metadata().is_ok());
        let missing = || Failure::new(Exit::NotFound, format!("no package has `{program}`"));
        add(found.ok_or_else(missing)?)?;
    }
    for folder in UDEV.iter().filter(|folder| tree.path(folder).exists()) {
        for entry in walk(&tree.path(folder))? {
            let inside =
                entry.strip_prefix(tree.path("")).expect("it was found there").to_string_lossy().into_owned();
            if inside.contains(UDEV_WITHOUT) {
                continue;
            }
            if entry.is_file() && entry.parent().is_some_and(|folder| folder.ends_with("udev")) {
                add(&inside)?;
            } else {
                copy_entry(&entry, &system.join(&inside))?;
            }
        }
    }
    for file in CODE_PAGE_FILES {
        let inside = format!("{CODE_PAGES}/{file}");
        if tree.path(&inside).exists() {
            copy_entry(&tree.path(&inside), &system.join(&inside))?;
        }
    }
    for library in libraries {
        let from = fs::canonicalize(tree.path(&library))?;
        copy_entry(&from, &system.join(&library))?;
    }
    link("/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", &system.join("lib64/ld-linux-x86-64.so.2"))?;
    for (name, to) in LINKS {
        link(to, &system.join("sbin").join(name))?;
    }
    link("/bin/udevadm", &system.join("lib/systemd/systemd-udevd"))?;
    link("/bin/busybox", &system.join("bin/sh"))?;
    copy_own(system)
}

fn link(to: &str, at: &Path) -> Result<()> {
    if at.symlink_metadata().is_ok() {
        return Ok(());
    }
    fs::create_dir_all(at.parent().expect("it is below a folder"))?;
    Ok(std::os::unix::fs::symlink(to, at)?)
}

/// Copies this very program: with the libraries that it has here, which may be newer than Debian's.
fn copy_own(system: &Path) -> Result<()> {
    let own = std::env::current_exe()?;
    let folder = system.join(OWN);
    fs::create_dir_all(&folder)?;
    let copy = folder.join("diskcast");
    fs::copy(&own, &copy)?;
    // Without `strip` it is larger, and does the same.
    let _ = Command::new("strip").arg(&copy).output();
    let libraries = libraries_here(&own)?;
    let mut loader = None;
    for library in &libraries {
        let name = Path::new(library).file_name().expect("a file").to_owned();
        fs::copy(fs::canonicalize(library)?, folder.join(&name))?;
        if name.to_string_lossy().starts_with("ld-linux") {
            loader = Some(name.to_string_lossy().into_owned());
        }
    }
    let script = match loader {
        None => format!("#!/bin/sh\nexec /{OWN}/diskcast \"$@\"\n"),
        Some(loader) => {
            format!(
                "#!/bin/sh\nexec /{OWN}/{loader} --argv0 diskcast --library-path /{OWN} /{OWN}/diskcast \"$@\"\n"
            )
        }
    };
    write(&system.join("usr/bin/diskcast"), &script, true)
}
