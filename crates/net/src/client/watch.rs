//! Tells that a server's first answer is still being waited for, so that a wrong address does not look like a hang.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use reqwest::Url;

use super::{ClientOptions, Failure};

/// An answer that takes longer is told of.
const SOON: std::time::Duration = std::time::Duration::from_secs(3);

/// Watches a first request until it is dropped.
pub struct Watch {
    /// What went wrong last.
    why: Arc<Mutex<Option<String>>>,
    _over: Sender<()>,
}

impl Watch {
    pub fn start(server: &Url, options: &ClientOptions) -> Self {
        let (over, is_over) = bounded::<()>(0);
        let why = Arc::new(Mutex::new(None));
        let (last, server, tell) = (Arc::clone(&why), server.clone(), Arc::clone(&options.tell));
        let left = options.first_patience.saturating_sub(SOON);
        thread::spawn(move || {
            if is_over.recv_timeout(SOON) == Err(RecvTimeoutError::Timeout) {
                let why = last.lock().unwrap_or_else(PoisonError::into_inner).take();
                let why = why.map(|why: String| format!(" ({why})")).unwrap_or_default();
                tell(&format!("{server} does not answer{why}; waiting for {} s more", left.as_secs()));
            }
        });
        Self { why, _over: over }
    }

    /// An attempt failed.
    pub fn failed(&self, failure: &Failure) {
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.root_cause());
    }
}
