//! A mounted repository as programs see it. Needs /dev/fuse, and where it says so the rights of root: a machine that tests
//! this crate has them.

#![allow(clippy::unwrap_used, reason = "tests fail by it")]
#![allow(clippy::cast_possible_truncation, reason = "images of tests fit memory")]

mod common;

use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use common::{CHUNK, Place, stamp};
use mirror::fuse::{DiskSettings, MountOptions, Mounted, RepositoryOrigin, mount};
use mirror::{MirrorOptions, Source};

const SIZE: u64 = 40 * CHUNK;
/// As Linux numbers it.
const EROFS: i32 = 30;

struct Mount {
    at: PathBuf,
    mounted: Mounted,
}

impl Mount {
    fn new(place: &Place) -> Self {
        Self::with(place, place.sources(), u64::MAX)
    }

    fn with(place: &Place, sources: Vec<Source>, bytes_max: u64) -> Self {
        let at = place.path("mount");
        std::fs::create_dir_all(&at).unwrap();
        let disks = DiskSettings {
            folder: place.path("cache"),
            bytes_max,
            mirror: MirrorOptions { give_up: Some(Duration::from_secs(5)), ..common::options() },
            passthrough: true,
        };
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let log = Arc::new(|event: &mirror::fuse::Event| eprintln!("{event}"));
        let options = MountOptions { disks, owner, now: SystemTime::UNIX_EPOCH, log };
        let origin = Arc::new(RepositoryOrigin::new(Arc::clone(&place.repository), stamp));
        Self { mounted: mount(&at, origin, sources, options).unwrap(), at }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    fn list(&self, name: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(name)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[test]
fn versions_are_files_and_listing_fetches_nothing() {
    let place = Place::new(SIZE, 1);
    place.repository.tag(&"disk".parse().unwrap(), &"stable".parse().unwrap(), 1, &stamp()).unwrap();
    let mount = Mount::new(&place);
    assert_eq!(mount.list(""), ["_clones", "_control", "_status", "disk"]);
    assert_eq!(mount.list("disk"), ["1", "2", "latest", "stable"]);
    let meta = std::fs::metadata(mount.path("disk/latest")).unwrap();
    assert_eq!((meta.len(), meta.mtime(), meta.mode() & 0o777), (SIZE, 1_795_294_800, 0o400));
    assert_eq!(std::fs::read_link(mount.path("disk/latest")).unwrap(), Path::new("2"));
    assert_eq!(std::fs::read_link(mount.path("disk/stable")).unwrap(), Path::new("1"));
    for missing in ["disk/3", "disk/none", "none", "_x", "_clones/none"] {
        let error = std::fs::metadata(mount.path(missing)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{missing}");
    }
    assert_eq!(mount.mounted.counters().opened, 0);
    assert_eq!(std::fs::read_dir(place.path("cache/versions")).unwrap().count(), 0);
    assert!(read(&mount.path("disk/2")) == place.content);
    assert!(read(&mount.path("disk/stable")).iter().all(|&byte| byte == 0));
    for way in [OpenOptions::new().write(true), OpenOptions::new().read(true).write(true)] {
        assert_eq!(way.open(mount.path("disk/2")).unwrap_err().raw_os_error(), Some(EROFS));
    }
    mount.mounted.stop().unwrap();
    assert_eq!(mount.list(""), Vec::<String>::new(), "it is unmounted");
}
