//! How fast a counter grew over the last seconds: the rate that people see, of a session, a machine or a progress bar.

use std::collections::VecDeque;
use std::time::Duration;

/// A rate over a shorter time would come from the first moments.
const TIME_MIN: Duration = Duration::from_secs(1);
/// Most points that are kept of a window.
const POINTS_MAX: u32 = 32;

/// A counter of bytes over a window of time.
#[derive(Debug, Clone)]
pub struct Recent {
    window: Duration,
    points: VecDeque<(Duration, u64)>,
}

impl Recent {
    /// Nothing counted yet. Rates are those over the last `window`, at least a second.
    #[must_use]
    pub fn over(window: Duration) -> Self {
        Self { window: window.max(TIME_MIN), points: VecDeque::new() }
    }

    /// The counter is at `bytes` at the time `at`, which counts from any moment. A counter that went back begins anew.
    pub fn count(&mut self, at: Duration, bytes: u64) {
        if self.points.back().is_some_and(|&(last, before)| at < last || bytes < before) {
            self.clear();
        }
        let spacing = self.window / POINTS_MAX;
        let before = self.points.len().checked_sub(2).and_then(|place| self.points.get(place));
        if before.is_some_and(|&(before, _)| at - before < spacing) {
            self.points.pop_back();
        }
        self.points.push_back((at, bytes));
        while self.points.get(1).is_some_and(|&(second, _)| at - second >= self.window) {
            self.points.pop_front();
        }
    }

    /// Forgets what was counted.
    pub fn clear(&mut self) {
        self.points.clear();
    }

    /// Bytes per second; `None` if nothing was counted for at least a second.
    #[must_use]
    pub fn per_second(&self) -> Option<u64> {
        let (&(begin, before), &(end, after)) = (self.points.front()?, self.points.back()?);
        let passed = end - begin;
        let bytes = u128::from(after - before) * 1000;
        (passed >= TIME_MIN).then(|| u64::try_from(bytes / passed.as_millis()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_rate_is_that_of_the_window() {
        let mut rate = Recent::over(4 * SECOND);
        rate.count(SECOND, 0);
        rate.count(SECOND + SECOND / 2, 1000);
        assert_eq!(rate.per_second(), None, "half a second says nothing");
        for second in 2..=10 {
            rate.count(SECOND * second, 1000 * u64::from(second));
        }
        assert_eq!(rate.per_second(), Some(1000));
        for second in 11..=14 {
            rate.count(SECOND * second, 10_000);
        }
        assert_eq!(rate.per_second(), Some(0), "what came before the window does not count");
        rate.count(SECOND * 15, 9);
        assert_eq!(rate.per_second(), None, "a counter that went back begins anew");
        rate.count(SECOND * 17, u64::MAX);
        assert_eq!(rate.per_second(), Some(u64::MAX / 2 - 4));
    }

    #[test]
    fn memory_is_bounded_however_often_it_counts() {
        let mut rate = Recent::over(8 * SECOND);
        for millisecond in 0..100_000 {
            rate.count(Duration::from_millis(millisecond), millisecond * 7);
        }
        assert!(rate.points.len() <= POINTS_MAX as usize + 2, "{}", rate.points.len());
        assert_eq!(rate.per_second(), Some(7000));
    }
}
