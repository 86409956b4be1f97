//! References to identifiers in the files by which a disk boots: which files there are, which of them are changed, and
//! which only name what is no longer there.
//!
//! An identifier and its successor have the same length, so no file gets longer: GRUB's `grubenv` stays one block, and
//! a file of a FAT is changed where it is.

use std::collections::HashSet;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use base::{Error, Result};

use super::parts::{Disk, places};
use super::root::Root;
use crate::filesystem::fat::FatFiles;
use crate::volume::Volume;
use crate::{Partition, open_source};

/// Folders of a root filesystem whose small files are looked at. `/home`, `/var` and the programs in `/usr` say nothing
/// about how a machine starts; a log that names an identifier tells what was.
const SETTINGS: &[&str] = &["etc", "root", "usr/local", "usr/lib/systemd", "lib/systemd"];
/// Folders, there or in a filesystem for /boot, whose files are read by what starts the machine.
const BOOT: &[&str] =
    &["boot", "efi", "EFI", "grub", "grub2", "loader", "extlinux", "syslinux", "firmware", "refind"];
/// The longest file that is looked at: of settings, and of those that boot, where kernels are with their command lines.
const SETTINGS_BYTES_MAX: u64 = 1 << 20;
const BOOT_BYTES_MAX: u64 = 128 << 20;

/// Files that are known to hold plain text: by their names,
const NAMES: &[&str] = &["fstab", "crypttab", "cmdline", "grubenv"];
/// by their ends,
const ENDS: &[&str] = &[
    ".cfg",
    ".conf",
    ".txt",
    ".cmd",
    ".ini",
    ".lst",
    ".nsh",
    ".env",
    ".rules",
    ".mount",
    ".automount",
    ".swap",
    ".service",
];
/// and by their folders.
const FOLDERS: &[&str] = &[
    "etc/default/",
    "etc/kernel/",
    "etc/cmdline.d/",
    "etc/fstab.d/",
    "etc/grub.d/",
    "etc/initramfs-tools/",
    "etc/flash-kernel/",
];
/// What editors and package managers add to the name of a file that they keep.
const COPIES: &[&str] = &[".bak", ".old", ".orig", ".save", "~", "-", ".dpkg-old", ".ucf-old", ".rpmsave"];

/// An identifier that is replaced; `None` if it has no successor of its kind.
pub(super) struct Replaced {
    pub(super) old: String,
    pub(super) new: Option<String>,
}

/// What was found.
#[derive(Default)]
pub(super) struct Found {
    /// How many references are in files that can be changed, or were.
    pub(super) count: usize,
    /// The files with references that can't be changed, each with its partition.
    pub(super) stale: Vec<String>,
    /// The files with others.
    pub(super) known: HashSet<String>,
}

/// Looks for references to `identifiers` on `disk`.
pub(super) fn look(disk: &Disk<'_>, identifiers: &[Replaced]) -> Result<Found> {
    Search { identifiers, only: None }.disk(disk)
}

/// Replaces references to `identifiers` in the files that [`look`] knows.
pub(super) fn replace(disk: &Disk<'_>, identifiers: &[Replaced], looked: &Found) -> Result<Found> {
    if looked.known.is_empty() {
        return Ok(Found::default());
    }
    Search { identifiers, only: Some(&looked.known) }.disk(disk)
}

fn is_fat(partition: &Partition) -> bool {
    partition.filesystem.as_ref().is_some_and(|found| found.kind == "vfat")
}

struct Search<'a> {
    identifiers: &'a [Replaced],
    /// The files that are changed; without, all are looked at.
    only: Option<&'a HashSet<String>>,
}

impl Search<'_> {
    fn disk(&self, disk: &Disk<'_>) -> Result<Found> {
        let mut found = Found::default();
        for (partition, kind, options) in disk.linux() {
            let (mounted, device) = disk.mount(partition, kind, options)?;
            let top = Root::at(mounted.path())?;
            for below in places(kind) {
                if let Some(root) = top.below(below) {
                    self.linux(&root, partition, &mut found)?;
                }
            }
            drop(top);
            mounted.end()?;
            device.end()?;
        }
        for partition in disk.map.partitions.iter().filter(|partition| is_fat(partition)) {
            self.fat(disk.path, partition, &mut found).map_err(|error| {
                error.within(format!("look for identifiers on partition {}", partition.number))
            })?;
        }
        Ok(found)
    }

    /// What a file is called, if it is to be looked at.
    fn called(&self, name: &str, partition: &Partition) -> Option<String> {
        let called = format!("{name} on partition {}", partition.number);
        self.only.is_none_or(|only| only.contains(&called)).then_some(called)
    }

    /// The files of a Linux filesystem.
    fn linux(&self, root: &Root, partition: &Partition, found: &mut Found) -> Result<()> {
        let top = root.files("", 0).into_iter().map(|path| (path, SETTINGS_BYTES_MAX));
        let below = |folders: &'static [&str], most: u64| {
            folders.iter().flat_map(move |folder| root.files(folder, DEPTH_MAX)).map(move |path| (path, most))
        };
        let all = top.chain(below(SETTINGS, SETTINGS_BYTES_MAX)).chain(below(BOOT, BOOT_BYTES_MAX));
        for (path, most) in all {
            // What a shell or an editor remembers.
            if path.starts_with("root") && path.to_string_lossy().contains("/.") {
                continue;
            }
            let name = path.to_string_lossy();
            let Some(called) = self.called(&name, partition) else { continue };
            let Some(bytes) = root.read_up_to(&path, most)? else { continue };
            if let Some(new) = self.file(&name, &bytes, called, found) {
                root.write(&path, &new, 0o644)?;
            }
        }
        Ok(())
    }

    /// The files of a FAT.
    fn fat(&self, path: &Path, partition: &Partition, found: &mut Found) -> Result<()> {
        let source = open_source(path)?;
        let files = FatFiles::of(Volume::new(&source, partition.extent))?;
        let failed = |error| Error::from_io(format!("write `{}`", path.display()), error);
        for file in files.all()?.iter().filter(|file| file.bytes <= BOOT_BYTES_MAX) {
            let Some(called) = self.called(&file.path, partition) else { continue };
            let bytes = files.read(file)?;
            let Some(new) = self.file(&file.path, &bytes, called, found) else { continue };
            let disk = std::fs::OpenOptions::new().write(true).open(path).map_err(failed)?;
            let mut rest = &new[..];
            for (offset, len) in files.pieces(file)? {
                let (piece, behind) = rest.split_at(usize::try_from(len).expect("a part of the file"));
                disk.write_all_at(piece, partition.extent.offset_bytes() + offset).map_err(failed)?;
                rest = behind;
            }
            disk.sync_all().map_err(failed)?;
        }
        Ok(())
    }

    /// Looks at one file. Returns what it is to hold, if it is to be changed.
    fn file(&self, name: &str, bytes: &[u8], called: String, found: &mut Found) -> Option<Vec<u8>> {
        let places = places_of(bytes, self.identifiers);
        if places.is_empty() {
            return None;
        }
        let is_text = !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok();
        let is_known = is_text && is_known(&name.to_ascii_lowercase());
        let (mut new, mut count) = (bytes.to_vec(), 0);
        for (at, identifier) in &places {
            if let Some(text) = identifier.new.as_ref().filter(|_| is_known) {
                new[*at..*at + text.len()].copy_from_slice(text.as_bytes());
                count += 1;
            }
        }
        found.count += count;
        if count < places.len() {
            found.stale.push(called.clone());
        }
        if count > 0 {
            found.known.insert(called);
        }
        (self.only.is_some() && count > 0).then_some(new)
    }
}

/// How many folders lie in each other at most.
const DEPTH_MAX: u32 = 32;

/// Whether the file at `path`, in lower case, is one that is known to hold text.
fn is_known(path: &str) -> bool {
    let original = COPIES.iter().find_map(|end| path.strip_suffix(end)).unwrap_or(path);
    let name = original.rsplit('/').next().unwrap_or_default();
    let is_elsewhere = ["root/", "usr/", "lib/"].iter().any(|folder| path.starts_with(folder));
    let is_named = NAMES.contains(&name) || ENDS.iter().any(|end| name.ends_with(end));
    (is_named && !is_elsewhere) || FOLDERS.iter().any(|folder| path.starts_with(folder))
}

/// Where identifiers stand in `bytes`, whatever their case, as words of their own.
fn places_of<'a>(bytes: &[u8], identifiers: &'a [Replaced]) -> Vec<(usize, &'a Replaced)> {
    let mut begins = [false; 256];
    for first in identifiers.iter().filter_map(|one| one.old.bytes().next()) {
        begins[usize::from(first.to_ascii_lowercase())] = true;
        begins[usize::from(first.to_ascii_uppercase())] = true;
    }
    let is_apart = |byte: Option<&u8>| byte.is_none_or(|byte| !byte.is_ascii_alphanumeric());
    let stands = |at: usize, old: &str| {
        let end = at + old.len();
        bytes.get(at..end).is_some_and(|word| word.eq_ignore_ascii_case(old.as_bytes()))
            && is_apart(at.checked_sub(1).and_then(|before| bytes.get(before)))
            && is_apart(bytes.get(end))
    };
    let starts = bytes.iter().enumerate().filter(|(_, byte)| begins[usize::from(**byte)]);
    starts.filter_map(|(at, _)| Some((at, identifiers.iter().find(|one| stands(at, &one.old))?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_found_whatever_their_case_and_as_words() {
        let replaced = |old: &str| Replaced { old: old.to_owned(), new: None };
        let all = [replaced("1a2b3c4d-01"), replaced("1a2b3c4d-0b")];
        let text =
            b"ROOT=PARTUUID=1A2B3C4D-01 1a2b3c4d-0B\n1a2b3c4d-011 01a2b3c4d-01 1a2b3c4d-02 1a2b3c4d-01";
        let places: Vec<_> = places_of(text, &all).into_iter().map(|(at, one)| (at, &*one.old)).collect();
        assert_eq!(places, [(14, "1a2b3c4d-01"), (26, "1a2b3c4d-0b"), (76, "1a2b3c4d-01")]);
        assert!(places_of(b"", &all).is_empty() && places_of(text, &[]).is_empty());
    }

    #[test]
    fn files_that_are_known() {
        for path in [
            "etc/fstab",
            "etc/fstab.bak",
            "etc/crypttab~",
            "etc/default/grub",
            "etc/initramfs-tools/conf.d/resume",
            "etc/systemd/system/srv.mount",
            "boot/grub/grubenv",
            "boot/firmware/cmdline.txt",
            "cmdline.txt.old",
            "boot/armbianenv.txt",
            "boot/boot.cmd",
            "loader/entries/a.conf",
            "efi/fedora/grub.cfg",
        ] {
            assert!(is_known(path), "{path}");
        }
        for path in
            ["boot/boot.scr", "etc/rc.local", "root/notes.txt", "usr/local/etc/x.conf", "efi/linux/a.efi"]
        {
            assert!(!is_known(path), "{path}");
        }
    }
}
