//! How hosts of a deployment are dealt with.

use std::time::Duration;

/// How hosts are dealt with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Hosts that are at work at the same time, at least 1.
    pub at_once: usize,
    /// Hosts of a wave, at least 1: the next wave begins when all hosts of this one have ended.
    pub wave: usize,
    /// Time from the beginning of one host to that of the next.
    pub stagger: Duration,
    /// Attempts that a host gets, at least 1.
    pub attempts: u32,
    /// Pause before the second attempt of a host; it doubles from one to the next.
    pub pause: Duration,
    /// A host that says nothing for this time hangs.
    pub silence: Duration,
    /// A host that gets no further for this time hangs, too.
    pub standstill: Duration,
    /// Longest time of an attempt.
    pub host_time: Option<Duration>,
    /// Longest time of all together.
    pub time: Option<Duration>,
    /// No host begins any more once so many have failed; at least 1.
    pub failures: Option<usize>,
}

impl Default for Rules {
    /// All in one wave, three attempts each, no limits of time.
    fn default() -> Self {
        Self {
            at_once: 64,
            wave: usize::MAX,
            stagger: Duration::ZERO,
            attempts: 3,
            pause: Duration::from_secs(2),
            silence: Duration::from_secs(30),
            standstill: Duration::from_secs(300),
            host_time: None,
            time: None,
            failures: None,
        }
    }
}

/// Longest pause before an attempt.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(60);
