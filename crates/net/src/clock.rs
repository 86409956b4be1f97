//! The one place of this crate that reads the clock, waits for time to pass, and makes seeds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Chance, Instant};

/// Longest time that passes until a pause notices that it is to end.
const STEP: Duration = Duration::from_millis(50);

/// A monotonic clock, whose origin is when it was started.
#[derive(Debug, Clone, Copy)]
pub struct Clock(std::time::Instant);

impl Clock {
    /// A clock that shows zero.
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

    /// The same, as the machines of `proto` take it.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::ZERO + self.elapsed()
    }
}

/// Says to everything that works on a job that it is to end.
#[derive(Debug, Clone, Default)]
pub struct Stop(std::sync::Arc<AtomicBool>);

impl Stop {
    /// A job that is to go on.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that the job is to end.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the job is to end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Lets `duration` pass. False if the job is to end.
    #[expect(clippy::disallowed_methods, reason = "back-off between attempts is time that has to pass")]
    pub(crate) fn pause(&self, duration: Duration) -> bool {
        let clock = Clock::start();
        while !self.is_stopped() && clock.elapsed() < duration {
            std::thread::sleep(STEP.min(duration - clock.elapsed().min(duration)));
        }
        !self.is_stopped()
    }
}

/// Chance that differs from run to run: for jitter, and nothing that must be secret.
pub fn jitter() -> Chance {
    use std::hash::{BuildHasher, RandomState};
    Chance::from_seed(RandomState::new().hash_one(std::process::id()))
}
