//! How many objects a machine that is alone has the server send at the same time: what comes within a moment. All of it
//! still comes when others are found, in the way of the session that sends what all of them lack.

use base::{Duration, Instant};

/// What is on the way comes within this time.
const AHEAD: Duration = Duration::from_millis(150);
/// Before it is known how fast they come, and on the slowest links.
const LEAST: usize = 2;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pace {
    began: Option<Instant>,
    arrived: u32,
}

impl Pace {
    /// How many may be asked for at `now`, `most` at most.
    pub(super) fn most(&mut self, now: Instant, most: usize) -> usize {
        let began = *self.began.get_or_insert(now);
        let each = now.since(began).as_nanos() / u128::from(self.arrived.max(1));
        let ahead = match self.arrived {
            0 => LEAST,
            _ => usize::try_from(AHEAD.as_nanos() / each.max(1)).unwrap_or(most),
        };
        ahead.max(LEAST).min(most)
    }

    /// One has come.
    pub(super) fn arrived(&mut self) {
        self.arrived = self.arrived.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many are asked for at a time where each takes `each` on the link, after `round_trip`.
    fn settled(round_trip: Duration, each: Duration) -> usize {
        let (mut pace, mut now) = (Pace::default(), Instant::ZERO);
        let mut most = pace.most(now, 8);
        assert_eq!(most, 2);
        for _ in 0..32 {
            let many = u32::try_from(most).unwrap();
            now = now + (round_trip + each).max(each * many);
            (0..many).for_each(|_| pace.arrived());
            most = pace.most(now, 8);
        }
        most
    }

    #[test]
    fn little_is_on_the_way_on_slow_links_and_much_on_fast_or_long_ones() {
        let ms = Duration::from_millis;
        assert_eq!(settled(ms(1), ms(84)), 2, "25 Mbit/s");
        assert_eq!(settled(ms(1), ms(21)), 7, "100 Mbit/s");
        assert_eq!(settled(ms(1), ms(2)), 8, "1 Gbit/s");
        assert_eq!(settled(ms(50), ms(21)), 7, "a long way");
        assert_eq!(Pace::default().most(Instant::ZERO, 1), 1);
    }
}
