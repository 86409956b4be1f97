//! How much space machines take.

use std::fmt::Write as _;
use std::io::Seek as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use base64::Engine as _;

use crate::commands::opennebula::{room, xml};
use crate::exit::{Exit, Failure, Result};

const MIB: u64 = 1 << 20;
const BLOCK_BYTES: u64 = 512;

/// The space of each disk in the folder of a system datastore on this host.
pub(super) fn of_machines(folder: &str) -> Result<String> {
    let mut text = String::new();
    let entries =
        std::fs::read_dir(folder).map_err(|error| base::Error::from_io(format!("list `{folder}`"), error))?;
    let mut machines: Vec<(u64, _)> = entries
        .filter_map(|entry| entry.ok())
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .collect();
    machines.sort_unstable();
    for (machine, path) in machines {
        // Its machine may be removed meanwhile.
        let Ok(disks) = of_disks(&path) else { continue };
        let disks = base64::engine::general_purpose::STANDARD.encode(disks);
        let _ = writeln!(text, "VM = [ ID = {machine}, MONITOR = \"{disks}\" ]");
    }
    Ok(text)
}

fn of_disks(folder: &Path) -> std::io::Result<String> {
    let mut disks: Vec<(u32, u64)> = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(disk) = name.strip_prefix("disk.").and_then(|disk| disk.parse().ok()) {
            // A volume is a link to a device.
            let bytes =
                std::fs::metadata(entry.path()).and_then(|found| match found.file_type().is_block_device() {
                    true => std::fs::File::open(entry.path())?.seek(std::io::SeekFrom::End(0)),
                    false => Ok(found.blocks() * BLOCK_BYTES),
                });
            // It may be removed meanwhile.
            disks.extend(bytes.ok().map(|bytes| (disk, bytes.div_ceil(MIB))));
        }
    }
    disks.sort_unstable();
    Ok(disks.iter().map(|(disk, size)| format!("DISK_SIZE=[ID={disk},SIZE={size}]\n")).collect())
}

/// The space of a system datastore that this machine shares with the hosts.
pub(super) fn of_store() -> Result<String> {
    let path = xml::parse(&xml::standard_input()?, |root| Ok(xml::text(root, "DATASTORE/BASE_PATH")))?;
    let path = path.ok_or_else(|| Failure::new(Exit::Usage, "the datastore has no BASE_PATH"))?;
    room::of_folder(Path::new(&path))
}
