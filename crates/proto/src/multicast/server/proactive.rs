//! Proactive symbols: while objects lose blocks, the server sends with each pass as many symbols as the median object
//! needs. This saves a round of reports. It sends none while nothing is lost.
//! Source: `formats/multicast.md`, section 6.

use std::collections::VecDeque;

use base::{Duration, Instant};

use crate::multicast::wire::report::Cause;

/// Most proactive symbols with one pass.
const SYMBOLS_MAX: f32 = 64.0;
/// An object for which no receiver requested symbols lowers the number by this.
const DOWN: f32 = 0.35;
/// An object for which receivers requested more raises the number by at least `UP`, or by this part of the excess.
const UP: f32 = 0.35;
const UP_PART: f32 = 0.2;

/// A pass that ended recently.
#[derive(Debug)]
struct Passed {
    object: u64,
    at: Instant,
    /// Number of proactive symbols sent with it.
    ahead: u8,
    /// The most symbols that a report requested in addition.
    asked: u32,
}

/// Estimates how many proactive symbols to send: about the median of what objects turn out to need.
#[derive(Debug, Default)]
pub(super) struct ProactiveRepair {
    /// The present estimate for an object of 192 blocks or more.
    level: f32,
    passed: VecDeque<Passed>,
}

impl ProactiveRepair {
    /// Number of proactive symbols to send with a pass over an object of `blocks` blocks.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 0..=SYMBOLS_MAX")]
    pub(super) fn symbols(&self, blocks: u32) -> u8 {
        // A short object loses fewer blocks, so its share of the estimate is smaller.
        let share = (blocks as f32 / 192.0).min(1.0);
        (self.level * share).round() as u8
    }

    /// A pass over `object` has ended, with `ahead` proactive symbols.
    pub(super) fn passed(&mut self, now: Instant, object: u64, ahead: u8) {
        self.passed.push_back(Passed { object, at: now, ahead, asked: 0 });
    }

    /// A receiver requested `count` more symbols of `object`.
    pub(super) fn asked(&mut self, object: u64, count: u32, cause: Cause) {
        if cause == Cause::Lost
            && let Some(passed) = self.passed.iter_mut().rev().find(|passed| passed.object == object)
        {
            passed.asked = passed.asked.max(count);
        }
    }

    /// Learns from each pass that ended at least `patience` ago, when all reports about it have arrived. The level
    /// has changed since that pass, so the pass counts only if it says something about the present level.
    pub(super) fn learn(&mut self, now: Instant, patience: Duration) {
        while self.passed.front().is_some_and(|passed| now.since(passed.at) >= patience) {
            let Passed { ahead, asked, .. } = self.passed.pop_front().expect("just seen");
            let needed = f32::from(ahead) + asked as f32;
            if asked > 0 && needed > self.level {
                self.level = (self.level + UP.max((needed - self.level) * UP_PART)).min(SYMBOLS_MAX);
            } else if asked == 0 && f32::from(ahead) <= self.level + 0.5 {
                self.level = (self.level - DOWN).max(0.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean level over the last 600 of 1000 objects, one per millisecond. Object `i` needs `needs(i)` symbols,
    /// and receivers request them at once.
    fn level(needs: impl Fn(u64) -> u32) -> f32 {
        let (mut ahead, mut sum) = (ProactiveRepair::default(), 0.0);
        for object in 0..1000 {
            let now = Instant(object * 1_000_000);
            let symbols = ahead.symbols(192);
            ahead.passed(now, object, symbols);
            let lacking = needs(object).saturating_sub(symbols.into());
            if lacking > 0 {
                ahead.asked(object, lacking, Cause::Lost);
            }
            ahead.learn(now, Duration::from_millis(60));
            sum += if object >= 400 { ahead.level } else { 0.0 };
        }
        sum / 600.0
    }

    #[test]
    fn nothing_goes_ahead_while_nothing_is_lost() {
        assert!(level(|_| 0) < 0.1);
        assert!(
            level(|object| u32::from(object % 50 == 0)) < 0.5,
            "a loss now and then is repaired when it is told"
        );
    }

    #[test]
    fn about_what_most_objects_need_goes_ahead() {
        assert!((8.5..10.5).contains(&level(|_| 10)), "{}", level(|_| 10));
        let mixed = level(|object| [1, 2, 2, 3, 5][(object % 5) as usize]);
        assert!((1.0..3.5).contains(&mixed), "{mixed}");
    }
}
