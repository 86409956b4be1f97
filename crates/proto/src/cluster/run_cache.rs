//! Which runs a client fetches whole and keeps: those that it reads in order. Small contents that were stored together
//! are mostly read together; but a client that reads here and there must not fetch whole runs for it.

use std::collections::{HashMap, VecDeque};

use super::{Piece, Run, Width};

/// Longest run, in bytes of content, that is fetched whole for one piece of it.
const WHOLE_RUN_MAX: u64 = 8 << 20;
/// Bytes of runs that are kept.
const KEPT_BYTES: u64 = 96 << 20;
/// Runs of which is known how much was read lately.
const RECENT: usize = 64;
/// Where a run counts as read from its beginning: several contents are asked for at the same time, in any order.
const BEGINNING_BYTES: u32 = 512 << 10;

/// The segment of a run, and where it begins there.
pub type RunKey = (u64, u64);

/// How a client reads a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// Its run is kept, or is being fetched.
    Kept {
        /// The run behind it is to be fetched as well.
        ahead: bool,
    },
    /// Its run is to be fetched whole, and counts as kept from now on.
    Whole {
        /// Runs that are to be forgotten for it.
        dropped: Vec<RunKey>,
        /// The run behind it is to be fetched as well.
        ahead: bool,
    },
    /// The piece alone is to be fetched.
    Alone,
}

#[derive(Debug)]
struct Kept {
    end: u64,
    content: u64,
    was_read: bool,
}

/// The runs that one client keeps; the driver has their bytes.
#[derive(Debug, Default)]
pub struct RunCache {
    kept: HashMap<RunKey, Kept>,
    order: VecDeque<RunKey>,
    bytes: u64,
    /// Bytes of other runs that were read lately, piece by piece.
    recent: VecDeque<(RunKey, u64)>,
}

impl RunCache {
    /// Says how to read a piece. Its run is fetched whole if the one before is kept and the piece lies at the
    /// beginning: then the client reads on, and the next run is fetched ahead. It is also fetched whole once three
    /// quarters of it were read, so that little is fetched in vain.
    pub fn read(&mut self, piece: &Piece) -> Reading {
        let (key, content) = ((piece.segment, piece.run.at), piece.run.content_bytes(piece.width));
        if let Some(kept) = self.kept.get_mut(&key) {
            return Reading::Kept { ahead: !std::mem::replace(&mut kept.was_read, true) };
        }
        if content > WHOLE_RUN_MAX {
            return Reading::Alone;
        }
        let follows = |(of, kept): (&RunKey, &Kept)| of.0 == key.0 && kept.end == key.1;
        let reads_on = piece.offset < BEGINNING_BYTES && self.kept.iter().any(follows);
        if !reads_on && self.read_of(key, piece.length.into()) * 4 <= content * 3 {
            return Reading::Alone;
        }
        self.recent.retain(|(recent, _)| *recent != key);
        Reading::Whole { dropped: self.keep(key, piece.run, content, true), ahead: reads_on }
    }

    /// A run is to be fetched ahead: says what is to be forgotten for it; `None` if it is kept, or is too long.
    pub fn fetch_ahead(&mut self, segment: u64, run: Run, width: Width) -> Option<Vec<RunKey>> {
        let (key, content) = ((segment, run.at), run.content_bytes(width));
        let fits = content <= WHOLE_RUN_MAX && !self.has(key);
        fits.then(|| self.keep(key, run, content, false))
    }

    /// Adds to what was read of a run; returns the sum.
    fn read_of(&mut self, key: RunKey, bytes: u64) -> u64 {
        let place = self.recent.iter().position(|(recent, _)| *recent == key);
        let before = place.and_then(|place| self.recent.remove(place)).map_or(0, |(_, bytes)| bytes);
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((key, before + bytes));
        before + bytes
    }

    fn keep(&mut self, key: RunKey, run: Run, content: u64, was_read: bool) -> Vec<RunKey> {
        let mut dropped = Vec::new();
        while self.bytes + content > KEPT_BYTES {
            let Some(&oldest) = self.order.front() else { break };
            self.forget(oldest);
            dropped.push(oldest);
        }
        self.kept.insert(key, Kept { end: run.end(), content, was_read });
        self.order.push_back(key);
        self.bytes += content;
        dropped
    }

    /// Whether a run is kept, or is being fetched.
    #[must_use]
    pub fn has(&self, key: RunKey) -> bool {
        self.kept.contains_key(&key)
    }

    /// Keeps a run no longer.
    pub fn forget(&mut self, key: RunKey) {
        if let Some(kept) = self.kept.remove(&key) {
            self.order.retain(|kept| *kept != key);
            self.bytes -= kept.content;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u32 = 512 << 10;
    const CONTENT: u32 = BYTES * 8;

    fn run(number: u64) -> Run {
        Run { at: number * u64::from(BYTES), bytes: BYTES }
    }

    fn width() -> Width {
        Width::new(8, 2).expect("a width")
    }

    fn read(kept: &mut RunCache, number: u64, offset: u32, length: u32) -> Reading {
        kept.read(&Piece { segment: 7, run: run(number), width: width(), offset, length, sum: 0 })
    }

    fn whole(ahead: bool) -> Reading {
        Reading::Whole { dropped: vec![], ahead }
    }

    #[test]
    fn a_run_is_kept_once_most_of_it_was_read() {
        let mut kept = RunCache::default();
        for eighth in 0..6 {
            assert_eq!(read(&mut kept, 5, eighth * CONTENT / 8, CONTENT / 8), Reading::Alone, "{eighth}");
        }
        assert_eq!(read(&mut kept, 5, CONTENT / 8 * 6, CONTENT / 8), whole(false));
        assert_eq!(read(&mut kept, 5, CONTENT / 8 * 7, CONTENT / 8), Reading::Kept { ahead: false });
        assert_eq!(read(&mut kept, 9, 0, CONTENT), whole(false), "one that holds nothing else");
    }

    #[test]
    fn a_client_that_reads_on_gets_runs_ahead() {
        let mut kept = RunCache::default();
        assert_eq!(read(&mut kept, 5, 0, CONTENT), whole(false));
        assert_eq!(read(&mut kept, 6, CONTENT / 2, 10), Reading::Alone, "not its beginning");
        assert_eq!(read(&mut kept, 6, 100, 10), whole(true));
        assert_eq!(kept.fetch_ahead(7, run(7), width()), Some(vec![]));
        assert_eq!(kept.fetch_ahead(7, run(7), width()), None, "it is on its way");
        assert_eq!(read(&mut kept, 7, 0, 10), Reading::Kept { ahead: true });
        assert_eq!(read(&mut kept, 7, 10, 10), Reading::Kept { ahead: false });
        assert_eq!(read(&mut kept, 9, 0, 10), Reading::Alone, "it follows none that is kept");
        let elsewhere = Piece { segment: 8, run: run(8), width: width(), offset: 0, length: 10, sum: 0 };
        assert_eq!(kept.read(&elsewhere), Reading::Alone);
        kept.forget((7, run(7).at));
        assert!(!kept.has((7, run(7).at)) && kept.has((7, run(6).at)));
    }

    #[test]
    fn the_oldest_go_when_there_is_no_room() {
        let mut kept = RunCache::default();
        for number in 0..24 {
            assert_eq!(kept.fetch_ahead(7, run(number), width()), Some(vec![]), "{number}");
        }
        kept.forget((7, run(3).at));
        assert_eq!(kept.fetch_ahead(7, run(24), width()), Some(vec![]));
        assert_eq!(kept.fetch_ahead(7, run(25), width()), Some(vec![(7, 0)]));
        let long = Run { at: 1 << 30, bytes: 2 << 20 };
        assert_eq!(kept.fetch_ahead(7, long, width()), None);
        let piece = Piece { segment: 7, run: long, width: width(), offset: 0, length: 16 << 20, sum: 0 };
        assert_eq!(kept.read(&piece), Reading::Alone);
    }
}
