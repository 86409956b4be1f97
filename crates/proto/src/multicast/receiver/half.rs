//! Signs that only half of the session's way works: blocks do not reach this receiver, or its reports not the server.

use base::{Duration, Instant};

use crate::multicast::wire::status::Status;

/// The server answers reports in each STATUS. For so long none shows one that is younger than those sent since.
const UNANSWERED: Duration = Duration::from_millis(700);
/// Such STATUS packets come for at least so long, and so many: one alone was made by a server that was busy, and will
/// read the reports next.
const STALE: Duration = Duration::from_millis(300);
const STALE_PACKETS: u32 = 3;
/// So many reports were sent meanwhile: some may be lost.
const REPORTS: u32 = 4;
/// Of at least so many blocks, in so long a time, none arrived but the last ones of objects, which are shorter.
const BLOCKS: u64 = 64;
const BLOCKED: Duration = Duration::from_millis(700);

/// What does not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// STATUS packets arrive, and BLOCK packets, which are longer, never.
    NoBlocks,
    /// Packets arrive, but no receiver's reports reach the server: nobody's rate and repairs can be right.
    NoReports,
}

/// Where the stream is at a time: the number of blocks that were sent, and of those that arrived.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub at: Instant,
    pub sent: u64,
    pub arrived: u64,
}

impl Point {
    /// Number of blocks that were lost since an earlier point.
    fn lost_since(&self, earlier: &Self) -> u64 {
        let arrived = self.arrived.saturating_sub(earlier.arrived);
        self.sent.saturating_sub(earlier.sent).saturating_sub(arrived)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Halves {
    /// Where the stream was when STATUS packets began to arrive, and whether a block that fills its packet ever did.
    began: Option<Point>,
    has_full: bool,
    /// When the first report was sent of those that no STATUS tells of yet, and their number.
    asked: Option<Instant>,
    reports: u32,
    /// When the first of the STATUS packets in a row arrived that should tell of one, and do not, and their number.
    stale: Option<Instant>,
    stale_packets: u32,
    is_told: bool,
}

impl Halves {
    /// A block arrived, which fills its packet or not.
    pub(super) fn block(&mut self, is_full: bool) {
        self.has_full |= is_full;
    }

    /// A report was sent.
    pub(super) fn sent(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
        self.reports = self.reports.saturating_add(1);
    }

    /// A packet arrived, the first one after an outage. What was sent meanwhile tells nothing.
    pub(super) fn begin_again(&mut self) {
        self.began = None;
    }

    /// A STATUS arrived, when `arrived` blocks had.
    pub(super) fn status(&mut self, now: Instant, status: &Status, arrived: u64) {
        self.began.get_or_insert(Point { at: now, sent: status.sequence, arrived });
        let Some(asked) = self.asked else { return };
        let since = now.since(asked);
        // Whose report it was does not matter: the server names the last one.
        if status.echo.is_some_and(|echo| Duration::from_micros(echo.age_us.into()) < since) {
            (self.asked, self.reports) = (None, 0);
            (self.stale, self.stale_packets) = (None, 0);
        } else if since >= UNANSWERED {
            self.stale.get_or_insert(now);
            self.stale_packets = self.stale_packets.saturating_add(1);
        }
    }

    /// What does not work, once.
    pub(super) fn look(&mut self, point: Point) -> Option<Half> {
        let blocked = self
            .began
            .is_some_and(|began| point.at.since(began.at) >= BLOCKED && point.lost_since(&began) >= BLOCKS);
        let found = if !self.has_full && blocked {
            Half::NoBlocks
        } else if self.reports >= REPORTS
            && self.stale_packets >= STALE_PACKETS
            && self.stale.is_some_and(|stale| point.at.since(stale) >= STALE)
        {
            Half::NoReports
        } else {
            return None;
        };
        (!std::mem::replace(&mut self.is_told, true)).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multicast::wire::header::ReceiverId;
    use crate::multicast::wire::status::Echo;

    const STEP: Duration = Duration::from_millis(100);

    fn status(age: Option<Duration>) -> Status {
        let age_us = age.map(|age| u32::try_from(age.as_micros()).unwrap());
        let echo = age_us.map(|age_us| Echo { receiver: ReceiverId(7), timestamp_us: 0, age_us });
        Status {
            sequence: 0,
            timestamp_us: 0,
            cursor: 0,
            idle: false,
            queue: None,
            receivers: 3,
            report_interval: STEP,
            echo,
            pending: Vec::new(),
            repairs: Vec::new(),
        }
    }

    /// The first sign, and after which steps, where a STATUS with an echo of `age(step)` and a report follow each
    /// other, after a block, full or not, and with so many blocks lost.
    fn first(age: impl Fn(u32) -> Option<Duration>, (is_full, lost): (bool, u64)) -> Option<(Half, u32)> {
        let mut halves = Halves::default();
        halves.block(is_full);
        (0..100).find_map(|step| {
            let now = Instant::ZERO + STEP * step;
            halves.status(now, &status(age(step)), 0);
            halves.sent(now);
            halves.look(Point { at: now, sent: lost, arrived: 0 }).map(|half| (half, step))
        })
    }

    #[test]
    fn reports_that_never_arrive_are_noticed() {
        assert_eq!(first(|_| None, (true, 0)), Some((Half::NoReports, 10)));
        // They arrived for two seconds.
        let until = |step: u32| Some(STEP * step.saturating_sub(20));
        assert_eq!(first(until, (true, 0)), Some((Half::NoReports, 30)));
    }

    #[test]
    fn reports_that_are_answered_late_or_by_one_another_are_right() {
        assert_eq!(first(|_| Some(Duration::from_millis(50)), (true, 0)), None);
        // Of each three seconds the server was busy for 0.9.
        let busy = |step: u32| Some(if step % 30 < 9 { STEP * (step % 30) + STEP } else { Duration::ZERO });
        assert_eq!(first(busy, (true, 500)), None);
    }

    #[test]
    fn blocks_that_never_arrive_are_noticed() {
        let fresh = |_| Some(Duration::ZERO);
        assert_eq!(first(fresh, (false, 64)), Some((Half::NoBlocks, 7)));
        assert_eq!((first(fresh, (false, 63)), first(fresh, (true, 5000))), (None, None));
    }

    #[test]
    fn what_was_sent_while_nothing_arrived_does_not_count() {
        let mut halves = Halves::default();
        let mut step = |at: u32, sent: u64, is_first: bool| {
            let now = Instant::ZERO + STEP * at;
            if is_first {
                halves.begin_again();
            }
            halves.status(now, &Status { sequence: sent, ..status(Some(Duration::ZERO)) }, 0);
            halves.look(Point { at: now, sent, arrived: 0 })
        };
        assert_eq!((step(0, 0, false), step(10, 1000, true)), (None, None));
        assert_eq!((step(14, 1030, false), step(16, 1064, false)), (None, None));
        assert_eq!(step(17, 1064, false), Some(Half::NoBlocks));
    }

    #[test]
    fn blocks_that_arrive_are_not_lost_however_short_they_are() {
        let mut halves = Halves::default();
        halves.status(Instant::ZERO, &status(Some(Duration::ZERO)), 5);
        let at = Instant::ZERO + BLOCKED;
        assert_eq!(halves.look(Point { at, sent: 100, arrived: 100 + 5 - 63 }), None);
        assert_eq!(halves.look(Point { at, sent: 100, arrived: 100 + 5 - 64 }), Some(Half::NoBlocks));
    }
}
