//! The clocks of drivers, and the time of the metadata service, by which all parts of a cluster judge.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970.
#[allow(clippy::disallowed_methods, reason = "this is where drivers read the clock")]
pub(crate) fn system_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The time of a clock that never goes back, and that goes on while the machine sleeps: leases end then, too.
#[allow(clippy::disallowed_methods, reason = "this is where drivers read the clock")]
pub(crate) fn monotonic() -> base::Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or(0));
    base::Instant::ZERO + seconds + Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// The time of the metadata service, as it was told once. It goes on by the monotonic clock, whatever is done to the
/// clock of any machine: the one that shows the date may be wrong, or jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServiceTime {
    told_ns: u64,
    at: base::Instant,
}

impl ServiceTime {
    /// It was `told_ns` (nanoseconds since 1970) at `at` of this machine's monotonic clock.
    pub(crate) fn told(told_ns: u64, at: base::Instant) -> Self {
        Self { told_ns, at }
    }

    /// Nanoseconds since 1970 at `now` of the monotonic clock.
    pub(crate) fn ns(self, now: base::Instant) -> u64 {
        let since = u64::try_from(now.since(self.at).as_nanos()).unwrap_or(u64::MAX);
        self.told_ns.saturating_add(since)
    }
}

/// How far a clock is ahead of the metadata service's time, both in nanoseconds since 1970, in milliseconds; negative
/// if it is behind.
pub(crate) fn skew_ms(clock_ns: u64, service_ns: u64) -> i64 {
    let ms = |ns: u64| i64::try_from(ns / 1_000_000).expect("2^64 ns are less than 2^63 ms");
    ms(clock_ns) - ms(service_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_services_time_goes_on_by_the_monotonic_clock_alone() {
        let at = |seconds: u64| base::Instant(seconds * 1_000_000_000);
        let time = ServiceTime::told(5_000_000_000, at(100));
        assert_eq!(time.ns(at(100)), 5_000_000_000);
        assert_eq!(time.ns(at(103)), 8_000_000_000);
        assert_eq!(ServiceTime::told(u64::MAX, at(1)).ns(at(2)), u64::MAX);
    }

    #[test]
    fn skew_is_ahead_or_behind() {
        assert_eq!(skew_ms(7_200_000_000_000, 0), 7_200_000);
        assert_eq!(skew_ms(0, 7_200_000_000_000), -7_200_000);
        assert_eq!(skew_ms(u64::MAX, 0), 18_446_744_073_709);
    }
}
