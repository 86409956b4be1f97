//! Files of objects that the database does not know: made or removed just before a crash, or newer than the database,
//! because an older copy of it was put back. Which of these it is can't be told here, so they are set aside until the
//! metadata service says that nobody needs them (`agent/missing`).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, Result};
use proto::cluster::ObjectId;

use super::folder::make_folder;
use super::tables::Tables;

/// The files that were set aside.
#[derive(Debug)]
pub(super) struct Orphans {
    folder: PathBuf,
    count: AtomicU64,
}

fn failed(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::from_io(format!("{what} `{}`", path.display()), error)
}

/// The paths in a folder.
fn paths_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let listed = std::fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect());
    listed.map_err(|error| failed("look for files that no object needs in", folder, error))
}

/// The object that a file is named after; of several of one object, the later ones have a number behind the name.
fn object_of(path: &Path) -> Option<ObjectId> {
    let name = path.file_name()?.to_str()?;
    name.split_once('-').map_or(name, |(id, _)| id).parse().ok()
}

impl Orphans {
    /// Sets files aside that `tables` do not know, below the device's `folder`.
    pub(super) fn gather(folder: &Path, tables: &Tables) -> Result<Self> {
        let orphans = Self { folder: folder.join("orphans"), count: AtomicU64::new(0) };
        let mut moved = false;
        for group in paths_in(&folder.join("objects"))? {
            for part in paths_in(&group)? {
                for file in paths_in(&part)? {
                    let Some(id) = object_of(&file) else { continue };
                    if tables.object(id)?.is_none() {
                        moved |= orphans.set_aside(&file, id)?;
                    }
                }
            }
        }
        if moved {
            let synced = File::open(&orphans.folder).and_then(|folder| folder.sync_all());
            synced.map_err(|error| failed("sync", &orphans.folder, error))?;
        }
        orphans.count.store(orphans.list()?.len() as u64, Ordering::Relaxed);
        Ok(orphans)
    }

    /// Returns whether it was moved: an empty one holds nothing that anybody could miss.
    fn set_aside(&self, file: &Path, id: ObjectId) -> Result<bool> {
        let found = file.metadata().map_err(|error| failed("look at", file, error))?;
        if found.len() == 0 {
            std::fs::remove_file(file).map_err(|error| failed("remove", file, error))?;
            return Ok(false);
        }
        make_folder(&self.folder)?;
        let mut target = self.folder.join(id.to_string());
        for number in 2_u64.. {
            if !target.exists() {
                break;
            }
            target = self.folder.join(format!("{id}-{number}"));
        }
        std::fs::rename(file, &target).map_err(|error| failed("set aside", file, error))?;
        Ok(true)
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The files, each with its object.
    pub(super) fn list(&self) -> Result<Vec<(ObjectId, PathBuf)>> {
        if !self.folder.exists() {
            return Ok(Vec::new());
        }
        let paths = paths_in(&self.folder)?.into_iter();
        Ok(paths.filter_map(|path| Some((object_of(&path)?, path))).collect())
    }

    /// Removes one that nobody needs.
    pub(super) fn remove(&self, path: &Path) -> Result<()> {
        std::fs::remove_file(path).map_err(|error| failed("remove", path, error))?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}
