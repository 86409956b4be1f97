//! Appends of writers that overtake each other, one step at a time, and of any length.
//! To see one again: `cargo test --workspace --test store append::<name>`.

use std::sync::mpsc;
use std::time::Duration;

use base::ErrorKind;
use store::{Keys, Overseer, PruneEvent, PruneOptions, Repository, Shape};

use crate::common::faulty::{Faulty, Plan, no_trouble};
use crate::common::{Records, image, in_folder, publish, reference, setting, stamp};

/// Bytes of each append.
const BYTES: u64 = 512;

/// Waits for nobody.
struct Quiet;

impl Overseer for Quiet {
    fn event(&self, _: &PruneEvent) {}
    fn pause(&self, _: Duration) {}
}

/// A second repository handle on `records`, whose operations `plan` sees before they are done.
fn watched(records: &Records, plan: Plan) -> Repository {
    let store = Faulty::new(records.0.clone(), plan);
    Repository::over_with(store, "memory", &setting()).unwrap()
}

fn append(repository: &Repository, byte: u8) -> u64 {
    repository.blob(&image("log")).append(&[byte; 512], &stamp()).unwrap().0
}

/// Runs `work` in another thread: a plan is called by the store's executor, which does not nest.
fn elsewhere(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap());
}

/// A plan that calls `at_put` before the reservation `number` is created, and `after_put` before the operation after
/// that.
fn around(
    number: u64,
    mut at_put: impl FnMut() + Send + 'static,
    after_put: impl FnOnce() + Send + 'static,
) -> Plan {
    let mut after_put = Some(after_put);
    let mut is_put = false;
    let path = format!("appends/log/{number:020}");
    Box::new(move |operation, at, _| {
        if is_put && let Some(after_put) = after_put.take() {
            elsewhere(after_put);
        }
        if !is_put && operation == "put" && at.as_ref() == path {
            elsewhere(&mut at_put);
            is_put = true;
        }
        None
    })
}

#[test]
fn an_append_that_is_overtaken_before_its_check_leaves_no_gap() {
    for number in 1..4 {
        let records = Records::default();
        let other = records.open(Keys::default());
        let start = publish(&other, "log", 1).layout().unwrap().size_bytes();
        let at = |turn: u64| start + turn * BYTES;
        let (sender, overtaken) = mpsc::channel();
        let after_put = move || sender.send(append(&other, 2)).unwrap();
        let slow = watched(&records, no_trouble());
        let before = number.max(2) - 2;
        (0..before).for_each(|turn| assert_eq!(append(&slow, 1), at(turn)));
        let slow = watched(&records, around(number, || (), after_put));
        let mut offsets = vec![append(&slow, 3), overtaken.recv().unwrap(), append(&slow, 4)];
        offsets.sort_unstable();
        assert_eq!(offsets, (before..before + 3).map(at).collect::<Vec<_>>(), "reservation {number}");
    }
}

#[test]
fn two_appends_that_slept_while_their_numbers_were_used_and_deleted_overlap_nothing() {
    let records = Records::default();
    let others = records.open(Keys::default());
    publish(&others, "log", 1);
    append(&others, 1);
    let newest = records.paths().iter().filter(|path| path.starts_with("appends/log/")).count() as u64;

    // The first finds `newest`, and sleeps before it creates the next number.
    let (first_sleeps, first_is_asleep) = mpsc::channel();
    let (wake_first, first_wakes) = mpsc::channel::<()>();
    let (first_put, first_has_put) = mpsc::channel();
    let plan = around(
        newest + 1,
        move || {
            first_sleeps.send(()).unwrap();
            first_wakes.recv().unwrap();
        },
        move || first_put.send(()).unwrap(),
    );
    let first = watched(&records, plan);
    let first = std::thread::spawn(move || append(&first, 2));
    first_is_asleep.recv().unwrap();

    // Another takes that number. The second finds it, and sleeps before it creates the next. Meanwhile these numbers
    // are used and deleted, and the first makes a record where the second's predecessor was.
    let mut offsets = vec![append(&others, 3)];
    let (sender, taken) = mpsc::channel();
    let at_put = move || {
        sender.send((0..4).map(|_| append(&others, 4)).collect::<Vec<_>>()).unwrap();
        let options = PruneOptions { looks: 1, pause: Duration::ZERO, window: 8 };
        others.prune(&options, &stamp(), &Quiet).unwrap();
        wake_first.send(()).unwrap();
        first_has_put.recv().unwrap();
    };
    let second = watched(&records, around(newest + 2, at_put, || ()));
    offsets.push(append(&second, 5));
    offsets.extend(taken.recv().unwrap());
    offsets.push(first.join().unwrap());
    let count = offsets.len();
    offsets.sort_unstable();
    offsets.dedup();
    assert_eq!(offsets.len(), count, "no two appends got the same place");
}

/// Each append takes whole sectors, and the rest of the last one is zeros, as of a raw file of such a length.
#[test]
fn appends_of_any_length_take_whole_sectors() {
    for sector_bytes in [512, 4096] {
        let place = in_folder();
        let blob = place.repository.blob(&image("log"));
        let sector = u64::from(sector_bytes);
        let shape = Shape { size_bytes: sector, logical_sector_bytes: sector_bytes, ..Shape::default() };
        blob.create(&shape, &stamp()).unwrap();
        let mut expected = vec![0; sector_bytes as usize];
        for (turn, len) in (1..).zip([1, 100, 511, 512, 513, 65_536, 65_537, 200_007]) {
            let (offset, _) = blob.append(&vec![turn; len], &stamp()).unwrap();
            assert_eq!(offset, expected.len() as u64, "{len} bytes, sectors of {sector_bytes}");
            expected.extend(vec![turn; len]);
            expected.resize(expected.len().next_multiple_of(sector_bytes as usize), 0);
        }
        // What is given later lies in the room that was made.
        let (offset, _) = blob.append_begun(&[9; 700], 5001, &stamp()).unwrap();
        blob.write(offset + 700, &[9; 4301], &stamp()).unwrap();
        expected.extend([9; 5001]);
        expected.resize(expected.len().next_multiple_of(sector_bytes as usize), 0);
        assert_eq!(blob.recent().unwrap().size_bytes, expected.len() as u64);
        let mut found = vec![7; expected.len()];
        place.repository.snapshot(&reference("log")).unwrap().read(0, &mut found).unwrap();
        assert!(found == expected, "sectors of {sector_bytes}");
        assert_eq!(blob.append(&[], &stamp()).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
