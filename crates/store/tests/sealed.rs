//! Encrypted repositories: what needs the key, what can be checked without it, and what the owner of the bucket can't
//! do.

use std::sync::Arc;
use std::time::Duration;

use base::ErrorKind;
use bytes::Bytes;
use futures::TryStreamExt as _;
use futures::executor::block_on;
use image::{
    Catalogue, EncryptionKey, MemoryObjects, NoProgress, ObjectKind, ObjectRef, ObjectSink as _, Trust,
};
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt as _};
use store::{
    Copier, Keys, Location, Overseer, PruneEvent, PruneOptions, Repository, Scope, Shape, Stamp, Why, Writer,
};

use crate::common::{Records, image, kind, publish, put_encrypted, put_image, reference, stamp, version};

fn key(seed: u8) -> EncryptionKey {
    EncryptionKey::from_bytes([seed; 32])
}

fn keys(seed: u8) -> Keys {
    Keys { encryption: Some(key(seed)), ..Keys::default() }
}

/// An encrypted repository with a version of `debian` and one of `web`, a tag, and a tombstone.
struct Bucket(Records);

impl Bucket {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::Folder(folder.path().to_owned());
        let repository = Repository::create_sealed(&location, &key(1)).unwrap();
        publish(&repository, "debian", 1);
        publish(&repository, "debian", 2);
        publish(&repository, "web", 1);
        publish(&repository, "web", 3);
        repository.tag(&image("debian"), &"stable".parse().unwrap(), 1, &stamp()).unwrap();
        repository.tag(&image("debian"), &"edge".parse().unwrap(), 2, &stamp()).unwrap();
        repository.remove(&reference("web@1"), &stamp()).unwrap();
        // Copied into memory, where the test can change records.
        let (from, to) =
            (object_store::local::LocalFileSystem::new_with_prefix(folder.path()).unwrap(), InMemory::new());
        for record in block_on(from.list(None).try_collect::<Vec<_>>()).unwrap() {
            let bytes = block_on(async { from.get(&record.location).await.unwrap().bytes().await.unwrap() });
            block_on(to.put(&record.location, bytes.into())).unwrap();
        }
        Self(Records(Arc::new(to)))
    }

    fn locked(&self) -> Repository {
        self.0.open(Keys::default())
    }

    fn open(&self) -> Repository {
        self.0.open(keys(1))
    }

    /// Checks that no record except `format` contains any of `words`.
    fn says_nothing_of(&self, words: &[&[u8]]) {
        for path in self.0.paths() {
            let bytes = self.0.read(&path);
            for &word in words {
                assert!(!bytes.windows(word.len()).any(|window| window == word), "`{path}` says {word:?}");
            }
        }
    }
}

fn damaged(repository: &Repository) -> Vec<(String, Why)> {
    let report = repository.verify(&Scope::All, &NoProgress).unwrap();
    report.damaged.into_iter().map(|damage| (damage.path, damage.why)).collect()
}

#[test]
fn what_was_sealed_comes_back_with_the_key_and_shows_nothing_without() {
    let bucket = Bucket::new();
    let repository = bucket.open();
    for name in ["debian", "debian@1", "debian:stable", "web@2"] {
        let manifest = repository.resolve(&reference(name)).unwrap();
        assert_eq!(manifest.cipher, "aes-256-gcm-siv");
        let catalogue = Catalogue::load(&manifest, &repository, repository.cipher()).unwrap();
        assert!(
            catalogue.heads() > 0
                && catalogue.objects().iter().all(|object| repository.contains(object).unwrap())
        );
    }
    let grown = repository.blob(&image("grown"));
    grown.create(&Shape::default(), &stamp()).unwrap();
    let appended =
        [grown.append(&[7; 512], &stamp()).unwrap().0, grown.append(&[8; 512], &stamp()).unwrap().0];
    assert_eq!(appended[1] - appended[0], 512, "reservations are read again");
    assert_eq!(damaged(&repository), []);
    bucket.says_nothing_of(&[b"2026-11-20", b"root", b"seed", b"debian", b"manifest\":"]);
}

#[test]
fn equal_content_is_stored_once_and_not_under_the_name_that_others_would_give_it() {
    let folder = tempfile::tempdir().unwrap();
    let sealed = |name: &str, seed| {
        let location = Location::Folder(folder.path().join(name));
        Repository::create_sealed(&location, &key(seed)).unwrap()
    };
    let (one, again, other) = (sealed("a", 1), sealed("b", 1), sealed("c", 2));
    let names = |repository: &Repository| put_encrypted(repository, repository.cipher(), 7, 7).1;
    assert_eq!(names(&one), names(&one));
    assert_eq!(names(&one), names(&again), "one key is one space of names");
    assert!(names(&one).iter().zip(names(&other)).all(|(one, other)| one.digest != other.digest));
    let plain = put_image(&MemoryObjects::new(), 7, 7).1;
    assert!(names(&one).iter().zip(plain).all(|(one, plain)| one.digest != plain.digest));
}

#[test]
fn the_wrong_key_is_told_at_once_and_no_key_is_no_way_to_write_in_the_clear() {
    let bucket = Bucket::new();
    assert_eq!(kind(bucket.locked().with_keys(keys(2))), Err(ErrorKind::Refused));
    let locked = bucket.locked();
    assert!(locked.is_locked());
    for name in ["debian", "debian@1", "debian:stable"] {
        assert_eq!(kind(locked.resolve(&reference(name))), Err(ErrorKind::Refused), "{name}");
    }
    let object = Bytes::from_static(b"in the clear");
    let name = ObjectRef::of(ObjectKind::Chunk, &object);
    for repository in [&locked, &bucket.open()] {
        let refused = repository.put(&name, object.clone()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused);
    }
    let open = bucket.open();
    let (draft, _) = put_encrypted(&open, open.cipher(), 9, 7);
    assert_eq!(kind(locked.publish(&image("debian"), draft)), Err(ErrorKind::Refused));
    let tagged = locked.tag(&image("debian"), &"new".parse().unwrap(), 1, &stamp());
    assert_eq!(kind(tagged), Err(ErrorKind::Refused));
    assert_eq!(kind(locked.remove(&reference("debian@2"), &stamp())), Err(ErrorKind::Refused));

    // The owner of the bucket replaces `format` with that of a repository without encryption.
    let plain = Bucket(Records::default());
    plain.locked();
    bucket.0.write("format", plain.0.read("format"));
    assert_eq!(kind(bucket.locked().with_keys(keys(1))), Err(ErrorKind::Refused));
    assert_eq!(kind(bucket.locked().resolve(&reference("debian"))), Err(ErrorKind::Refused));
}

#[test]
fn half_a_description_of_the_cipher_is_no_description() {
    let bucket = Bucket::new();
    let text = String::from_utf8(bucket.0.read("format").to_vec()).unwrap();
    let line = text.lines().next().unwrap();
    for (from, to, expected) in [
        ("\"cipher\":\"aes-256-gcm-siv\"", "\"cipher\":\"rot13\"", ErrorKind::Unsupported),
        ("\"cipher\":\"aes-256-gcm-siv\",", "", ErrorKind::Corrupt),
        ("\"critical\":[\"cipher\"],", "", ErrorKind::Unsupported),
        ("\"key_check\"", "\"key_cheque\"", ErrorKind::Unsupported),
        ("\"critical\":[\"cipher\"]", "\"critical\":[\"cipher\",\"tea\"]", ErrorKind::Unsupported),
    ] {
        assert!(line.contains(from), "{line}");
        let line = line.replace(from, to);
        let text = format!("{line}\nblake3 {}\n", base::Digest::of(line.as_bytes()));
        bucket.0.write("format", text.into());
        assert_eq!(kind(Repository::over(bucket.0.0.clone(), "memory")), Err(expected), "{line}");
    }
}

#[test]
fn without_the_key_names_and_checksums_are_still_verified() {
    let bucket = Bucket::new();
    let report = bucket.locked().verify(&Scope::All, &NoProgress).unwrap();
    assert_eq!((report.versions, report.damaged, report.unreferenced), (3, Vec::new(), 0));
    assert_eq!(report.objects, bucket.open().verify(&Scope::All, &NoProgress).unwrap().objects);
    for path in bucket.0.paths() {
        // A tombstone counts even if damaged, its version does not matter any more, only prunes read logs of leases,
        // and the reserve only takes space.
        let matters =
            !["format", "removed/", "leases/", "reserve"].iter().any(|folder| path.starts_with(folder));
        if !matters || path == version("web", 1) {
            continue;
        }
        let good = bucket.0.read(&path);
        for at in [0, good.len() / 2, good.len() - 1] {
            let mut bad = good.to_vec();
            bad[at] ^= 1;
            bucket.0.write(&path, bad.into());
            assert_eq!(damaged(&bucket.locked()).len(), 1, "`{path}`, byte {at}");
            assert!(!damaged(&bucket.open()).is_empty(), "`{path}`, byte {at}");
        }
        bucket.0.write(&path, good.slice(..good.len() - 1));
        assert!(!damaged(&bucket.locked()).is_empty() && !damaged(&bucket.open()).is_empty(), "`{path}` cut");
        bucket.0.write(&path, good);
    }
    assert_eq!((damaged(&bucket.locked()), damaged(&bucket.open())), (Vec::new(), Vec::new()));
}

#[test]
fn a_prune_needs_the_key_and_its_records_say_nothing() {
    let bucket = Bucket::new();
    let options = PruneOptions { looks: 1, pause: Duration::ZERO, ..PruneOptions::default() };
    let who = Stamp { creator: "somebody@pruner".to_owned(), ..stamp() };
    assert_eq!(kind(bucket.locked().prune(&options, &who, &Hasty(None))), Err(ErrorKind::Refused));
    let repository = bucket.open();
    publish(&repository, "web", 4);
    repository.remove(&reference("web@3"), &stamp()).unwrap();
    // Neither during the prune, when its records and those of a writer exist, nor after it.
    let _idle = Writer::begin_without_heartbeat(&repository, &who).unwrap();
    let report = repository.prune(&options, &who, &Hasty(Some(&bucket))).unwrap();
    assert!(report.deleted.objects > 0 && report.revoked == 1, "{report:?}");
    bucket.says_nothing_of(&[b"somebody", b"2026-", b"begin", b"debian"]);
    assert_eq!(damaged(&bucket.open()), []);
    assert_eq!(bucket.open().verify(&Scope::All, &NoProgress).unwrap().unreferenced, 0);
}

/// Never waits, and checks the bucket at each event.
struct Hasty<'a>(Option<&'a Bucket>);

impl Overseer for Hasty<'_> {
    fn event(&self, _: &PruneEvent) {
        self.0
            .iter()
            .for_each(|bucket| bucket.says_nothing_of(&[b"somebody", b"2026-", b"begin", b"debian"]));
    }

    fn pause(&self, _: Duration) {}
}

#[test]
fn records_that_are_swapped_are_noticed() {
    let bucket = Bucket::new();
    let tag = |name: &str| format!("tags/debian/{name}/{:020}", 1);
    let pairs = [
        (version("debian", 1), version("debian", 2), "debian@1"),
        (version("debian", 2), version("web", 2), "web@2"),
        (tag("stable"), tag("edge"), "debian:stable"),
    ];
    for (one, other, name) in pairs {
        let (first, second) = (bucket.0.read(&one), bucket.0.read(&other));
        bucket.0.write(&one, second.clone());
        bucket.0.write(&other, first.clone());
        assert_eq!(kind(bucket.open().resolve(&reference(name))), Err(ErrorKind::Corrupt), "{name}");
        let found = damaged(&bucket.open());
        // A tag belongs to the folder of its moves. Tags of versions that were exchanged are damaged too.
        let is_named = |path: &str| found.iter().any(|(damaged, _)| path.starts_with(damaged.as_str()));
        assert!(is_named(&one) && is_named(&other), "{name}: {found:?}");
        bucket.0.write(&one, first);
        bucket.0.write(&other, second);
    }
    let chunks: Vec<_> = bucket.0.paths().into_iter().filter(|path| path.starts_with("chunks/")).collect();
    let (first, second) = (bucket.0.read(&chunks[0]), bucket.0.read(&chunks[1]));
    bucket.0.write(&chunks[0], second);
    bucket.0.write(&chunks[1], first);
    assert_eq!(damaged(&bucket.locked()).len(), 2);
    assert_eq!(damaged(&bucket.open()).len(), 2);
}

#[test]
fn what_was_made_elsewhere_is_damage_however_well_it_is_made() {
    let (bucket, other) = (Bucket::new(), Bucket::new());
    // A foreign repository with the same names: its records are encrypted with another key.
    let elsewhere = Repository::create_sealed(&Location::Memory, &key(2)).unwrap();
    let manifest = publish(&elsewhere, "debian", 5);
    let (_, stranger) = elsewhere.look(&reference("debian@1")).unwrap();
    bucket.0.write(&version("debian", 2), stranger);
    assert_eq!(kind(bucket.open().resolve(&reference("debian"))), Err(ErrorKind::Corrupt));
    // The same record, not encrypted.
    bucket.0.write(&version("debian", 2), manifest.encode(None).unwrap());
    assert_eq!(kind(bucket.open().resolve(&reference("debian"))), Err(ErrorKind::Corrupt));
    let text = "{\"record\":\"tag\",\"version\":1,\"image\":\"debian\",\"tag\":\"stable\",\"number\":2,\"target\":null,\
                \"created\":\"\",\"creator\":\"\",\"nonce\":\"\"}";
    let record = format!("{text}\nblake3 {}\n", base::Digest::of(text.as_bytes()));
    other.0.write(&format!("tags/debian/stable/{:020}", 2), record.into());
    assert_eq!(kind(other.open().resolve(&reference("debian:stable"))), Err(ErrorKind::Corrupt));
}

#[test]
fn a_sealed_tag_is_read_from_its_record_with_the_key() {
    let bucket = Bucket::new();
    let (debian, stable) = (image("debian"), "stable".parse().unwrap());
    let sign = Some(image::SigningKey::from_bytes(&[7; 32]));
    let mut trust = Trust::default();
    trust.add(sign.as_ref().unwrap().into(), "");
    let repository = bucket.locked().with_keys(Keys { sign, ..keys(1) }).unwrap();
    repository.tag(&debian, &stable, 2, &stamp()).unwrap();
    let record = repository.tag_record(&debian, &stable).unwrap();
    let read = |place: &Repository| {
        place
            .judged_by(&trust, |judge| judge.tag(&debian, &stable, record.clone()))
            .map(|moved| moved.version)
    };
    assert_eq!(read(&repository).unwrap(), 2);
    assert_eq!(kind(read(&bucket.locked())), Err(ErrorKind::Refused));
    assert_eq!(kind(read(&Repository::create(&Location::Memory).unwrap())), Err(ErrorKind::Refused));
}

#[test]
fn copies_are_sealed_as_their_repository_is_and_sent_once() {
    let folder = tempfile::tempdir().unwrap();
    let location = |name: &str| Location::Folder(folder.path().join(name));
    let plain = Repository::create(&location("plain")).unwrap();
    publish(&plain, "debian", 1);
    publish(&plain, "debian", 2);
    let copy = |from: &Repository, to: &Repository| {
        let mut copier = Copier::new(from, to, &image("debian")).unwrap();
        ["debian@1", "debian@2"].map(|name| copier.copy(&reference(name)).unwrap())
    };
    let one = Repository::create_sealed(&location("one"), &key(1)).unwrap();
    let other = Repository::create_sealed(&location("other"), &key(2)).unwrap();
    let again = Repository::create_sealed(&location("again"), &key(1)).unwrap();
    let back = Repository::create(&location("back")).unwrap();
    for (from, to) in [(&plain, &one), (&one, &other), (&one, &again), (&other, &back)] {
        let reports = copy(from, to);
        assert!(reports.iter().all(|report| !report.known && report.objects > 0));
        assert_eq!(damaged(to), []);
        assert!(copy(from, to).iter().all(|report| report.known));
        let clear = plain.resolve(&reference("debian@2")).unwrap();
        let there = to.resolve(&reference("debian@2")).unwrap();
        assert_eq!(there.cipher, to.cipher().name());
        let plain_digests = |repository: &Repository, manifest: &image::Manifest| -> Vec<_> {
            let catalogue = Catalogue::load(manifest, repository, repository.cipher()).unwrap();
            let leaves = catalogue.leaves().map(Result::unwrap);
            leaves
                .map(|run| {
                    (
                        run.first,
                        run.count,
                        match run.leaf {
                            image::Leaf::Data(_, chunk) => Some(chunk.plain),
                            _ => None,
                        },
                    )
                })
                .collect()
        };
        assert_eq!(plain_digests(&plain, &clear), plain_digests(to, &there), "the same content");
    }
    let root = |repository: &Repository| repository.resolve(&reference("debian@2")).unwrap().root;
    assert_eq!(root(&plain), root(&back), "there and back is the same tree");
    assert_eq!(root(&one), root(&again), "under one key objects go as they are");
    assert_ne!(root(&one), root(&other));
}

#[test]
fn an_encrypted_image_is_written_in_place_and_cloned() {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::Folder(folder.path().to_owned());
    let repository = Repository::create_sealed(&location, &key(1)).unwrap();
    let blob = repository.blob(&image("disk"));
    let shape = Shape { size_bytes: 64 << 20, ..Shape::default() };
    blob.create(&shape, &stamp()).unwrap();
    let (first, second) = (vec![0xA5; 300_000], vec![0x5A; 70_000]);
    blob.write(1_000_000, &first, &stamp()).unwrap();
    blob.write(1_100_000, &second, &stamp()).unwrap();
    repository.blob(&image("twin")).clone_from(&reference("disk@3"), &stamp()).unwrap();
    drop(repository);
    let repository = Repository::open(&location).unwrap().with_keys(keys(1)).unwrap();
    assert_eq!(damaged(&repository), []);
    let mut expected = first;
    expected[100_000..170_000].copy_from_slice(&second);
    let mut read = vec![0; expected.len()];
    repository.snapshot(&reference("twin")).unwrap().read(1_000_000, &mut read).unwrap();
    assert!(read == expected);
    assert!(repository.usage().unwrap().shared_bytes > 0);
    assert_eq!(damaged(&Repository::open(&location).unwrap()), []);
}
