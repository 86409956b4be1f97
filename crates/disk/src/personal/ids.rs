//! New identifiers of a disk and its partitions, and the references to them in the files by which Linux boots.

use std::path::Path;

use base::{Error, ErrorKind, Result};

use super::parts::{Disk, Done};
use super::references::{Replaced, look, replace};
use crate::TableKind;
use crate::tools::{Attached, run};

/// In the refusal of a disk whose files name identifiers that would be replaced, and can't be changed.
pub const STALE: &str = "files that can't be changed name old identifiers";
/// How many such files an error names.
const NAMED_MAX: usize = 12;

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
/// back. `machine` is the content of the root's `machine-id`. `Refused`, before anything changes, if files name old
/// identifiers that can't be changed, unless `accepts_stale`.
pub(super) fn renew(
    disk: &Disk<'_>,
    machine: Option<&[u8]>,
    accepts_stale: bool,
    done: &mut Done,
) -> Result<()> {
    let changes = changes(disk)?;
    let (forth, back) = (pairs(disk, &changes, false), pairs(disk, &changes, true));
    let mut sought = pairs(disk, &changes, false);
    sought.extend(machine_id(machine));
    let looked = look(disk, &sought)?;
    let stale = &looked.stale;
    if !stale.is_empty() && !accepts_stale {
        return Err(Error::new(ErrorKind::Refused, format!("{STALE}: {}", listed(stale))));
    }
    let result = set(disk, &changes, false).and_then(|()| replace(disk, &forth, &looked));
    let found = result.inspect_err(|_| {
        // The first error is the one that counts.
        let _ = replace(disk, &back, &looked);
        let _ = set(disk, &changes, true);
    })?;
    done.push("new identifiers of disk and partitions".to_owned());
    if found.count > 0 {
        done.push(format!("{} references to them changed", found.count));
    }
    if !stale.is_empty() {
        done.push(format!("{STALE}: {}", listed(stale)));
    }
    Ok(())
}

fn listed(files: &[String]) -> String {
    let more = files.len().saturating_sub(NAMED_MAX);
    let named = files[..files.len() - more].join(", ");
    if more == 0 { named } else { format!("{named}, and {more} more") }
}

/// The identifiers that the disk has, with new ones.
fn changes(disk: &Disk<'_>) -> Result<Vec<Change>> {
    let is_gpt = disk.map.table == TableKind::Gpt;
    let old = disk.map.disk_id.clone().unwrap_or_default();
    let new = if is_gpt { random_guid()? } else { format!("{:08x}", u32::from_le_bytes(random()?).max(1)) };
    let mut changes = vec![Change { number: None, old, new }];
    for partition in disk.map.partitions.iter().filter(|_| is_gpt) {
        if let Some(old) = partition.uuid.clone() {
            changes.push(Change { number: Some(partition.number), old, new: random_guid()? });
        }
    }
    Ok(changes)
}

/// The identifiers as files name them, from old to new, or back. In an MBR a partition's identifier is that of the disk
/// with its number.
fn pairs(disk: &Disk<'_>, changes: &[Change], back: bool) -> Vec<Replaced> {
    let is_gpt = disk.map.table == TableKind::Gpt;
    let pair = |Change { old, new, .. }: &Change, suffix: &str| {
        let (old, new) = (format!("{old}{suffix}"), format!("{new}{suffix}"));
        if back { Replaced { old: new, new: Some(old) } } else { Replaced { old, new: Some(new) } }
    };
    let named = changes.iter().filter(|change| !change.old.is_empty());
    if is_gpt {
        return named.map(|change| pair(change, "")).collect();
    }
    let suffixes = disk.map.partitions.iter().map(|partition| format!("-{:02x}", partition.number));
    let suffixes: Vec<_> = suffixes.collect();
    named.flat_map(|change| suffixes.iter().map(|suffix| pair(change, suffix))).collect()
}

/// The machine-id of the system on the disk, as a kernel's command line gives it: the new one is not known yet.
fn machine_id(file: Option<&[u8]>) -> Option<Replaced> {
    let id = std::str::from_utf8(file?).ok()?.trim();
    let is_one = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_one.then(|| Replaced { old: format!("systemd.machine_id={id}"), new: None })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_random_and_an_error_names_some_files() {
        let (one, two) = (random_guid().unwrap(), random_guid().unwrap());
        assert!(one != two && one.len() == 36 && one.as_bytes()[14] == b'4', "{one}");
        let names: Vec<_> = (0..14).map(|number| number.to_string()).collect();
        assert_eq!(listed(&names[..2]), "0, 1");
        assert!(listed(&names).ends_with("10, 11, and 2 more"));
    }
}
