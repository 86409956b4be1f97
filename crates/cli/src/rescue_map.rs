//! The map file of GNU ddrescue (its manual, "Mapfile structure"): what of a disk was read, what could not be, and what
//! nobody asked for. ddrescue goes on with it: it tries again where a capture gave up.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use base::limits::SECTOR_BYTES;
use base::{Extent, ExtentSet};
use disk::DiskMap;

use crate::exit::{Exit, Failure, Result};

/// `Refused` if there is something at `path` already.
pub(crate) fn check_absent(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Ok(_) => Err(Failure::new(Exit::Refused, format!("`{}` is there already", path.display()))
            .hint("name a new file for the map, or remove this one")),
        Err(_) => Ok(()),
    }
}

/// Writes the map of a disk of which the allocated sectors were read, except for those in `unreadable`, to a new file.
pub(crate) fn write(path: &Path, map: &DiskMap, unreadable: &ExtentSet) -> Result<()> {
    let failed = |error| Failure::from(base::Error::from_io(format!("write `{}`", path.display()), error));
    let mut file = File::create_new(path).map_err(failed)?;
    file.write_all(text(map, unreadable).as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

fn text(map: &DiskMap, unreadable: &ExtentSet) -> String {
    let disk = Extent::new(0, map.geometry.size_bytes / SECTOR_BYTES);
    let mut lines: Vec<(Extent, char)> =
        map.allocated.gaps_within(disk).runs().iter().map(|run| (*run, '?')).collect();
    for run in map.allocated.runs() {
        lines.extend(unreadable.within(*run).map(|bad| (bad, '-')));
        lines.extend(unreadable.gaps_within(*run).runs().iter().map(|good| (*good, '+')));
    }
    lines.sort_unstable();
    let program = concat!("diskcast ", env!("CARGO_PKG_VERSION"));
    // Position and status of a run of ddrescue: it is at the end, and all is done.
    let mut text = format!("# Mapfile. Created by {program}\n0x{:X} + 1\n", map.geometry.size_bytes);
    for (run, status) in lines {
        writeln!(text, "0x{:X} 0x{:X} {status}", run.offset_bytes(), run.len_bytes())
            .expect("a string takes everything");
    }
    text
}
