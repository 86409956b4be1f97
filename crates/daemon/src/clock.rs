//! The one place where the daemon reads the clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970, by the system's clock.
#[expect(clippy::disallowed_methods, reason = "tokens expire by the system's clock")]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A number that differs between any two starts of a server within 8 years: time in steps of 64 ms.
#[expect(clippy::disallowed_methods, reason = "an epoch is told from others by the system's clock")]
pub fn epoch() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_millis() / 64 % (1 << 32)).expect("the remainder fits")
}
