//! Files have another name while they are written, so that no file holds half an image under the name that was asked
//! for.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::copies;
use super::kind::{STDOUT, is_device, is_null};
use crate::args::Writing;
use crate::exit::{Exit, Failure, Result};
use crate::source::export;

/// What the name of a file ends in while it is written.
const SUFFIX: &str = ".part";

/// Targets that are being written.
#[derive(Debug)]
pub(crate) struct Drafts {
    /// Where each is written.
    paths: Vec<PathBuf>,
    /// Those that get another name at the end.
    files: Vec<Draft>,
}

#[derive(Debug)]
struct Draft {
    path: PathBuf,
    name: PathBuf,
    /// Whether it was the file of the final name before.
    was_named: bool,
}

/// What a write to each of `targets` begins with: what is there, or what an interrupted one left under its draft's
/// name.
pub(crate) fn beginnings(targets: &[PathBuf], writing: &Writing) -> Vec<PathBuf> {
    targets.iter().map(|path| beginning(path, writing)).collect()
}

fn beginning(path: &Path, writing: &Writing) -> PathBuf {
    let draft = draft_of(path, writing).filter(|(draft, _)| !path.exists() && draft.exists());
    draft.map_or_else(|| path.to_owned(), |(draft, _)| draft)
}

/// Whether an interrupted write to the file `path` has left something to go on with.
pub(crate) fn is_begun(path: &Path) -> bool {
    path.exists() || names(path).is_some_and(|(draft, _)| draft.exists())
}

/// The names of the file `path` while it is written and at the end; `None` if it has one name throughout.
fn draft_of(path: &Path, writing: &Writing) -> Option<(PathBuf, PathBuf)> {
    let is_elsewhere = is_null(path) || path.as_os_str() == STDOUT || export(path).is_some();
    if is_elsewhere
        || is_device(path)
        || writing.into.is_some()
        || copies::new_volume(path, writing).is_some()
    {
        return None;
    }
    names(path)
}

fn names(path: &Path) -> Option<(PathBuf, PathBuf)> {
    // What is neither a file nor missing is refused when it is opened. A link leads to the file.
    let name = match fs::canonicalize(path) {
        Ok(name) if name.is_file() => name,
        Err(error) if error.kind() == ErrorKind::NotFound => place_of_missing(path)?,
        _ => return None,
    };
    let mut draft = name.file_name()?.to_owned();
    if draft.as_encoded_bytes().ends_with(SUFFIX.as_bytes()) {
        return None;
    }
    draft.push(SUFFIX);
    let draft = name.with_file_name(draft);
    // Nobody chose the draft's name: in a folder of all users a link there leads where somebody else wants.
    let is_other = draft.symlink_metadata().is_ok_and(|found| !found.is_file());
    (!is_other).then_some((draft, name))
}

/// Where a file would be made that is missing: at the end of links, if its name is one.
fn place_of_missing(path: &Path) -> Option<PathBuf> {
    match fs::read_link(path) {
        Ok(to) => place_of_missing(&path.with_file_name(to)),
        Err(_) => std::path::absolute(path).ok(),
    }
}

impl Drafts {
    /// Gives files that are to be overwritten the names of drafts. `Refused` if a draft of another write is beside one
    /// of them.
    pub(crate) fn begin(targets: &[PathBuf], writing: &Writing) -> Result<Self> {
        let mut drafts = Self { paths: Vec::new(), files: Vec::new() };
        for path in targets {
            let Some((draft, name)) = draft_of(path, writing) else {
                drafts.paths.push(path.clone());
                continue;
            };
            let was_named = match (name.exists(), draft.exists()) {
                (true, true) => {
                    drafts.call_off();
                    return Err(both(&name, &draft));
                }
                // Where the folder can't be changed the file is written under its own name.
                (true, false) if fs::rename(&name, &draft).is_err() => {
                    drafts.paths.push(path.clone());
                    continue;
                }
                (is_there, _) => is_there,
            };
            drafts.paths.push(draft.clone());
            drafts.files.push(Draft { path: draft, name, was_named });
        }
        Ok(drafts)
    }

    /// Where targets are written.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Nothing was written.
    pub(crate) fn call_off(&self) {
        for Draft { path, name, .. } in self.files.iter().filter(|draft| draft.was_named) {
            let _ = fs::rename(path, name);
        }
    }

    /// All of them are whole: files get their names.
    pub(crate) fn finish(self) -> Result<()> {
        for Draft { path, name, .. } in &self.files {
            let named = fs::rename(path, name).and_then(|()| sync_folder(name));
            named.map_err(|error| {
                let text = format!("give `{}` the name `{}`", path.display(), name.display());
                Failure::from(base::Error::from_io(text, error))
                    .hint("the image is there; give it the name by `mv`")
            })?;
        }
        Ok(())
    }
}

fn sync_folder(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
}

fn both(name: &Path, draft: &Path) -> Failure {
    let text = format!(
        "beside `{}` there is `{}`, which another write has begun or left behind",
        name.display(),
        draft.display()
    );
    Failure::new(Exit::Refused, text).hint("remove the one that you do not need; nothing was written")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_a_file_beside_the_file_that_is_meant() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        assert_eq!(names(&at("disk.img")), Some((at("disk.img.part"), at("disk.img"))));
        std::os::unix::fs::symlink("disk.img", at("link")).unwrap();
        assert_eq!(names(&at("link")), names(&at("disk.img")), "a link that leads nowhere yet");
        fs::write(at("disk.img"), "a disk").unwrap();
        assert_eq!(names(&at("link")), names(&at("disk.img")));
        assert_eq!(names(&at("disk.img.part")), None);
        // What somebody else put there is neither gone on with nor written to.
        fs::write(at("other"), "not to be lost").unwrap();
        std::os::unix::fs::symlink("other", at("disk.img.part")).unwrap();
        assert_eq!(names(&at("disk.img")), None);
    }
}
