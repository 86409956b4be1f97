//! The clock of the timestamps in packets.

use base::Instant;

/// `now` in microseconds, modulo 2^32.
pub(in crate::multicast) fn micros(now: Instant) -> u32 {
    u32::try_from((now.0 / 1000) & u64::from(u32::MAX)).expect("masked")
}
