//! Lists mounted filesystems and swap spaces with the devices below them (proc(5): mountinfo, swaps).

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use base::Result;
use rustix::fs::makedev;

use crate::file::{Identity, identify, io_error};

/// A mounted filesystem, in the mount namespace of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// The mount point.
    pub(crate) place: PathBuf,
    /// Whether the filesystem takes writes, through this mount or another one.
    pub(crate) is_writable: bool,
    /// The filesystem's device number as mountinfo gives it, the device named as its source, and for btrfs all other
    /// devices of the filesystem. btrfs needs these because its own device number is not that of a block device.
    devices: Vec<u64>,
}

impl Mount {
    /// Whether the filesystem lies on the device `rdev`, at least in part.
    pub(crate) fn is_of(&self, rdev: u64) -> bool {
        self.devices.contains(&rdev)
    }

    /// Whether `other` is a mount of the same filesystem.
    pub(crate) fn shares(&self, other: &Self) -> bool {
        self.devices.iter().any(|device| other.is_of(*device))
    }

    /// The devices of the filesystem.
    pub(crate) fn devices(&self) -> &[u64] {
        &self.devices
    }
}

/// All mounted filesystems, in the order in which they were mounted.
pub(crate) fn mounts() -> Result<Vec<Mount>> {
    let together = btrfs_devices();
    let lines = read_lines("/proc/self/mountinfo")?;
    Ok(lines.iter().filter_map(|line| mount(line, &together)).collect())
}

/// Parses one line of mountinfo. `together` lists the sets of devices that hold one filesystem together.
fn mount(line: &str, together: &[Vec<u64>]) -> Option<Mount> {
    let fields: Vec<_> = line.split(' ').collect();
    let place = PathBuf::from(unescape(fields.get(4)?));
    let mut devices = Vec::new();
    if let Some((major, minor)) = fields.get(2)?.split_once(':')
        && let (Ok(major), Ok(minor)) = (major.parse(), minor.parse())
    {
        devices.push(makedev(major, minor));
    }
    // The number of fields before the dash varies.
    let dash = fields.iter().position(|field| *field == "-")?;
    let source = fields.get(dash + 2).filter(|source| source.starts_with("/dev/"));
    if let Some(Ok(Identity::Device { rdev })) = source.map(|source| identify(Path::new(&unescape(source)))) {
        let shared = together.iter().find(|set| set.contains(&rdev));
        devices.extend(shared.cloned().unwrap_or_else(|| vec![rdev]));
    }
    // Read the options of the filesystem, not those of the mount: another mount of it may be writable.
    let is_writable =
        !fields.get(dash + 3).is_some_and(|options| options.split(',').any(|word| word == "ro"));
    Some(Mount { place, is_writable, devices })
}

/// The devices of each mounted btrfs; mountinfo names only one of them.
fn btrfs_devices() -> Vec<Vec<u64>> {
    let inside = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    inside(PathBuf::from("/sys/fs/btrfs"))
        .map(|filesystem| inside(filesystem.path().join("devices")))
        .map(|devices| devices.filter_map(|device| device_number(&device.path())).collect())
        .collect()
}

/// The devices and files that are used as swap space. A kernel without `/proc/swaps` has no swap space.
pub(crate) fn swaps() -> Result<Vec<Identity>> {
    if !Path::new("/proc/swaps").exists() {
        return Ok(Vec::new());
    }
    let lines = read_lines("/proc/swaps")?;
    let names = lines.iter().skip(1).filter_map(|line| line.split([' ', '\t']).next());
    Ok(names.filter_map(|name| identify(Path::new(&unescape(name))).ok()).collect())
}

fn read_lines(path: &str) -> Result<Vec<String>> {
    let bytes = fs::read(path).map_err(|e| io_error("read", Path::new(path), e))?;
    Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}

/// Decodes a path from a file of the kernel, where a backslash and three octal digits stand for blanks and the like.
fn unescape(text: &str) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let octal =
            behind.get(..3).filter(|_| byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(code) = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(code);
            rest = &behind[3..];
        } else {
            bytes.push(byte);
            rest = behind;
        }
    }
    OsString::from_vec(bytes)
}

/// The device number of the device that sysfs describes in `folder`.
pub(crate) fn device_number(folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_kernel() {
        assert_eq!(unescape(r"/mnt/a\040b\134"), OsString::from(r"/mnt/a b\"));
        assert_eq!(unescape(r"/x\04"), OsString::from(r"/x\04"));
    }

    #[test]
    fn lines_of_mountinfo() {
        let line = r"36 35 98:0 /mnt1 /mnt/my\040disk rw,noatime master:1 - ext3 none ";
        let found = |options: &str| mount(&format!("{line}{options}"), &[]).unwrap();
        let mount = found("rw,errors=continue");
        assert_eq!((mount.place, mount.devices), (PathBuf::from("/mnt/my disk"), vec![makedev(98, 0)]));
        assert!(mount.is_writable && !found("ro,errors=continue").is_writable);
        assert!(found("rw,root=x").is_writable, "only the whole word counts");
        assert_eq!(super::mount("36 35 98:0", &[]), None);
    }
}
