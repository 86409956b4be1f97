//! Whether the filesystems of the targets have room for the image.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base::units::show_bytes;
use image::Manifest;

use super::copies;
use super::kind::{STDOUT, geometry, is_device, is_null};
use crate::args::{FileForm, Writing};
use crate::exit::{Exit, Failure, Result};
use crate::source::export;

/// Filesystems that may keep less than a file has, since they compress: btrfs, ZFS, bcachefs, F2FS (statfs(2)).
const COMPRESSING: [i64; 4] = [0x9123_683E, 0x2FC1_2FC1, 0xCA45_1A4E, 0xF2F5_2010];
/// Filesystems whose files have no holes: FAT and exFAT.
const WITHOUT_HOLES: [i64; 2] = [0x4D44, 0x2011_BAB0];

/// What the targets on one filesystem need, and what it has.
struct Room {
    first: PathBuf,
    needs: u64,
    has: u64,
}

/// Refuses, before anything is written, files that surely don't fit into their filesystems. What they hold already
/// makes room.
pub(crate) fn check_room(targets: &[PathBuf], version: &Manifest, writing: &Writing) -> Result<()> {
    // It is not known how much of a base stays as it is.
    if writing.into.is_some() || writing.copy_of.is_some() {
        return Ok(());
    }
    let mut rooms: BTreeMap<u64, Room> = BTreeMap::new();
    for path in targets {
        let is_elsewhere = is_null(path) || path.as_os_str() == STDOUT || export(path).is_some();
        if is_elsewhere || is_device(path) || copies::new_volume(path, writing).is_some() {
            continue;
        }
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let found = path.metadata().ok();
        // A link to a file elsewhere is as large as that file, and lies there.
        let place = if found.is_some() { path } else { folder };
        // What can't be looked at fails when it is opened.
        let (Ok(at), Ok(kind), Ok(has)) =
            (place.metadata(), rustix::fs::statfs(place), rustix::fs::statvfs(place))
        else {
            continue;
        };
        // Some that are reached by a network or by FUSE do not tell.
        if has.f_blocks == 0 {
            continue;
        }
        let blocks = if rustix::process::geteuid().is_root() { has.f_bfree } else { has.f_bavail };
        let free = blocks.saturating_mul(has.f_frsize);
        let room = rooms.entry(at.dev()).or_insert_with(|| Room { first: path.clone(), needs: 0, has: free });
        room.has = room.has.saturating_add(found.map_or(0, |found| found.blocks() * 512));
        room.needs = room.needs.saturating_add(needed(version, writing, kind.f_type));
    }
    match rooms.values().find(|room| room.has < room.needs) {
        None => Ok(()),
        Some(Room { first, needs, has }) => {
            let [needs, has, lacks] = [*needs, *has, needs - has].map(show_bytes);
            let text = format!(
                "the filesystem of `{}` has room for {has}, the image needs {needs}: {lacks} are missing",
                first.display()
            );
            Err(Failure::new(Exit::Refused, text).unwritten())
        }
    }
}

/// The least that a file with the version takes in a filesystem of this kind.
fn needed(version: &Manifest, writing: &Writing, kind: i64) -> u64 {
    let statistics = &version.statistics;
    if writing.compress {
        // Deflate may be better than what the repository compresses with, but never by so much.
        statistics.encoded_bytes / 2
    } else if WITHOUT_HOLES.contains(&kind) && writing.form == FileForm::Raw {
        geometry(version).size_bytes
    } else if COMPRESSING.contains(&kind) {
        statistics.encoded_bytes.min(statistics.data_bytes)
    } else {
        statistics.data_bytes
    }
}
