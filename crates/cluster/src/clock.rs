//! The clocks of drivers.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970.
#[allow(clippy::disallowed_methods, reason = "this is where drivers read the clock")]
pub(crate) fn system_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Seconds since 1970.
pub(crate) fn system_s() -> u64 {
    system_ns() / 1_000_000_000
}

/// The time of a clock that never goes back, and that goes on while the machine sleeps: leases end then, too.
#[allow(clippy::disallowed_methods, reason = "this is where drivers read the clock")]
pub(crate) fn monotonic() -> base::Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or(0));
    base::Instant::ZERO + seconds + Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or(0))
}
