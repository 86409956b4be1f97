//! The one place where commands read the clock.

use std::time::{Instant, SystemTime};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A point on the monotonic clock.
#[expect(clippy::disallowed_methods, reason = "what people wait for is measured by the real clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Sleeps for `time`.
#[expect(clippy::disallowed_methods, reason = "who waits for others, and cannot be told, looks now and then")]
pub(crate) fn pause(time: std::time::Duration) {
    std::thread::sleep(time);
}

/// Now in UTC, to the second, as in RFC 3339.
#[expect(clippy::disallowed_methods, reason = "versions and tags say when they were made")]
pub(crate) fn now_rfc3339() -> String {
    let now = OffsetDateTime::from(SystemTime::now()).replace_nanosecond(0).expect("0 is a nanosecond");
    now.format(&Rfc3339).expect("years up to 9999 can be written")
}

/// Now by the system's clock.
#[expect(clippy::disallowed_methods, reason = "what a scrub log says is compared with the times of files")]
pub(crate) fn system_now() -> SystemTime {
    SystemTime::now()
}

/// Seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "tokens expire by the system's clock")]
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Formats seconds since 1970 as in RFC 3339.
pub(crate) fn show_unix(seconds: u64) -> String {
    let moment = i64::try_from(seconds).ok().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
    moment.and_then(|moment| moment.format(&Rfc3339).ok()).unwrap_or_else(|| format!("second {seconds}"))
}

/// Seconds since 1970 of a time as in RFC 3339; `None` if it is none.
pub(crate) fn parse_rfc3339(text: &str) -> Option<u64> {
    OffsetDateTime::parse(text, &Rfc3339).ok()?.unix_timestamp().try_into().ok()
}

/// Shortens a time of RFC 3339 to `2026-11-20 14:03`, for tables.
pub(crate) fn short(rfc3339: &str) -> String {
    match (rfc3339.get(..10), rfc3339.get(11..16)) {
        (Some(day), Some(minute)) => format!("{day} {minute}"),
        _ => rfc3339.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_people_read_them() {
        assert_eq!(show_unix(1_795_183_380), "2026-11-20T14:03:00Z");
        assert_eq!(parse_rfc3339("2026-11-20T15:03:00+01:00"), Some(1_795_183_380));
        assert_eq!(parse_rfc3339("2026-11-20 15:03"), None);
        assert_eq!(short("2026-11-20T14:03:00Z"), "2026-11-20 14:03");
        assert_eq!(short("é"), "é");
        assert!(now_rfc3339().ends_with('Z') && now_rfc3339().len() == 20);
    }
}
