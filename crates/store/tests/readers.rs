//! Versions that are removed and pruned while somebody reads them. formats/repository.md, "Readers".

use std::cell::{Cell, RefCell};
use std::time::Duration;

use base::ErrorKind;
use image::{NoProgress, ObjectSource as _};
use store::{Overseer, Owner, PruneEvent, PruneOptions, Reading, Repository, Scope};

use crate::common::{image, in_folder, kind, publish, reference, stamp};

/// Runs a function while a prune waits, and keeps for whom it waited.
struct Meanwhile<F>(F, RefCell<Vec<Owner>>);

impl<F: Fn()> Overseer for Meanwhile<F> {
    fn event(&self, event: &PruneEvent) {
        if let PruneEvent::Waiting(owner) = event {
            self.1.borrow_mut().push(owner.clone());
        }
    }

    fn pause(&self, _: Duration) {
        (self.0)();
    }
}

/// Prunes, and calls `each` while the prune waits. Returns how many objects it deleted, and for whom it waited.
fn prune(repository: &Repository, each: impl Fn()) -> (u64, Vec<Owner>) {
    let meanwhile = Meanwhile(each, RefCell::default());
    let report = repository.prune(&PruneOptions::default(), &stamp(), &meanwhile).unwrap();
    (report.deleted.objects, meanwhile.1.into_inner())
}

fn begin(repository: &Repository, number: u64) -> base::Result<Reading> {
    Reading::begin(repository, &image("web"), number, &stamp())
}

#[test]
fn a_prune_waits_for_who_reads_what_was_removed() {
    let place = in_folder();
    let repository = &place.repository;
    let root = publish(repository, "web", 1).root.child.object().unwrap();
    publish(repository, "web", 2);
    // The reader is another process.
    let reader = place.another().unwrap();
    let reading = RefCell::new(Some(begin(&reader, 1).unwrap()));
    repository.remove(&reference("web@1"), &stamp()).unwrap();
    let rounds = Cell::new(0);
    let (deleted, owners) = prune(repository, || {
        rounds.set(rounds.get() + 1);
        assert!(reader.fetch(&root).is_ok());
        let is_there = reading.borrow_mut().as_mut().unwrap().renew(&stamp()).unwrap();
        assert!(!is_there);
        if rounds.get() == 3 {
            reading.take();
        }
    });
    assert_eq!((rounds.get(), owners[0].reads.as_deref()), (3, Some("web@1")));
    assert!(deleted > 0 && reader.fetch(&root).is_err());
    assert_eq!(repository.verify(&Scope::All, &NoProgress).unwrap().damaged, []);
}

#[test]
fn a_prune_does_not_wait_for_who_reads_what_stays() {
    let place = in_folder();
    let repository = &place.repository;
    publish(repository, "web", 1);
    publish(repository, "web", 2);
    let reading = RefCell::new(begin(&place.another().unwrap(), 2).unwrap());
    repository.remove(&reference("web@1"), &stamp()).unwrap();
    let rounds = Cell::new(0);
    let (deleted, _) = prune(repository, || {
        rounds.set(rounds.get() + 1);
        assert!(reading.borrow_mut().renew(&stamp()).unwrap());
    });
    assert!(deleted > 0 && rounds.get() == 1, "{} rounds", rounds.get());
    // The new lease protects the version from the next prune.
    repository.remove(&reference("web@2"), &stamp()).unwrap();
    let reading = RefCell::new(Some(reading.into_inner()));
    let (deleted, owners) = prune(repository, || drop(reading.take()));
    assert!(deleted > 0 && owners[0].reads.as_deref() == Some("web@2"), "{owners:?}");
}

#[test]
fn what_was_removed_before_is_not_read() {
    let place = in_folder();
    let repository = &place.repository;
    publish(repository, "web", 1);
    repository.remove(&reference("web@1"), &stamp()).unwrap();
    assert_eq!(kind(begin(repository, 1)), Err(ErrorKind::NotFound));
    prune(repository, || panic!("nobody reads"));
    // Its manifest and its tombstone are gone, too.
    assert_eq!(kind(begin(repository, 1)), Err(ErrorKind::NotFound));
    assert_eq!(kind(begin(repository, 2)), Err(ErrorKind::NotFound));
}

#[test]
fn a_reader_that_was_taken_for_dead_is_told() {
    let place = in_folder();
    let repository = &place.repository;
    publish(repository, "web", 1);
    publish(repository, "web", 2);
    let (mut of_removed, mut of_live) = (begin(repository, 1).unwrap(), begin(repository, 2).unwrap());
    repository.remove(&reference("web@1"), &stamp()).unwrap();
    // It waits for three looks only.
    let options = PruneOptions { looks: 3, ..PruneOptions::default() };
    let report = repository.prune(&options, &stamp(), &Meanwhile(|| {}, RefCell::default())).unwrap();
    assert!(report.revoked == 2 && report.deleted.objects > 0, "{report:?}");
    assert!(of_live.renew(&stamp()).unwrap());
    // The lease notices that it was revoked when it next says that it lives; until then the version is just gone.
    assert!(!of_removed.renew(&stamp()).is_ok_and(|is_there| is_there));
}
