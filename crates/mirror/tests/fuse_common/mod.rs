//! A mount of a test's repository, and helpers to work with its files.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "only tests use this")]
#![allow(clippy::cast_possible_truncation, reason = "images of tests fit memory")]

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mirror::fuse::{Content, DiskSettings, MountOptions, Mounted, Origin, mount};
use mirror::{MirrorOptions, Source};
use store::Repository;

use crate::common::{self, Place, stamp};

pub(crate) struct Mount {
    pub at: PathBuf,
    pub mounted: Mounted,
}

impl Mount {
    pub(crate) fn new(place: &Place) -> Self {
        Self::with(place, place.sources(), u64::MAX)
    }

    pub(crate) fn with(place: &Place, sources: Vec<Source>, bytes_max: u64) -> Self {
        Self::at(place.folder.path(), &place.repository, sources, bytes_max)
    }

    pub(crate) fn at(
        folder: &Path,
        repository: &Arc<Repository>,
        sources: Vec<Source>,
        bytes_max: u64,
    ) -> Self {
        let at = folder.join("mount");
        std::fs::create_dir_all(&at).unwrap();
        let disks = DiskSettings {
            folder: folder.join("cache"),
            bytes_max,
            mirror: MirrorOptions { give_up: Some(Duration::from_secs(5)), ..common::options() },
            passthrough: true,
        };
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let log = Arc::new(|_: &mirror::fuse::Event| {});
        let options = MountOptions { disks, owner, now: SystemTime::UNIX_EPOCH, log };
        let origin = Origin::new(vec![Arc::clone(repository) as Arc<dyn mirror::Images>], stamp);
        Self { mounted: mount(&at, Content { origin, sources, sharing: None }, options).unwrap(), at }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    pub(crate) fn list(&self, name: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(name)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Writes a line to the control file. Returns the answer, or the error.
    pub(crate) fn control(&self, line: &str) -> Result<String, std::io::Error> {
        let mut file = OpenOptions::new().read(true).write(true).open(self.path("_control"))?;
        file.write_all(line.as_bytes())?;
        file.seek(SeekFrom::Start(0))?;
        let mut answer = String::new();
        file.read_to_string(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }

    pub(crate) fn clone_of(&self, name: &str, version: &str) -> PathBuf {
        self.control(&format!("clone {name} {version}")).unwrap();
        self.path(&format!("_clones/{name}"))
    }
}

pub(crate) fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Runs a program and returns its output.
pub(crate) fn run(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

/// A file system on a loop device, which is unmounted when this is dropped.
pub(crate) struct Loop(pub PathBuf);

impl Loop {
    pub(crate) fn mount(file: &Path, at: PathBuf, options: &str) -> Self {
        std::fs::create_dir_all(&at).unwrap();
        run(&["mount", "-o", options, file.to_str().unwrap(), at.to_str().unwrap()]);
        Self(at)
    }

    pub(crate) fn unmount(self) {
        // A process that another test has just started holds it for a moment.
        let once = || Command::new("umount").arg(&self.0).status().is_ok_and(|status| status.success());
        let unmounted = (0..6000).any(|_| {
            once() || {
                std::thread::park_timeout(Duration::from_millis(10));
                false
            }
        });
        assert!(unmounted);
        std::mem::forget(self);
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
