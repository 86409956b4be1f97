//! What prunes leave in a folder: one copy of each object, and a bounded number of records. formats/repository.md,
//! "Pruning".

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base::{Digest, ErrorKind};
use image::NoProgress;
use store::{Overseer, PruneEvent, PruneOptions, PruneReport, Repository, Scope, Writer};

use crate::common::{image, in_folder, kind, put_image, reference, stamp};

/// Counts how often a prune waits for a lease.
struct Waits(Cell<u32>);

impl Overseer for Waits {
    fn event(&self, _: &PruneEvent) {}
    fn pause(&self, _: Duration) {
        self.0.set(self.0.get() + 1);
    }
}

/// Prunes; returns the report, and how often the prune waited.
fn prune(repository: &Repository) -> (PruneReport, u32) {
    let waits = Waits(Cell::new(0));
    let options = PruneOptions { looks: 3, ..PruneOptions::default() };
    (repository.prune(&options, &stamp(), &waits).unwrap(), waits.0.get())
}

/// All files below `folder`, by their relative paths.
fn files(root: &Path, folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

fn publish(repository: &Repository, name: &str, seed: u64) -> u64 {
    let writer = Writer::begin(repository, &stamp()).unwrap();
    let (draft, _) = put_image(&writer, seed, 7);
    writer.publish(&image(name), draft).unwrap().number
}

fn remove(repository: &Repository, version: &str) {
    repository.remove(&reference(version), &stamp()).unwrap();
}

/// The number of copies of each object.
fn copies(root: &Path) -> BTreeMap<String, usize> {
    let mut copies = BTreeMap::new();
    for path in [files(root, "chunks"), files(root, "nodes")].concat() {
        let name = path.file_name().unwrap().to_str().unwrap().split('.').next().unwrap().to_owned();
        *copies.entry(name).or_default() += 1;
    }
    copies
}

/// Runs a function while a prune waits.
struct Meanwhile<F>(F);

impl<F: Fn()> Overseer for Meanwhile<F> {
    fn event(&self, _: &PruneEvent) {}
    fn pause(&self, _: Duration) {
        self.0();
    }
}

#[test]
fn an_image_that_comes_and_goes_while_somebody_sleeps_does_not_grow() {
    let place = in_folder();
    let repository = &place.repository;
    publish(repository, "web", 1);
    let most = || copies(place.folder()).into_values().max().unwrap();
    for round in 1..=12 {
        remove(repository, &format!("web@{round}"));
        let sleeper = Cell::new(Some(Writer::begin(repository, &stamp()).unwrap()));
        // While the prune waits for the sleeper, everything that another writer finds is condemned.
        let meanwhile = Meanwhile(|| {
            publish(repository, "web", 1);
            assert_eq!(most(), 2, "round {round}: what may be deleted is stored elsewhere");
            drop(sleeper.take());
        });
        repository.prune(&PruneOptions::default(), &stamp(), &meanwhile).unwrap();
        assert_eq!(most(), 1, "round {round}");
    }
    let verified = repository.verify(&Scope::All, &NoProgress).unwrap();
    assert_eq!((verified.damaged, verified.unreferenced), (Vec::new(), 0));
}

#[test]
fn of_several_copies_a_good_one_stays() {
    let place = in_folder();
    let repository = &place.repository;
    publish(repository, "web", 1);
    let first = files(place.folder(), "chunks").remove(0);
    let bytes = std::fs::read(&first).unwrap();
    for slot in 1..4 {
        std::fs::write(format!("{}.{slot}", first.display()), &bytes).unwrap();
    }
    std::fs::write(&first, vec![0; bytes.len()]).unwrap();
    std::fs::write(format!("{}.1", first.display()), b"short").unwrap();
    prune(repository);
    let left =
        files(place.folder(), "chunks").into_iter().filter(|path| path.starts_with(first.parent().unwrap()));
    assert_eq!(left.collect::<Vec<_>>(), [PathBuf::from(format!("{}.2", first.display()))]);
    assert_eq!(repository.verify(&Scope::All, &NoProgress).unwrap().damaged, []);
    // If no copy is good, none is deleted.
    std::fs::write(format!("{}.2", first.display()), b"bad").unwrap();
    std::fs::write(format!("{}.3", first.display()), b"bad, too").unwrap();
    prune(repository);
    assert_eq!(copies(place.folder()).values().filter(|&&copies| copies == 2).count(), 1);
}

#[test]
fn records_of_prunes_and_leases_do_not_add_up() {
    let place = in_folder();
    let repository = &place.repository;
    for seed in 0..6 {
        let number = publish(repository, "web", seed);
        if seed > 0 {
            remove(repository, &format!("web@{}", number - 1));
        }
        assert!(prune(repository).0.deleted.objects > 0 || seed == 0);
    }
    let left = ["leases", "prunes", "candidates"].map(|folder| files(place.folder(), folder).len());
    assert_eq!(left, [0, 4, 0], "the begins and ends of the newest two prunes");
    let folders = std::fs::read_dir(place.folder().join("prunes")).unwrap().count();
    assert_eq!(folders, 2, "empty folders go, too");
    // Another handle finds the current epoch.
    let another = place.another().unwrap();
    publish(&another, "web", 9);
    assert_eq!(prune(&another).1, 0);
}

#[test]
fn what_was_removed_leaves_its_number_and_nothing_else() {
    let place = in_folder();
    let repository = &place.repository;
    for seed in 1..=4 {
        publish(repository, "web", seed);
    }
    publish(repository, "gone", 9);
    for version in ["web@1", "web@2", "web@4", "gone@1"] {
        remove(repository, version);
    }
    prune(repository);
    let name = |path: &PathBuf| path.strip_prefix(place.folder()).unwrap().display().to_string();
    let left = |folder: &str| files(place.folder(), folder).iter().map(name).collect::<Vec<_>>();
    assert_eq!(left("floors"), [format!("floors/gone/{:020}", 1), format!("floors/web/{:020}", 2)]);
    assert_eq!(left("removed"), [format!("removed/web/{:020}", 4)], "version 3 is there, so this stays");
    assert_eq!(left("versions"), [3, 4].map(|number| format!("versions/web/{number:020}")));
    let another = place.another().unwrap();
    assert_eq!(another.versions(&image("web")).unwrap(), [3]);
    assert_eq!(kind(another.resolve(&reference("web@2"))), Err(ErrorKind::NotFound));
    assert_eq!(another.verify(&Scope::All, &NoProgress).unwrap().damaged, []);
    // Numbers are not used again. A manifest below the floor, created late by a slow writer, is not a version.
    assert_eq!((publish(&another, "gone", 5), publish(&another, "web", 6)), (2, 5));
    let late = place.folder().join(format!("versions/gone/{:020}", 1));
    std::fs::copy(place.folder().join(format!("versions/gone/{:020}", 2)), &late).unwrap();
    assert_eq!(another.versions(&image("gone")).unwrap(), [2]);
    prune(&another);
    assert!(!late.exists());
    // The next floor replaces the previous one.
    for version in ["web@3", "web@5"] {
        remove(&another, version);
    }
    prune(&another);
    assert_eq!(left("floors"), [format!("floors/gone/{:020}", 1), format!("floors/web/{:020}", 5)]);
    assert_eq!(publish(&another, "web", 7), 6);
}

#[test]
fn of_reservations_the_newest_two_stay() {
    let place = in_folder();
    let repository = &place.repository;
    publish(repository, "log", 1);
    let append = |repository: &Repository, byte: u8| {
        repository.blob(&image("log")).append(&[byte; 512], &stamp()).unwrap();
    };
    (0..5).for_each(|byte| append(repository, byte));
    prune(repository);
    assert_eq!(files(place.folder(), "appends").len(), 2);
    let end = |repository: &Repository| repository.resolve(&reference("log")).unwrap().size_sectors;
    let before = end(repository);
    append(&place.another().unwrap(), 7);
    assert_eq!(end(repository), before + 1);
}

#[test]
fn files_of_dead_writers_go_and_those_of_new_ones_stay() {
    let place = in_folder();
    let repository = &place.repository;
    publish(repository, "web", 1);
    let chunk = files(place.folder(), "chunks").remove(0);
    let left = [
        format!("{}#1", chunk.display()),
        place.folder().join(format!("versions/web/{:020}#12", 2)).display().to_string(),
    ];
    left.iter().for_each(|path| drop(File::create_new(path).unwrap()));
    let strangers = [format!("{}#x", chunk.display()), format!("{}#", chunk.display())];
    strangers.iter().for_each(|path| drop(File::create_new(path).unwrap()));
    // While the prune waits for this writer, a new writer creates a file with the same name.
    let writer = Writer::begin(repository, &stamp()).unwrap();
    let writer = Cell::new(Some(writer));
    let meanwhile = Meanwhile(|| {
        std::fs::remove_file(&left[0]).unwrap();
        std::fs::write(&left[0], b"another").unwrap();
        drop(writer.take());
    });
    repository.prune(&PruneOptions::default(), &stamp(), &meanwhile).unwrap();
    assert!(Path::new(&left[0]).exists() && !Path::new(&left[1]).exists());
    prune(repository);
    assert!(!Path::new(&left[0]).exists());
    assert!(strangers.iter().all(|path| Path::new(path).exists()), "they are nobody's temporary files");
}

/// Changes the first entry of a lease so that it names the process `pid`.
fn hand_over(entry: &Path, pid: u32) {
    let text = std::fs::read_to_string(entry).unwrap();
    let line = text.lines().next().unwrap();
    let line = line.replace(&format!("\"pid\":{},", std::process::id()), &format!("\"pid\":{pid},"));
    std::fs::write(entry, format!("{line}\nblake3 {}\n", Digest::of(line.as_bytes()))).unwrap();
}

#[test]
fn only_the_living_are_waited_for() {
    let place = in_folder();
    let repository = &place.repository;
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let writer = Writer::begin(repository, &stamp()).unwrap();
    let entry = place.folder().join(format!("leases/{:020}/{:020}.{:020}", 0, 1, 1));
    assert!(std::fs::read_to_string(&entry).unwrap().contains("\"process\":{\"boot\":"));
    hand_over(&entry, child.id());
    let (report, waits) = prune(repository);
    assert_eq!((report.revoked, waits), (1, 0), "it is dead");
    drop(writer);
    let writer = Writer::begin(repository, &stamp()).unwrap();
    let (report, waits) = prune(repository);
    assert_eq!((report.revoked, waits), (1, 3), "it lives, and was silent for so long");
    assert_eq!(kind(writer.beat()), Err(ErrorKind::Revoked));
}
