//! Commits of running disks: on top of their base, merged with other writers, interrupted and repeated.

use std::cell::Cell;
use std::time::Duration;

use base::{Chance, Error, ErrorKind, Result};
use mirror::{CommitOptions, Durability, Mirror, Onto, Served};
use parking_lot::Mutex;
use store::{ImageName, Reference, Stamp};

use crate::common::far::{Breaks, Far};
use crate::common::{CHUNK, Place, all, options, stamp};

const SIZE: u64 = 40 * CHUNK + 1536;

fn disk(place: &Place, name: &str, of: &str) -> Mirror {
    Mirror::create(&place.path(name), &place.manifest(of), place.sources(), &options()).unwrap()
}

fn newest(stamp: &Stamp) -> CommitOptions<'_> {
    CommitOptions { onto: Onto::Newest, ..CommitOptions::new(stamp) }
}

/// Writes some even or odd sectors to `mirror` and to the expected contents.
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
        let refused = one.commit(&*place.repository, &image, &CommitOptions::new(&stamp));
        assert_eq!(refused.is_ok(), round == 0, "{refused:?}");
        if round > 0 {
            one.commit(&*place.repository, &image, &newest(&stamp)).unwrap().unwrap();
        }
        write(&two, &mut chance, [&mut *merged, &mut *of_two], 1);
        let error = two.commit(&*place.repository, &image, &CommitOptions::new(&stamp)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        let commit = two.commit(&*place.repository, &image, &newest(&stamp)).unwrap().unwrap();
        let number = 4 + 2 * round;
        assert!(!commit.is_base && commit.manifest.number == number, "{commit:?}");
        assert_eq!(commit.manifest.parent.as_ref().map(|parent| parent.number), Some(number - 1));
        assert!(place.read("disk") == *merged, "round {round}");
        assert!(all(&one) == *of_one && all(&two) == *of_two, "what a guest sees never changes under it");
    }
    let commit = two.commit(&*place.repository, &image, &newest(&stamp)).unwrap().unwrap();
    assert_eq!(commit.manifest.number, 8, "nothing is new, and no version is made");
    assert_eq!((one.base().number, two.base().number), (3, 2));
    // The disk remembers its merged version after it was opened again.
    drop(two);
    let two = Mirror::open(&place.path("two"), place.sources(), &options()).unwrap();
    write(&two, &mut chance, [&mut *merged, &mut *of_two], 1);
    two.commit(&*place.repository, &image, &newest(&stamp)).unwrap().unwrap();
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
    one.commit(&*place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    write(&two, &mut chance, [&mut *merged, &mut *of_two], 1);
    let landed = two.commit(&*place.repository, &image, &newest(&stamp)).unwrap().unwrap();
    assert!(!landed.is_base && landed.manifest.number == 4);
    // No other writer has published: commits of this disk go on top of the version that it made itself, also after
    // it was opened again.
    let mut two = two;
    for number in 5..8 {
        write(&two, &mut chance, [&mut *merged, &mut *of_two], 1);
        let commit = two.commit(&*place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
        assert!(!commit.is_base && commit.manifest.number == number, "{commit:?}");
        assert_eq!(commit.manifest.parent.as_ref().map(|parent| parent.number), Some(number - 1));
        assert!(place.read("disk") == *merged && all(&two) == *of_two);
        drop(two);
        two = Mirror::open(&place.path("two"), place.sources(), &options()).unwrap();
        assert_eq!(two.base().number, 2);
    }
    let again = two.commit(&*place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    assert_eq!(again.manifest.number, 7, "nothing is new, and no version is made");
    // This does not hold for another image, nor after another writer has published.
    let elsewhere = "disk2".parse().unwrap();
    place.repository.blob(&elsewhere).clone_from(&"disk@2".parse().unwrap(), &stamp).unwrap();
    let refused = two.commit(&*place.repository, &elsewhere, &CommitOptions::new(&stamp)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
    write(&one, &mut chance, [&mut *merged, &mut *of_one], 0);
    one.commit(&*place.repository, &image, &newest(&stamp)).unwrap().unwrap();
    write(&two, &mut chance, [&mut *merged, &mut *of_two], 1);
    let refused = two.commit(&*place.repository, &image, &CommitOptions::new(&stamp)).unwrap_err();
    assert!(refused.kind() == ErrorKind::Refused && refused.to_string().contains("version 8"), "{refused}");
    two.commit(&*place.repository, &image, &newest(&stamp)).unwrap().unwrap();
    assert!(place.read("disk@9") == *merged && all(&two) == *of_two);
}

#[test]
fn who_changed_the_same_sectors_is_told_which() {
    let (place, stamp, image) = (Place::new(SIZE, 21), stamp(), "disk".parse().unwrap());
    let (one, two) = (disk(&place, "one", "disk"), disk(&place, "two", "disk"));
    one.write(5 * CHUNK, &[1; 4096], Durability::Cached).unwrap();
    two.write(5 * CHUNK + 2048, &[2; 4096], Durability::Cached).unwrap();
    one.commit(&*place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    let error = two.commit(&*place.repository, &image, &newest(&stamp)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    let text = base::chain(&error);
    let range = format!("{} to {}", 5 * CHUNK + 2048, 5 * CHUNK + 4095);
    assert!(text.contains("disk@3") && text.contains("disk@2") && text.contains(&range), "{text}");
    assert_eq!(two.dirty_bytes(), 4096);
    let commit = two.commit(&*place.repository, &"apart".parse().unwrap(), &newest(&stamp)).unwrap().unwrap();
    assert!(commit.is_base && commit.manifest.number == 1);
    assert!(place.read("apart") == all(&two));
}

#[test]
fn the_moment_of_a_commit_is_inside_of_what_is_done_around_it() {
    let (place, stamp, image) = (Place::new(SIZE, 22), stamp(), "moment".parse().unwrap());
    let mirror = disk(&place, "m", "disk");
    mirror.write(0, &[1; 512], Durability::Cached).unwrap();
    let refused = |_: &mut dyn FnMut() -> Result<()>| Err(Error::new(ErrorKind::Refused, "no guest agent"));
    let options = CommitOptions { quiesce: Some(&refused), ..CommitOptions::new(&stamp) };
    assert_eq!(mirror.commit(&*place.repository, &image, &options).unwrap_err().kind(), ErrorKind::Refused);
    // The hook fails after the freeze: the guest could not be thawed.
    let stuck = |freeze: &mut dyn FnMut() -> Result<()>| {
        freeze()?;
        Err(Error::new(ErrorKind::Io, "the guest stays frozen"))
    };
    let options = CommitOptions { quiesce: Some(&stuck), ..CommitOptions::new(&stamp) };
    assert_eq!(mirror.commit(&*place.repository, &image, &options).unwrap_err().kind(), ErrorKind::Io);
    let steps = Cell::new(0);
    let around = |freeze: &mut dyn FnMut() -> Result<()>| {
        // The version has what a guest writes back before it is frozen, but not what it writes after it is thawed.
        mirror.write(512, &[2; 512], Durability::Durable).unwrap();
        steps.set(steps.get() + 1);
        freeze()?;
        mirror.write(1024, &[3; 512], Durability::Cached)
    };
    let options = CommitOptions { quiesce: Some(&around), ..CommitOptions::new(&stamp) };
    let commit = mirror.commit(&*place.repository, &image, &options).unwrap().unwrap();
    assert_eq!((steps.get(), commit.dirty_bytes, mirror.dirty_bytes()), (1, 1024, 512));
    let bytes = place.read("moment");
    assert_eq!((bytes[0], bytes[512]), (1, 2));
    assert!(bytes[1024..1536] == place.content[1024..1536]);
}

#[test]
fn a_commit_that_broke_off_goes_on_where_it_was() {
    let (place, stamp, image) = (Place::new(SIZE, 23), stamp(), "disk".parse().unwrap());
    let mirror = disk(&place, "m", "disk");
    let mut bytes = vec![0; 12 * CHUNK as usize];
    Chance::from_seed(23).fill(&mut bytes);
    mirror.write(3 * CHUNK + 512, &bytes, Durability::Cached).unwrap();
    let far = Far { place: &place, breaks: Mutex::new(Breaks::BeforeTheVersion) };
    let error = mirror.commit(&far, &image, &CommitOptions::new(&stamp)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(mirror.dirty_bytes(), bytes.len() as u64);
    // Chunks that were already sent are not sent again.
    mirror.write(3 * CHUNK + 512, &[1; 512], Durability::Cached).unwrap();
    let commit = mirror.commit(&far, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    assert!(commit.stored_bytes < 2 * CHUNK, "{commit:?}");
    assert!(place.read("disk") == all(&mirror));
}

#[test]
fn a_version_that_nobody_told_it_of_is_known_again() {
    for onto in [Onto::Base, Onto::Newest, Onto::Instead] {
        let (place, stamp, image) = (Place::new(SIZE, 24), stamp(), "disk".parse().unwrap());
        let options = CommitOptions { onto, ..CommitOptions::new(&stamp) };
        let mut mirror = disk(&place, "m", "disk");
        mirror.write(3 * CHUNK + 512, &[5; 3 * CHUNK as usize], Durability::Cached).unwrap();
        mirror.discard(20 * CHUNK, CHUNK, Durability::Cached).unwrap();
        if onto != Onto::Base {
            place.repository.blob(&image).write(30 * CHUNK, &[6; 512], &stamp).unwrap();
        }
        let first = place.manifest("disk").number + 1;
        let far = Far { place: &place, breaks: Mutex::new(Breaks::BehindIt) };
        let error = mirror.commit(&far, &image, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        // The process dies, and the commit is repeated.
        mirror = again(mirror, &place, "m");
        let before = all(&mirror);
        let commit = mirror.commit(&far, &image, &options).unwrap().unwrap();
        assert_eq!(commit.manifest.number, first);
        assert_eq!((commit.is_base, all(&mirror) == before), (onto != Onto::Newest, true));
        // The same again, but with a write before the commit is repeated.
        mirror.write(7 * CHUNK, &[8; 512], Durability::Cached).unwrap();
        *far.breaks.lock() = Breaks::BehindIt;
        mirror.commit(&far, &image, &options).unwrap_err();
        mirror.write(3 * CHUNK + 1024, &[9; 512], Durability::Cached).unwrap();
        mirror = again(mirror, &place, "m");
        let commit = mirror.commit(&far, &image, &options).unwrap().unwrap();
        assert_eq!(commit.manifest.number, first + 2);
        let mut expected = all(&mirror);
        if onto == Onto::Newest {
            expected[30 * CHUNK as usize..][..512].fill(6);
        }
        assert!(place.read("disk") == expected);
    }
}

#[test]
fn held_writes_are_in_no_version_of_that_time() {
    let (place, stamp, image) = (Place::new(SIZE, 27), stamp(), "disk".parse().unwrap());
    let mirror = disk(&place, "m", "disk");
    mirror.write(CHUNK, &[1; 512], Durability::Cached).unwrap();
    let before = all(&mirror);
    std::thread::scope(|scope| {
        let hold = mirror.hold_writes(Duration::from_secs(60)).unwrap();
        let writes = [2, 3].map(|byte| {
            let mirror = &mirror;
            scope.spawn(move || {
                let at = u64::from(byte) * CHUNK;
                mirror.write(at, &[byte; 512], Durability::Cached).unwrap();
                mirror.discard(at + 1024, 512, Durability::Cached).unwrap();
            })
        });
        mirror.flush().unwrap();
        mirror.commit(&*place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
        assert!(place.read("disk") == before && all(&mirror) == before);
        let busy = mirror.hold_writes(Duration::from_millis(1)).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Unreachable);
        drop(hold);
        writes.into_iter().for_each(|write| write.join().unwrap());
    });
    mirror.commit(&*place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    assert!(place.read("disk") == all(&mirror) && all(&mirror) != before);
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
    mirror.commit(&*place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    let allocated = place.manifest("disk").statistics.allocated_bytes;
    mirror.discard(512, 4 * CHUNK, Durability::Cached).unwrap();
    mirror.write(2 * CHUNK, &[6; 1024], Durability::Cached).unwrap();
    mirror.write_zeroes(3 * CHUNK, 512, mirror::Space::Free, Durability::Cached).unwrap();
    let commit = mirror.commit(&*place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    assert_eq!(commit.manifest.statistics.allocated_bytes, allocated - 4 * CHUNK + 1024 + 512);
    assert!(place.read("disk") == all(&mirror));
    // A sector that was freed and written again is in the version, also after the process died.
    mirror.discard(0, CHUNK, Durability::Durable).unwrap();
    let mirror = again(mirror, &place, "m");
    mirror.write(512, &[7; 512], Durability::Cached).unwrap();
    let commit = mirror.commit(&*place.repository, &image, &CommitOptions::new(&stamp)).unwrap().unwrap();
    assert_eq!(commit.manifest.statistics.allocated_bytes, allocated - 4 * CHUNK + 1024 + 512);
    assert!(place.read("disk") == all(&mirror));
}

/// A disk with three levels of nodes. Only some windows of it are written: at the ends of nodes, and far apart.
struct Wide {
    place: Place,
    image: ImageName,
    windows: Vec<u64>,
    /// The expected content of the disk in its windows.
    disk: Vec<Vec<u8>>,
    /// The content that another writer wrote to the image: one window for each of the disk's windows, right after
    /// it.
    others: Vec<Vec<u8>>,
    /// Whether there is another writer.
    merges: bool,
}

const NODE: u64 = 256 * CHUNK;
const WIDE: u64 = 258 * NODE + 5 * CHUNK;
const WINDOW: u64 = 3 * CHUNK;

impl Wide {
    fn new(chance: &mut Chance) -> Self {
        let (place, image): (_, ImageName) = (Place::new(CHUNK, 1), "wide".parse().unwrap());
        let chunk = image::ChunkSize::from_bytes(CHUNK as u32).unwrap();
        let shape = store::Shape { size_bytes: WIDE, chunk, logical_sector_bytes: 512 };
        place.repository.blob(&image).create(&shape, &stamp()).unwrap();
        let windows = vec![0, CHUNK * 9, NODE - CHUNK, NODE * 2, NODE * 256 - CHUNK, WIDE - 2 * WINDOW];
        let blank = || vec![vec![0; WINDOW as usize]; windows.len()];
        let merges = chance.hits(300_000);
        let mut wide = Self { disk: blank(), others: blank(), windows, place, image, merges };
        for which in 0..wide.windows.len() {
            if chance.hits(600_000) {
                chance.fill(&mut wide.disk[which][..CHUNK as usize + 512]);
                let blob = wide.place.repository.blob(&wide.image);
                blob.write(wide.windows[which], &wide.disk[which][..CHUNK as usize + 512], &stamp()).unwrap();
            }
        }
        wide
    }

    fn mirror(&self) -> Mirror {
        disk(&self.place, "m", "wide")
    }

    /// Some sectors of a random window: the number of the window and the range of bytes in it.
    fn part(&self, chance: &mut Chance) -> (usize, std::ops::Range<usize>) {
        let from = chance.below(WINDOW / 512);
        let room = WINDOW / 512 - from;
        let most = if chance.hits(500_000) { room } else { room.min(8) };
        let sectors = 1 + chance.below(most);
        let which = chance.below(self.windows.len() as u64) as usize;
        (which, from as usize * 512..(from + sectors) as usize * 512)
    }

    /// Makes a random change to the disk and to the expected content.
    fn change(&mut self, mirror: &Mirror, chance: &mut Chance) {
        let (which, part) = self.part(chance);
        let (at, bytes) = (self.windows[which] + part.start as u64, part.len() as u64);
        let content = &mut self.disk[which][part];
        match chance.below(4) {
            0 => {
                content.fill(0);
                mirror.discard(at, bytes, Durability::Cached).unwrap();
            }
            1 => {
                content.fill(0);
                let space = if chance.hits(500_000) { mirror::Space::Keep } else { mirror::Space::Free };
                mirror.write_zeroes(at, bytes, space, Durability::Cached).unwrap();
            }
            2 if !self.merges && chance.hits(300_000) => self.discard_between(mirror, chance),
            _ => {
                chance.fill(content);
                mirror.write(at, content, Durability::Cached).unwrap();
            }
        }
    }

    /// Discards the range between two windows, and with it the windows in between.
    fn discard_between(&mut self, mirror: &Mirror, chance: &mut Chance) {
        let last = self.windows.len() as u64 - 1;
        let first = chance.below(last) as usize;
        let end = first + 1 + chance.below(last - first as u64) as usize;
        let start = self.windows[first] + 2 * WINDOW;
        if start < self.windows[end] {
            mirror.discard(start, self.windows[end] - start, Durability::Cached).unwrap();
            (first + 1..end).for_each(|which| self.disk[which].fill(0));
        }
    }

    /// Another writer changes the image, in windows that are not the disk's.
    fn write_as_another(&mut self, chance: &mut Chance) {
        let (which, part) = self.part(chance);
        let content = &mut self.others[which][part.clone()];
        chance.fill(content);
        let at = self.windows[which] + WINDOW + part.start as u64;
        self.place.repository.blob(&self.image).write(at, content, &stamp()).unwrap();
    }

    fn check(&self, what: &str, read: impl Fn(u64, &mut [u8]), others: bool) {
        let mut bytes = vec![0; WINDOW as usize];
        for (which, at) in self.windows.iter().enumerate() {
            read(*at, &mut bytes);
            assert!(bytes == self.disk[which], "{what}: window {which} at {at}");
            if others {
                read(*at + WINDOW, &mut bytes);
                assert!(bytes == self.others[which], "{what}: the other's window {which}");
            }
        }
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "a failure is seen again by its seed")]
fn whatever_was_written_discarded_and_zeroed_over_several_nodes_is_committed() {
    for seed in 0..40 {
        println!("seed {seed}");
        let mut chance = Chance::from_seed(seed);
        let mut wide = Wide::new(&mut chance);
        let (mut mirror, stamp) = (wide.mirror(), stamp());
        for round in 0..6 {
            (0..1 + chance.below(20)).for_each(|_| wide.change(&mirror, &mut chance));
            if wide.merges {
                (0..chance.below(3)).for_each(|_| wide.write_as_another(&mut chance));
            } else if chance.hits(200_000) {
                wide.image = format!("clone-{round}").parse().unwrap();
            }
            if chance.hits(300_000) {
                mirror = again(mirror, &wide.place, "m");
            }
            let onto = if wide.merges { Onto::Newest } else { Onto::Base };
            let options = CommitOptions { onto, ..CommitOptions::new(&stamp) };
            mirror.commit(&*wide.place.repository, &wide.image, &options).unwrap();
            let snapshot = wide.place.repository.snapshot(&Reference::Newest(wide.image.clone())).unwrap();
            let what = format!("seed {seed}, round {round}");
            wide.check(&what, |at, into| snapshot.read(at, into).unwrap(), true);
            wide.check(&what, |at, into| mirror.read(at, into).unwrap(), false);
        }
        let report = wide.place.repository.verify(&store::Scope::All, &image::NoProgress).unwrap();
        assert!(report.damaged.is_empty(), "seed {seed}: {report:?}");
    }
}
