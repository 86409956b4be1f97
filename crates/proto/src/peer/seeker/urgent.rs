//! Objects that somebody waits for. Members are waited for only for a bounded time, then the server is asked.

use std::collections::BTreeMap;

use base::{Duration, Instant};

/// The server is asked for an object after this time, unless a member is sending it.
const OVERDUE_AFTER: Duration = Duration::from_secs(1);
/// A member is sending it if it sent something within this time.
const SENT_WITHIN: Duration = Duration::from_millis(500);
/// After this time the server is asked in any case.
const OVERDUE_AT_LAST: Duration = Duration::from_secs(4);
/// How often it is looked whether a member is still sending.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A member that sends nothing for this time while somebody waits is given up, so that another one can send it in time.
pub(super) const STALLED_AFTER: Duration = SENT_WITHIN;

/// How long an object has been waited for.
#[derive(Debug, Clone, Copy)]
struct Wait {
    since: Instant,
    due: Instant,
}

/// All objects that somebody waits for and the server was not asked for in time.
#[derive(Debug, Default)]
pub(super) struct Urgent(BTreeMap<u64, Wait>);

impl Urgent {
    /// Somebody waits for an object from now on.
    pub(super) fn begin(&mut self, now: Instant, object: u64) {
        self.0.entry(object).or_insert(Wait { since: now, due: now + OVERDUE_AFTER });
    }

    /// Nobody waits for it any more.
    pub(super) fn end(&mut self, object: u64) {
        self.0.remove(&object);
    }

    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// When [`Self::overdue`] is to be called.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.values().map(|wait| wait.due).min()
    }

    /// The objects for which the server is to be asked now; each once. `is_coming` says whether a source that sent
    /// something within a time is to send an object.
    pub(super) fn overdue(&mut self, now: Instant, is_coming: impl Fn(Duration, u64) -> bool) -> Vec<u64> {
        let mut overdue = Vec::new();
        self.0.retain(|&object, wait| {
            if wait.due > now {
                return true;
            }
            if now.since(wait.since) < OVERDUE_AT_LAST && is_coming(SENT_WITHIN, object) {
                wait.due = now + LOOK_AGAIN;
                return true;
            }
            overdue.push(object);
            false
        });
        overdue
    }
}
