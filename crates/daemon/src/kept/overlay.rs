//! Overlays over kept images, and what they need.

use std::path::{Path, PathBuf};

use base::{Digest, Error, ErrorKind, Result};
use disk::{Geometry, WriteAt as _};
use serde::{Deserialize, Serialize};

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
}

impl Overlay {
    /// Makes `target` an overlay over the image `key` at `image`.
    pub(super) fn make(
        folder: &Path,
        (key, image): (&str, &Path),
        target: &Path,
        geometry: Geometry,
    ) -> Result<()> {
        let target = std::path::absolute(target).map_err(|error| io_error("find", target, error))?;
        if target.symlink_metadata().is_ok_and(|found| found.len() > 0) {
            let text = format!("`{}` exists: an overlay is a new file", target.display());
            return Err(Error::new(ErrorKind::Refused, text));
        }
        let beside = target.with_file_name(format!(".diskcast-{key}"));
        let beside = match std::fs::hard_link(image, &beside) {
            Ok(()) => Some(beside),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Some(beside),
            // Two filesystems, or one without a second name.
            Err(_) => None,
        };
        let base = beside.clone().unwrap_or_else(|| image.to_owned());
        let overlay = Self { key: key.to_owned(), target, beside };
        // Known before it exists: nobody may take away what it needs.
        overlay.note(folder)?;
        disk::open_qcow2_overlay(&overlay.target, geometry, false, &base)?.sync()
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
        self.beside.is_none() && !is_gone(&self.target)
    }

    /// Forgets it if its file is gone, and the image beside it; not if an overlay there needs that, such as this one by
    /// another name.
    pub(super) fn forget_if_gone(&self, folder: &Path) -> Result<()> {
        if !is_gone(&self.target) {
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
