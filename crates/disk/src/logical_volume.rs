//! Logical volumes of LVM, by its own tools: made as targets, and snapshots of them.

use std::path::{Path, PathBuf};

use base::units::show_bytes;
use base::{Error, ErrorKind, Result, Subject};

use crate::tools::{self, run};

/// A snapshot that is not thin has a record of 16 bytes for each block of 4 KiB, in blocks of such records, and one
/// block before them.
const COPIED_BLOCK_BYTES: u64 = 4096;
const RECORDS_PER_BLOCK: u64 = 256;

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
            return Err(Error::new(ErrorKind::Refused, text).about(Subject::VolumeGroup));
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

    /// Checks that it can be a snapshot of the volume `base` for an image of `bytes`. `Refused` if `base` is no logical
    /// volume, is of another group or too small, or if the group has no room.
    pub fn check_snapshot(&self, base: &Path, bytes: u64) -> Result<()> {
        tools::check("a snapshot", &["lvcreate", "lvs", "vgs"])?;
        let found = Found::at(base)?;
        self.check_group(base, &found)?;
        if found.bytes < bytes {
            let (has, needs) = (show_bytes(found.bytes), show_bytes(bytes));
            let text = format!("`{}` is too small: it has {has}, the image needs {needs}", base.display());
            return Err(Error::new(ErrorKind::Refused, text));
        }
        self.check(if found.is_thin { 0 } else { found.snapshot_bytes() })
    }

    fn check_group(&self, base: &Path, found: &Found) -> Result<()> {
        if found.group == self.group {
            return Ok(());
        }
        let text = format!(
            "a snapshot of `{}` lies in its volume group, `{}`, not in `{}`",
            base.display(),
            found.group,
            self.group
        );
        Err(Error::new(ErrorKind::Refused, text))
    }

    /// Makes it a snapshot of the volume `base` that can be written, large enough that it never fills up. `Refused` if
    /// `base` is no logical volume, or of another group; `Io` with LVM's words.
    pub fn snapshot(&self, base: &Path) -> Result<()> {
        let found = Found::at(base)?;
        self.check_group(base, &found)?;
        take(&self.name, base, &found, "100%ORIGIN")
    }

    /// How many snapshots of it there are. `Io` with LVM's words.
    pub fn snapshots(&self) -> Result<usize> {
        let of = format!("origin={}", self.name);
        let arguments = ["--noheadings", "--options", "lv_name", "--select", &of, "--", &self.group];
        Ok(run("lvs", &arguments, &[], None)?.lines().filter(|line| !line.trim().is_empty()).count())
    }

    /// The name of the volume that it is a snapshot of; `None` if it is none. `Io` with LVM's words.
    pub fn origin(&self) -> Result<Option<String>> {
        let told = run("lvs", &["--noheadings", "--options", "origin", "--"], &[&self.path()], None)?;
        Ok(Some(told.trim().to_owned()).filter(|name| !name.is_empty()))
    }

    /// Its device.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.group).join(&self.name)
    }

    /// Removes it, with its content; also if it was removed before. `Io` with LVM's words.
    pub fn remove(&self) -> Result<()> {
        if !self.path().exists() {
            return Ok(());
        }
        run("lvremove", &["--yes"], &[&self.path()], None).map(drop)
    }

    /// Has it removed by another program as soon as this process has ended, which still reads it.
    pub fn remove_after_end(&self) {
        let script = "while kill -0 \"$1\" 2>/dev/null; do sleep 0.1; done; exec lvremove --yes \"$2\"";
        let process = std::process::id().to_string();
        tools::leave_behind("sh", &["-c", script, "-", &process], &[&self.path()]);
    }
}

/// A snapshot of a logical volume that is removed when this is dropped.
#[derive(Debug)]
pub struct Snapshot(LogicalVolume);

impl Snapshot {
    /// Takes one of the volume at `path`, after it was announced to `taking`: whoever ends this process can have it
    /// removed. LVM keeps the filesystems on it still for that moment. It has room for as many changes as the group has
    /// free: after more of them it can't be read any longer. `Refused` if it is no logical volume, if LVM's tools are
    /// missing, or if the group has nothing free; `Io` with LVM's words.
    pub fn of(path: &Path, taking: impl FnOnce(&LogicalVolume)) -> Result<Self> {
        tools::check("a snapshot", &["lvcreate", "lvremove", "lvs"])?;
        let found = Found::at(path)?;
        let name = format!("diskcast-{}", std::process::id());
        let extents = if found.group_free_bytes < found.bytes { "100%FREE" } else { "100%ORIGIN" };
        if found.group_free_bytes == 0 && !found.is_thin {
            let text = format!("volume group `{}` has no room for a snapshot", found.group);
            return Err(Error::new(ErrorKind::Refused, text));
        }
        let volume = LogicalVolume { group: found.group.clone(), name };
        taking(&volume);
        take(&volume.name, path, &found, extents)?;
        Ok(Self(volume))
    }

    /// The snapshot as a volume.
    #[must_use]
    pub fn volume(&self) -> &LogicalVolume {
        &self.0
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // Who wants to see the error has removed it before.
        let _ = self.0.remove();
    }
}

/// What LVM says of a logical volume.
struct Found {
    is_thin: bool,
    bytes: u64,
    group: String,
    group_free_bytes: u64,
    extent_bytes: u64,
}

impl Found {
    /// Bytes of a snapshot that never fills up.
    fn snapshot_bytes(&self) -> u64 {
        let blocks = self.bytes.div_ceil(COPIED_BLOCK_BYTES);
        let records = blocks.div_ceil(RECORDS_PER_BLOCK) + 1;
        ((blocks + records) * COPIED_BLOCK_BYTES).next_multiple_of(self.extent_bytes.max(1))
    }

    fn at(path: &Path) -> Result<Self> {
        let options = "segtype,lv_size,vg_free,vg_extent_size,vg_name";
        let arguments =
            ["--noheadings", "--nosuffix", "--units", "b", "--separator", "/", "--options", options, "--"];
        let refused = |why: &str| {
            Error::new(ErrorKind::Refused, format!("`{}` is not a logical volume: {why}", path.display()))
        };
        let told = run("lvs", &arguments, &[path], None).map_err(|error| refused(&error.to_string()))?;
        let mut fields = told.lines().next().unwrap_or_default().trim().split('/');
        let mut next = || fields.next().unwrap_or_default();
        let (kind, bytes, free, extent) = (next(), next().parse(), next().parse(), next().parse());
        let (Ok(bytes), Ok(group_free_bytes), Ok(extent_bytes)) = (bytes, free, extent) else {
            return Err(refused(told.trim()));
        };
        Ok(Self { is_thin: kind == "thin", bytes, group: next().to_owned(), group_free_bytes, extent_bytes })
    }
}

/// Takes a snapshot of `base` under `name`; one that is not thin has room for `extents`.
fn take(name: &str, base: &Path, found: &Found, extents: &str) -> Result<()> {
    let mut arguments = vec!["--yes", "--snapshot", "--name", name];
    if found.is_thin {
        arguments.extend(["--setactivationskip", "n"]);
    } else {
        arguments.extend(["--extents", extents]);
    }
    run("lvcreate", &arguments, &[base], None).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_has_room_for_all_and_its_records() {
        let found = |bytes| Found {
            is_thin: false,
            bytes,
            group: String::new(),
            group_free_bytes: 0,
            extent_bytes: 4 << 20,
        };
        assert_eq!(found(96 << 20).snapshot_bytes(), 100 << 20);
        assert_eq!(found(1 << 40).snapshot_bytes(), (1 << 40) + (1 << 32) + (4 << 20));
    }

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
