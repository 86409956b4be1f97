//! A repository that has filled its disk to the last byte: versions can be removed, a prune brings the space back, and
//! then there is room for the next version. formats/repository.md, "A full disk".

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{Chance, Error, ErrorKind};
use bytes::Bytes;
use image::{NoProgress, ObjectRef, ObjectSink};
use parking_lot::Mutex;
use store::{Location, Overseer, PruneEvent, PruneOptions, PruneReport, Repository, Scope, Writer};

use crate::common::mounted::Mounted;
use crate::common::{image, put_image, reference, stamp};

/// A filesystem of 24 MiB.
const DISK_BYTES: u64 = 24 << 20;

/// Ignores events and never waits.
struct Unseen;

impl Overseer for Unseen {
    fn event(&self, _: &PruneEvent) {}
    fn pause(&self, _: Duration) {}
}

fn prune(repository: &Repository) -> base::Result<PruneReport> {
    repository.prune(&PruneOptions::default(), &stamp(), &Unseen)
}

fn ext4(files: &Path) -> Option<Mounted> {
    Mounted::ext4(DISK_BYTES, &files.join("disk"))
}

/// Keeps the first error of a writer: the helper that puts an image takes none for an answer.
struct Keeping<'a>(&'a Writer, Mutex<Option<Error>>);

impl ObjectSink for Keeping<'_> {
    fn contains(&self, object: &ObjectRef) -> base::Result<bool> {
        self.0.contains(object)
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> base::Result<()> {
        if let Err(error) = self.0.put(object, bytes) {
            self.1.lock().get_or_insert(error);
        }
        Ok(())
    }
}

/// Publishes a version of some hundred objects.
fn publish(repository: &Repository, seed: u64) -> base::Result<u64> {
    let writer = Writer::begin(repository, &stamp())?;
    let sink = Keeping(&writer, Mutex::default());
    let (draft, _) = put_image(&sink, seed, 900);
    match sink.1.into_inner() {
        Some(error) => Err(error),
        None => writer.publish(&image("debian"), draft).map(|version| version.number),
    }
}

/// A new repository in `folder` whose versions fill the disk, as another program finds it, and its last version.
fn full(folder: &Path) -> (Repository, u64) {
    let location = Location::Folder(folder.into());
    let last = publish_all(&Repository::create(&location).unwrap());
    (Repository::open(&location).unwrap(), last)
}

/// Publishes versions until the disk is full; returns the last one.
fn publish_all(repository: &Repository) -> u64 {
    let mut last = 0;
    for seed in 1.. {
        match publish(repository, seed) {
            Ok(number) => last = number,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full, "{error:?}");
                break;
            }
        }
    }
    assert!(last > 2, "{last} versions filled the disk");
    last
}

/// Writes to a file of somebody else until not a byte is left on the filesystem, then gives `bytes` back.
fn fill(mounted: &Mounted, bytes: u64) -> PathBuf {
    let path = mounted.folder.path().join("of-others");
    let mut file = File::create(&path).unwrap();
    let mut noise = vec![0; 64 << 10];
    Chance::from_seed(9).fill(&mut noise);
    for piece in [noise.len(), 512, 1] {
        while file.write_all(&noise[..piece]).is_ok() {}
        // What waits for its blocks gets them now, or never.
        let _ = file.sync_all();
    }
    let written = file.metadata().unwrap().len();
    file.set_len(written - bytes).unwrap();
    file.sync_all().unwrap();
    path
}

fn free_bytes(mounted: &Mounted) -> u64 {
    let found = rustix::fs::statvfs(mounted.folder.path()).unwrap();
    found.f_bavail * found.f_frsize
}

/// Highest number of a prune.
fn prunes(folder: &Path) -> u64 {
    let names = std::fs::read_dir(folder.join("prunes")).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.to_str().unwrap().parse().unwrap()).max().unwrap()
}

fn reserve_bytes(folder: &Path) -> u64 {
    std::fs::metadata(folder.join("reserve")).map_or(0, |found| found.len())
}

/// Fills `mounted` and frees it again. `with_reserve` or only `left` bytes that others gave back.
fn fill_and_free(mounted: &Mounted, with_reserve: bool, left: u64) -> u64 {
    let folder = mounted.folder.path().join("repository");
    let (repository, last) = full(&folder);
    assert_eq!(reserve_bytes(&folder), 1 << 20);
    if !with_reserve {
        std::fs::remove_file(folder.join("reserve")).unwrap();
    }
    fill(mounted, left);
    assert!(free_bytes(mounted) <= left + (8 << 10), "{} bytes are free", free_bytes(mounted));
    for version in 1..last {
        repository.remove(&reference(&format!("debian@{version}")), &stamp()).unwrap();
    }
    let report = prune(&repository).unwrap();
    assert_eq!(report.deleted, report.candidates, "{report:?}");
    assert!(report.deleted.objects > 200 * (last - 1), "{report:?}");
    assert!(free_bytes(mounted) > report.deleted.bytes / 2, "{} bytes are free", free_bytes(mounted));
    assert_eq!(reserve_bytes(&folder), 1 << 20, "it is made again");
    assert_eq!(publish(&repository, 1000).unwrap(), last + 1);
    let found = repository.verify(&Scope::All, &NoProgress).unwrap();
    assert_eq!((found.versions, found.unreferenced, found.damaged), (2, 0, Vec::new()));
    prunes(&folder)
}

#[test]
fn a_full_ext4_frees_itself() {
    let files = tempfile::tempdir().unwrap();
    let Some(mounted) = ext4(files.path()) else { return };
    fill_and_free(&mounted, true, 0);
}

#[test]
fn a_full_tmpfs_frees_itself() {
    let Some(mounted) = Mounted::tmpfs(DISK_BYTES) else { return };
    fill_and_free(&mounted, true, 0);
}

#[test]
fn a_full_exfat_frees_itself() {
    let files = tempfile::tempdir().unwrap();
    let Some(mounted) = Mounted::exfat(DISK_BYTES, &files.path().join("disk")) else { return };
    fill_and_free(&mounted, true, 0);
}

#[test]
fn a_repository_without_a_reserve_uses_what_little_there_is_and_then_has_one() {
    let files = tempfile::tempdir().unwrap();
    let Some(mounted) = ext4(files.path()) else { return };
    let prunes = fill_and_free(&mounted, false, 192 << 10);
    assert!(prunes > 1, "there is room for a part of the candidates only");
}

#[test]
fn a_disk_without_a_byte_and_a_reserve_is_called_full_and_loses_nothing() {
    let files = tempfile::tempdir().unwrap();
    let Some(mounted) = ext4(files.path()) else { return };
    let folder = mounted.folder.path().join("repository");
    let (repository, last) = full(&folder);
    std::fs::remove_file(folder.join("reserve")).unwrap();
    let others = fill(&mounted, 0);
    let refused = repository.remove(&reference("debian@1"), &stamp()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Full, "{refused:?}");
    assert_eq!(prune(&repository).unwrap_err().kind(), ErrorKind::Full);
    std::fs::remove_file(others).unwrap();
    let found = repository.verify(&Scope::All, &NoProgress).unwrap();
    assert_eq!((found.versions, found.damaged), (last, Vec::new()));
    repository.remove(&reference("debian@1"), &stamp()).unwrap();
    assert!(prune(&repository).unwrap().deleted.objects > 0);
}
