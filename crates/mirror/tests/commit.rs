//! Commits of running disks: onto their base, onto what others wrote, broken off and begun again.

#![allow(clippy::unwrap_used, reason = "tests fail by it")]
#![allow(clippy::cast_possible_truncation, reason = "images of tests fit memory")]

mod common;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use base::Chance;
use bytes::Bytes;
use common::{CHUNK, Place, options, stamp};
use image::{Cipher, Manifest, ObjectRef, ObjectSink, ObjectSource, Sealed};
use mirror::{Addition, CommitOptions, Depot, Durability, Error, ErrorKind, Mirror, Onto, Result, Served};
use store::{ImageName, Reference, Stamp};

const SIZE: u64 = 40 * CHUNK + 1536;

fn all(mirror: &Mirror) -> Vec<u8> {
    let mut bytes = vec![0; mirror.geometry().size_bytes as usize];
    mirror.read(0, &mut bytes).unwrap();
    bytes
}

fn disk(place: &Place, name: &str, of: &str) -> Mirror {
    Mirror::create(&place.path(name), &place.manifest(of), place.sources(), &options()).unwrap()
}

fn newest(stamp: &Stamp) -> CommitOptions<'_> {
    CommitOptions { onto: Onto::Newest, ..CommitOptions::new(stamp) }
}

/// Writes runs of sectors of which `owner` says whose they are, to `mirror` and to `expected`.
fn write(mirror: &Mirror, chance: &mut Chance, expected: &mut [Vec<u8>], owner: u64, owners: u64) {
    for _ in 0..30 {
        let sector = chance.below(SIZE / 512 / owners) * owners + owner;
        let mut bytes = [0; 512];
        chance.fill(&mut bytes);
        mirror.write(sector * 512, &bytes, Durability::Cached).unwrap();
        for content in &mut *expected {
            content[sector as usize * 512..][..512].copy_from_slice(&bytes);
        }
    }
}

#[test]
fn two_disks_of_one_base_merge_sector_by_sector_and_neither_sees_the_other() {
    let (place, stamp, image) = (Place::new(SIZE, 20), stamp(), "disk".parse().unwrap());
    let (one, two) = (disk(&place, "one", "disk"), disk(&place, "two", "disk"));
    let mut chance = Chance::from_seed(20);
    let (mut merged, mut of_two) = (place.content.clone(), place.content.clone());
    let read_before = chance.below(SIZE / 512) * 512;
    two.read(read_before, &mut [0; 512]).unwrap();
    write(&one, &mut chance, std::slice::from_mut(&mut merged), 0, 2);
    let mut both = [merged, of_two];
    write(&two, &mut chance, &mut both, 1, 2);
    [merged, of_two] = both;
    one.commit(&place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    let error = two.commit(&place.repository, &image, &CommitOptions::new(&stamp)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    let commit = two.commit(&place.repository, &image, &newest(&stamp)).unwrap().unwrap();
    assert!(!commit.is_base && commit.manifest.number == 4, "{commit:?}");
    assert_eq!(commit.manifest.parent.as_ref().map(|parent| parent.number), Some(3));
    assert!(place.read("disk@4") == merged);
    assert!(all(&two) == of_two, "what a guest sees never changes under it");
    assert_eq!(two.base().number, 2);
}

#[test]
fn who_changed_the_same_sectors_is_told_which() {
    let (place, stamp, image) = (Place::new(SIZE, 21), stamp(), "disk".parse().unwrap());
    let (one, two) = (disk(&place, "one", "disk"), disk(&place, "two", "disk"));
    one.write(5 * CHUNK, &[1; 4096], Durability::Cached).unwrap();
    two.write(5 * CHUNK + 2048, &[2; 4096], Durability::Cached).unwrap();
    one.commit(&place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    let error = two.commit(&place.repository, &image, &newest(&stamp)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    let text = base::fault::chain(&error);
    let range = format!("{} to {}", 5 * CHUNK + 2048, 5 * CHUNK + 4095);
    assert!(text.contains("disk@3") && text.contains("disk@2") && text.contains(&range), "{text}");
    assert_eq!(two.dirty_bytes(), 4096);
    let commit = two.commit(&place.repository, &"apart".parse().unwrap(), &newest(&stamp)).unwrap().unwrap();
    assert!(commit.is_base && commit.manifest.number == 1);
    assert!(place.read("apart") == all(&two));
}

#[test]
fn the_moment_of_a_commit_is_inside_of_what_is_done_around_it() {
    let (place, stamp, image) = (Place::new(SIZE, 22), stamp(), "moment".parse().unwrap());
    let mirror = disk(&place, "m", "disk");
    mirror.write(0, &[1; 512], Durability::Cached).unwrap();
    let refused = |_: &mut dyn FnMut() -> Result<()>| Err(Error::new(ErrorKind::Refused, "no guest agent"));
    let options = CommitOptions { moment: Some(&refused), ..CommitOptions::new(&stamp) };
    assert_eq!(mirror.commit(&place.repository, &image, &options).unwrap_err().kind(), ErrorKind::Refused);
    // It fails behind the moment: the guest could not be thawed.
    let stuck = |freeze: &mut dyn FnMut() -> Result<()>| {
        freeze()?;
        Err(Error::new(ErrorKind::Io, "the guest stays frozen"))
    };
    let options = CommitOptions { moment: Some(&stuck), ..CommitOptions::new(&stamp) };
    assert_eq!(mirror.commit(&place.repository, &image, &options).unwrap_err().kind(), ErrorKind::Io);
    let steps = Cell::new(0);
    let around = |freeze: &mut dyn FnMut() -> Result<()>| {
        // What a guest writes back as it is frozen is in the version, what it writes once it is thawed is not.
        mirror.write(512, &[2; 512], Durability::Durable).unwrap();
        steps.set(steps.get() + 1);
        freeze()?;
        mirror.write(1024, &[3; 512], Durability::Cached)
    };
    let options = CommitOptions { moment: Some(&around), ..CommitOptions::new(&stamp) };
    let commit = mirror.commit(&place.repository, &image, &options).unwrap().unwrap();
    assert_eq!((steps.get(), commit.dirty_bytes, mirror.dirty_bytes()), (1, 1024, 512));
    let bytes = place.read("moment");
    assert_eq!((bytes[0], bytes[512]), (1, 2));
    assert!(bytes[1024..1536] == place.content[1024..1536]);
}

/// A repository to which the way breaks before a version is published, as often as it is told.
struct Breaks<'a> {
    place: &'a Place,
    breaks: AtomicBool,
}

struct Broken<'a>(&'a dyn Addition, bool);

impl Depot for Breaks<'_> {
    fn version(&self, reference: &Reference) -> Result<Option<Sealed>> {
        self.place.repository.version(reference)
    }

    fn add(
        &self,
        stamp: &Stamp,
        work: &mut dyn FnMut(&dyn Addition) -> Result<Manifest>,
    ) -> Result<Manifest> {
        let breaks = self.breaks.swap(false, Ordering::Relaxed);
        self.place.repository.add(stamp, &mut |addition| work(&Broken(addition, breaks)))
    }
}

impl ObjectSource for Broken<'_> {
    fn fetch(&self, object: &ObjectRef) -> image::Result<Bytes> {
        self.0.fetch(object)
    }
}

impl ObjectSink for Broken<'_> {
    fn contains(&self, object: &ObjectRef) -> image::Result<bool> {
        self.0.contains(object)
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> image::Result<()> {
        self.0.put(object, bytes)
    }

    fn cipher(&self) -> Cipher {
        Cipher::None
    }
}

impl Addition for Broken<'_> {
    fn at_once(&self) -> usize {
        3
    }

    fn publish(&self, image: &ImageName, draft: Manifest, expected: u64) -> Result<Manifest> {
        match self.1 {
            true => Err(Error::new(ErrorKind::Unreachable, "nobody there")),
            false => self.0.publish(image, draft, expected),
        }
    }
}

#[test]
fn a_commit_that_broke_off_goes_on_where_it_was() {
    let (place, stamp, image) = (Place::new(SIZE, 23), stamp(), "disk".parse().unwrap());
    let mirror = disk(&place, "m", "disk");
    let mut bytes = vec![0; 12 * CHUNK as usize];
    Chance::from_seed(23).fill(&mut bytes);
    mirror.write(3 * CHUNK + 512, &bytes, Durability::Cached).unwrap();
    let depot = Breaks { place: &place, breaks: AtomicBool::new(true) };
    let error = mirror.commit(&depot, &image, &CommitOptions::new(&stamp)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(mirror.dirty_bytes(), bytes.len() as u64);
    // Of the chunks that it shares with what was sent nothing goes out again.
    mirror.write(3 * CHUNK + 512, &[1; 512], Durability::Cached).unwrap();
    let commit = mirror.commit(&depot, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    assert!(commit.stored_bytes < 2 * CHUNK, "{commit:?}");
    assert!(place.read("disk") == all(&mirror));
}
