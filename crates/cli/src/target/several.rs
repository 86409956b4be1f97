//! The names of the targets of an install.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::into;
use super::kind::{STDOUT, is_null};
use crate::args::Writing;
use crate::exit::{Exit, Failure, Result};
use crate::ui::output::Output;

/// Refuses text that is not a rule for a disk, such as `disk:serial=S1`.
pub(crate) fn check_rule(rule: &str) -> Result<()> {
    let hints = rule.strip_prefix(disk::find::PREFIX).ok_or_else(|| {
        let text = format!("`{rule}` is not a rule for a disk: a rule begins with `{}`", disk::find::PREFIX);
        Failure::new(Exit::Usage, text)
    })?;
    Ok(disk::find::Hints::parse(hints).map(drop)?)
}

/// The disk that `path` names: itself, or the one disk of this machine that its hints mean.
pub(crate) fn resolve(path: &Path, output: Output) -> Result<PathBuf> {
    let Some(hints) = path.to_str().and_then(|text| text.strip_prefix(disk::find::PREFIX)) else {
        return Ok(path.to_owned());
    };
    let explain =
        |error: base::Error| Failure::from(error).hint("nothing was written; `lsblk` shows the disks, too");
    let found =
        disk::find::Hints::parse(hints).and_then(|hints| disk::find::find(&hints)).map_err(explain)?;
    output.note(&format!("the disk is {}", found.display()));
    Ok(found)
}

/// The target and those of `--also`, as they are named; hints are resolved. `Usage` if two of them are the same.
pub(crate) fn resolve_all(first: &Path, writing: &Writing, output: Output) -> Result<Vec<PathBuf>> {
    let named = std::iter::once(first).chain(writing.also.iter().map(PathBuf::as_path));
    let all = named.map(|path| resolve(path, output)).collect::<Result<Vec<_>>>()?;
    let wrong = |text: String| Err(Failure::new(Exit::Usage, text));
    if all.len() > 1
        && let Some(path) = all.iter().find(|path| is_null(path) || path.as_os_str() == STDOUT)
    {
        return wrong(format!("`{}` is for one target alone: leave out --also", path.display()));
    }
    check_distinct(&all)?;
    Ok(all)
}

/// `Usage` if two of the targets are the same file or device.
pub(crate) fn check_distinct(all: &[PathBuf]) -> Result<()> {
    let place = |path: &PathBuf| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
    let file = |path: &PathBuf| {
        let found = std::fs::metadata(path).ok()?;
        let is_device = found.file_type().is_block_device();
        Some(if is_device { (0, found.rdev()) } else { (found.dev(), found.ino()) })
    };
    let same = |a: &PathBuf, b: &PathBuf| place(a) == place(b) || (file(a).is_some() && file(a) == file(b));
    for (at, path) in all.iter().enumerate() {
        if all[..at].iter().any(|before| same(before, path)) {
            let text = format!("`{}` is named twice as a target", path.display());
            return Err(Failure::new(Exit::Usage, text));
        }
    }
    Ok(())
}

/// The targets as texts of a record. What is not UTF-8 in a path is replaced there, as on a terminal.
pub(crate) fn texts(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}

/// The targets as text: `a`, `a and b`, `a, b and c`.
pub(crate) fn list(paths: &[PathBuf], writing: &Writing) -> String {
    if let (Some(number), [path]) = (writing.into, paths) {
        return into::name(path, number);
    }
    let shown: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    match &shown[..] {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => shown.concat(),
    }
}
