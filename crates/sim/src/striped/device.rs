//! A device: a disk that reads and writes stripe units in turn for all that wait for it, and memory that keeps what was
//! read.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;

use base::Duration;
use proto::cluster::UNIT_BYTES;

const UNIT: u64 = UNIT_BYTES as u64;

/// What waits for the disk; `R` and `W` name who reads and who writes.
#[derive(Debug)]
enum Job<R, W> {
    Read { reader: R, segment: u64, left: Range<u64> },
    Write { writer: W, bytes: u64 },
}

/// What the disk has done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Did<R, W> {
    /// So many bytes for a reader are in memory.
    Read(R, u64),
    /// So many bytes of a writer are written.
    Wrote(W, u64),
}

/// The disk and the memory of a device.
#[derive(Debug)]
pub(super) struct Disk<R, W> {
    bytes_per_second: u64,
    waiting: VecDeque<Job<R, W>>,
    /// What it is at, and the unit if it reads.
    current: Option<(Job<R, W>, Range<u64>)>,
    /// Units that were read, by segment and number.
    memory: HashSet<(u64, u64)>,
}

impl<R: Copy, W: Copy> Disk<R, W> {
    /// An idle disk, and nothing in memory.
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, waiting: VecDeque::new(), current: None, memory: HashSet::new() }
    }

    /// `reader` wants a range of the device's component of `segment`.
    pub(super) fn read(&mut self, reader: R, segment: u64, range: Range<u64>) {
        self.waiting.push_back(Job::Read { reader, segment, left: range });
    }

    /// `writer` has sent so many bytes.
    pub(super) fn write(&mut self, writer: W, bytes: u64) {
        self.waiting.push_back(Job::Write { writer, bytes });
    }

    /// Begins with what waits next, if the disk is idle: tells what needs no disk, and how long the disk is busy then.
    pub(super) fn begin(&mut self, did: &mut Vec<Did<R, W>>) -> Option<Duration> {
        if self.current.is_some() {
            return None;
        }
        while let Some(mut job) = self.waiting.pop_front() {
            match &mut job {
                Job::Write { bytes, .. } => {
                    let busy = self.time(*bytes);
                    self.current = Some((job, 0..0));
                    return Some(busy);
                }
                Job::Read { reader, segment, left } => {
                    let unit = left.start..left.end.min((left.start / UNIT + 1) * UNIT);
                    left.start = unit.end;
                    if !self.memory.contains(&(*segment, unit.start / UNIT)) {
                        self.current = Some((job, unit));
                        return Some(self.time(UNIT));
                    }
                    did.push(Did::Read(*reader, unit.end - unit.start));
                    if !left.is_empty() {
                        self.waiting.push_front(job);
                    }
                }
            }
        }
        None
    }

    /// The disk has done what it was at.
    pub(super) fn done(&mut self) -> Did<R, W> {
        let (job, unit) = self.current.take().expect("it was busy");
        match job {
            Job::Write { writer, bytes } => Did::Wrote(writer, bytes),
            Job::Read { reader, segment, left } => {
                self.memory.insert((segment, unit.start / UNIT));
                if !left.is_empty() {
                    self.waiting.push_back(Job::Read { reader, segment, left });
                }
                Did::Read(reader, unit.end - unit.start)
            }
        }
    }

    fn time(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes * 1_000_000_000 / self.bytes_per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_get_units_in_turn_and_what_was_read_needs_no_disk() {
        let mut disk: Disk<char, ()> = Disk::new(UNIT * 1000);
        disk.read('a', 1, 100..2 * UNIT);
        disk.read('b', 2, 0..10);
        let mut did = Vec::new();
        let unit = Duration::from_millis(1);
        for (reader, bytes) in [('a', UNIT - 100), ('b', 10), ('a', UNIT)] {
            assert_eq!(disk.begin(&mut did), Some(unit));
            assert_eq!(disk.begin(&mut did), None, "it is busy");
            assert_eq!(disk.done(), Did::Read(reader, bytes));
        }
        assert_eq!(disk.begin(&mut did), None);
        assert!(did.is_empty());
        disk.read('c', 1, UNIT - 5..UNIT + 5);
        assert_eq!(disk.begin(&mut did), None);
        assert_eq!(did, [Did::Read('c', 5), Did::Read('c', 5)]);
    }

    #[test]
    fn writes_take_their_bytes() {
        let mut disk: Disk<(), u8> = Disk::new(1_000_000);
        disk.write(3, 2000);
        assert_eq!(disk.begin(&mut Vec::new()), Some(Duration::from_millis(2)));
        assert_eq!(disk.done(), Did::Wrote(3, 2000));
    }
}
