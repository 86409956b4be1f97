//! Tests on a store that fails on purpose: nothing is lost, nothing is done twice, no wrong data is accepted.
//! To see one again: `cargo test --workspace --test store faults::<name>`.

use std::sync::Arc;

use base::ErrorKind;
use image::{NoProgress, ObjectSink as _, ObjectSource as _};
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use store::{Replaces, Repository, Scope, Why};

use crate::common::faulty::{Faulty, Plan, Trouble, no_trouble};
use crate::common::{self, image, publish, put_image, reference, setting, stamp};

/// A repository over a faulty store, and that store.
struct Place {
    repository: Repository,
    store: Arc<Faulty>,
    _folder: tempfile::TempDir,
}

/// The store below a faulty store.
#[derive(Debug, Clone, Copy)]
enum Inner {
    Memory,
    Folder,
}

impl Inner {
    fn place(self) -> Place {
        let (store, folder) = self.store(no_trouble());
        let repository = Repository::over_with(store.clone(), "faulty", &setting()).unwrap();
        Place { repository, store, _folder: folder }
    }

    fn store(self, plan: Plan) -> (Arc<Faulty>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let inner: Arc<dyn ObjectStore> = match self {
            Self::Memory => Arc::new(InMemory::new()),
            Self::Folder => {
                Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap().with_fsync(true))
            }
        };
        (Faulty::new(inner, plan), folder)
    }
}

macro_rules! over_each {
    ($($name:ident),* $(,)?) => {
        mod memory {
            $(#[test] fn $name() { super::$name(super::Inner::Memory) })*
        }
        mod folder {
            $(#[test] fn $name() { super::$name(super::Inner::Folder) })*
        }
    };
}

over_each![
    a_lost_reply_is_found_to_be_success,
    a_lost_reply_and_a_spoilt_look_publish_once,
    a_lost_reply_does_not_claim_the_record_of_another,
    every_single_failure_is_an_error_or_harmless_and_the_next_try_succeeds,
    a_store_that_ignores_conditions_is_refused,
    listings_that_lag_lose_nothing,
    wrong_bytes_are_noticed_wherever_they_come,
    failures_on_the_way_keep_their_cause,
];

fn a_lost_reply_is_found_to_be_success(inner: Inner) {
    for trouble in [Trouble::ReplyLost, Trouble::RetriedBelow] {
        let Place { repository, store, .. } = &inner.place();
        publish(repository, "debian", 1);
        let (draft, _) = put_image(repository, 2, 7);
        store.set(Box::new(move |operation, _, _| (operation == "put").then_some(trouble)));
        let published = repository.publish(&image("debian"), draft).unwrap();
        repository.tag(&image("debian"), &"stable".parse().unwrap(), 2, &stamp()).unwrap();
        repository.remove(&reference("debian@1"), &stamp()).unwrap();
        store.set(no_trouble());
        assert_eq!(published.number, 2, "{trouble:?}: published once");
        assert_eq!(repository.versions(&image("debian")).unwrap(), [2]);
        assert_eq!(repository.resolve(&reference("debian:stable")).unwrap(), published);
    }
}

fn a_lost_reply_and_a_spoilt_look_publish_once(inner: Inner) {
    let Place { repository, store, .. } = &inner.place();
    let (draft, _) = put_image(repository, 1, 7);
    let (mut looks, mut replies) = (0, 0);
    store.set(Box::new(move |operation, path, _| {
        let version = path.as_ref().starts_with("versions/");
        looks += u32::from(operation == "get" && version && replies > 0);
        replies += u32::from(operation == "put" && version);
        match operation {
            "put" if version => Some(Trouble::RetriedBelow),
            "get" if version && looks == 1 => Some(Trouble::WrongByte),
            _ => None,
        }
    }));
    repository.publish(&image("debian"), draft).unwrap();
    store.set(no_trouble());
    assert_eq!(repository.versions(&image("debian")).unwrap(), [1]);
}

fn a_lost_reply_does_not_claim_the_record_of_another(inner: Inner) {
    let Place { repository, store, .. } = &inner.place();
    let (draft, _) = put_image(repository, 1, 7);
    let first = repository.publish(&image("debian"), draft.clone()).unwrap();
    // The second writer gets an old list: it tries number 1 with equal content, and its create fails with an unclear
    // error.
    let mut listings = 0;
    let other = Repository::over_with(store.clone(), "faulty", &setting()).unwrap();
    store.set(Box::new(move |operation, path, _| {
        listings += u64::from(operation == "list");
        (operation == "put" && path.as_ref().starts_with("versions/") && listings <= 2)
            .then_some(Trouble::RetriedBelow)
    }));
    let second = other.publish(&image("debian"), draft).unwrap();
    store.set(no_trouble());
    assert_eq!((first.number, second.number), (1, 2));
    assert_ne!(first.nonce, second.nonce);
    assert_eq!(repository.versions(&image("debian")).unwrap(), [1, 2]);
}

fn every_single_failure_is_an_error_or_harmless_and_the_next_try_succeeds(inner: Inner) {
    for trouble in [Trouble::Fails, Trouble::Throttled, Trouble::ReplyLost] {
        // The k-th operation fails. When k is greater than the number of operations, none fails and the loop ends.
        for k in 0.. {
            let Place { repository, store, .. } = &inner.place();
            let (draft, _) = put_image(repository, 1, 7);
            let (mut hit, mut count) = (false, 0);
            let (seen, report) = std::sync::mpsc::channel();
            store.set(Box::new(move |_, _, _| {
                let now = count == k && !hit;
                count += 1;
                if now {
                    hit = true;
                    seen.send(()).unwrap();
                }
                now.then_some(trouble)
            }));
            let first = repository.publish(&image("debian"), draft.clone());
            if report.try_recv().is_err() {
                assert!(first.is_ok(), "nothing failed");
                break;
            }
            store.set(no_trouble());
            match first {
                Ok(published) => assert_eq!(published.number, 1, "{trouble:?} {k}"),
                Err(error) => {
                    // For a get, a lost reply is replaced by a wrong byte.
                    let is_right = [ErrorKind::Io, ErrorKind::Corrupt].contains(&error.kind());
                    assert!(is_right, "{trouble:?} {k}: {error:?}");
                    assert!(
                        repository.images().unwrap().is_empty(),
                        "{trouble:?} {k}: failed, but published"
                    );
                    assert_eq!(repository.publish(&image("debian"), draft).unwrap().number, 1);
                }
            }
            assert!(repository.verify(&Scope::All, &NoProgress).unwrap().damaged.is_empty());
        }
    }
}

fn a_store_that_ignores_conditions_is_refused(inner: Inner) {
    let (store, _folder) =
        inner.store(Box::new(|operation, _, _| (operation == "put").then_some(Trouble::IgnoresConditions)));
    assert_eq!(
        Repository::over_with(store, "faulty", &setting()).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    let Place { repository, store, .. } = &inner.place();
    store.set(Box::new(|operation, _, _| (operation == "put").then_some(Trouble::IgnoresConditions)));
    // Its own store was tested; the store of the copy was not.
    Repository::over_with(store.clone(), "faulty", &setting()).unwrap();
    let refused = Repository::over_with(store.clone(), "elsewhere", &setting()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("`elsewhere` can't hold a repository: 8 writers"), "{refused}");
    store.set(no_trouble());
    Repository::over_with(store.clone(), "elsewhere", &setting()).unwrap();
    let probe = repository.known_capabilities().unwrap().unwrap();
    assert_eq!(
        (probe.place.as_str(), probe.replaces),
        (
            "elsewhere",
            match inner {
                Inner::Memory => Replaces::OnCondition,
                Inner::Folder => Replaces::Never,
            }
        )
    );
    assert_eq!(probe.creator, "test");
}

fn listings_that_lag_lose_nothing(inner: Inner) {
    let Place { repository, store, .. } = &inner.place();
    publish(repository, "debian", 1);
    store.set(Box::new(|operation, _, _| (operation == "list").then_some(Trouble::Lagging)));
    for number in 2..=5 {
        assert_eq!(publish(repository, "debian", number).number, number);
        repository.tag(&image("debian"), &"stable".parse().unwrap(), number, &stamp()).unwrap();
    }
    assert_eq!(repository.versions(&image("debian")).unwrap(), [1], "the listing is of before");
    store.set(no_trouble());
    assert_eq!(repository.versions(&image("debian")).unwrap(), [1, 2, 3, 4, 5]);
    assert_eq!(repository.resolve(&reference("debian:stable")).unwrap().number, 5);
    // A store whose lists always lag fails the capability test, so nothing is written to it.
    let lags: Plan = Box::new(|operation, _, _| (operation == "list").then_some(Trouble::Lagging));
    let (store, _folder) = inner.store(lags);
    let refused = Repository::over_with(store, "faulty", &setting()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("not listed"), "{refused}");
}

fn wrong_bytes_are_noticed_wherever_they_come(inner: Inner) {
    for trouble in [Trouble::WrongByte, Trouble::CutShort] {
        let Place { repository, store, .. } = &inner.place();
        let (draft, chunks) = put_image(repository, 1, 7);
        repository.publish(&image("debian"), draft).unwrap();
        repository.tag(&image("debian"), &"stable".parse().unwrap(), 1, &stamp()).unwrap();
        store.set(Box::new(move |operation, _, _| (operation == "get").then_some(trouble)));
        // Records with one flipped bit are repaired while they are read.
        let read = if trouble == Trouble::WrongByte { Ok(()) } else { Err(ErrorKind::Corrupt) };
        for text in ["debian", "debian@1", "debian:stable"] {
            assert_eq!(common::kind(repository.resolve(&reference(text))), read, "{text}");
        }
        assert_eq!(common::kind(Repository::over_with(store.clone(), "faulty", &setting())), read);
        // The reader of an object verifies its content.
        let fetched = repository.fetch(&chunks[0]).and_then(|bytes| chunks[0].verified(bytes).map(drop));
        assert_eq!(fetched.unwrap_err().kind(), ErrorKind::Corrupt);
        let chunk = format!("chunks/{}/{}", &chunks[0].digest.to_hex()[..2], chunks[0].digest);
        let at = chunk.clone();
        store.set(Box::new(move |operation, path, _| {
            (operation == "get" && path.as_ref() == at).then_some(trouble)
        }));
        let damaged = repository.verify(&Scope::All, &NoProgress).unwrap().damaged;
        assert_eq!(damaged.len(), 1, "{damaged:?}");
        assert_eq!((damaged[0].path.as_str(), damaged[0].why), (chunk.as_str(), Why::Corrupt));
        assert_eq!(damaged[0].versions, [reference("debian@1")]);
    }
}

fn failures_on_the_way_keep_their_cause(inner: Inner) {
    let Place { repository, store, .. } = &inner.place();
    let (draft, chunks) = put_image(repository, 1, 7);
    store.set(Box::new(|_, _, _| Some(Trouble::Fails)));
    let errors = [
        repository.fetch(&chunks[0]).map(drop).unwrap_err().to_string(),
        base::chain(&repository.fetch(&chunks[0]).unwrap_err()),
        base::chain(&repository.contains(&chunks[0]).unwrap_err()),
        base::chain(&repository.publish(&image("debian"), draft).unwrap_err()),
        base::chain(&repository.images().unwrap_err()),
        base::chain(&repository.verify(&Scope::All, &NoProgress).unwrap_err()),
    ];
    for error in &errors[1..] {
        assert!(error.contains("input/output error"), "{error}");
    }
}

/// The slots, of three bytes each, among `writes` slots that a version of `shared` contains.
fn slots(repository: &Repository, number: u64, writes: usize) -> Vec<bool> {
    let mut bytes = vec![0; 3 * writes];
    repository.snapshot(&reference(&format!("shared@{number}"))).unwrap().read(100, &mut bytes).unwrap();
    let whole = |slot: &[u8]| {
        assert!(slot == [0; 3] || slot == [7; 3], "half a write");
        slot == [7; 3]
    };
    bytes.chunks(3).map(whole).collect()
}

#[test]
fn writers_of_a_bad_store_lose_nothing_that_was_reported_and_nothing_is_there_twice() {
    const WRITERS: usize = 4;
    const WRITES: usize = 8;
    let troubles = [
        Trouble::Fails,
        Trouble::Throttled,
        Trouble::ReplyLost,
        Trouble::RetriedBelow,
        Trouble::WrongByte,
        Trouble::CutShort,
    ];
    for seed in 0..30 {
        let Place { repository, store, .. } = &Inner::Memory.place();
        let shape = store::Shape { size_bytes: 1 << 16, ..store::Shape::default() };
        repository.blob(&image("shared")).create(&shape, &stamp()).unwrap();
        let mut chance = base::Chance::from_seed(seed);
        store.set(Box::new(move |_, _, _| {
            chance.hits(40_000).then(|| troubles[usize::try_from(chance.below(6)).unwrap()])
        }));
        // All in one chunk, so that each write is applied to all earlier ones.
        let write =
            |slot: usize| repository.blob(&image("shared")).write(100 + 3 * slot as u64, &[7; 3], &stamp());
        let reported: Vec<Vec<_>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let write = &write;
                    scope.spawn(move || (0..WRITES).map(|at| write(writer * WRITES + at)).collect())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        store.set(no_trouble());
        let newest = repository.blob(&image("shared")).recent().unwrap().number;
        let mut before = vec![false; WRITERS * WRITES];
        for number in 1..=newest {
            let held = slots(repository, number, WRITERS * WRITES);
            let new: Vec<_> = (0..held.len()).filter(|&slot| held[slot] != before[slot]).collect();
            assert_eq!(new.len(), usize::from(number > 1), "seed {seed}: version {number} is one write more");
            before = held;
        }
        for (slot, outcome) in reported.iter().flatten().enumerate() {
            assert!(outcome.is_err() || before[slot], "seed {seed}: a write that was reported is lost");
        }
        assert!(reported.iter().flatten().any(Result::is_ok), "seed {seed}");
        assert_eq!(repository.verify(&Scope::All, &NoProgress).unwrap().damaged, [], "seed {seed}");
        // The queue still works afterwards.
        repository.blob(&image("shared")).write(0, b"on", &stamp()).unwrap();
    }
}
