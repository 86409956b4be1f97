//! An outage of a session that had worked: the receiver goes on listening while another thread asks for the server.
//!
//! If a cable was out and is back, packets arrive again within a moment, and the session continues as it was. If the
//! server answers and still nothing arrives, the session is over for this receiver.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use base::{Duration, Instant};

/// Asks for the server, and returns when it answers or is given up.
#[derive(Clone)]
pub struct Reach(pub Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reach")
    }
}

/// How long packets may still take to arrive once the server answers.
const GRACE: Duration = Duration::from_millis(300);

/// An outage that is under way.
pub(super) struct Outage {
    answered: Arc<AtomicBool>,
    answered_at: Option<Instant>,
}

impl Outage {
    /// The session fell silent: asks for the server.
    pub(super) fn begin(reach: &Reach) -> Self {
        let answered = Arc::new(AtomicBool::new(false));
        let (reach, done) = (reach.clone(), Arc::clone(&answered));
        thread::spawn(move || {
            reach.0();
            done.store(true, Ordering::Release);
        });
        Self { answered, answered_at: None }
    }

    /// Whether the server has answered, or was given up, and still no packet arrives.
    pub(super) fn is_final(&mut self, now: Instant) -> bool {
        if self.answered_at.is_none() && self.answered.load(Ordering::Acquire) {
            self.answered_at = Some(now);
        }
        self.answered_at.is_some_and(|at| now.since(at) >= GRACE)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn it_is_final_only_some_time_after_the_server_answered() {
        let barrier = Arc::new(Barrier::new(2));
        let waits = Arc::clone(&barrier);
        let mut outage = Outage::begin(&Reach(Arc::new(move || {
            waits.wait();
        })));
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        assert!(!outage.is_final(at(1)) && !outage.is_final(at(100)));
        barrier.wait();
        while !outage.answered.load(Ordering::Acquire) {
            thread::yield_now();
        }
        assert!(!outage.is_final(at(101)));
        assert!(outage.is_final(at(102)));
    }
}
