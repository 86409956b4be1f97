//! Which runs a client fetches whole and keeps: those that it reads in order. Small contents that were stored together
//! are mostly read together.

use std::collections::{HashSet, VecDeque};

use super::{Run, Width};

/// Longest run, in bytes of content, that is fetched whole for one piece of it.
const WHOLE_RUN_MAX: u64 = 8 << 20;
/// Bytes of runs that are kept.
const KEPT_BYTES: u64 = 96 << 20;
/// Runs that were read from lately.
const RECENT: usize = 16;

/// The segment of a run, and where it begins there.
pub type RunKey = (u64, u64);

/// How a client reads a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// Its run is kept, or is being fetched.
    Kept,
    /// Its run is to be fetched whole, and counts as kept from now on.
    Whole {
        /// Runs that are to be forgotten for it.
        dropped: Vec<RunKey>,
    },
    /// The piece alone is to be fetched.
    Alone,
}

/// The runs that one client keeps; the driver has their bytes.
#[derive(Debug, Default)]
pub struct KeptRuns {
    keys: HashSet<RunKey>,
    order: VecDeque<(RunKey, u64)>,
    bytes: u64,
    recent: VecDeque<(u64, Run)>,
}

impl KeptRuns {
    /// Says how to read a piece of `run`.
    pub fn read(&mut self, segment: u64, run: Run, width: Width) -> Reading {
        let (key, content) = ((segment, run.at), run.content_bytes(width));
        if content > WHOLE_RUN_MAX {
            return Reading::Alone;
        }
        if self.keys.contains(&key) {
            return Reading::Kept;
        }
        let in_order = self
            .recent
            .iter()
            .any(|&(of, recent)| of == segment && (recent == run || recent.end() == run.at));
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((segment, run));
        if !in_order {
            return Reading::Alone;
        }
        let mut dropped = Vec::new();
        while self.bytes + content > KEPT_BYTES {
            let Some((oldest, bytes)) = self.order.pop_front() else { break };
            self.keys.remove(&oldest);
            self.bytes -= bytes;
            dropped.push(oldest);
        }
        self.keys.insert(key);
        self.order.push_back((key, content));
        self.bytes += content;
        Reading::Whole { dropped }
    }

    /// Whether a run is kept, or is being fetched.
    #[must_use]
    pub fn has(&self, key: RunKey) -> bool {
        self.keys.contains(&key)
    }

    /// Keeps a run no longer.
    pub fn forget(&mut self, key: RunKey) {
        if self.keys.remove(&key) {
            self.order.retain(|(kept, bytes)| {
                let stays = *kept != key;
                self.bytes -= if stays { 0 } else { *bytes };
                stays
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u32 = 512 << 10;

    fn run(number: u64) -> Run {
        Run { at: number * u64::from(BYTES), bytes: BYTES }
    }

    fn read(kept: &mut KeptRuns, number: u64) -> Reading {
        kept.read(7, run(number), Width::new(8, 2).expect("a width"))
    }

    #[test]
    fn what_is_read_in_order_is_kept() {
        let mut kept = KeptRuns::default();
        assert_eq!(read(&mut kept, 5), Reading::Alone);
        assert_eq!(read(&mut kept, 5), Reading::Whole { dropped: vec![] }, "for the second time");
        assert_eq!(read(&mut kept, 5), Reading::Kept);
        assert_eq!(read(&mut kept, 6), Reading::Whole { dropped: vec![] }, "behind one that was read");
        assert_eq!(read(&mut kept, 8), Reading::Alone);
        assert_eq!(kept.read(8, run(6), Width::new(8, 2).expect("a width")), Reading::Alone);
        kept.forget((7, run(5).at));
        assert!(!kept.has((7, run(5).at)) && kept.has((7, run(6).at)));
    }

    #[test]
    fn the_oldest_go_when_there_is_no_room() {
        let mut kept = KeptRuns::default();
        assert_eq!(read(&mut kept, 0), Reading::Alone);
        for number in 0..24 {
            assert_eq!(read(&mut kept, number), Reading::Whole { dropped: vec![] }, "{number}");
        }
        kept.forget((7, run(3).at));
        assert_eq!(read(&mut kept, 24), Reading::Whole { dropped: vec![] });
        assert_eq!(read(&mut kept, 25), Reading::Whole { dropped: vec![(7, 0)] });
        let long = Run { at: 1 << 30, bytes: 2 << 20 };
        let width = Width::new(8, 2).expect("a width");
        assert_eq!((kept.read(7, long, width), kept.read(7, long, width)), (Reading::Alone, Reading::Alone));
    }
}
