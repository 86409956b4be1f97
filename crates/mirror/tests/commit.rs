//! Commits of running disks: onto their base, onto what others wrote, broken off and begun again.

#![allow(clippy::unwrap_used, reason = "tests fail by it")]
#![allow(clippy::cast_possible_truncation, reason = "images of tests fit memory")]

mod common;

use std::cell::Cell;
use std::sync::Mutex;

use base::Chance;
use bytes::Bytes;
use common::{CHUNK, Place, all, options, stamp};
use image::{Cipher, Manifest, ObjectRef, ObjectSink, ObjectSource, Sealed};
use mirror::{Addition, CommitOptions, Depot, Durability, Error, ErrorKind, Mirror, Onto, Result, Served};
use store::{ImageName, Reference, Stamp};

const SIZE: u64 = 40 * CHUNK + 1536;

fn disk(place: &Place, name: &str, of: &str) -> Mirror {
    Mirror::create(&place.path(name), &place.manifest(of), place.sources(), &options()).unwrap()
}

fn newest(stamp: &Stamp) -> CommitOptions<'_> {
    CommitOptions { onto: Onto::Newest, ..CommitOptions::new(stamp) }
}

/// Writes some sectors that are even, or odd, to `mirror` and to what is expected.
fn write(mirror: &Mirror, chance: &mut Chance, expected: [&mut Vec<u8>; 2], odd: u64) {
    let mut bytes = [0; 512];
    let mut contents = expected;
    for _ in 0..30 {
        let at = (chance.below(SIZE / 1024) * 2 + odd) * 512;
        chance.fill(&mut bytes);
        mirror.write(at, &bytes, Durability::Cached).unwrap();
        contents.iter_mut().for_each(|content| content[at as usize..][..512].copy_from_slice(&bytes));
    }
}

#[test]
fn two_disks_of_one_base_merge_sector_by_sector_and_neither_sees_the_other() {
    let (place, stamp, image) = (Place::new(SIZE, 20), stamp(), "disk".parse().unwrap());
    let (one, two) = (disk(&place, "one", "disk"), disk(&place, "two", "disk"));
    let mut chance = Chance::from_seed(20);
    two.read(chance.below(SIZE / 512) * 512, &mut [0; 512]).unwrap();
    let mut contents = [place.content.clone(), place.content.clone(), place.content.clone()];
    let [merged, of_one, of_two] = &mut contents;
    for round in 0..3 {
        write(&one, &mut chance, [&mut *merged, &mut *of_one], 0);
        let refused = one.commit(&place.repository, &image, &CommitOptions::new(&stamp));
        assert_eq!(refused.is_ok(), round == 0, "{refused:?}");
        if round > 0 {
            one.commit(&place.repository, &image, &newest(&stamp)).unwrap().unwrap();
        }
        write(&two, &mut chance, [&mut *merged, &mut *of_two], 1);
        let error = two.commit(&place.repository, &image, &CommitOptions::new(&stamp)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        let commit = two.commit(&place.repository, &image, &newest(&stamp)).unwrap().unwrap();
        let number = 4 + 2 * round;
        assert!(!commit.is_base && commit.manifest.number == number, "{commit:?}");
        assert_eq!(commit.manifest.parent.as_ref().map(|parent| parent.number), Some(number - 1));
        assert!(place.read("disk") == *merged, "round {round}");
        assert!(all(&one) == *of_one && all(&two) == *of_two, "what a guest sees never changes under it");
    }
    let commit = two.commit(&place.repository, &image, &newest(&stamp)).unwrap().unwrap();
    assert_eq!(commit.manifest.number, 8, "nothing is new, and no version is made");
    assert_eq!((one.base().number, two.base().number), (3, 2));
    // It is remembered what is in which version.
    drop(two);
    let two = Mirror::open(&place.path("two"), place.sources(), &options()).unwrap();
    write(&two, &mut chance, [&mut *merged, &mut *of_two], 1);
    two.commit(&place.repository, &image, &newest(&stamp)).unwrap().unwrap();
    assert!(place.read("disk@9") == *merged && all(&two) == *of_two);
}

#[test]
fn after_a_merge_only_what_others_write_asks_for_another() {
    let (place, stamp, image) = (Place::new(SIZE, 24), stamp(), "disk".parse().unwrap());
    let (one, two) = (disk(&place, "one", "disk"), disk(&place, "two", "disk"));
    let mut chance = Chance::from_seed(24);
    let mut contents = [place.content.clone(), place.content.clone(), place.content.clone()];
    let [merged, of_one, of_two] = &mut contents;
    write(&one, &mut chance, [&mut *merged, &mut *of_one], 0);
    one.commit(&place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    write(&two, &mut chance, [&mut *merged, &mut *of_two], 1);
    let landed = two.commit(&place.repository, &image, &newest(&stamp)).unwrap().unwrap();
    assert!(!landed.is_base && landed.manifest.number == 4);
    // Nobody else wrote: what this disk adds goes onto the version that it made itself, also after it was attached again.
    let mut two = two;
    for number in 5..8 {
        write(&two, &mut chance, [&mut *merged, &mut *of_two], 1);
        let commit = two.commit(&place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
        assert!(!commit.is_base && commit.manifest.number == number, "{commit:?}");
        assert_eq!(commit.manifest.parent.as_ref().map(|parent| parent.number), Some(number - 1));
        assert!(place.read("disk") == *merged && all(&two) == *of_two);
        drop(two);
        two = Mirror::open(&place.path("two"), place.sources(), &options()).unwrap();
        assert_eq!(two.base().number, 2);
    }
    let again = two.commit(&place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    assert_eq!(again.manifest.number, 7, "nothing is new, and no version is made");
    // Another image is another matter, and so is what somebody else writes.
    let elsewhere = "disk2".parse().unwrap();
    place.repository.blob(&elsewhere).clone_from(&"disk@2".parse().unwrap(), &stamp).unwrap();
    let refused = two.commit(&place.repository, &elsewhere, &CommitOptions::new(&stamp)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
    write(&one, &mut chance, [&mut *merged, &mut *of_one], 0);
    one.commit(&place.repository, &image, &newest(&stamp)).unwrap().unwrap();
    write(&two, &mut chance, [&mut *merged, &mut *of_two], 1);
    let refused = two.commit(&place.repository, &image, &CommitOptions::new(&stamp)).unwrap_err();
    assert!(refused.kind() == ErrorKind::Refused && refused.to_string().contains("version 8"), "{refused}");
    two.commit(&place.repository, &image, &newest(&stamp)).unwrap().unwrap();
    assert!(place.read("disk@9") == *merged && all(&two) == *of_two);
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

/// When the way to a repository breaks.
#[derive(Clone, Copy, PartialEq)]
enum Breaks {
    Never,
    BeforeTheVersion,
    BehindIt,
}

/// A repository to which the way breaks once.
struct Far<'a> {
    place: &'a Place,
    breaks: Mutex<Breaks>,
}

struct Broken<'a>(&'a dyn Addition, Breaks);

impl Depot for Far<'_> {
    fn version(&self, reference: &Reference) -> Result<Option<Sealed>> {
        self.place.repository.version(reference)
    }

    fn add(
        &self,
        stamp: &Stamp,
        work: &mut dyn FnMut(&dyn Addition) -> Result<Manifest>,
    ) -> Result<Manifest> {
        let breaks = std::mem::replace(&mut *self.breaks.lock().unwrap(), Breaks::Never);
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
        if self.1 != Breaks::BeforeTheVersion {
            let published = self.0.publish(image, draft, expected);
            if self.1 == Breaks::Never {
                return published;
            }
        }
        Err(Error::new(ErrorKind::Unreachable, "nobody there"))
    }
}

#[test]
fn a_commit_that_broke_off_goes_on_where_it_was() {
    let (place, stamp, image) = (Place::new(SIZE, 23), stamp(), "disk".parse().unwrap());
    let mirror = disk(&place, "m", "disk");
    let mut bytes = vec![0; 12 * CHUNK as usize];
    Chance::from_seed(23).fill(&mut bytes);
    mirror.write(3 * CHUNK + 512, &bytes, Durability::Cached).unwrap();
    let depot = Far { place: &place, breaks: Mutex::new(Breaks::BeforeTheVersion) };
    let error = mirror.commit(&depot, &image, &CommitOptions::new(&stamp)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(mirror.dirty_bytes(), bytes.len() as u64);
    // Of the chunks that it shares with what was sent nothing goes out again.
    mirror.write(3 * CHUNK + 512, &[1; 512], Durability::Cached).unwrap();
    let commit = mirror.commit(&depot, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    assert!(commit.stored_bytes < 2 * CHUNK, "{commit:?}");
    assert!(place.read("disk") == all(&mirror));
}

#[test]
fn a_version_that_nobody_told_it_of_is_known_again() {
    for onto in [Onto::Base, Onto::Newest] {
        let (place, stamp, image) = (Place::new(SIZE, 24), stamp(), "disk".parse().unwrap());
        let options = CommitOptions { onto, ..CommitOptions::new(&stamp) };
        let mut mirror = disk(&place, "m", "disk");
        mirror.write(3 * CHUNK + 512, &[5; 3 * CHUNK as usize], Durability::Cached).unwrap();
        mirror.discard(20 * CHUNK, CHUNK, Durability::Cached).unwrap();
        if onto == Onto::Newest {
            place.repository.blob(&image).write(30 * CHUNK, &[6; 512], &stamp).unwrap();
        }
        let first = place.manifest("disk").number + 1;
        let depot = Far { place: &place, breaks: Mutex::new(Breaks::BehindIt) };
        let error = mirror.commit(&depot, &image, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        // The process dies, and is asked for the commit again.
        mirror = again(mirror, &place, "m");
        let before = all(&mirror);
        let commit = mirror.commit(&depot, &image, &options).unwrap().unwrap();
        assert_eq!(commit.manifest.number, first);
        assert_eq!((commit.is_base, all(&mirror) == before), (onto == Onto::Base, true));
        // Again, and this time it is written on before somebody asks.
        mirror.write(7 * CHUNK, &[8; 512], Durability::Cached).unwrap();
        *depot.breaks.lock().unwrap() = Breaks::BehindIt;
        mirror.commit(&depot, &image, &options).unwrap_err();
        mirror.write(3 * CHUNK + 1024, &[9; 512], Durability::Cached).unwrap();
        mirror = again(mirror, &place, "m");
        let commit = mirror.commit(&depot, &image, &options).unwrap().unwrap();
        assert_eq!(commit.manifest.number, first + 2);
        let mut expected = all(&mirror);
        if onto == Onto::Newest {
            expected[30 * CHUNK as usize..][..512].fill(6);
        }
        assert!(place.read("disk") == expected);
    }
}

fn again(mirror: Mirror, place: &Place, name: &str) -> Mirror {
    drop(mirror);
    Mirror::open(&place.path(name), place.sources(), &options()).unwrap()
}

#[test]
fn what_is_discarded_is_free_in_the_next_version() {
    let (place, stamp, image) = (Place::new(SIZE, 25), stamp(), "disk".parse().unwrap());
    let mirror = disk(&place, "m", "disk");
    mirror.write(0, &[5; 8 * CHUNK as usize], Durability::Cached).unwrap();
    mirror.commit(&place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    let allocated = place.manifest("disk").statistics.allocated_bytes;
    mirror.discard(512, 4 * CHUNK, Durability::Cached).unwrap();
    mirror.write(2 * CHUNK, &[6; 1024], Durability::Cached).unwrap();
    mirror.write_zeroes(3 * CHUNK, 512, mirror::Space::Free, Durability::Cached).unwrap();
    let commit = mirror.commit(&place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    assert_eq!(commit.manifest.statistics.allocated_bytes, allocated - 4 * CHUNK + 1024 + 512);
    assert!(place.read("disk") == all(&mirror));
    // What was freed and is written again is there again, also after the process died.
    mirror.discard(0, CHUNK, Durability::Durable).unwrap();
    let mirror = again(mirror, &place, "m");
    mirror.write(512, &[7; 512], Durability::Cached).unwrap();
    let commit = mirror.commit(&place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    assert_eq!(commit.manifest.statistics.allocated_bytes, allocated - 4 * CHUNK + 1024 + 512);
    assert!(place.read("disk") == all(&mirror));
}
