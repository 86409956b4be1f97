//! The only place of this crate that reads the clock, sleeps, and makes random seeds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Chance, Instant};

/// Longest time until a pause notices [`Stop::stop`].
const STEP: Duration = Duration::from_millis(50);

/// A monotonic clock that counts from its start.
#[derive(Debug, Clone, Copy)]
pub struct Clock(std::time::Instant);

impl Clock {
    /// A clock that starts now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the driver reads the clock")]
    pub fn start() -> Self {
        Self(std::time::Instant::now())
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Time since the start, in the type that the state machines of `proto` use.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::ZERO + self.elapsed()
    }
}

/// Tells everything that works on a job to stop.
#[derive(Debug, Clone, Default)]
pub struct Stop(std::sync::Arc<AtomicBool>);

impl Stop {
    /// A signal that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the signal: the job should stop.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the job should stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeps for `duration`, or until the job should stop. False if the job should stop.
    #[expect(clippy::disallowed_methods, reason = "back-off between attempts is time that has to pass")]
    pub fn pause(&self, duration: Duration) -> bool {
        let clock = Clock::start();
        while !self.is_stopped() && clock.elapsed() < duration {
            std::thread::sleep(STEP.min(duration - clock.elapsed().min(duration)));
        }
        !self.is_stopped()
    }
}

/// Random numbers that differ from run to run. For jitter only, not for secrets.
pub fn jitter() -> Chance {
    use std::hash::{BuildHasher, RandomState};
    Chance::from_seed(RandomState::new().hash_one(std::process::id()))
}

/// The time of day, by which the kernel stamps packets.
#[expect(clippy::disallowed_methods, reason = "the driver reads the clock")]
pub(crate) fn wall() -> std::time::SystemTime {
    std::time::SystemTime::now()
}
