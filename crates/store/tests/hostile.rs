//! Changed bytes, by an attacker or by decay: every change is noticed, none causes a panic or a large allocation.
//! To repeat one test: `cargo test --workspace --test store hostile::<name>`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Error, ErrorKind};
use bytes::Bytes;
use futures::TryStreamExt as _;
use futures::executor::block_on;
use image::{NoProgress, ObjectSource as _};
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt as _};
use store::{Location, Repository, Scope};

use crate::common::{self, image, put_image, reference, stamp};

/// Fills a small repository with every kind of record.
fn fill(repository: &Repository) {
    for seed in 1..=3 {
        let (draft, _) = put_image(repository, seed, 4);
        repository.publish(&image("debian"), draft).unwrap();
    }
    repository.tag(&image("debian"), &"stable".parse().unwrap(), 1, &stamp()).unwrap();
    // A removed version whose objects another version has too: its own records do not matter any more.
    let (draft, _) = put_image(repository, 1, 4);
    repository.publish(&image("old"), draft).unwrap();
    repository.remove(&reference("old@1"), &stamp()).unwrap();
}

/// Whether readers notice that the record is missing or damaged. A tombstone counts even if its content is damaged,
/// the manifest of a removed version does not matter, and only prunes read the logs of leases.
fn matters(path: &str) -> bool {
    // If the stored capability test is damaged, the test is repeated. The reserve only takes space.
    !["removed/", "versions/old/", "probes/", "leases/", "/reserve"]
        .iter()
        .any(|folder| path.contains(folder))
}

/// Reads everything in a repository in every way. Returns whether any damage was noticed.
fn notices(repository: Result<Repository, Error>) -> bool {
    let Ok(repository) = repository else { return true };
    let read = [
        repository.images().map(drop),
        repository.versions(&image("debian")).map(drop),
        repository.tags(&image("debian")).map(drop),
        repository.resolve(&reference("debian")).map(drop),
        repository.resolve(&reference("debian:stable")).map(drop),
    ];
    let verified = repository.verify(&Scope::All, &NoProgress);
    let damaged = verified.as_ref().map_or(true, |report| !report.damaged.is_empty());
    damaged || read.iter().any(Result::is_err)
}

#[test]
fn flips_and_cuts_in_every_record_are_noticed() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    fill(&Repository::over_with(store.clone(), "memory", &common::setting()).unwrap());
    assert!(!notices(Repository::over_with(store.clone(), "memory", &common::setting())));
    let records: Vec<_> = block_on(store.list(None).try_collect()).unwrap();
    let mut kinds: Vec<_> = records.iter().filter_map(|record| record.location.parts().next()).collect();
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds.len(), 8, "chunks format leases nodes probes removed tags versions: {kinds:?}");
    for record in records {
        let path = record.location;
        // A removed version is recognized by the name of its tombstone alone.
        if path.as_ref().starts_with("versions/old/") {
            continue;
        }
        let good = block_on(async { store.get(&path).await.unwrap().bytes().await.unwrap() });
        let step = (good.len() / 97).max(1);
        let mut spoilt: Vec<(String, Bytes)> = Vec::new();
        for at in (0..good.len()).step_by(step) {
            let mut flipped = good.to_vec();
            flipped[at] ^= 1 << (at % 8);
            spoilt.push((format!("a bit of byte {at} flipped"), flipped.into()));
            spoilt.push((format!("cut to {at} bytes"), good.slice(..at)));
        }
        spoilt.push(("a byte longer".to_owned(), [&good[..], b"x"].concat().into()));
        for (how, bytes) in spoilt {
            block_on(store.put(&path, bytes.into())).unwrap();
            assert!(
                notices(Repository::over_with(store.clone(), "memory", &common::setting())),
                "`{path}` {how} was not noticed"
            );
        }
        block_on(store.put(&path, good.into())).unwrap();
    }
    assert!(!notices(Repository::over_with(store, "memory", &common::setting())));
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => files.extend(files_below(&entry.path())),
            false => files.push(entry.path()),
        }
    }
    files
}

#[test]
fn giants_and_folders_in_place_of_records_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::Folder(folder.path().to_owned());
    fill(&Repository::create(&location).unwrap());
    for path in files_below(folder.path()) {
        if !matters(&path.to_string_lossy()) {
            continue;
        }
        let good = std::fs::read(&path).unwrap();
        // A sparse file of one TiB: a reader that trusts the length would allocate that much memory.
        std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(notices(Repository::open(&location)), "giant {}", path.display());
        std::fs::remove_file(&path).unwrap();
        // If the newest version is missing, nothing shows that it existed; for all others the gap in the numbers
        // does.
        let newest = path.ends_with("debian/00000000000000000003");
        assert_eq!(notices(Repository::open(&location)), !newest, "missing {}", path.display());
        std::fs::create_dir(&path).unwrap();
        assert_eq!(notices(Repository::open(&location)), !newest, "folder {}", path.display());
        std::fs::remove_dir(&path).unwrap();
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert!(notices(Repository::open(&location)), "link to itself {}", path.display());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, good).unwrap();
    }
    assert!(!notices(Repository::open(&location)));
}

#[test]
fn strangers_among_the_records_are_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::Folder(folder.path().to_owned());
    fill(&Repository::create(&location).unwrap());
    for path in [
        "README",
        "versions/README",
        "versions/Upper/00000000000000000001",
        "versions/debian/notes.txt",
        "versions/debian/00000000000000000009~",
        "versions/debian/00000000000000000001#1",
        "versions/debian/deeper/00000000000000000009",
        "versions/debian/99999999999999999999",
        "tags/debian/README",
        "tags/debian/stable/latest",
        "tags/debian/.hidden/00000000000000000001",
        "removed/old/note",
    ] {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "stranger").unwrap();
    }
    let repository = Repository::open(&location).unwrap();
    assert_eq!(repository.versions(&image("debian")).unwrap(), [1, 2, 3]);
    assert_eq!(repository.images().unwrap(), [image("debian")]);
    assert_eq!(repository.tags(&image("debian")).unwrap().len(), 1);
    assert_eq!(common::publish(&repository, "debian", 4).number, 4);
    assert!(repository.verify(&Scope::All, &NoProgress).unwrap().damaged.is_empty());
}

#[test]
fn the_highest_number_is_the_end_and_not_the_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::Folder(folder.path().to_owned());
    let repository = Repository::create(&location).unwrap();
    fill(&repository);
    let highest = format!("{:020}", u64::MAX);
    std::fs::write(folder.path().join("versions/debian").join(&highest), "").unwrap();
    std::fs::write(folder.path().join("tags/debian/stable").join(&highest), "").unwrap();
    let (draft, chunks) = put_image(&repository, 9, 4);
    let refused = repository.publish(&image("debian"), draft).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    let refused = repository.tag(&image("debian"), &"stable".parse().unwrap(), 1, &stamp()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(chunks.iter().all(|chunk| repository.fetch(chunk).is_ok()));
}

#[test]
fn only_its_owner_may_enter_the_folder_of_a_new_repository() {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/repo");
    Repository::open_or_create(&Location::Folder(path.clone())).unwrap();
    assert_eq!(mode(&path), 0o700);
    // Whoever made the folder decides who may enter it.
    let given = folder.path().join("given");
    std::fs::create_dir(&given).unwrap();
    std::fs::set_permissions(&given, std::fs::Permissions::from_mode(0o750)).unwrap();
    Repository::open_or_create(&Location::Folder(given.clone())).unwrap();
    assert_eq!(mode(&given), 0o750);
}
