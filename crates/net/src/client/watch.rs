//! Tells the user that the client waits for a server, as soon as an attempt fails or the first answer takes long. So
//! a wrong address or a stopped server does not look like a hang.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use reqwest::Url;

use super::failure::Failure;
use super::options::ClientOptions;

/// The user is told if the first answer takes longer than this.
const SOON: Duration = Duration::from_secs(3);

/// Tells the user that the server does not answer: once for all waiting requests, until one of them is answered.
#[derive(Clone, Default)]
pub(super) struct OutageNotice(Arc<AtomicBool>);

impl OutageNotice {
    /// An attempt failed; further attempts follow for at most `left`.
    pub(super) fn failed(&self, server: &Url, options: &ClientOptions, failure: &Failure, left: Duration) {
        self.tell(server, options, &format!(" ({})", failure.root_cause()), left);
    }

    fn tell(&self, server: &Url, options: &ClientOptions, why: &str, left: Duration) {
        if !self.0.swap(true, Ordering::Relaxed) {
            let left = left.as_secs();
            (options.tell)(&format!("{server} does not answer{why}; waiting for {left} s more"));
        }
    }

    /// An answer arrived.
    pub(super) fn answered(&self, server: &Url, options: &ClientOptions) {
        if self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed) {
            (options.tell)(&format!("{server} answers again"));
        }
    }

    /// Watches the first request of a client until the returned value is dropped.
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
