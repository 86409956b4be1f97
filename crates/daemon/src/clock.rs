//! The one place where the daemon reads the clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since 1970, by the system's clock.
#[expect(clippy::disallowed_methods, reason = "tokens expire by the system's clock")]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Milliseconds since 1970, as a number that differs between any two starts of a server.
#[expect(clippy::disallowed_methods, reason = "an epoch is told from others by the system's clock")]
pub fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A point on the monotonic clock.
#[expect(clippy::disallowed_methods, reason = "durations are measured by the monotonic clock")]
pub fn now() -> std::time::Instant {
    std::time::Instant::now()
}
