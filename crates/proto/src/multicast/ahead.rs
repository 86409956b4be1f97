//! Symbols ahead: when objects keep losing blocks, so many symbols follow each pass at once as the usual object needs,
//! and a round of reports is saved. Nothing goes ahead while nothing is lost.
//! Source: `formats/multicast.md`, section 6.

use std::collections::VecDeque;

use base::{Duration, Instant};

use super::report::Cause;

/// Most symbols ahead.
const SYMBOLS_MAX: f32 = 64.0;
/// What one object that was content lowers the number by.
const DOWN: f32 = 0.35;
/// What one object for which more was asked raises it by at least, and as a part of what was asked.
const UP: f32 = 0.35;
const UP_PART: f32 = 0.2;

/// A pass that ended lately.
#[derive(Debug)]
struct Passed {
    object: u64,
    at: Instant,
    /// How much was asked for first.
    asked: u32,
}

/// How many symbols go ahead: about the median of what objects turn out to need.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    level: f32,
    passed: VecDeque<Passed>,
}

impl Ahead {
    /// Symbols to send with a pass over an object of `blocks` blocks.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 0..=SYMBOLS_MAX")]
    pub(super) fn symbols(&self, blocks: u32) -> u8 {
        // A short object loses fewer blocks.
        let share = (blocks as f32 / 192.0).min(1.0);
        (self.level * share).round() as u8
    }

    /// A pass over `object` has ended.
    pub(super) fn passed(&mut self, now: Instant, object: u64) {
        self.passed.push_back(Passed { object, at: now, asked: 0 });
    }

    /// So many symbols were asked for of `object`.
    pub(super) fn asked(&mut self, object: u64, count: u32, cause: Cause) {
        if cause == Cause::Lost
            && let Some(passed) = self.passed.iter_mut().rev().find(|passed| passed.object == object)
        {
            passed.asked = passed.asked.max(count);
        }
    }

    /// Learns from the passes of which all reports have come, `patience` after they ended.
    pub(super) fn learn(&mut self, now: Instant, patience: Duration) {
        while self.passed.front().is_some_and(|passed| now.since(passed.at) >= patience) {
            let asked = self.passed.pop_front().expect("just seen").asked;
            let step = if asked > 0 { UP.max(asked as f32 * UP_PART) } else { -DOWN };
            self.level = (self.level + step).clamp(0.0, SYMBOLS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where it ends if each of 400 objects needs `needs(i)` symbols.
    fn level(needs: impl Fn(u64) -> u32) -> f32 {
        let mut ahead = Ahead::default();
        for object in 0..400 {
            let now = Instant(object * 1_000_000);
            ahead.passed(now, object);
            let lacking = needs(object).saturating_sub(ahead.symbols(192).into());
            if lacking > 0 {
                ahead.asked(object, lacking, Cause::Lost);
            }
            ahead.learn(now + Duration::from_millis(20), Duration::from_millis(10));
        }
        ahead.level
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
        assert!((8.0..11.0).contains(&level(|_| 10)), "{}", level(|_| 10));
        let mixed = level(|object| [1, 2, 2, 3, 5][(object % 5) as usize]);
        assert!((1.0..4.0).contains(&mixed), "{mixed}");
    }
}
