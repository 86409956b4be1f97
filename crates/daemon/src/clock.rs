//! The one place where the daemon reads the clock.

use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Seconds since 1970, by the system's clock.
#[expect(clippy::disallowed_methods, reason = "tokens expire by the system's clock")]
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Now, by the system's clock.
#[expect(clippy::disallowed_methods, reason = "files say when they were used")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// Now in UTC, to the second, as in RFC 3339.
#[expect(clippy::disallowed_methods, reason = "versions say when they were made")]
pub(crate) fn now_rfc3339() -> String {
    let now = OffsetDateTime::from(SystemTime::now()).replace_nanosecond(0).expect("0 is a nanosecond");
    now.format(&Rfc3339).expect("years up to 9999 can be written")
}

/// The time `unix_seconds` (seconds since 1970) in UTC, as in RFC 3339; "never" if it is after the last representable
/// date.
pub(crate) fn rfc3339(unix_seconds: u64) -> String {
    let moment = i64::try_from(unix_seconds).ok().and_then(|at| OffsetDateTime::from_unix_timestamp(at).ok());
    moment.and_then(|moment| moment.format(&Rfc3339).ok()).unwrap_or_else(|| "never".to_owned())
}

/// The moment that `text` names as in RFC 3339; `None` if it names none.
pub(crate) fn moment(text: &str) -> Option<SystemTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok().map(SystemTime::from)
}

/// A number that differs between any two starts of a server within 8 years: time in steps of 64 ms.
#[expect(clippy::disallowed_methods, reason = "an epoch is told from others by the system's clock")]
pub(crate) fn epoch() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_millis() / 64 % (1 << 32)).expect("the remainder fits")
}
