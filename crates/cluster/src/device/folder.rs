//! The folder of a device: whether it may be used, and the note in it that says whose it is. A folder without a
//! database may be a disk that is not mounted, or one whose database was lost: neither is an empty device.
//!
//! ```text
//! FOLDER/device.redb          what the device remembers
//!        device.json          the note: its number and its cluster
//!        objects/GROUP/PART/  files of objects
//!        orphans/             files of objects that the database does not know
//! ```

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};
use proto::cluster::DeviceId;
use serde::{Deserialize, Serialize};

use crate::database::{Opening, is_there};

/// Whose folder it is: for people, and for the day on which the database is missing.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    device: DeviceId,
    cluster: String,
}

/// The database.
pub(super) fn database(folder: &Path) -> PathBuf {
    folder.join("device.redb")
}

fn note(folder: &Path) -> PathBuf {
    folder.join("device.json")
}

/// Refuses a folder that holds no device, unless one is to be made, and always one that held a device whose database is
/// missing.
pub(super) fn admit(folder: &Path, opening: Opening) -> Result<()> {
    if is_there(&database(folder)) {
        return Ok(());
    }
    let refused = |text: String| Err(Error::new(ErrorKind::Refused, text));
    let shown = folder.display();
    let known = read_note(folder);
    if known.is_some() || ["objects", "orphans"].iter().any(|part| holds_files(&folder.join(part))) {
        let number = known.map_or_else(|| "N".to_owned(), |note| note.device.to_string());
        return refused(format!(
            "`{shown}` holds objects of device {number}, but its database `device.redb` is missing. Put it back; if it \
             is lost, `diskcast cluster lost {number} --yes` has others compute what was here, and a new folder with \
             --new is a new device"
        ));
    }
    if opening == Opening::Existing {
        return refused(format!(
            "`{shown}` holds no device: is its disk mounted? --new makes a device there"
        ));
    }
    Ok(())
}

fn read_note(folder: &Path) -> Option<Note> {
    serde_json::from_slice(&std::fs::read(note(folder)).ok()?).ok()
}

/// Says whose folder it is, if it does not say so yet.
pub(super) fn keep_note(folder: &Path, device: DeviceId, cluster: &str) -> Result<()> {
    let new = Note { device, cluster: cluster.to_owned() };
    if read_note(folder).as_ref() == Some(&new) {
        return Ok(());
    }
    let (path, draft) = (note(folder), folder.join("device.json.draft"));
    let text = serde_json::to_vec(&new).expect("it is plain data");
    let written = std::fs::write(&draft, text).and_then(|()| std::fs::rename(&draft, &path));
    written.map_err(|error| Error::from_io(format!("write `{}`", path.display()), error))
}

/// Whether there is a file anywhere below.
fn holds_files(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut entries = entries.map(|entry| (entry.file_type().is_ok_and(|kind| kind.is_dir()), entry.path()));
    entries.any(|(is_folder, path)| !is_folder || holds_files(&path))
}

/// Makes a folder, durably, if it is missing.
pub(super) fn make_folder(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let failed = |error| Error::from_io(format!("make the folder `{}`", path.display()), error);
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    std::fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)
}
