//! Begins a target as a copy of what this host holds already, without copying its bytes: a file that shares blocks
//! with another, or a snapshot of a logical volume. An overlay in QCOW2 is made in `container/qcow2_target.rs`. What
//! the copy holds is compared with the image afterwards, so the base may be any disk.

use std::fs::OpenOptions;
use std::path::Path;

use base::units::show_bytes;
use base::{Error, ErrorKind, Result};
use rustix::io::Errno;

use crate::file::{identify, io_error};
use crate::tools::{self, run};
use crate::{SurveyOptions, open_source, writers};

/// Checks that `base` can be what `target` begins with. With `must_stay`, nobody may write to it: an overlay needs it
/// as it is. `Refused` if it is the target itself, or is written to; `NotFound`; `Io`.
pub fn check_base(base: &Path, target: &Path, must_stay: bool) -> Result<()> {
    let refused = |why: String| Err(Error::new(ErrorKind::Refused, format!("`{}` {why}", base.display())));
    let found = identify(base)?;
    if identify(target).is_ok_and(|target| target == found) {
        return refused("is the target itself".to_owned());
    }
    if must_stay {
        let source = open_source(base)?;
        if let Some(writer) = writers(&source, &SurveyOptions::default())?.first() {
            return refused(format!("{}, and an overlay needs its base as it is", writer.how));
        }
    }
    Ok(())
}

/// Makes the file `target` a copy of the file `base` that shares its blocks. A file that was there loses its content.
/// `Refused`, with nothing left behind, if their filesystem can't share blocks, or they lie on two; `Io`.
pub fn share_blocks(base: &Path, target: &Path) -> Result<()> {
    let from = std::fs::File::open(base).map_err(|e| io_error("open", base, e))?;
    let is_new = !target.exists();
    let to = OpenOptions::new().write(true).create(true).truncate(false).open(target);
    let to = to.map_err(|e| io_error("open", target, e))?;
    // Before the file loses its content.
    if let Err(error) = rustix::fs::ioctl_ficlone(&to, &from) {
        if is_new {
            let _ = std::fs::remove_file(target);
        }
        let (base, target) = (base.display(), target.display());
        return Err(match error {
            Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS => Error::new(
                ErrorKind::Refused,
                format!(
                    "`{target}` can't share blocks with `{base}`: both must lie on one filesystem that can, such as \
                     XFS or btrfs"
                ),
            ),
            error => {
                Error::from_io(format!("make `{target}` a copy of `{base}`"), std::io::Error::from(error))
            }
        });
    }
    let bytes = from.metadata().map_err(|e| io_error("look at", base, e))?.len();
    to.set_len(bytes).map_err(|e| io_error("resize", target, e))
}

/// The name of a logical volume: `/dev/GROUP/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogicalVolume {
    /// Its volume group.
    pub group: String,
    /// Its name in the group.
    pub name: String,
}

impl LogicalVolume {
    /// The volume that `path` would be; `None` if the path has another form.
    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        let (group, name) = path.to_str()?.strip_prefix("/dev/")?.split_once('/')?;
        // What LVM allows in names; the kernel's folders have other names than groups.
        let is_name = |name: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "+_.-".contains(c);
            !name.is_empty() && !name.starts_with(['-', '.']) && name.chars().all(allowed)
        };
        let (group, name) = (group.to_owned(), name.to_owned());
        (is_name(&group) && is_name(&name)).then_some(Self { group, name })
    }

    /// Checks that its group exists and has room for `bytes`. `Refused` if not, or if LVM's tools are missing.
    pub fn check(&self, bytes: u64) -> Result<()> {
        tools::check("a logical volume", &["lvcreate", "lvs", "vgs"])?;
        let arguments =
            ["--noheadings", "--nosuffix", "--units", "b", "--options", "vg_free", "--", &self.group];
        let free = run("vgs", &arguments, &[], None)
            .map_err(|error| Error::new(ErrorKind::Refused, error.to_string()))?;
        let free = free.trim().parse::<u64>().unwrap_or(0);
        if free < bytes {
            let (has, needs) = (show_bytes(free), show_bytes(bytes));
            let text = format!("volume group `{}` has {has} free, the volume needs {needs}", self.group);
            return Err(Error::new(ErrorKind::Refused, text));
        }
        Ok(())
    }

    /// Makes a linear volume of `bytes`, rounded up to the group's extents. `Io` with LVM's words.
    pub fn create(&self, bytes: u64) -> Result<()> {
        let size = format!("{bytes}b");
        let arguments = [
            "--yes",
            "--zero",
            "n",
            "--wipesignatures",
            "n",
            "--size",
            &size,
            "--name",
            &self.name,
            "--",
            &self.group,
        ];
        run("lvcreate", &arguments, &[], None).map(drop)
    }

    /// The bytes of the group that a snapshot of the volume `base` takes: none if it is thin.
    pub fn snapshot_bytes(base: &Path) -> Result<u64> {
        let arguments = [
            "--noheadings",
            "--nosuffix",
            "--units",
            "b",
            "--separator",
            " ",
            "--options",
            "segtype,lv_size",
        ];
        let found = run("lvs", &arguments, &[base], None)
            .map_err(|error| Error::new(ErrorKind::Refused, format!("no logical volume: {error}")))?;
        match found.split_whitespace().collect::<Vec<_>>()[..] {
            ["thin", ..] => Ok(0),
            [_, bytes] => Ok(bytes.parse().unwrap_or(u64::MAX)),
            _ => Err(Error::new(ErrorKind::Io, format!("lvs says `{}`", found.trim()))),
        }
    }

    /// Makes it a snapshot of the volume `base` that can be written, large enough that it never fills up. `Io` with
    /// LVM's words.
    pub fn snapshot(&self, base: &Path) -> Result<()> {
        let mut arguments = vec!["--yes", "--snapshot", "--name", &self.name];
        match Self::snapshot_bytes(base)? {
            0 => arguments.extend(["--setactivationskip", "n"]),
            _ => arguments.extend(["--extents", "100%ORIGIN"]),
        }
        run("lvcreate", &arguments, &[base], None).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_have_a_group_and_a_name() {
        let at = |path: &str| LogicalVolume::at(Path::new(path)).map(|found| (found.group, found.name));
        let pair = |group: &str, name: &str| Some((group.to_owned(), name.to_owned()));
        assert_eq!(at("/dev/vg0/web-1"), pair("vg0", "web-1"));
        assert_eq!(at("/dev/vg0/a.b"), pair("vg0", "a.b"));
        for path in
            ["/dev/sda", "/srv/vg0/web", "vg0/web", "/dev/vg0/", "/dev/vg0/a/b", "/dev/vg0/-x", "/dev/../x"]
        {
            assert_eq!(at(path), None, "{path}");
        }
    }
}
