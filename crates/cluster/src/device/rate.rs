//! The quality of service of groups: how many bytes per second a group may move on this device.

use std::collections::HashMap;
use std::time::Duration;

use base::Instant;
use parking_lot::Mutex;

/// When the next byte of each group may move.
#[derive(Debug, Default)]
pub(super) struct Rates(Mutex<HashMap<u32, Instant>>);

impl Rates {
    /// Takes `bytes` of a group whose rate is `per_second`, and returns how long to wait before they move.
    pub(super) fn take(&self, group: u32, bytes: u64, per_second: u64, now: Instant) -> Duration {
        let mut next = self.0.lock();
        let free = next.entry(group).or_default();
        let from = now.max(*free);
        let takes = u128::from(bytes) * 1_000_000_000 / u128::from(per_second.max(1));
        *free = from + Duration::from_nanos(u64::try_from(takes).unwrap_or(u64::MAX));
        from.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_moves_as_fast_as_its_rate() {
        let rates = Rates::default();
        let now = Instant::ZERO;
        assert_eq!(rates.take(1, 500, 1000, now), Duration::ZERO);
        assert_eq!(rates.take(1, 500, 1000, now), Duration::from_millis(500));
        assert_eq!(rates.take(2, 500, 1000, now), Duration::ZERO, "another group");
        let later = now + Duration::from_secs(5);
        assert_eq!(rates.take(1, 500, 1000, later), Duration::ZERO, "what was not used is not saved up");
    }
}
