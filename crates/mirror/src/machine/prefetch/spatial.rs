//! Read-ahead in space: a file system keeps together what belongs together, so that beside a chunk which is touched
//! another is likely to be; the more so the larger the read was, since who reads much at once reads files through.
//!
//! It is a bet of bandwidth against latency: it is made only where a fetch takes long, and only as long as what lies
//! here unread stays a small share of all that came. In the trace of a boot (`golden/boot`) two of three such bets are
//! won.

use std::collections::{HashSet, VecDeque};

use base::{Duration, Instant};

use crate::machine::types::{Cut, Sectors};

/// Fetches that take less are not worth a bet.
const PACE_MIN: Duration = Duration::from_millis(4);
/// Of a hundred bytes that came so many may lie unread, and this besides.
const PERCENT: u64 = 22;
const SLACK_BYTES: u64 = 1 << 20;
/// Weight of the newest fetch in the pace.
const NEWEST: u32 = 8;
/// A bet waits for this part of the pace behind what is demanded, which would else share the link with it.
const STAND_BACK: u32 = 16;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::machine) struct Neighbours {
    /// What demanded chunks take lately, from the first request to the last byte.
    pub(in crate::machine) pace: Option<Duration>,
    pub(in crate::machine) chunks: u64,
    pub(in crate::machine) bytes: u64,
    /// Chunks that are asked for here and did not come yet.
    pub(in crate::machine) asked: HashSet<u64>,
    /// Those of them that stand back.
    pub(in crate::machine) queue: VecDeque<u64>,
    /// Until then.
    pub(in crate::machine) due: Option<Instant>,
    /// When a demanded chunk was last asked for.
    pub(in crate::machine) demanded_at: Instant,
}

impl Neighbours {
    /// A demanded chunk is asked for.
    pub(in crate::machine) fn demanded(&mut self, now: Instant) {
        self.demanded_at = now;
    }

    /// A demanded chunk took so long. The pace follows quick ones at once: the others may have stood in a queue.
    pub(in crate::machine) fn took(&mut self, time: Duration) {
        let pace = self.pace.unwrap_or(time);
        self.pace = Some(if time < pace { time } else { pace + (time - pace) / NEWEST });
    }

    /// A chunk came, however it was asked for.
    pub(in crate::machine) fn came(&mut self, chunk: u64, bytes: u32) {
        self.chunks += 1;
        self.bytes += u64::from(bytes);
        self.asked.remove(&chunk);
    }

    /// Bets on the chunks beside `chunk`, which `range` touches for the first time; `unread` bytes were fetched ahead
    /// and not read yet. Whether there was any.
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
        // One that turned out to be empty never comes.
        self.asked.retain(|&chunk| !is_here(chunk));
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

    /// The chunks whose turn has come; `demand` says whether one that is demanded is about to be asked for.
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
