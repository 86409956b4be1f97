//! Runs the tools of filesystems, and holds loop devices and mounts while they work.

use std::env;
use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, Extent, Result};
use rustix::process::geteuid;

use crate::Geometry;
use crate::scratch::private_folder;

/// Where tools lie that a plain user's search path leaves out.
const MORE_PATHS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

fn search_path() -> std::ffi::OsString {
    let known = env::var_os("PATH").unwrap_or_default();
    let all = env::split_paths(&known).chain(MORE_PATHS.map(PathBuf::from));
    env::join_paths(all).unwrap_or(known)
}

/// Checks that `what` can be done here. `Refused` if one of `tools` is not installed, or this process is not root's:
/// all of them need devices.
pub(crate) fn check(what: &str, tools: &[&str]) -> Result<()> {
    let refused = |text: String| Err(Error::new(ErrorKind::Refused, text));
    let is_there = |tool: &&&str| env::split_paths(&search_path()).any(|folder| folder.join(tool).is_file());
    let missing: Vec<_> = tools.iter().filter(|tool| !is_there(tool)).copied().collect();
    if !missing.is_empty() {
        return refused(format!("{what} takes {}, which is not installed", missing.join(", ")));
    }
    if geteuid().is_root() {
        Ok(())
    } else {
        refused(format!("{what} takes a device of its own: only root can do it"))
    }
}

/// Runs `tool`, and returns what it printed. It reads `input`, which must be short. `Io` with its last words if it
/// fails.
pub(crate) fn run(tool: &str, arguments: &[&str], paths: &[&Path], input: Option<&str>) -> Result<String> {
    run_with(&[0], tool, arguments, paths, input)
}

/// The same for a tool whose exit codes `good` all mean success.
pub(crate) fn run_with(
    good: &[i32],
    tool: &str,
    arguments: &[&str],
    paths: &[&Path],
    input: Option<&str>,
) -> Result<String> {
    let failed = |error| Error::from_io(format!("run {tool}"), error);
    let paths = paths.iter().map(|path| path.as_os_str());
    let mut child = Command::new(tool)
        .args(arguments.iter().map(OsStr::new).chain(paths))
        .env("PATH", search_path())
        .env("LC_ALL", "C")
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C is for diskcast: a tool that is killed halfway leaves a filesystem behind that is neither old nor new.
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        // A tool that ends without reading it tells why itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let done = child.wait_with_output().map_err(failed)?;
    if done.status.code().is_some_and(|code| good.contains(&code)) {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let words = [&done.stderr, &done.stdout].map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
    let words = words.into_iter().find(|words| !words.is_empty()).unwrap_or_else(|| done.status.to_string());
    let last =
        words.lines().rev().take(3).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("; ");
    Err(Error::new(ErrorKind::Io, format!("{tool} failed: {last}")))
}

/// The number after `words` in what a tool printed.
pub(crate) fn number_after(printed: &str, words: &str) -> Option<u64> {
    let rest = printed.find(words).map(|at| printed[at + words.len()..].trim_start())?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Starts `tool`, which goes on after this process has ended. Nobody hears what becomes of it.
pub(crate) fn leave_behind(tool: &str, arguments: &[&str], paths: &[&Path]) {
    let paths = paths.iter().map(|path| path.as_os_str());
    let _ = Command::new(tool)
        .args(arguments.iter().map(OsStr::new).chain(paths))
        .env("PATH", search_path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
}

/// How often it is looked whether a loop device is gone: for about a second.
const DETACH_LOOKS: u32 = 200_000;

/// A loop device over a part of a disk.
pub(crate) struct Attached {
    device: PathBuf,
    ended: bool,
}

impl Attached {
    /// One over the whole disk.
    pub(crate) fn whole(path: &Path, disk: Geometry) -> Result<Self> {
        let sectors = Extent::new(0, disk.size_bytes / SECTOR_BYTES);
        Self::over(path, sectors, disk.logical_sector_bytes)
    }

    pub(crate) fn over(path: &Path, part: Extent, sector_bytes: u32) -> Result<Self> {
        Self::with(&[], path, part, sector_bytes)
    }

    /// One that can't be written.
    pub(crate) fn to_read(path: &Path, part: Extent, sector_bytes: u32) -> Result<Self> {
        Self::with(&["--read-only"], path, part, sector_bytes)
    }

    fn with(more: &[&str], path: &Path, part: Extent, sector_bytes: u32) -> Result<Self> {
        let (offset, size) = (part.offset_bytes().to_string(), part.len_bytes().to_string());
        let sector = sector_bytes.to_string();
        let arguments =
            ["--find", "--show", "--offset", &offset, "--sizelimit", &size, "--sector-size", &sector];
        let device = run("losetup", &[&arguments, more].concat(), &[path], None)?;
        Ok(Self { device: PathBuf::from(device.trim()), ended: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.device
    }

    /// Takes it from the volume group that udev has activated on it, since it looks like a physical volume that was
    /// plugged in. Only devices above this one are removed: the machine may have a group of the same name.
    pub(crate) fn release(&self) {
        // Where there is no udev, nothing is activated.
        let _ = run("udevadm", &["settle", "--timeout=10"], &[], None);
        let all = holders(&self.device);
        // Those that lie on others first.
        for holder in all.iter().rev() {
            let _ = run("dmsetup", &["remove", "--retry", holder], &[], None);
        }
    }

    /// Waits until it is gone: a program that looks at all devices, such as udev, may hold it for an instant, and the
    /// disk below counts as used for as long. Not for ever.
    fn wait(&self) {
        let name = self.device.file_name().unwrap_or_default();
        let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
        let before = std::fs::read(&backing);
        let is_there = || before.is_ok() && std::fs::read(&backing).ok() == before.as_ref().ok().cloned();
        for _ in 0..DETACH_LOOKS {
            if !is_there() {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Writes out what its cache holds, and detaches it.
    pub(crate) fn end(mut self) -> Result<()> {
        self.ended = true;
        let synced = std::fs::File::open(&self.device).and_then(|device| device.sync_all());
        self.release();
        run("losetup", &["--detach"], &[&self.device], None)?;
        self.wait();
        synced.map_err(|error| Error::from_io("write out a changed filesystem", error))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if !self.ended {
            self.release();
            let _ = run("losetup", &["--detach"], &[&self.device], None);
            // What is put back after an error must find the disk free.
            self.wait();
        }
    }
}

/// The names of the kernel's mapped devices on `device`, and on those.
fn holders(device: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![device.file_name().unwrap_or_default().to_owned()];
    while let Some(name) = waiting.pop() {
        let folder = Path::new("/sys/block").join(&name).join("holders");
        for holder in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = Path::new("/sys/block").join(holder.file_name()).join("dm/name");
            if let Ok(name) = std::fs::read_to_string(name) {
                found.push(name.trim().to_owned());
                waiting.push(holder.file_name());
            }
        }
    }
    found
}

/// Removes a folder where nothing is mounted any more, and the one above it.
fn remove(folder: &Path) {
    if std::fs::remove_dir(folder).is_ok() {
        let _ = folder.parent().map(std::fs::remove_dir);
    }
}

/// How often a mounted filesystem that is busy is tried again, and how long after each time.
const UNMOUNT_TRIES: u32 = 100;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(100);

/// A mounted filesystem, in a folder of its own.
pub(crate) struct Mounted {
    /// Below a folder into which nobody else can look.
    folder: PathBuf,
    ended: bool,
}

impl Mounted {
    pub(crate) fn at(device: &Path, kind: &str, options: &str) -> Result<Self> {
        let made = private_folder(None).and_then(|above| {
            let folder = above.path().join("disk");
            std::fs::create_dir(&folder)?;
            // Only removed when it is empty, that is, when nothing is mounted there.
            let _ = above.keep();
            Ok(folder)
        });
        let folder = made.map_err(|error| Error::from_io("make a folder to mount a filesystem", error))?;
        let mounted = run("mount", &["-t", kind, "-o", options], &[device, &folder], None);
        if let Err(error) = mounted {
            remove(&folder);
            return Err(error);
        }
        Ok(Self { folder, ended: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn end(mut self) -> Result<()> {
        self.ended = true;
        self.leave()
    }

    fn leave(&self) -> Result<()> {
        let mut left = run("umount", &[], &[&self.folder], None);
        // A program that looks at all filesystems may hold it for an instant, and so may a process that has just been
        // started, until it runs its own program.
        for _ in 0..UNMOUNT_TRIES {
            if !left.as_ref().is_err_and(|error| error.to_string().contains("busy")) {
                break;
            }
            std::thread::park_timeout(UNMOUNT_PAUSE);
            left = run("umount", &[], &[&self.folder], None);
        }
        left?;
        remove(&self.folder);
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.ended {
            // An error is on its way already.
            let _ = self.leave();
        }
    }
}
