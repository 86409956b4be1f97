//! New identifiers of a disk and its partitions, and the references to them in the files by which Linux boots.

use std::path::{Path, PathBuf};

use base::{Error, Result};

use super::esp;
use super::parts::{Disk, Done, places};
use super::root::Root;
use crate::tools::{Attached, run};
use crate::{Partition, TableKind};

/// Files of a root filesystem, or of one for /boot, that name partitions.
const FILES: &[&str] = &[
    "etc/fstab",
    "etc/crypttab",
    "etc/default/grub",
    "etc/kernel/cmdline",
    "boot/grub/grub.cfg",
    "boot/grub2/grub.cfg",
    "boot/extlinux/extlinux.conf",
    "grub/grub.cfg",
    "grub2/grub.cfg",
    "extlinux/extlinux.conf",
];
/// Folders whose files `*.conf` do.
const FOLDERS: &[&str] = &["boot/loader/entries", "loader/entries", "etc/default/grub.d"];
/// The same on the EFI system partition.
const ESP_FILES: &[&str] =
    &["EFI/debian/grub.cfg", "EFI/ubuntu/grub.cfg", "EFI/BOOT/grub.cfg", "loader/loader.conf"];

/// A random GUID (version 4) as text.
pub(super) fn random_guid() -> Result<String> {
    let mut bytes = random::<16>()?;
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    Ok(crate::text::uuid(&bytes))
}

fn random<const LEN: usize>() -> Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    let filled = getrandom::fill(&mut bytes).map_err(std::io::Error::from);
    filled.map(|()| bytes).map_err(|error| Error::from_io("get random bytes", error))
}

/// An identifier of the whole disk (no number) or of a partition: before, and after.
struct Change {
    number: Option<u32>,
    old: String,
    new: String,
}

/// Gives the disk and its partitions new identifiers, and changes the references. If that fails, the old ones are put
/// back.
pub(super) fn renew(disk: &Disk<'_>, done: &mut Done) -> Result<()> {
    let mut changes = Vec::new();
    let old = disk.map.disk_id.clone().unwrap_or_default();
    let is_gpt = disk.map.table == TableKind::Gpt;
    let new = if is_gpt { random_guid()? } else { format!("{:08x}", u32::from_le_bytes(random()?).max(1)) };
    changes.push(Change { number: None, old, new });
    for partition in disk.map.partitions.iter().filter(|_| is_gpt) {
        if let Some(old) = partition.uuid.clone() {
            changes.push(Change { number: Some(partition.number), old, new: random_guid()? });
        }
    }
    // In an MBR a partition's identifier is that of the disk with its number.
    let pair = |old: &str, new: &str| match is_gpt {
        true => (old.to_owned(), new.to_owned()),
        false => (format!("{old}-"), format!("{new}-")),
    };
    let forth: Vec<_> = changes.iter().map(|change| pair(&change.old, &change.new)).collect();
    let result = set(disk, &changes, false).and_then(|()| refer(disk, &forth));
    let count = result.inspect_err(|_| {
        let back: Vec<_> = changes.iter().map(|change| pair(&change.new, &change.old)).collect();
        // The first error is the one that counts.
        let _ = refer(disk, &back);
        let _ = set(disk, &changes, true);
    })?;
    done.push("new identifiers of disk and partitions".to_owned());
    if count > 0 {
        done.push(format!("{count} references to them changed"));
    }
    Ok(())
}

/// Writes the new identifiers into the table, or the old ones back.
fn set(disk: &Disk<'_>, changes: &[Change], back: bool) -> Result<()> {
    let whole = Attached::whole(disk.path, disk.map.geometry)?;
    for Change { number, old, new } in changes {
        let id = if back { old } else { new };
        let id = if disk.map.table == TableKind::Gpt { id.clone() } else { format!("0x{id}") };
        let number = number.map(|number| number.to_string());
        let what = if number.is_some() { "--part-uuid" } else { "--disk-id" };
        let mut paths = vec![whole.path()];
        paths.extend(number.as_deref().map(Path::new));
        paths.push(Path::new(&id));
        run("sfdisk", &["--quiet", "--no-reread", "--no-tell-kernel", what], &paths, None)?;
    }
    whole.end()
}

/// Changes the references in all files that may have some; returns how many.
fn refer(disk: &Disk<'_>, changes: &[(String, String)]) -> Result<usize> {
    let mut count = 0;
    for (partition, kind, options) in disk.linux() {
        let (mounted, device) = disk.mount(partition, kind, options)?;
        let top = Root::at(mounted.path())?;
        for root in places(kind).iter().filter_map(|below| top.below(below)) {
            count += refer_below(&root, changes)?;
        }
        drop(top);
        mounted.end()?;
        device.end()?;
    }
    let is_esp = |partition: &&Partition| esp::is_one(partition);
    for partition in disk.map.partitions.iter().filter(is_esp) {
        let device = disk.attach(partition)?;
        let entries = esp::list(device.path(), "loader/entries")?;
        let entries = entries.into_iter().map(|name| format!("loader/entries/{name}"));
        for name in entries.chain(ESP_FILES.iter().map(|name| (*name).to_owned())) {
            let Some(text) = esp::read(device.path(), &name)? else { continue };
            let (new, found) = replaced(&text, changes);
            if found > 0 {
                esp::write(device.path(), &name, new.as_bytes())?;
                count += found;
            }
        }
        device.end()?;
    }
    Ok(count)
}

fn refer_below(root: &Root, changes: &[(String, String)]) -> Result<usize> {
    let entries = FOLDERS
        .iter()
        .flat_map(|folder| root.list(folder).into_iter().map(move |name| Path::new(folder).join(name)));
    let entries = entries.filter(|path| path.extension().is_some_and(|end| end == "conf" || end == "cfg"));
    let mut count = 0;
    for path in FILES.iter().map(PathBuf::from).chain(entries) {
        let Some(bytes) = root.read(&path)? else { continue };
        // A file that is no text has no references.
        let Ok(text) = String::from_utf8(bytes) else { continue };
        let (new, found) = replaced(&text, changes);
        if found > 0 {
            root.write(&path, new.as_bytes(), 0o644)?;
            count += found;
        }
    }
    Ok(count)
}

/// `text` with all old identifiers replaced, whatever their case, and how many there were.
fn replaced(text: &str, changes: &[(String, String)]) -> (String, usize) {
    let (mut text, mut count) = (text.to_owned(), 0);
    for (old, new) in changes.iter().filter(|(old, _)| !old.is_empty()) {
        let lower = text.to_ascii_lowercase();
        let places: Vec<_> = lower.match_indices(&old.to_ascii_lowercase()).map(|(at, _)| at).collect();
        count += places.len();
        for at in places.into_iter().rev() {
            text.replace_range(at..at + old.len(), new);
        }
    }
    (text, count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_change_whatever_their_case() {
        let changes = [("aa-11".to_owned(), "bb-22-long".to_owned()), ("cc".to_owned(), "dd".to_owned())];
        let (text, count) = replaced("ü PARTUUID=AA-11 aa-11 / ext4\ncc", &changes);
        assert_eq!((text.as_str(), count), ("ü PARTUUID=bb-22-long bb-22-long / ext4\ndd", 3));
        assert_eq!(replaced("nothing", &changes).1, 0);
        let (one, two) = (random_guid().unwrap(), random_guid().unwrap());
        assert!(one != two && one.len() == 36 && one.as_bytes()[14] == b'4', "{one}");
    }
}
