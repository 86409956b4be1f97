//! Published versions survive everything: a writer that is killed at any moment, a power cut, and a full disk. To
//! repeat one test: `cargo test --workspace --test store power::<name>`.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base::ErrorKind;
use image::{NoProgress, ObjectKind, ObjectRef, ObjectSink as _};
use store::{Location, Repository, Scope};

use crate::common::mounted::Mounted;
use crate::common::{self, image, put_image};

/// Set in the child processes of these tests.
const WRITER: &str = "DISKCAST_TEST_WRITER";

/// Not a test, but a child process: writes versions into the folder that its parent names, and reports each.
#[test]
fn writer() {
    let Some(folder) = std::env::var_os(WRITER) else { return };
    let repository = Repository::open(&Location::Folder(folder.into())).unwrap();
    for seed in u64::from(std::process::id()) << 32.. {
        let (draft, _) = put_image(&repository, seed, 600);
        let version = repository.publish(&image("debian"), draft).unwrap().number;
        use std::io::Write as _;
        // Written directly, because the test harness would hold it back until the end.
        writeln!(std::io::stderr(), "published {version}").unwrap();
    }
}

/// Not a test, but a child process: several threads write into the image `shared` and report their versions.
#[test]
fn blob_writer() {
    let Some(folder) = std::env::var_os(WRITER) else { return };
    let repository = Repository::open(&Location::Folder(folder.into())).unwrap();
    let say = |version: u64| {
        use std::io::Write as _;
        writeln!(std::io::stderr(), "published {version}").unwrap();
    };
    write_until_it_fails(&repository, u64::from(std::process::id()) << 32, &say);
}

/// Six threads that write to `shared` until they fail, and call `say` for each version that a write returned.
fn write_until_it_fails(repository: &Repository, seed: u64, say: &(dyn Fn(u64) + Sync)) {
    std::thread::scope(|scope| {
        for thread in 0..6 {
            scope.spawn(move || {
                let mut chance = base::Chance::from_seed(seed + thread);
                let blob = repository.blob(&image("shared"));
                let mut bytes = vec![0; 90_000];
                loop {
                    chance.fill(&mut bytes);
                    let offset = chance.below((8 << 20) - bytes.len() as u64);
                    let Ok(done) = blob.write(offset, &bytes, &common::stamp()) else { return };
                    say(done.manifest.number);
                }
            });
        }
    });
}

/// Creates an image for [`write_until_it_fails`].
fn make_shared(folder: &Path) {
    let repository = Repository::create(&Location::Folder(folder.into())).unwrap();
    let shape = store::Shape { size_bytes: 8 << 20, ..store::Shape::default() };
    repository.blob(&image("shared")).create(&shape, &common::stamp()).unwrap();
}

/// Starts a writer on `folder`, and kills it after it has reported `versions` versions and written some bytes of the
/// next one. Returns the reported numbers.
fn write_and_kill(folder: &Path, versions: usize) -> Vec<u64> {
    run_and_kill("writer", folder, versions)
}

fn run_and_kill(writer: &str, folder: &Path, versions: usize) -> Vec<u64> {
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("power::{writer}"), "--nocapture"])
        .env(WRITER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(writer.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut published = lines.filter_map(|line| line.strip_prefix("published ")?.parse().ok());
    let reported: Vec<u64> = published.by_ref().take(versions).collect();
    assert_eq!(reported.len(), versions, "the writer died by itself");
    writer.kill().unwrap();
    let late: Vec<u64> = published.collect();
    writer.wait().unwrap();
    [reported, late].concat()
}

fn assert_holds(folder: &Path, reported: &[u64]) {
    assert_image_holds("debian", folder, reported);
}

fn assert_image_holds(name: &str, folder: &Path, reported: &[u64]) {
    let repository = Repository::open(&Location::Folder(folder.into())).unwrap();
    let versions = repository.versions(&image(name)).unwrap();
    let lost: Vec<_> = reported.iter().filter(|number| !versions.contains(number)).collect();
    assert!(
        lost.is_empty(),
        "versions {lost:?} were reported as published and are gone; there are {versions:?}"
    );
    let report = repository.verify(&Scope::All, &NoProgress).unwrap();
    assert_eq!(report.damaged, [], "{} of {} objects", report.damaged.len(), report.objects);
    // There are no files other than objects in the folders of objects.
    assert_eq!(report.strangers, 0);
    assert_eq!(unfinished(folder), Vec::<PathBuf>::new(), "files of objects that have no name yet");
}

/// Files below `chunks` and `nodes` whose names are not digests.
fn unfinished(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.join("chunks"), folder.join("nodes")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false if entry.file_name().len() == 64 => {}
                false => found.push(entry.path()),
            }
        }
    }
    found
}

#[test]
fn a_killed_writer_leaves_only_what_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    Repository::create(&Location::Folder(folder.path().into())).unwrap();
    let mut reported = Vec::new();
    for round in 0..6 {
        reported.extend(write_and_kill(folder.path(), 1 + round % 2));
        assert_holds(folder.path(), &reported);
    }
}

#[test]
fn two_writers_killed_one_after_the_other_do_not_harm_each_other() {
    let folder = tempfile::tempdir().unwrap();
    Repository::create(&Location::Folder(folder.path().into())).unwrap();
    let mut reported = std::thread::scope(|scope| {
        let other = scope.spawn(|| write_and_kill(folder.path(), 2));
        let mine = write_and_kill(folder.path(), 3);
        [mine, other.join().unwrap()].concat()
    });
    reported.sort_unstable();
    assert!(reported.is_sorted_by(|a, b| a < b), "a number was given twice: {reported:?}");
    assert_holds(folder.path(), &reported);
}

#[test]
fn killed_writers_of_one_image_leave_versions_that_are_whole_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    make_shared(folder.path());
    let mut reported = Vec::new();
    for round in 0..8 {
        reported.extend(run_and_kill("blob_writer", folder.path(), 1 + 3 * round));
        assert_image_holds("shared", folder.path(), &reported);
    }
    reported.sort_unstable();
    assert!(reported.is_sorted_by(|a, b| a < b), "a number was given twice: {reported:?}");
}

#[test]
fn what_was_published_survives_a_power_cut() {
    let files = tempfile::tempdir().unwrap();
    let Some(mounted) = Mounted::ext4(256 << 20, &files.path().join("disk")) else { return };
    let folder = mounted.folder.path().join("repository");
    Repository::create(&Location::Folder(folder.clone())).unwrap();
    let mut reported = Vec::new();
    for round in 0..4u64 {
        let repository = Repository::open(&Location::Folder(folder.clone())).unwrap();
        let (draft, _) = put_image(&repository, round, 900);
        reported.push(repository.publish(&image("debian"), draft).unwrap().number);
        // More than one batch of objects that are never published: some of them get their names, some do not.
        for at in 0..300u64 {
            let mut bytes = vec![0; 70_000];
            base::Chance::from_seed(round << 32 | at).fill(&mut bytes);
            repository.put(&ObjectRef::of(ObjectKind::Chunk, &bytes), bytes.into()).unwrap();
        }
        // A flush by another program commits the journal, and with it names of files whose content is not on the disk
        // yet.
        let elsewhere = std::fs::File::create(mounted.folder.path().join("elsewhere")).unwrap();
        elsewhere.sync_all().unwrap();
        drop(elsewhere);
        mounted.lose_power(repository);
        assert_holds(&folder, &reported);
    }
}

#[test]
fn what_writers_of_one_image_were_told_survives_a_power_cut() {
    let files = tempfile::tempdir().unwrap();
    let Some(mounted) = Mounted::ext4(512 << 20, &files.path().join("disk")) else { return };
    let folder = mounted.folder.path().join("repository");
    make_shared(&folder);
    let reported = parking_lot::Mutex::new(Vec::new());
    for round in 0..4usize {
        let repository = Repository::open(&Location::Folder(folder.clone())).unwrap();
        let before = reported.lock().len();
        let (enough, reached) = std::sync::mpsc::channel();
        let say = |version| {
            let mut reported = reported.lock();
            reported.push(version);
            if reported.len() == before + 10 * (round + 1) {
                enough.send(()).unwrap();
            }
        };
        std::thread::scope(|scope| {
            let writers = scope.spawn(|| write_until_it_fails(&repository, round as u64 * 100, &say));
            reached.recv().unwrap();
            // While they write: from now on the kernel refuses all writes.
            mounted.shut_down();
            writers.join().unwrap();
        });
        mounted.power_on(repository);
        assert_image_holds("shared", &folder, &reported.lock());
    }
}

#[test]
fn a_full_disk_is_called_full_and_harms_nothing() {
    let Some(mounted) = Mounted::tmpfs(4 << 20) else { return };
    let location = Location::Folder(mounted.folder.path().join("repository"));
    let repository = Repository::create(&location).unwrap();
    let (draft, _) = put_image(&repository, 1, 60);
    repository.publish(&image("debian"), draft).unwrap();
    let full = (0..100u8).find_map(|at| {
        let bytes = vec![at; 90_000];
        repository.put(&ObjectRef::of(ObjectKind::Chunk, &bytes), bytes.into()).err()
    });
    let full = full.expect("9 MB do not fit 4 MiB");
    assert_eq!(full.kind(), ErrorKind::Full, "{full:?}");
    // Objects put before may fill the rest of the disk, but a version needs space too.
    if let Err(error) = repository.flush() {
        assert_eq!(error.kind(), ErrorKind::Full, "{error:?}");
    }
    let report = Repository::open(&location).unwrap().verify(&Scope::All, &NoProgress).unwrap();
    assert_eq!((report.versions, report.damaged), (1, Vec::new()));
}
