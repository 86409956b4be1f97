//! Overlays over kept images, and what they need.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base::{Digest, Error, Result};
use disk::{Geometry, WriteAt as _};
use serde::{Deserialize, Serialize};

use super::there::{There, part_of, remove};
use crate::private_file::io_error;

/// What is known of an overlay.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Overlay {
    /// The image that it lies over.
    pub key: String,
    /// The QCOW2.
    target: PathBuf,
    /// The image beside it, by the name that the QCOW2 has of it; none if they lie on two filesystems.
    beside: Option<PathBuf>,
    /// The filesystem that it lies on; unknown of those made by earlier versions.
    #[serde(default)]
    filesystem: Option<Filesystem>,
}

/// A filesystem, by its device, which may have another number after a restart, and by the id that it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Filesystem {
    device: u64,
    id: u64,
}

impl Filesystem {
    /// The one that the nearest folder above `path` lies on.
    fn of(path: &Path) -> Option<Self> {
        let there = path.ancestors().skip(1).find(|folder| folder.is_dir())?;
        let device = there.metadata().ok()?.dev();
        let id = rustix::fs::statvfs(there).map_or(0, |found| found.f_fsid);
        Some(Self { device, id })
    }

    fn is(self, other: Self) -> bool {
        self.device == other.device || (self.id == other.id && self.id != 0)
    }
}

impl Overlay {
    /// Makes `target` an overlay over the image `key` at `image`.
    pub(super) fn make(
        folder: &Path,
        (key, image): (&str, &Path),
        (target, there): (&Path, There),
        geometry: Geometry,
    ) -> Result<()> {
        let target = std::path::absolute(target).map_err(|error| io_error("find", target, error))?;
        there.check(&target)?;
        let beside = target.with_file_name(format!(".diskcast-{key}"));
        let (beside, is_new) = match std::fs::hard_link(image, &beside) {
            Ok(()) => (Some(beside), true),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => (Some(beside), false),
            // Two filesystems, or one without a second name.
            Err(_) => (None, false),
        };
        let filesystem = Filesystem::of(&target);
        let overlay = Self { key: key.to_owned(), target, beside, filesystem };
        let base = overlay.beside.as_deref().unwrap_or(image);
        // Known before it exists: nobody may take away what it needs.
        let made = lay_over(base, (&overlay.target, there), geometry, || overlay.note(folder));
        if made.is_err() {
            overlay.beside.iter().filter(|_| is_new).try_for_each(|beside| remove(beside))?;
        }
        made
    }

    fn record(&self, folder: &Path) -> PathBuf {
        let name = Digest::of(self.target.as_os_str().as_encoded_bytes()).to_hex();
        folder.join("overlays").join(format!("{}.json", &name[..32]))
    }

    fn note(&self, folder: &Path) -> Result<()> {
        let (path, text) = (self.record(folder), serde_json::to_vec(self).expect("it is plain data"));
        let draft = path.with_extension("draft");
        let written = std::fs::write(&draft, text).and_then(|()| std::fs::File::open(&draft)?.sync_all());
        let named = written.and_then(|()| std::fs::rename(&draft, &path));
        named.map_err(|error| io_error("write", &path, error))
    }

    /// All that are known in `folder`.
    pub(super) fn all(folder: &Path) -> Result<Vec<Self>> {
        let folder = folder.join("overlays");
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(|error| io_error("list", &folder, error))? {
            let path = entry.map_err(|error| io_error("list", &folder, error))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let text = std::fs::read(&path).map_err(|error| io_error("read", &path, error))?;
                let overlay = serde_json::from_slice(&text);
                all.push(overlay.map_err(|error| Error::corrupt(format!("`{}`: {error}", path.display())))?);
            }
        }
        Ok(all)
    }

    /// Whether it needs the image in the cache: it has no name of its own for it, and is not gone.
    pub(super) fn needs_image(&self) -> bool {
        self.beside.is_none() && !self.is_gone()
    }

    /// Whether its file is gone; not if its filesystem is not mounted.
    fn is_gone(&self) -> bool {
        let is_there = |own: Filesystem| Filesystem::of(&self.target).is_some_and(|now| now.is(own));
        is_gone(&self.target) && self.filesystem.is_none_or(is_there)
    }

    /// Forgets it if its file is gone, and the image beside it; not if an overlay there needs that, such as this one by
    /// another name.
    pub(super) fn forget_if_gone(&self, folder: &Path) -> Result<()> {
        if !self.is_gone() {
            return Ok(());
        }
        if let Some(beside) = self.beside.as_ref().filter(|beside| !is_gone(beside)) {
            if is_needed(beside)? {
                return Ok(());
            }
            std::fs::remove_file(beside).map_err(|error| io_error("remove", beside, error))?;
        }
        let path = self.record(folder);
        std::fs::remove_file(&path).map_err(|error| io_error("remove", &path, error))
    }
}

/// Makes `target` a QCOW2 over `base`, a raw disk whatever its first bytes say: under another name until it is finished
/// and `note` has been called.
pub(super) fn lay_over(
    base: &Path,
    (target, there): (&Path, There),
    geometry: Geometry,
    note: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let part = part_of(target);
    let make = || {
        disk::make_overlay_of_raw(&part, geometry, base)?.sync()?;
        let is_made = there.is_made(target, || is_untouched(target, &part))?;
        note()?;
        if is_made { remove(&part) } else { there.name(&part, target) }
    };
    let made = make();
    if made.is_err() {
        remove(&part)?;
    }
    made
}

/// Whether nothing is there; not if that can't be told.
fn is_gone(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Whether a QCOW2 in its folder has `base` as its backing file, whatever it is called now.
fn is_needed(base: &Path) -> Result<bool> {
    let (Some(folder), Some(name)) = (base.parent(), base.file_name()) else { return Ok(true) };
    for entry in std::fs::read_dir(folder).map_err(|error| io_error("list", folder, error))? {
        let path = entry.map_err(|error| io_error("list", folder, error))?.path();
        let is_file = path.metadata().is_ok_and(|found| found.is_file());
        if is_file && path != base && disk::qcow2_backing(&path)?.is_some_and(|backing| *backing == *name) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Bytes of a header of QCOW2, and of the cluster with it, the names of features in any order, and the backing file.
const HEADER_BYTES: usize = 104;
const CLUSTER_BYTES: usize = 64 << 10;

/// Whether the QCOW2 at `target` is as `fresh`, which was just made: over the same image, and nobody has written to it.
fn is_untouched(target: &Path, fresh: &Path) -> Result<bool> {
    let length = |path: &Path| path.metadata().map_err(|error| io_error("look at", path, error));
    if length(target)?.len() != length(fresh)?.len() {
        return Ok(false);
    }
    let read = |path: &Path| std::fs::read(path).map_err(|error| io_error("read", path, error));
    let (one, other) = (read(target)?, read(fresh)?);
    let is_same = |range: std::ops::Range<usize>| one.get(range.clone()) == other.get(range);
    Ok(is_same(0..HEADER_BYTES)
        && is_same(CLUSTER_BYTES..other.len())
        && disk::qcow2_backing(target)? == disk::qcow2_backing(fresh)?)
}
