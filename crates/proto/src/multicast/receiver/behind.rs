//! Detects that little of what a session sends is of use here, whatever the reason: another way may do better.

use base::{Duration, Instant};

/// It is looked at over so long a time,
const WINDOW: Duration = Duration::from_secs(3);
/// in which at least so many blocks were sent,
const SENT_MIN: u64 = 64;
/// and less than one part in so many was of use.
const PARTS: u64 = 10;
/// Of all receivers, about so many say so in a window: if many left together, their requests would be slow, too.
pub(super) const LEAVERS: u32 = 2;

/// Numbers of blocks up to now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    /// Those that the server sent, as far as they had time to arrive.
    pub sent: u64,
    /// Those that arrived and were wanted.
    pub used: u64,
    /// Those that were wanted and found no room: another way would have none either.
    pub refused: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Behind {
    began: Option<(Instant, Blocks)>,
}

impl Behind {
    /// Begins again: nothing was wanted, or nothing at all arrived for a time.
    pub(super) fn forget(&mut self) {
        self.began = None;
    }

    /// At the end of a window in which little was of use: how many blocks in a second.
    pub(super) fn look(&mut self, now: Instant, blocks: Blocks) -> Option<u64> {
        let (at, before) = *self.began.get_or_insert((now, blocks));
        let time = now.since(at);
        if time < WINDOW {
            return None;
        }
        self.began = Some((now, blocks));
        let sent = blocks.sent.saturating_sub(before.sent);
        let used = blocks.used.saturating_sub(before.used);
        let is_little =
            sent >= SENT_MIN && used.saturating_mul(PARTS) < sent && blocks.refused == before.refused;
        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        is_little.then(|| used.saturating_mul(1000) / milliseconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rate at the end of a window with such numbers.
    fn rate(sent: u64, used: u64, refused: u64) -> Option<u64> {
        let mut behind = Behind::default();
        let first = Blocks { sent: 1000, used: 900, refused: 7 };
        assert_eq!(behind.look(Instant::ZERO, first), None);
        let last = Blocks { sent: 1000 + sent, used: 900 + used, refused: 7 + refused };
        assert_eq!(behind.look(Instant::ZERO + WINDOW / 2, last), None);
        behind.look(Instant::ZERO + WINDOW, last)
    }

    #[test]
    fn little_of_much_counts() {
        assert_eq!(rate(3000, 297, 0), Some(99));
        assert_eq!(rate(3000, 300, 0), None);
        assert_eq!(rate(64, 0, 0), Some(0));
        assert_eq!(rate(63, 0, 0), None, "the session sends little");
        assert_eq!(rate(3000, 0, 1), None, "the disk is slow");
    }

    #[test]
    fn what_came_before_it_began_again_does_not_count() {
        let mut behind = Behind::default();
        let at = |seconds: u64, sent| {
            (Instant::ZERO + Duration::from_secs(seconds), Blocks { sent, used: 0, refused: 0 })
        };
        let mut look = |(now, blocks), forgets| {
            if forgets {
                behind.forget();
            }
            behind.look(now, blocks)
        };
        assert_eq!((look(at(0, 0), false), look(at(3, 5000), true)), (None, None));
        assert_eq!((look(at(5, 5000), false), look(at(6, 5064), false)), (None, Some(0)));
    }
}
