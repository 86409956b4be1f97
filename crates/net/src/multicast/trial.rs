//! One object is fetched in another way, to see whether that is faster than the session.

use base::Instant;

/// Another way is better if it brings at least so many times as much.
const TIMES: u64 = 2;

/// Until all heads have arrived, their lengths are not known. Nearly all are longer than this.
pub(super) const HEAD_BYTES_MIN: u32 = 4096;

/// A request that is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trial {
    /// The stored object, and its length in bytes.
    pub stored: u64,
    pub bytes: u32,
    pub begun: Instant,
    /// Bytes in a second that the session brought meanwhile.
    pub by_session: u64,
}

impl Trial {
    /// Whether the other way is better; the object arrived at `now`.
    pub(super) fn is_better(&self, now: Instant) -> bool {
        let milliseconds = u64::try_from(now.since(self.begun).as_millis()).unwrap_or(u64::MAX).max(1);
        u64::from(self.bytes) * 1000 / milliseconds >= self.by_session.saturating_mul(TIMES).max(1)
    }
}

#[cfg(test)]
mod tests {
    use base::Duration;

    use super::*;

    #[test]
    fn twice_as_much_is_better() {
        let trial = |by_session| Trial { stored: 3, bytes: 50_000, begun: Instant::ZERO, by_session };
        let second = Instant::ZERO + Duration::from_secs(1);
        assert!(trial(25_000).is_better(second) && !trial(25_001).is_better(second));
        assert!(trial(0).is_better(Instant::ZERO + Duration::from_secs(40)), "better than nothing");
        assert!(trial(1000).is_better(Instant::ZERO), "it took no time");
    }
}
