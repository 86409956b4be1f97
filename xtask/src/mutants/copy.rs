//! Writes the copy of the workspace that has the seeded bugs. Only files that differ are written, so that cargo
//! rebuilds only what has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The parts of the workspace that cargo needs.
const PARTS: &[&str] = &["Cargo.toml", "Cargo.lock", "crates", "fuzz", "golden", "xtask"];

/// Makes `to` a copy of the workspace `root`, in which the files of `changed` have other texts.
pub(super) fn update(root: &Path, to: &Path, changed: &BTreeMap<String, String>) -> io::Result<()> {
    let (mut wanted, mut there) = (BTreeSet::new(), BTreeSet::new());
    for part in PARTS {
        collect(root, Path::new(part), &mut wanted)?;
        collect(to, Path::new(part), &mut there)?;
    }
    wanted.extend(changed.keys().map(PathBuf::from));
    for path in there.difference(&wanted) {
        fs::remove_file(to.join(path))?;
    }
    for path in wanted {
        let bytes = match path.to_str().and_then(|path| changed.get(path)) {
            Some(text) => text.clone().into_bytes(),
            None => fs::read(root.join(&path))?,
        };
        let target = to.join(&path);
        if fs::read(&target).ok().as_ref() != Some(&bytes) {
            fs::create_dir_all(target.parent().expect("it lies in a folder"))?;
            fs::write(target, bytes)?;
        }
    }
    Ok(())
}

/// The files at or below `root`/`path`, by their paths below `root`.
fn collect(root: &Path, path: &Path, files: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    let whole = root.join(path);
    if whole.is_file() {
        files.insert(path.to_owned());
    }
    if whole.is_dir() && !crate::sources::is_build_folder(path) {
        for entry in fs::read_dir(whole)? {
            collect(root, &path.join(entry?.file_name()), files)?;
        }
    }
    Ok(())
}
