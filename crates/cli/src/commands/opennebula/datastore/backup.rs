//! Backups of machines: each disk is an image, of which each backup is a version.

use super::store::{MIB, Store};
use crate::commands::opennebula::host;
use crate::commands::opennebula::place::{Place, number, wrong};
use crate::commands::opennebula::vm::Machine;
use crate::exit::Result;

/// Saves the copies of the disks `numbers` that `prebackup` made in the machine's folder.
pub(super) fn save(store: &Store<'_>, folder: &str, numbers: &str, machine: &str) -> Result<String> {
    let (folder, about) = (Place::parse(folder)?, Machine::ask(machine)?);
    number(machine)?;
    let (mut parts, mut size) = (Vec::new(), 0);
    for disk in numbers.split(':').filter(|disk| !disk.is_empty()) {
        let disk = number(disk)?;
        let format = about.disk(disk)?.file_format()?;
        let place = Place { host: folder.host.clone(), path: format!("{}/backup/disk.{disk}", folder.path) };
        let image = format!("{}-vm-{machine}-disk-{disk}", store.settings.prefix);
        let saved = host::capture(store.settings, store.repository, (&place, format), &image, "")?;
        parts.push(format!("{image}@{}", saved.number));
        size += saved.encoded_bytes;
    }
    if parts.is_empty() {
        return Err(wrong("the backup has no disk"));
    }
    Ok(format!("{}:{} {} raw", store.order.repository, parts.join(","), size.div_ceil(MIB)))
}
