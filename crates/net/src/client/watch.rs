//! Tells that a server is waited for, so that a wrong address or a server that went does not look like a hang: as soon
//! as an attempt fails, or a first answer takes long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use reqwest::Url;

use super::failure::Failure;
use super::options::ClientOptions;

/// A first answer that takes longer is told of.
const SOON: Duration = Duration::from_secs(3);

/// Whether it was told that a server does not answer: once for all requests that wait, until one of them is answered.
#[derive(Clone, Default)]
pub(super) struct Told(Arc<AtomicBool>);

impl Told {
    /// An attempt failed, and others follow for at most `left`.
    pub(super) fn failed(&self, server: &Url, options: &ClientOptions, failure: &Failure, left: Duration) {
        self.tell(server, options, &format!(" ({})", failure.root_cause()), left);
    }

    fn tell(&self, server: &Url, options: &ClientOptions, why: &str, left: Duration) {
        if !self.0.swap(true, Ordering::Relaxed) {
            let left = left.as_secs();
            (options.tell)(&format!("{server} does not answer{why}; waiting for {left} s more"));
        }
    }

    /// An answer came.
    pub(super) fn answered(&self, server: &Url, options: &ClientOptions) {
        if self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed) {
            (options.tell)(&format!("{server} answers again"));
        }
    }

    /// Watches a first request until what this returns is dropped.
    pub(super) fn watch(&self, server: &Url, options: &ClientOptions) -> Sender<()> {
        let (over, is_over) = bounded::<()>(0);
        let (this, server, options) = (self.clone(), server.clone(), options.clone());
        thread::spawn(move || {
            if is_over.recv_timeout(SOON) == Err(RecvTimeoutError::Timeout) {
                let left = options.first_patience.saturating_sub(SOON);
                this.tell(&server, &options, "", left);
            }
        });
        over
    }
}
