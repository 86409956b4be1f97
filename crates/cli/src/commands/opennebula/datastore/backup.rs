//! Backups of machines: each disk is an image, of which each backup is a version.

use super::store::{MIB, Store};
use crate::commands::opennebula::host;
use crate::commands::opennebula::place::Place;
use crate::commands::opennebula::vm::Machine;
use crate::exit::{Exit, Failure, Result};

/// Saves the copies of the disks `numbers` that `prebackup` made in the machine's folder.
pub(super) fn save(store: &Store<'_>, folder: &str, numbers: &str, machine: &str) -> Result<String> {
    let (folder, about) = (Place::parse(folder)?, Machine::ask(machine)?);
    machine.parse::<u64>().map_err(|_| Failure::new(Exit::Usage, format!("`{machine}` is no machine")))?;
    let (mut parts, mut size) = (Vec::new(), 0);
    for number in numbers.split(':').filter(|number| !number.is_empty()) {
        let disk = number.parse().map_err(|_| Failure::new(Exit::Usage, format!("`{number}` is no disk")))?;
        let format = about.disk(disk)?.file_format()?;
        let place = Place { host: folder.host.clone(), path: format!("{}/backup/disk.{disk}", folder.path) };
        let image = format!("{}-vm-{machine}-disk-{disk}", store.settings.prefix);
        let saved = host::capture(store.settings, store.repository, (&place, format), &image, "")?;
        parts.push(format!("{image}@{}", saved.number));
        size += saved.encoded_bytes;
    }
    if parts.is_empty() {
        return Err(Failure::new(Exit::Usage, "the backup has no disk"));
    }
    Ok(format!("{}:{} {} raw", store.order.repository, parts.join(","), size.div_ceil(MIB)))
}
