//! Files that are not regular, at the paths of objects and records: nothing blocks on them, `verify` reports them,
//! and they are repaired. To repeat one test: `cargo test --workspace --test store strange::<name>`.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use base::ErrorKind;
use image::{NoProgress, ObjectSource as _};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use store::{Copier, Overseer, PruneEvent, PruneOptions, Repository, Scope};

use crate::common::{self, Place, image, in_folder, publish, reference, stamp};

/// Kinds of directory entries other than regular files.
const SHAPES: [&str; 4] = ["a FIFO", "a socket", "a folder", "a link to nothing"];

fn put_shape(shape: &str, path: &Path) {
    std::fs::remove_file(path).unwrap();
    match shape {
        "a FIFO" => mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap(),
        // The path of a socket must be short, so it is created elsewhere and moved.
        "a socket" => {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("socket");
            drop(UnixListener::bind(&socket).unwrap());
            std::fs::rename(&socket, path).unwrap_or_else(|_| drop(UnixListener::bind(path).unwrap()));
        }
        "a folder" => std::fs::create_dir(path).unwrap(),
        _ => std::os::unix::fs::symlink("nothing", path).unwrap(),
    }
}

/// The result of `work`; fails if that takes too long.
fn soon<T: Send + 'static>(what: String, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = channel();
    let thread = std::thread::spawn(move || drop(done.send(work())));
    match outcome.recv_timeout(Duration::from_secs(120)) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => panic!("{what}: it waits for ever"),
        Err(RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().expect_err("it sent nothing"))
        }
    }
}

fn objects(place: &Place, kind: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    common::each_file(&place.folder().join(kind), &mut |path, _| {
        found.push(place.folder().join(kind).join(path))
    });
    found.sort();
    found
}

struct Hasty;

impl Overseer for Hasty {
    fn event(&self, _: &PruneEvent) {}
    fn pause(&self, _: Duration) {}
}

fn prune(repository: &Repository) -> Result<(), ErrorKind> {
    let options = PruneOptions { looks: 1, pause: Duration::ZERO, ..PruneOptions::default() };
    common::kind(repository.prune(&options, &stamp(), &Hasty))
}

#[test]
fn an_object_that_is_no_file_is_damaged_and_capturing_again_heals_it() {
    for (shape, kind) in SHAPES.iter().flat_map(|shape| [(*shape, "chunks"), (*shape, "nodes")]) {
        let place = in_folder();
        publish(&place.repository, "web", 1);
        let path = objects(&place, kind)[0].clone();
        put_shape(shape, &path);
        let (what, location) = (format!("{shape} in {kind}"), place.location.clone());
        soon(what.clone(), move || {
            let repository = Repository::open(&location).unwrap();
            let found = repository.verify(&Scope::All, &NoProgress).unwrap().damaged;
            assert_eq!(found.len(), 1, "{what}: {found:?}");
            assert_eq!(found[0].versions, [reference("web@1")], "{what}");
            let hex = path.file_name().unwrap().to_str().unwrap();
            let object = image::ObjectRef {
                kind: if kind == "chunks" { image::ObjectKind::Chunk } else { image::ObjectKind::Node },
                digest: hex.parse().unwrap(),
                len: 1 << 20,
            };
            let read = repository.fetch(&object).unwrap_err().kind();
            assert!([ErrorKind::Corrupt, ErrorKind::NotFound].contains(&read), "{what}: {read:?}");
            // With a damaged node it is not known which objects are needed.
            assert_eq!(prune(&repository).is_ok(), kind == "chunks", "{what}");
            // Capture the same disk again.
            publish(&repository, "again", 1);
            assert_eq!(repository.verify(&Scope::All, &NoProgress).unwrap().damaged, [], "{what}");
            assert_eq!(prune(&repository), Ok(()), "{what}");
        });
    }
}

#[test]
fn an_object_that_is_no_file_is_healed_from_another_repository() {
    for shape in SHAPES {
        let (place, other) = (in_folder(), in_folder());
        publish(&place.repository, "web", 1);
        let mut copier = Copier::new(&place.repository, &other.repository, &image("web")).unwrap();
        copier.copy(&reference("web")).unwrap();
        for kind in ["chunks", "nodes"] {
            put_shape(shape, &objects(&place, kind)[0]);
        }
        let (location, from) = (place.location.clone(), other.location.clone());
        soon(shape.to_owned(), move || {
            let (repository, from) = (Repository::open(&location).unwrap(), Repository::open(&from).unwrap());
            let third = Repository::create(&store::Location::Memory).unwrap();
            let copied = Copier::new(&repository, &third, &image("web")).unwrap().copy(&reference("web"));
            assert!(copied.is_err(), "{shape}: it copied what is not there");
            let report = repository.repair(&Scope::All, Some(&from), &stamp(), &NoProgress).unwrap();
            assert_eq!((report.healed.len(), report.verified.damaged), (2, vec![]), "{shape}");
            assert_eq!(repository.verify(&Scope::All, &NoProgress).unwrap().damaged, [], "{shape}");
        });
    }
}

#[test]
fn a_record_that_is_no_file_is_told_and_nobody_waits_for_it() {
    let file = |text: &str| PathBuf::from(text);
    let number = |number: u64| format!("{number:020}");
    for shape in ["a FIFO", "a socket"] {
        for (record, fails) in [
            (file("format"), true),
            (file("versions/web").join(number(1)), true),
            (file("tags/web/stable").join(number(1)), true),
            (file("leases").join(number(0)).join(format!("{}.{}", number(1), number(1))), false),
            (file("probes").join(number(1)), false),
        ] {
            let place = in_folder();
            publish(&place.repository, "web", 1);
            place.repository.tag(&image("web"), &"stable".parse().unwrap(), 1, &stamp()).unwrap();
            put_shape(shape, &place.folder().join(&record));
            let (what, location) =
                (format!("{shape} in place of {}", record.display()), place.location.clone());
            let told = record.to_str().unwrap().to_owned();
            soon(what.clone(), move || {
                let Ok(repository) = Repository::open(&location) else { return assert_eq!(told, "format") };
                let read = common::kind(repository.resolve(&reference("web:stable")));
                assert_eq!(read.is_err(), fails, "{what}: {read:?}");
                publish(&repository, "new", 2);
                let found = repository.verify(&Scope::All, &NoProgress).unwrap().damaged;
                assert!(found.iter().any(|damage| damage.path == told), "{what}: {found:?}");
            });
        }
    }
}
