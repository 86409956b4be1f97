//! A trace of the requests of a machine to its disk, recorded in front of any served disk, and stored as text with a
//! line for each request.
//!
//! ```text
//! r 1048576 4096 1      read, offset, bytes, requests in flight when it came, itself among them
//! w 8192 512 2          write
//! f 0 0 1               flush
//! ```

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use disk::Geometry;
use mirror::{Durability, Served, Space, StatusRun};
use parking_lot::Mutex;

use crate::Result;

/// Kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    pub kind: Kind,
    /// Offset on the disk in bytes.
    pub offset: u64,
    pub bytes: u64,
    /// Requests of its kind in flight when it arrived, including itself.
    pub in_flight: usize,
}

impl Kind {
    const ALL: [(Self, &'static str); 3] = [(Self::Read, "r"), (Self::Write, "w"), (Self::Flush, "f")];
}

/// Requests in the order of their arrival.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Trace(pub Vec<Event>);

impl Trace {
    /// Only the reads.
    pub(crate) fn reads(&self) -> Vec<Event> {
        self.0.iter().filter(|event| event.kind == Kind::Read).copied().collect()
    }

    /// Writes it to `path`; `of` describes what it was recorded on.
    pub(crate) fn save(&self, path: &Path, of: &str) -> Result<()> {
        let mut text = format!("# {}\n", of.trim());
        for Event { kind, offset, bytes, in_flight } in &self.0 {
            let letter = Kind::ALL.iter().find(|(one, _)| one == kind).map_or("?", |(_, letter)| letter);
            writeln!(text, "{letter} {offset} {bytes} {in_flight}")?;
        }
        Ok(std::fs::write(path, text)?)
    }

    /// Reads the trace at `path`; `None` if it is missing or was not recorded on `of`.
    pub(crate) fn load(path: &Path, of: &str) -> Result<Option<Self>> {
        let Ok(text) = std::fs::read_to_string(path) else { return Ok(None) };
        let mut lines = text.lines();
        if lines.next() != Some(&format!("# {}", of.trim())) {
            return Ok(None);
        }
        lines.map(parse).collect::<Result<Vec<_>>>().map(|events| Some(Self(events)))
    }
}

fn parse(line: &str) -> Result<Event> {
    let bad = || format!("`{line}` is not a line of a trace");
    let words: Vec<&str> = line.split(' ').collect();
    let [letter, offset, bytes, in_flight] = words[..] else { return Err(bad().into()) };
    let (kind, _) = Kind::ALL.into_iter().find(|(_, one)| *one == letter).ok_or_else(bad)?;
    Ok(Event { kind, offset: offset.parse()?, bytes: bytes.parse()?, in_flight: in_flight.parse()? })
}

/// A disk that records its requests.
pub(crate) struct Recorder {
    disk: Arc<dyn Served>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    events: Vec<Event>,
    in_flight: [usize; 3],
}

impl Recorder {
    /// Puts a recorder in front of `disk`.
    pub(crate) fn new(disk: Arc<dyn Served>) -> Self {
        Self { disk, seen: Mutex::default() }
    }

    /// The requests so far.
    pub(crate) fn trace(&self) -> Trace {
        Trace(self.seen.lock().events.clone())
    }

    fn book<T>(&self, kind: Kind, offset: u64, bytes: u64, ask: impl FnOnce() -> T) -> T {
        let lock = || self.seen.lock();
        {
            let mut seen = lock();
            seen.in_flight[kind as usize] += 1;
            let in_flight = seen.in_flight[kind as usize];
            seen.events.push(Event { kind, offset, bytes, in_flight });
        }
        let answer = ask();
        lock().in_flight[kind as usize] -= 1;
        answer
    }
}

impl Served for Recorder {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> base::Result<()> {
        self.book(Kind::Read, offset, into.len() as u64, || self.disk.read(offset, into))
    }

    fn write(&self, offset: u64, bytes: &[u8], durability: Durability) -> base::Result<()> {
        let length = bytes.len() as u64;
        self.book(Kind::Write, offset, length, || self.disk.write(offset, bytes, durability))
    }

    fn flush(&self) -> base::Result<()> {
        self.book(Kind::Flush, 0, 0, || self.disk.flush())
    }

    fn discard(&self, offset: u64, bytes: u64, durability: Durability) -> base::Result<()> {
        self.disk.discard(offset, bytes, durability)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        bytes: u64,
        space: Space,
        durability: Durability,
    ) -> base::Result<()> {
        self.disk.write_zeroes(offset, bytes, space, durability)
    }

    fn status(&self, offset: u64, bytes: u64, runs_max: usize) -> base::Result<Vec<StatusRun>> {
        self.disk.status(offset, bytes, runs_max)
    }

    fn close(&self) -> base::Result<()> {
        self.disk.close()
    }
}

#[cfg(test)]
mod tests {
    use mirror::RawDisk;

    use super::*;

    #[test]
    fn what_was_asked_for_is_kept_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let disk = RawDisk::open(&folder.path().join("disk"), Some(1 << 20)).unwrap();
        let recorder = Recorder::new(Arc::new(disk));
        recorder.write(4096, &[7; 512], Durability::Cached).unwrap();
        recorder.read(4096, &mut [0; 1024]).unwrap();
        recorder.flush().unwrap();
        let trace = recorder.trace();
        let event = |kind, offset, bytes| Event { kind, offset, bytes, in_flight: 1 };
        assert_eq!(
            trace.0,
            [event(Kind::Write, 4096, 512), event(Kind::Read, 4096, 1024), event(Kind::Flush, 0, 0)]
        );
        assert_eq!(trace.reads(), [event(Kind::Read, 4096, 1024)]);
        let path = folder.path().join("trace");
        trace.save(&path, "a disk\n").unwrap();
        assert_eq!(Trace::load(&path, "a disk").unwrap(), Some(trace));
        assert_eq!(Trace::load(&path, "another").unwrap(), None);
    }
}
