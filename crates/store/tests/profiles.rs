//! Boot profiles: stored, merged, inherited by clones, copied with versions, pruned, and harmless if damaged.

use std::time::Duration;

use base::ErrorKind;
use bytes::Bytes;
use image::EncryptionKey;
use store::{Copier, Keys, Overseer, Profile, PruneEvent, PruneOptions, Repository};

use crate::common::{Records, image, kind, publish, put_little, reference, stamp};

struct Quiet;

impl Overseer for Quiet {
    fn event(&self, _: &PruneEvent) {}
    fn pause(&self, _: Duration) {}
}

fn prune(repository: &Repository) {
    let options = PruneOptions { looks: 1, pause: Duration::ZERO, window: 8 };
    repository.prune(&options, &stamp(), &Quiet).unwrap();
}

fn add(repository: &Repository, name: &str, version: u64, chunks: &[u64]) -> Profile {
    repository.add_profile(&image(name), version, chunks, &stamp()).unwrap()
}

fn order(repository: &Repository, name: &str, version: u64) -> Option<Vec<u64>> {
    repository.profile(&image(name), version).unwrap().map(|found| found.order())
}

fn path(name: &str, number: u64) -> String {
    format!("profiles/{name}/{number:020}")
}

/// The record with a corrected digest, as an attacker would write it.
fn forged(record: &str) -> Bytes {
    format!("{record}\nblake3 {}\n", base::Digest::of(record.as_bytes())).into()
}

#[test]
fn boots_are_merged_and_versions_share_what_they_tell() {
    let records = Records::default();
    let repository = records.open(Keys::default());
    publish(&repository, "web", 1);
    assert_eq!(order(&repository, "web", 1), None);
    let first = add(&repository, "web", 1, &[5, 6, 2, 5]);
    assert_eq!((first.number, first.boots, first.order()), (1, 1, vec![5, 6, 2]));
    let second = add(&repository, "web", 1, &[5, 6, 2, 3]);
    assert_eq!((second.number, second.boots, second.version), (2, 2, 1));
    // The next version has the same profile.
    publish(&repository, "web", 2);
    assert_eq!(order(&repository, "web", 2), Some(vec![5, 6, 2, 3]));
    assert_eq!(repository.profile(&image("web"), 2).unwrap().unwrap(), second);
    assert_eq!(add(&repository, "web", 2, &[5]).version, 2);
    // A version with another chunk size has no profile.
    let (mut draft, _) = put_little(&repository, repository.cipher(), 3, 7);
    draft.chunk_bytes *= 2;
    draft.size_sectors *= 2;
    draft.origin.disk_sectors *= 2;
    repository.publish(&image("web"), draft).unwrap();
    assert_eq!(order(&repository, "web", 3), None);
    assert_eq!(add(&repository, "web", 3, &[1]).boots, 1);
    assert_eq!(order(&repository, "web", 2), Some(vec![5, 6, 2]));
    for (name, version) in [("web", 9), ("nobody", 1)] {
        let found = repository.profile(&image(name), version);
        assert_eq!(kind(found), Err(ErrorKind::NotFound));
        let added = repository.add_profile(&image(name), version, &[1], &stamp());
        assert_eq!(kind(added), Err(ErrorKind::NotFound));
    }
    let nothing = repository.add_profile(&image("web"), 1, &[u64::MAX], &stamp());
    assert_eq!(kind(nothing), Err(ErrorKind::Invalid));
    assert_eq!(records.paths().iter().filter(|path| path.starts_with("profiles/")).count(), 4);
}

#[test]
fn many_who_add_at_once_lose_no_record() {
    let records = Records::default();
    let repository = records.open(Keys::default());
    publish(&repository, "web", 1);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..3).for_each(|_| drop(add(&repository, "web", 1, &[1, 2]))));
        }
    });
    let newest = repository.profile(&image("web"), 1).unwrap().unwrap();
    assert_eq!((newest.number, newest.order()), (24, vec![1, 2]));
}

#[test]
fn clones_inherit_until_they_have_their_own() {
    let repository = Records::default().open(Keys::default());
    publish(&repository, "base", 1);
    add(&repository, "base", 1, &[4, 5]);
    let mut from = "base@1".to_owned();
    for name in ["one", "two", "three"] {
        repository.blob(&image(name)).clone_from(&reference(&from), &stamp()).unwrap();
        assert_eq!(order(&repository, name, 1), Some(vec![4, 5]), "{name}");
        from = format!("{name}@1");
    }
    repository.blob(&image("three")).write(0, &[7; 512], &stamp()).unwrap();
    assert_eq!(order(&repository, "three", 2), Some(vec![4, 5]));
    // Its own boots are added to the inherited profile, and do not change that of the original.
    let own = add(&repository, "three", 2, &[4, 5, 6]);
    assert_eq!((own.number, own.boots, own.order()), (1, 2, vec![4, 5, 6]));
    assert_eq!(order(&repository, "two", 1), Some(vec![4, 5]));
    // After the original is removed, its clone still inherits the profile, until a prune deletes it.
    repository.remove(&reference("base@1"), &stamp()).unwrap();
    assert_eq!(order(&repository, "one", 1), Some(vec![4, 5]));
    repository.remove_profile(&image("one"), 1, &stamp()).unwrap();
    assert_eq!((order(&repository, "one", 1), order(&repository, "two", 1)), (None, None));
    assert_eq!(kind(repository.remove_profile(&image("one"), 1, &stamp())), Err(ErrorKind::NotFound));
    assert_eq!(add(&repository, "one", 1, &[9]).boots, 1);
}

#[test]
fn a_prune_leaves_the_newest_of_images_that_are_there() {
    let records = Records::default();
    let repository = records.open(Keys::default());
    for name in ["web", "gone"] {
        publish(&repository, name, 1);
        (0..6).for_each(|_| drop(add(&repository, name, 1, &[1, 2])));
    }
    records.write("profiles/web/stranger", Bytes::from_static(b"what is this?"));
    repository.remove(&reference("gone@1"), &stamp()).unwrap();
    prune(&repository);
    let mut left: Vec<String> =
        records.paths().into_iter().filter(|path| path.starts_with("profiles/")).collect();
    left.sort();
    let kept: Vec<String> = (3..=6).map(|number| path("web", number)).collect();
    assert_eq!(left, [kept, vec!["profiles/web/stranger".to_owned()]].concat());
    assert_eq!(add(&repository, "web", 1, &[1, 2]).number, 7);
}

#[test]
fn a_copy_takes_the_profile_along() {
    let (one, other) = (Records::default().open(Keys::default()), Records::default());
    publish(&one, "web", 1);
    publish(&one, "web", 2);
    add(&one, "web", 2, &[3, 1]);
    let key = Keys { encryption: Some(EncryptionKey::from_bytes([1; 32])), ..Keys::default() };
    for to in [other.open(Keys::default()), sealed(&key)] {
        let name = image("copy");
        Copier::new(&one, &to, &name).unwrap().copy(&reference("web@1")).unwrap();
        let found = to.profile(&name, 1).unwrap().unwrap();
        assert_eq!((found.version, found.order()), (1, vec![3, 1]));
        // An existing profile is not replaced.
        add(&to, "copy", 1, &[8, 9]);
        let before = to.profile(&name, 1).unwrap();
        Copier::new(&one, &to, &name).unwrap().copy(&reference("web@2")).unwrap();
        assert_eq!(to.profile(&name, 1).unwrap(), before);
    }
}

fn sealed(keys: &Keys) -> Repository {
    let key = keys.encryption.as_ref().unwrap();
    Repository::create_sealed(&store::Location::Memory, key).unwrap().with_keys(keys.clone()).unwrap()
}

#[test]
fn profiles_are_sealed_where_everything_is() {
    let folder = tempfile::tempdir().unwrap();
    let location = store::Location::Folder(folder.path().to_owned());
    let key = EncryptionKey::from_bytes([1; 32]);
    let repository = Repository::create_sealed(&location, &key).unwrap();
    publish(&repository, "web", 1);
    add(&repository, "web", 1, &[1, 2, 3]);
    let stored = std::fs::read_to_string(folder.path().join(path("web", 1))).unwrap();
    assert!(stored.contains(r#""record":"sealed""#) && !stored.contains("runs"), "{stored}");
    assert_eq!(order(&repository, "web", 1), Some(vec![1, 2, 3]));
    let locked = Repository::open(&location).unwrap();
    assert_eq!(kind(locked.profile(&image("web"), 1)), Err(ErrorKind::Refused));
}

#[test]
fn a_damaged_profile_is_an_error_and_the_next_boot_heals_it() {
    let records = Records::default();
    let repository = records.open(Keys::default());
    publish(&repository, "web", 1);
    add(&repository, "web", 1, &[1, 2]);
    let good = String::from_utf8(records.read(&path("web", 1)).to_vec()).unwrap();
    let line = good.lines().next().unwrap();
    let runs = r#""runs":[[1,2,1]]"#;
    assert!(line.contains(runs), "{line}");
    let many = format!(r#""runs":[{}[0,1,1]]"#, "[7,4294967295,1],".repeat(3));
    for bad in [
        r#""runs":[[1,0,1]]"#,
        r#""runs":[[1,2,0]]"#,
        r#""runs":[[1,2,2]]"#,
        r#""runs":[[1,2,1],[2,1,1]]"#,
        r#""runs":[[18446744073709551615,2,1]]"#,
        r#""runs":[[281474976710655,2,1]]"#,
        r#""runs":[[1,4294967295,1]]"#,
        r#""runs":[[1,2,256]]"#,
        r#""runs":[]"#,
        &many,
    ] {
        records.write(&path("web", 1), forged(&line.replace(runs, bad)));
        assert_eq!(kind(repository.profile(&image("web"), 1)), Err(ErrorKind::Corrupt), "{bad}");
    }
    for (was, is) in [
        (r#""boots":1"#, r#""boots":9"#),
        (r#""boots":1"#, r#""boots":0"#),
        (r#""number":1"#, r#""number":2"#),
        (r#""image":"web""#, r#""image":"bew""#),
    ] {
        records.write(&path("web", 1), forged(&line.replace(was, is)));
        assert_eq!(kind(repository.profile(&image("web"), 1)), Err(ErrorKind::Corrupt), "{is}");
    }
    records.write(&path("web", 1), vec![b' '; 2 << 20].into());
    assert_eq!(kind(repository.profile(&image("web"), 1)), Err(ErrorKind::Corrupt));
    let healed = add(&repository, "web", 1, &[3]);
    assert_eq!((healed.number, healed.boots, healed.order()), (2, 1, vec![3]));
}
