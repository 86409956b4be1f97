//! Points in time, passed as arguments: a driver reads them from a monotonic clock, a simulation invents them.

pub use std::time::Duration;

/// Nanoseconds since an origin that the driver chooses. Code with this type runs unchanged in `net` and in `sim`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// The origin of the clock.
    pub const ZERO: Self = Self(0);

    /// The time from `earlier` to `self`; zero if `earlier` is later than `self`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let later = Instant::ZERO + Duration::from_millis(3);
        assert_eq!(later.since(Instant::ZERO), Duration::from_millis(3));
        assert_eq!(Instant::ZERO.since(later), Duration::ZERO);
        assert_eq!(Instant(u64::MAX) + Duration::from_secs(1), Instant(u64::MAX));
    }
}
