//! Backups of machines: each disk is an image, of which each backup is a version.

use super::store::{MIB, Store};
use crate::commands::opennebula::host::{self, What};
use crate::commands::opennebula::place::{Place, number, wrong};
use crate::commands::opennebula::settings::Settings;
use crate::commands::opennebula::vm::Machine;
use crate::exit::Result;

/// Where the number of the process stands that saves a disk of the machine in `folder`.
fn process_of(folder: &Place) -> String {
    format!("{}/backup/process", folder.path)
}

/// Ends a backup that runs: it fails, and no version is made of what it has sent.
pub(super) fn cancel(settings: &Settings, folder: &str) -> Result<String> {
    let folder = Place::parse(folder)?;
    // Of a process that has ended meanwhile the number may be another's: `kill` is for ours alone.
    let script = format!(
        "process=$(cat {} 2>/dev/null) || exit 0\n\
         tr '\\0' ' ' </proc/$process/cmdline 2>/dev/null | grep -qF 'capture {}/backup/' || exit 0\n\
         kill -INT $process",
        process_of(&folder),
        folder.path,
    );
    host::run(settings, &folder.host, &script, b"")
}

/// Saves the copies of the disks `numbers` that `prebackup` made in the machine's folder.
pub(super) fn save(store: &Store<'_>, folder: &str, numbers: &str, machine: &str) -> Result<String> {
    let (folder, about) = (Place::parse(folder)?, Machine::ask(machine)?);
    number(machine)?;
    let process = process_of(&folder);
    let (mut parts, mut size) = (Vec::new(), 0);
    for disk in numbers.split(':').filter(|disk| !disk.is_empty()) {
        let disk = number(disk)?;
        let format = about.disk(disk)?.file_format()?;
        let place = Place { host: folder.host.clone(), path: format!("{}/backup/disk.{disk}", folder.path) };
        let image = format!("{}-vm-{machine}-disk-{disk}", store.settings.prefix);
        let saved = host::capture(
            store.settings,
            store.repository,
            (&place, format),
            &image,
            &What::Process(&process),
        )?;
        parts.push(format!("{image}@{}", saved.number));
        size += saved.encoded_bytes;
    }
    if parts.is_empty() {
        return Err(wrong("the backup has no disk"));
    }
    Ok(format!("{}:{} {} raw", store.order.repository, parts.join(","), size.div_ceil(MIB)))
}
