//! Who else uses a device or file: mounts, swap space, device mappers, loop devices (proc(5), Linux
//! Documentation/ABI/testing/sysfs-block).

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, makedev, minor};

use crate::Result;
use crate::file::{Identity, identify, io_error};

/// How the device `rdev` is in use, in words that follow its name: also through one of its partitions, or because
/// `source` is one of them, or the disk that it is part of.
pub(crate) fn use_of_device(rdev: u64, source: Option<Identity>) -> Result<Option<String>> {
    let folder = PathBuf::from(format!("/sys/dev/block/{}:{}", major(rdev), minor(rdev)));
    let mut parts = vec![(String::new(), rdev, folder.clone())];
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if let Some(part) = path.join("partition").exists().then(|| device_number(&path)).flatten() {
            parts.push((format!("has partition `{}`, which ", entry.file_name().display()), part, path));
        }
    }
    if let Some(Identity::Device { rdev: read }) = source {
        // A partition's folder lies in that of its disk.
        let disk = fs::canonicalize(&folder).ok().and_then(|path| device_number(path.parent()?));
        if disk == Some(read) || parts.iter().any(|(_, part, _)| *part == read) {
            return Ok(Some("shares the disk with the source".to_owned()));
        }
    }
    let (mounts, swaps) = (mounts()?, swaps()?);
    for (whose, part, folder) in &parts {
        let identity = Identity::Device { rdev: *part };
        if let Some((_, place)) = mounts.iter().find(|(device, _)| *device == *part) {
            return Ok(Some(format!("{whose}is mounted at `{}`", place.display())));
        }
        if swaps.contains(&identity) {
            return Ok(Some(format!("{whose}is used as swap space")));
        }
        if let Some(holder) = fs::read_dir(folder.join("holders")).into_iter().flatten().flatten().next() {
            return Ok(Some(format!("{whose}is in use by `{}`", holder.file_name().display())));
        }
    }
    Ok(None)
}

/// Whether the device `rdev` takes no writes. Opening it for writing does not tell.
pub(crate) fn is_read_only(rdev: u64) -> bool {
    let flag = format!("/sys/dev/block/{}:{}/ro", major(rdev), minor(rdev));
    fs::read_to_string(flag).is_ok_and(|flag| flag.trim() == "1")
}

/// How the file is in use, in words that follow its name.
pub(crate) fn use_of_file(identity: Identity) -> Result<Option<String>> {
    if swaps()?.contains(&identity) {
        return Ok(Some("is used as swap space".to_owned()));
    }
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let Ok(backing) = fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        if identify(Path::new(backing.trim_end_matches('\n'))).is_ok_and(|file| file == identity) {
            return Ok(Some(format!("is in use by the loop device `{}`", entry.file_name().display())));
        }
    }
    Ok(None)
}

/// The number of the device that a folder of sysfs describes.
fn device_number(folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The devices that are mounted, and where. A filesystem with a device number of its own, such as btrfs, counts by
/// the device that it names as its source.
fn mounts() -> Result<Vec<(u64, PathBuf)>> {
    let mut mounts = Vec::new();
    for line in read_lines("/proc/self/mountinfo")? {
        let fields: Vec<_> = line.split(' ').collect();
        let (Some(number), Some(place)) = (fields.get(2), fields.get(4)) else { continue };
        let place = PathBuf::from(unescape(place));
        if let Some((major, minor)) = number.split_once(':')
            && let (Ok(major), Ok(minor)) = (major.parse(), minor.parse())
        {
            mounts.push((makedev(major, minor), place.clone()));
        }
        let source = fields.iter().position(|field| *field == "-").and_then(|dash| fields.get(dash + 2));
        let source = source.filter(|source| source.starts_with("/dev/"));
        if let Some(Ok(Identity::Device { rdev })) =
            source.map(|source| identify(Path::new(&unescape(source))))
        {
            mounts.push((rdev, place));
        }
    }
    Ok(mounts)
}

/// The devices and files that are swap space. Where there is no such list, there is no swap space.
fn swaps() -> Result<Vec<Identity>> {
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

/// A path as the kernel writes it, with blanks and the like as three octal digits behind a backslash.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_kernel() {
        assert_eq!(unescape(r"/mnt/a\040b\134"), OsString::from(r"/mnt/a b\"));
        assert_eq!(unescape(r"/x\04"), OsString::from(r"/x\04"));
    }
}
