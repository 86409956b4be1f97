//! A disk with sectors that can't be read: a block device of the kernel whose reads fail there. nbdkit answers so, by
//! its filter for maps of ddrescue; nbdfuse makes a file of it, and a loop device reads that. The tests of the binary
//! use this file, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base::{Extent, ExtentSet};

/// Programs that it takes, and root.
pub(crate) const TOOLS: &[&str] = &["nbdkit", "nbdfuse", "fusermount3", "losetup"];

/// See the module.
pub(crate) struct BadDisk {
    /// The block device.
    pub(crate) device: PathBuf,
    folder: PathBuf,
    server: Child,
}

impl BadDisk {
    /// `file` as a disk on which the sectors in `bad` can't be read. `folder` is made for its parts.
    pub(crate) fn of(file: &Path, bad: &ExtentSet, folder: &Path) -> Self {
        let sectors = fs::metadata(file).unwrap().len() / 512;
        let mut runs: Vec<_> = bad.runs().iter().map(|run| (*run, '-')).collect();
        runs.extend(bad.gaps_within(Extent::new(0, sectors)).runs().iter().map(|run| (*run, '+')));
        runs.sort_unstable();
        let line = |(run, status): &(Extent, char)| {
            format!("0x{:X} 0x{:X} {status}\n", run.offset_bytes(), run.len_bytes())
        };
        fs::create_dir(folder).unwrap();
        let map = folder.join("map");
        fs::write(&map, "0x0 + 1\n".to_owned() + &runs.iter().map(line).collect::<String>()).unwrap();
        Self::by_map(file, &map, folder)
    }

    /// `file` as a disk of which only that can be read which ddrescue's `map` says was read. Its parts go into
    /// `folder`.
    pub(crate) fn by_map(file: &Path, map: &Path, folder: &Path) -> Self {
        let folder = folder.join("served");
        fs::create_dir(&folder).unwrap();
        let server = Command::new("nbdfuse")
            .arg(&folder)
            .args(["[", "nbdkit", "--exit-with-parent", "--filter=ddrescue", "file"])
            .arg(file)
            .arg(format!("ddrescue-mapfile={}", map.display()))
            .arg("]")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut disk = Self { device: PathBuf::new(), folder, server };
        let at = disk.file();
        assert!(at_last(|| at.exists()), "nbdfuse serves nothing");
        let mut attach = tool("losetup");
        attach.args(["--find", "--show", "--read-only", "--direct-io=on"]).arg(at);
        let attached = attach.output().unwrap();
        assert!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
        disk.device = PathBuf::from(String::from_utf8(attached.stdout).unwrap().trim());
        disk
    }

    /// The file under the device, whose reads fail in the same places.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join("nbd")
    }
}

impl Drop for BadDisk {
    fn drop(&mut self) {
        // A second panic would hide the first.
        let mut ended = self.device.as_os_str().is_empty()
            || tool("losetup").arg("--detach").arg(&self.device).status().is_ok_and(|done| done.success());
        // The kernel lets go of the file a moment after that.
        let mut unmount = tool("fusermount3");
        unmount.arg("-u").arg(&self.folder).stderr(Stdio::null());
        ended &= at_last(|| unmount.status().is_ok_and(|done| done.success()));
        assert!(ended || std::thread::panicking(), "{} stays", self.device.display());
        let _ = self.server.wait();
    }
}

fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    command
}

/// Whether something succeeds within a minute.
fn at_last(mut succeeds: impl FnMut() -> bool) -> bool {
    (0..6000).any(|_| {
        succeeds() || {
            std::thread::park_timeout(Duration::from_millis(10));
            false
        }
    })
}
