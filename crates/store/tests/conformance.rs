//! The guarantees of a repository, tested on every kind of store: each function here runs on a folder, on exFAT, in
//! memory and in S3, directly and through a bad network. To repeat one test: `cargo test --workspace --test store
//! conformance::<name>`.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use base::{Digest, ErrorKind};
use bytes::Bytes;
use image::{NoProgress, ObjectKind, ObjectRef, ObjectSink as _, ObjectSource as _};
use store::{Overseer, PruneEvent, PruneOptions, Removed, Repository, Scope, TagName, Writer};

use crate::common::{Place, image, publish, put_image, reference, stamp};

macro_rules! conformance {
    ($($name:ident),* $(,)?) => {
        mod folder {
            $(#[test] fn $name() { super::$name(&crate::common::in_folder()) })*
        }
        mod exfat {
            $(#[test] fn $name() {
                if let Some(place) = crate::common::in_exfat() { super::$name(&place) }
            })*
        }
        mod memory {
            $(#[test] fn $name() { super::$name(&crate::common::in_memory()) })*
        }
        mod s3 {
            $(#[test] fn $name() {
                if let Some(place) = crate::common::in_s3(lab::Engine::VersityGw) { super::$name(&place) }
            })*
        }
        mod s3_far_away {
            $(#[test] fn $name() {
                if let Some(place) = crate::common::in_s3_far_away(lab::Engine::VersityGw, 7) { super::$name(&place) }
            })*
        }
        mod cluster {
            $(#[test] fn $name() { super::$name(&crate::common::in_cluster()) })*
        }
        mod minio {
            // Does not need the built engine: `tools/versitygw.sh --minio` starts it.
            $(#[test] fn $name() {
                let engine = lab::Engine::MinIo;
                let place = engine.is_built().then(|| crate::common::in_s3(engine)).flatten();
                if let Some(place) = place { super::$name(&place) }
            })*
        }
        mod folder_inside_a_runtime {
            $(#[test] fn $name() {
                // One worker and one blocking thread: code that moves work to the pool and waits for it would
                // deadlock here.
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(1).max_blocking_threads(1).build().unwrap();
                let run = runtime.spawn_blocking(|| super::$name(&crate::common::in_folder()));
                runtime.block_on(run).unwrap();
            })*
        }
    };
}

conformance![
    objects_come_back_as_they_went,
    an_object_is_there_from_its_put_on,
    readers_find_what_writers_put_at_any_moment,
    the_wrong_length_is_no_object,
    what_was_never_put_is_not_found,
    versions_count_up_from_one,
    published_is_what_is_resolved,
    a_draft_without_its_tree_is_refused,
    names_come_in_order,
    numbers_are_never_used_twice,
    a_removed_version_is_gone_and_its_data_stays,
    tags_move,
    a_tagged_version_is_kept,
    latest_is_the_newest_version,
    writers_race_for_numbers_and_all_win_one,
    writers_race_for_a_tag_and_the_last_holds,
    removers_race_and_one_wins,
    a_prune_leaves_what_versions_need,
    a_good_repository_verifies,
    verify_of_one_version_looks_at_no_other,
];

fn tag(name: &str) -> TagName {
    name.parse().unwrap()
}

fn chunk(bytes: &'static [u8]) -> (ObjectRef, Bytes) {
    (ObjectRef::of(ObjectKind::Chunk, bytes), Bytes::from_static(bytes))
}

fn objects_come_back_as_they_went(place: &Place) {
    for kind in [ObjectKind::Chunk, ObjectKind::Node] {
        for len in [1, 511, 8192, 90_000, 5_000_000] {
            let bytes: Bytes = (0..len).map(|at| (at % 251) as u8).collect::<Vec<_>>().into();
            let object = ObjectRef::of(kind, &bytes);
            place.repository.put(&object, bytes.clone()).unwrap();
            place.repository.flush().unwrap();
            assert_eq!(place.repository.fetch(&object).unwrap(), bytes);
        }
    }
}

fn an_object_is_there_from_its_put_on(place: &Place) {
    let (object, bytes) = chunk(b"not settled yet");
    assert!(!place.repository.contains(&object).unwrap());
    place.repository.put(&object, bytes.clone()).unwrap();
    assert!(place.repository.contains(&object).unwrap());
    assert_eq!(place.repository.fetch(&object).unwrap(), bytes);
    place.repository.put(&object, bytes).unwrap();
    place.repository.flush().unwrap();
    assert!(place.repository.contains(&object).unwrap());
}

fn readers_find_what_writers_put_at_any_moment(place: &Place) {
    // Several batches: readers find objects that wait, that are being flushed, and that have their names already.
    let (sent, received) = std::sync::mpsc::sync_channel(8);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for at in 0..600u32 {
                let bytes = Bytes::from([at.to_le_bytes(); 20_000].concat());
                let object = ObjectRef::of(ObjectKind::Chunk, &bytes);
                place.repository.put(&object, bytes).unwrap();
                sent.send(object).unwrap();
            }
        });
        for (at, object) in received.into_iter().enumerate() {
            assert!(place.repository.contains(&object).unwrap());
            if at % 50 == 0 {
                object.verified(place.repository.fetch(&object).unwrap()).unwrap();
            }
        }
    });
}

fn the_wrong_length_is_no_object(place: &Place) {
    let (object, bytes) = chunk(b"nine bytes");
    place.repository.put(&object, bytes.slice(..4)).unwrap();
    place.repository.flush().unwrap();
    assert!(!place.repository.contains(&object).unwrap());
    assert_eq!(place.repository.fetch(&object).unwrap_err().kind(), ErrorKind::Corrupt);
    let longer = ObjectRef { len: 2, ..object };
    assert_eq!(place.repository.fetch(&longer).unwrap_err().kind(), ErrorKind::Corrupt);
    // A writer with the right bytes repairs it.
    place.repository.put(&object, bytes.clone()).unwrap();
    place.repository.flush().unwrap();
    assert_eq!(place.repository.fetch(&object).unwrap(), bytes);
}

fn what_was_never_put_is_not_found(place: &Place) {
    let repository = &place.repository;
    let object = ObjectRef { kind: ObjectKind::Node, len: 1, digest: Digest([7; 32]) };
    assert_eq!(repository.fetch(&object).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(repository.images().unwrap().is_empty());
    publish(repository, "debian", 1);
    for text in ["alpine", "alpine@1", "debian@2", "debian:stable"] {
        assert_eq!(repository.resolve(&reference(text)).unwrap_err().kind(), ErrorKind::NotFound, "{text}");
        assert_eq!(
            repository.verify(&Scope::Version(reference(text)), &NoProgress).unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }
    for text in ["alpine@1", "debian@2", "debian:stable"] {
        assert_eq!(
            repository.remove(&reference(text), &stamp()).unwrap_err().kind(),
            ErrorKind::NotFound,
            "{text}"
        );
    }
    assert_eq!(repository.versions(&image("alpine")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(repository.tags(&image("alpine")).unwrap_err().kind(), ErrorKind::NotFound);
    let tagged = repository.tag(&image("debian"), &tag("stable"), 2, &stamp());
    assert_eq!(tagged.unwrap_err().kind(), ErrorKind::NotFound);
}

fn versions_count_up_from_one(place: &Place) {
    for number in 1..=12 {
        assert_eq!(publish(&place.repository, "debian", number).number, number);
    }
    assert_eq!(publish(&place.repository, "alpine", 1).number, 1);
    assert_eq!(place.repository.versions(&image("debian")).unwrap(), (1..=12).collect::<Vec<_>>());
}

fn published_is_what_is_resolved(place: &Place) {
    let published = publish(&place.repository, "debian", 5);
    assert_eq!(published.image, "debian");
    for text in ["debian", "debian@1", "debian:latest"] {
        assert_eq!(place.repository.resolve(&reference(text)).unwrap(), published);
    }
    let (sealed, bytes) = place.repository.signed_manifest(&reference("debian")).unwrap();
    assert_eq!(image::SignedManifest::open(&bytes).unwrap().digest(), sealed.digest());
}

fn a_draft_without_its_tree_is_refused(place: &Place) {
    let (draft, _) = put_image(&image::MemoryObjects::new(), 1, 7);
    let refused = place.repository.publish(&image("debian"), draft).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(place.repository.images().unwrap().is_empty());
}

fn names_come_in_order(place: &Place) {
    for name in ["b", "a", "a-1", "a.1", "c_", "10", "9"] {
        publish(&place.repository, name, 1);
        place.repository.tag(&image("b"), &tag(name), 1, &stamp()).unwrap_or_default();
    }
    let names: Vec<String> = place.repository.images().unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["10", "9", "a", "a-1", "a.1", "b", "c_"]);
    let tags: Vec<String> =
        place.repository.tags(&image("b")).unwrap().iter().map(|tag| tag.name.to_string()).collect();
    assert_eq!(tags, ["10", "9", "a", "a-1", "a.1", "b", "c_"]);
}

fn numbers_are_never_used_twice(place: &Place) {
    publish(&place.repository, "debian", 1);
    publish(&place.repository, "debian", 2);
    assert_eq!(place.repository.remove(&reference("debian@2"), &stamp()).unwrap(), Removed::Version(2));
    assert_eq!(publish(&place.repository, "debian", 3).number, 3);
    place.repository.remove(&reference("debian@1"), &stamp()).unwrap();
    place.repository.remove(&reference("debian@3"), &stamp()).unwrap();
    assert_eq!(publish(&place.repository, "debian", 4).number, 4);
}

fn a_removed_version_is_gone_and_its_data_stays(place: &Place) {
    let (draft, chunks) = put_image(&place.repository, 1, 7);
    place.repository.publish(&image("debian"), draft).unwrap();
    let refused = place.repository.remove(&reference("debian"), &stamp()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "a bare image is too much to remove by accident");
    place.repository.remove(&reference("debian@1"), &stamp()).unwrap();
    for text in ["debian", "debian@1"] {
        assert_eq!(place.repository.resolve(&reference(text)).unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert!(place.repository.images().unwrap().is_empty());
    let again = place.repository.remove(&reference("debian@1"), &stamp()).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::NotFound);
    assert!(chunks.iter().all(|chunk| place.repository.contains(chunk).unwrap()));
    let report = place.repository.verify(&Scope::All, &NoProgress).unwrap();
    assert_eq!((report.versions, report.damaged.len()), (0, 0));
    assert_eq!(report.unreferenced, chunks.len() as u64 + 1);
}

fn tags_move(place: &Place) {
    let repository = &place.repository;
    for seed in 1..=3 {
        publish(repository, "debian", seed);
    }
    for version in [1, 3, 2, 2] {
        repository.tag(&image("debian"), &tag("stable"), version, &stamp()).unwrap();
        assert_eq!(repository.resolve(&reference("debian:stable")).unwrap().number, version);
    }
    repository.tag(&image("debian"), &tag("testing"), 3, &stamp()).unwrap();
    let tags = repository.tags(&image("debian")).unwrap();
    let found: Vec<_> = tags.iter().map(|tag| (tag.name.as_str(), tag.version)).collect();
    assert_eq!(found, [("stable", 2), ("testing", 3)]);
    assert_eq!((tags[0].created.as_str(), tags[0].creator.as_str()), ("2026-11-20T14:00:00Z", "test"));

    assert_eq!(repository.remove(&reference("debian:stable"), &stamp()).unwrap(), Removed::Tag);
    assert_eq!(repository.resolve(&reference("debian:stable")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(repository.tags(&image("debian")).unwrap().len(), 1);
    repository.tag(&image("debian"), &tag("stable"), 1, &stamp()).unwrap();
    assert_eq!(repository.resolve(&reference("debian:stable")).unwrap().number, 1);
}

fn a_tagged_version_is_kept(place: &Place) {
    publish(&place.repository, "debian", 1);
    place.repository.tag(&image("debian"), &tag("stable"), 1, &stamp()).unwrap();
    let refused = place.repository.remove(&reference("debian@1"), &stamp()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(refused.to_string().contains("stable"), "{refused}");
    place.repository.remove(&reference("debian:stable"), &stamp()).unwrap();
    place.repository.remove(&reference("debian@1"), &stamp()).unwrap();
}

fn latest_is_the_newest_version(place: &Place) {
    publish(&place.repository, "debian", 1);
    publish(&place.repository, "debian", 2);
    assert_eq!(place.repository.resolve(&reference("debian:latest")).unwrap().number, 2);
    let refused = place.repository.tag(&image("debian"), &tag("latest"), 1, &stamp()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
}

/// Runs `work` in `count` threads that start together. Except in memory, every second thread has its own handle, like
/// another process.
fn race<R: Send>(place: &Place, count: usize, work: impl Fn(usize, &Repository) -> R + Sync) -> Vec<R> {
    let start = Barrier::new(count);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|at| {
                let (start, work) = (&start, &work);
                scope.spawn(move || {
                    let own = (at % 2 == 1).then(|| place.another()).flatten();
                    start.wait();
                    work(at, own.as_ref().unwrap_or(&place.repository))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn writers_race_for_numbers_and_all_win_one(place: &Place) {
    let (draft, _) = put_image(&place.repository, 1, 7);
    // Other handles see objects only after they are durable.
    place.repository.flush().unwrap();
    // The drafts are equal byte for byte: only the nonce distinguishes the records.
    let numbers = race(place, 16, |_, repository| {
        (0..4)
            .map(|_| repository.publish(&image("debian"), draft.clone()).unwrap().number)
            .collect::<Vec<_>>()
    });
    let mut numbers = numbers.concat();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=64).collect::<Vec<_>>());
    let nonces: BTreeSet<String> = (1..=64)
        .map(|number| place.repository.resolve(&reference(&format!("debian@{number}"))).unwrap().nonce)
        .collect();
    assert_eq!(nonces.len(), 64);
}

fn writers_race_for_a_tag_and_the_last_holds(place: &Place) {
    (1..=8).for_each(|seed| drop(publish(&place.repository, "debian", seed)));
    race(place, 8, |at, repository| {
        repository.tag(&image("debian"), &tag("stable"), at as u64 + 1, &stamp()).unwrap();
    });
    let held = place.repository.resolve(&reference("debian:stable")).unwrap().number;
    assert!((1..=8).contains(&held));
    assert!(place.repository.verify(&Scope::All, &NoProgress).unwrap().damaged.is_empty());
}

fn removers_race_and_one_wins(place: &Place) {
    publish(&place.repository, "debian", 1);
    publish(&place.repository, "debian", 2);
    let outcomes = race(place, 8, |_, repository| repository.remove(&reference("debian@1"), &stamp()));
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    for error in outcomes.into_iter().filter_map(Result::err) {
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}

fn a_prune_leaves_what_versions_need(place: &Place) {
    let repository = &place.repository;
    for (name, seed) in [("debian", 1), ("debian", 2), ("web", 1), ("web", 3)] {
        publish(repository, name, seed);
    }
    repository.remove(&reference("debian@2"), &stamp()).unwrap();
    repository.remove(&reference("web@1"), &stamp()).unwrap();
    // An object of an aborted capture, and a writer that may still be alive.
    let (orphan, bytes) = chunk(b"no version needs this");
    repository.put(&orphan, bytes).unwrap();
    repository.flush().unwrap();
    let idle = Writer::begin_without_heartbeat(repository, &stamp()).unwrap();
    let before = repository.verify(&Scope::All, &NoProgress).unwrap();
    assert!(before.unreferenced > 0);
    let options = PruneOptions { looks: 1, pause: Duration::ZERO, ..PruneOptions::default() };
    let dry = repository.prune_dry(&options, &Unseen).unwrap();
    let report = repository.prune(&options, &stamp(), &Unseen).unwrap();
    assert_eq!((dry.versions, dry.candidates.objects), (2, before.unreferenced));
    assert_eq!((report.deleted, report.candidates), (dry.candidates, dry.candidates));
    assert_eq!((report.versions, report.revoked), (2, 1));
    let after = repository.verify(&Scope::All, &NoProgress).unwrap();
    assert_eq!((after.versions, after.unreferenced), (2, 0));
    assert_eq!(after.damaged, []);
    // Deleted objects can be stored again, and version numbers continue.
    assert_eq!(idle.beat().unwrap_err().kind(), ErrorKind::Revoked);
    assert_eq!(publish(repository, "debian", 2).number, 3);
    let again = repository.prune(&options, &stamp(), &Unseen).unwrap();
    assert_eq!((again.deleted.objects, again.revoked), (0, 0));
    assert_eq!(repository.verify(&Scope::All, &NoProgress).unwrap().damaged, []);
}

/// Ignores events and never waits.
struct Unseen;

impl Overseer for Unseen {
    fn event(&self, _: &PruneEvent) {}
    fn pause(&self, _: Duration) {}
}

fn a_good_repository_verifies(place: &Place) {
    let (draft, chunks) = put_image(&place.repository, 1, 1000);
    place.repository.publish(&image("debian"), draft.clone()).unwrap();
    place.repository.publish(&image("clone"), draft).unwrap();
    place.repository.tag(&image("debian"), &tag("stable"), 1, &stamp()).unwrap();
    let report = place.repository.verify(&Scope::All, &NoProgress).unwrap();
    assert_eq!(report.damaged, []);
    // 1000 chunks have 4 leaf nodes and one node above them.
    assert_eq!((report.versions, report.objects), (2, chunks.len() as u64 + 5));
    assert_eq!((report.unreferenced, report.strangers), (0, 0));
    assert!(report.bytes > 4096 * chunks.len() as u64);
}

fn verify_of_one_version_looks_at_no_other(place: &Place) {
    publish(&place.repository, "debian", 1);
    let (draft, chunks) = put_image(&place.repository, 2, 4);
    place.repository.publish(&image("debian"), draft).unwrap();
    let report = place.repository.verify(&Scope::Version(reference("debian@2")), &NoProgress).unwrap();
    assert_eq!((report.versions, report.objects), (1, chunks.len() as u64 + 1));
}

#[test]
fn a_repository_is_made_once_and_opened_often() {
    let folder = tempfile::tempdir().unwrap();
    let location = store::Location::Folder(folder.path().join("a/b"));
    assert_eq!(Repository::open(&location).unwrap_err().kind(), ErrorKind::NotFound);
    let barrier = Arc::new(Barrier::new(8));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (location, barrier) = (location.clone(), Arc::clone(&barrier));
            std::thread::spawn(move || {
                barrier.wait();
                Repository::open_or_create(&location).unwrap().id().to_owned()
            })
        })
        .collect();
    let ids: BTreeSet<String> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(ids.len(), 1, "all opened the same");
    assert_eq!(Repository::create(&location).unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(Repository::open(&location).unwrap().id(), ids.first().unwrap());
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    assert!(Repository::open(&store::Location::Folder(file)).is_err());
}
