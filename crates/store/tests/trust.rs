//! Writers rely only on good copies: a writer that has the bytes of a damaged object stores it again, whatever the
//! damage, and a good copy in any slot is found.

use std::fs;
use std::path::{Path, PathBuf};

use base::{ErrorKind, Result};
use image::{EncryptionKey, MemoryObjects, NoProgress, ObjectRef, ObjectSink, ObjectSource as _};
use lab::Engine;
use store::{Changes, Copier, Damage, Keys, Location, Piece, Repository, Scope, Shape, Why, Writer};

use crate::common::{
    self, Place, chunk_size, image, in_folder, in_s3, kind, put_encrypted, put_image, reference, stamp,
};

const CHUNKS: u64 = 700;

/// Kinds of damage to a file.
#[derive(Debug, Clone, Copy)]
enum Decay {
    Flipped,
    Emptied,
    CutShort,
    Longer,
    Folder,
}

const DECAYS: [Decay; 5] = [Decay::Flipped, Decay::Emptied, Decay::CutShort, Decay::Longer, Decay::Folder];

fn spoil(path: &Path, decay: Decay) {
    let mut bytes = fs::read(path).unwrap();
    match decay {
        Decay::Flipped => {
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
        }
        Decay::Emptied => bytes.clear(),
        Decay::CutShort => bytes.truncate(bytes.len() - 1),
        Decay::Longer => bytes.push(0),
        Decay::Folder => {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
            return fs::write(path.join("other"), "somebody's").unwrap();
        }
    }
    fs::write(path, bytes).unwrap();
}

/// The files of all objects below `folder`, ascending.
fn objects(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for kind in ["chunks", "nodes"] {
        for shelf in fs::read_dir(folder.join(kind)).unwrap() {
            found.extend(fs::read_dir(shelf.unwrap().path()).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    // Folders and files that were set aside have other names.
    found
        .retain(|path| !path.to_string_lossy().contains('#') && !path.to_string_lossy().contains(".damaged"));
    found.sort();
    found
}

fn path_of(folder: &Path, object: &ObjectRef) -> PathBuf {
    let hex = object.digest.to_hex();
    let kind = if object.kind == image::ObjectKind::Chunk { "chunks" } else { "nodes" };
    folder.join(kind).join(&hex[..2]).join(&hex)
}

fn damaged(repository: &Repository) -> Vec<Damage> {
    repository.verify(&Scope::All, &NoProgress).unwrap().damaged
}

/// A sink whose `contains` is called before `put`, as in captures that know the previous version.
struct Asked<'a>(&'a Writer);

impl ObjectSink for Asked<'_> {
    fn contains(&self, object: &ObjectRef) -> Result<bool> {
        self.0.contains(object)
    }

    fn put(&self, object: &ObjectRef, bytes: bytes::Bytes) -> Result<()> {
        if self.contains(object)? { Ok(()) } else { self.0.put(object, bytes) }
    }
}

fn capture(repository: &Repository, name: &str, asks: bool) {
    let writer = Writer::begin(repository, &stamp()).unwrap();
    let asked = Asked(&writer);
    let sink: &dyn ObjectSink = if asks { &asked } else { &writer };
    let (draft, _) = put_encrypted(sink, repository.cipher(), 1, CHUNKS);
    writer.publish(&image(name), draft).unwrap();
}

/// Damages every object of `repository`, whose files are in `folder`, in one of several ways, and captures the same
/// disk again.
fn decays_and_heals(repository: &Repository, folder: &Path, decays: &[Decay]) {
    capture(repository, "first", false);
    assert_eq!(damaged(repository), []);
    for asks in [false, true] {
        let files = objects(folder);
        for (at, path) in files.iter().enumerate() {
            spoil(path, decays[at % decays.len()]);
        }
        assert!(!damaged(repository).is_empty());
        let writer = Writer::begin(repository, &stamp()).unwrap();
        let (draft, chunks) = put_encrypted(&writer, repository.cipher(), 1, CHUNKS);
        // Also before the objects have their names.
        chunks.iter().for_each(|chunk| drop(repository.verified(chunk).unwrap()));
        writer.check_complete(&draft).unwrap();
        capture(repository, "second", asks);
        assert_eq!(damaged(repository), [], "asked: {asks}");
        assert_eq!(objects(folder), files);
    }
    let (_, chunks) = put_encrypted(repository, repository.cipher(), 1, CHUNKS);
    chunks.iter().for_each(|chunk| drop(repository.verified(chunk).unwrap()));
}

#[test]
fn what_rotted_is_written_anew_by_who_captures_the_same() {
    let place = in_folder();
    decays_and_heals(&place.repository, place.folder(), &DECAYS);
}

#[test]
fn what_rotted_in_an_encrypted_repository_is_sealed_anew() {
    let (folder, key) = (tempfile::tempdir().unwrap(), EncryptionKey::from_bytes([7; 32]));
    let location = Location::Folder(folder.path().join("repository"));
    let keys = Keys { encryption: Some(key.clone()), ..Keys::default() };
    let repository = Repository::create_sealed(&location, &key).unwrap().with_keys(keys).unwrap();
    decays_and_heals(&repository, &folder.path().join("repository"), &DECAYS);
}

#[test]
fn what_rotted_in_a_bucket_is_put_anew() {
    let Some(place) = in_s3(Engine::VersityGw) else { return };
    let common::Keeps::Gateway(gateway) = &place.keeps else { unreachable!("it is one") };
    let files = [Decay::Flipped, Decay::Emptied, Decay::CutShort];
    decays_and_heals(&place.repository, &gateway.folder().join("images/lab/first"), &files);
}

#[test]
fn without_unnamed_files_damaged_objects_are_replaced_as_well() {
    let place = common::Records::default();
    let repository = place.open(Keys::default());
    capture(&repository, "first", false);
    let is_object = |path: &&String| path.starts_with("chunks/") || path.starts_with("nodes/");
    for path in place.paths().iter().filter(is_object) {
        let mut bytes = place.read(path).to_vec();
        bytes[0] ^= 1;
        place.write(path, bytes.into());
    }
    assert!(!damaged(&repository).is_empty());
    capture(&repository, "second", true);
    assert_eq!(damaged(&repository), []);
}

#[test]
fn a_good_copy_in_any_slot_is_used_and_every_bad_one_is_told_and_healed() {
    let place = in_folder();
    let repository = &place.repository;
    capture(repository, "disk", false);
    let (_, chunks) = put_image(&MemoryObjects::new(), 1, CHUNKS);
    let files = objects(place.folder());
    for (at, path) in files.iter().enumerate() {
        let copy = path.with_extension(if at % 2 == 0 { "7" } else { "2" });
        fs::copy(path, &copy).unwrap();
        spoil(if at % 3 == 0 { &copy } else { path }, Decay::Flipped);
    }
    chunks.iter().for_each(|chunk| drop(repository.verified(chunk).unwrap()));
    let found = damaged(repository);
    assert_eq!(found.len(), files.len());
    for (at, path) in files.iter().enumerate() {
        let slot = if at % 2 == 0 { "7" } else { "2" };
        let bad = if at % 3 == 0 { path.with_extension(slot) } else { path.clone() };
        let bad = bad.strip_prefix(place.folder()).unwrap().to_str().unwrap().to_owned();
        let damage = found.iter().find(|damage| damage.path == bad).unwrap();
        assert_eq!((damage.why, damage.versions.len()), (Why::Corrupt, 0), "{damage:?}");
    }
    let one = repository.verify(&Scope::Version(reference("disk@1")), &NoProgress).unwrap();
    assert!(one.damaged.iter().all(|damage| damage.versions.is_empty()), "it can be installed");
    // Repaired from the good copies here: the other repository is empty.
    let other = in_folder();
    let report = repository.repair(&Scope::All, Some(&other.repository), &stamp(), &NoProgress).unwrap();
    assert_eq!((report.healed.len(), report.verified.damaged), (files.len(), Vec::new()));
    assert_eq!(damaged(repository), []);
}

#[test]
fn an_object_without_any_good_copy_is_damage_of_its_versions() {
    let place = in_folder();
    capture(&place.repository, "disk", false);
    let (_, chunks) = put_image(&MemoryObjects::new(), 1, CHUNKS);
    let path = path_of(place.folder(), &chunks[3]);
    fs::copy(&path, path.with_extension("1")).unwrap();
    spoil(&path, Decay::Flipped);
    spoil(&path.with_extension("1"), Decay::CutShort);
    let found = damaged(&place.repository);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].versions, [reference("disk@1")]);
    assert_eq!(place.repository.fetch(&chunks[3]).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_write_that_changes_nothing_keeps_no_damaged_chunk() {
    let place = in_folder();
    let blob = place.repository.blob(&image("disk"));
    let size = u64::from(chunk_size().bytes());
    let shape = Shape { size_bytes: 8 * size, chunk: chunk_size(), logical_sector_bytes: 512 };
    blob.create(&shape, &stamp()).unwrap();
    let content: Vec<u8> = (0..8 * size).map(|at| (at / 100).to_le_bytes()[0]).collect();
    blob.write(0, &content, &stamp()).unwrap();
    let chunks: Vec<_> = objects(place.folder())
        .into_iter()
        .filter(|path| path.to_string_lossy().contains("/chunks/"))
        .collect();
    chunks.iter().for_each(|path| spoil(path, Decay::Flipped));
    // A new handle, with empty caches.
    let repository = place.another().unwrap();
    let whole = 0..8 * size;
    let piece = Piece { offset: 0, bytes: &content };
    let changes = Changes { written: std::slice::from_ref(&whole), content: &piece, freed: &[] };
    repository.blob(&image("disk")).commit(&changes, None, &stamp()).unwrap();
    assert_eq!(damaged(&repository), []);
    // A partial write needs the old content, and fails.
    chunks.iter().for_each(|path| spoil(path, Decay::Flipped));
    let repository = place.another().unwrap();
    let failed = repository.blob(&image("disk")).write(5, b"some", &stamp());
    assert_eq!(kind(failed), Err(ErrorKind::Corrupt));
}

#[test]
fn a_copy_puts_right_what_is_damaged_where_it_goes() {
    let (from, to): (Place, Place) = (in_folder(), in_folder());
    capture(&from.repository, "disk", false);
    Copier::new(&from.repository, &to.repository, &image("disk"))
        .unwrap()
        .copy(&reference("disk@1"))
        .unwrap();
    objects(to.folder()).iter().for_each(|path| spoil(path, Decay::Flipped));
    Copier::new(&from.repository, &to.repository, &image("same"))
        .unwrap()
        .copy(&reference("disk@1"))
        .unwrap();
    assert_eq!(damaged(&to.repository), []);
}
