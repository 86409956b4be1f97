//! Prefetching of neighbours: a file system places related data close together, so the chunk next to one that is
//! read will probably be read too. This is more likely after a large read, since programs with large reads usually
//! read whole files.
//!
//! Each prefetch is a bet of bandwidth against latency. So it is made only if a fetch takes long, and only while the
//! unread part of all fetched bytes is small. In two different systems the reads of a boot and a job take 1.3 and 1.6
//! times as long without such bets (`docs/notes/storage.md`, "Reading ahead by place").

use std::collections::{HashSet, VecDeque};

use base::{Duration, Instant};

use crate::machine::types::{Cut, Sectors};

/// If fetches take less than this, bets are not worth it.
const PACE_MIN: Duration = Duration::from_millis(4);
/// How much may be prefetched and unread: this percentage of all bytes that were fetched, plus [`SLACK_BYTES`].
const PERCENT: u64 = 22;
const SLACK_BYTES: u64 = 1 << 20;
/// The newest fetch has the weight `1 / NEWEST` in the average fetch time (the pace).
const NEWEST: u32 = 8;
/// A bet waits for `pace / STAND_BACK` after the last demanded chunk was requested, so that the two do not share the
/// link.
const STAND_BACK: u32 = 16;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::machine) struct Neighbours {
    /// Average time of recent fetches of demanded chunks, from the request to the last byte.
    pub(in crate::machine) pace: Option<Duration>,
    pub(in crate::machine) chunks: u64,
    pub(in crate::machine) bytes: u64,
    /// Bets that have not arrived yet.
    pub(in crate::machine) asked: HashSet<u64>,
    /// Bets that were not requested yet.
    pub(in crate::machine) queue: VecDeque<u64>,
    /// When the bets in `queue` will be requested.
    pub(in crate::machine) due: Option<Instant>,
    /// When a demanded chunk was last requested.
    pub(in crate::machine) demanded_at: Instant,
}

impl Neighbours {
    /// Notes that a demanded chunk is requested.
    pub(in crate::machine) fn demanded(&mut self, now: Instant) {
        self.demanded_at = now;
    }

    /// Notes the fetch time of a demanded chunk. A shorter time becomes the pace at once: longer ones may include
    /// waiting in a queue.
    pub(in crate::machine) fn took(&mut self, time: Duration) {
        let pace = self.pace.unwrap_or(time);
        self.pace = Some(if time < pace { time } else { pace + (time - pace) / NEWEST });
    }

    /// Notes that a chunk arrived, whatever the reason for its fetch.
    pub(in crate::machine) fn came(&mut self, chunk: u64, bytes: u32) {
        self.chunks += 1;
        self.bytes += u64::from(bytes);
        self.asked.remove(&chunk);
    }

    /// Bets on the neighbours of `chunk`, which `range` touches for the first time. `unread` is the number of bytes
    /// that were prefetched and not read yet. Returns whether there was any bet.
    pub(in crate::machine) fn bet(
        &mut self,
        chunk: u64,
        range: &Sectors,
        cut: &Cut,
        unread: u64,
        is_here: impl Fn(u64) -> bool,
    ) -> bool {
        if self.chunks == 0 || self.pace.is_none_or(|pace| pace < PACE_MIN) {
            return false;
        }
        // A chunk that turned out to be empty is never fetched, so `came` does not remove it.
        self.asked.retain(|&chunk| !is_here(chunk));
        // How many bets may be in flight: the bytes that may still become unread, by the average size of a chunk.
        let room = (self.bytes / 100 * PERCENT + SLACK_BYTES).saturating_sub(unread);
        let most = room / (self.bytes / self.chunks).max(1);
        let is_large = (range.end - range.start) * 2 >= cut.chunk_sectors;
        let sides = if is_large { &[1, -1, 2, -2][..] } else { &[1] };
        let touched = cut.chunks_of(range);
        let before = self.queue.len();
        for near in sides.iter().filter_map(|&side| chunk.checked_add_signed(side)) {
            let fits = near < cut.chunks() && !touched.contains(&near) && (self.asked.len() as u64) < most;
            if fits && !is_here(near) && self.asked.insert(near) {
                self.queue.push_back(near);
            }
        }
        self.queue.len() > before
    }

    /// The chunks to request now. `demand` says whether a demanded chunk is about to be requested.
    pub(in crate::machine) fn ready(&mut self, now: Instant, demand: bool) -> Vec<u64> {
        let pause = self.pace.unwrap_or_default() / STAND_BACK;
        let due = if demand { now + pause } else { self.demanded_at + pause };
        self.due = (now < due && !self.queue.is_empty()).then_some(due);
        if self.due.is_some() { Vec::new() } else { self.queue.drain(..).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut { size_sectors: 1 << 23, chunk_sectors: 512, height: 2 };
    const FAR: Duration = Duration::from_millis(10);

    fn far() -> Neighbours {
        let mut neighbours = Neighbours::default();
        neighbours.took(FAR);
        neighbours.came(7, 90_000);
        neighbours
    }

    fn bets(neighbours: &mut Neighbours, range: Sectors, is_here: impl Fn(u64) -> bool) -> Vec<u64> {
        neighbours.bet(range.start / 512, &range, &CUT, 0, is_here);
        neighbours.ready(Instant::ZERO + FAR, false)
    }

    #[test]
    fn a_large_read_is_given_more_than_a_small_one() {
        let mut neighbours = far();
        let large = 100 * 512..100 * 512 + 256;
        assert_eq!(bets(&mut neighbours, large.clone(), |_| false), [101, 99, 102, 98]);
        assert!(bets(&mut neighbours, large, |_| false).is_empty(), "nothing twice");
        let small = |chunk: u64| chunk * 512..chunk * 512 + 8;
        assert_eq!(bets(&mut neighbours, small(200), |_| false), [201]);
        assert!(bets(&mut neighbours, small(300), |chunk| chunk == 301).is_empty());
        assert_eq!(bets(&mut neighbours, 0..512, |_| false), [1, 2]);
        let last = CUT.chunks() - 1;
        assert_eq!(bets(&mut neighbours, CUT.chunk(last), |_| false), [last - 1, last - 2]);
    }

    #[test]
    fn near_sources_are_not_bet_on() {
        let mut neighbours = far();
        neighbours.took(Duration::from_millis(1));
        assert!(bets(&mut neighbours, 51200..51712, |_| false).is_empty());
        // Slow fetches count once they are many.
        for _ in 0..20 {
            neighbours.took(FAR);
        }
        assert_eq!(bets(&mut neighbours, 51200..51712, |_| false).len(), 4);
    }

    #[test]
    fn bets_stand_back_behind_what_is_demanded() {
        let mut neighbours = far();
        let (now, pause) = (Instant::ZERO + FAR * 10, FAR / STAND_BACK);
        assert!(neighbours.bet(100, &(51200..51712), &CUT, 0, |_| false));
        assert!(neighbours.ready(now, true).is_empty());
        neighbours.demanded(now);
        assert_eq!(neighbours.due, Some(now + pause));
        assert!(neighbours.ready(now + pause / 2, false).is_empty());
        assert_eq!(neighbours.ready(now + pause, false).len(), 4);
        assert_eq!(neighbours.due, None);
    }

    #[test]
    fn bets_that_are_lost_end_it() {
        let mut neighbours = far();
        let (mut unread, mut came) = (0u64, 0u64);
        for at in (0..8000).step_by(8) {
            neighbours.bet(at, &CUT.chunk(at), &CUT, unread, |_| false);
            for chunk in neighbours.ready(Instant::ZERO + FAR, false) {
                neighbours.came(chunk, 90_000);
                unread += 90_000;
            }
            neighbours.came(at, 90_000);
            came += 90_000;
        }
        assert!((15..30).contains(&(unread * 100 / came)), "{unread} {came}");
    }
}
