//! Checks a running disk every second, and logs reads that wait long and objects that sources have damaged, so that
//! an operator learns of a problem before the machine hangs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use mirror::{Damage, Mirror, Waiting};
use parking_lot::{Condvar, Mutex};

use super::event::{Event, Log};

/// Interval of the checks.
const LOOK: Duration = Duration::from_secs(1);
/// A read that waits longer is logged, ...
const SLOW: Duration = Duration::from_secs(3);
/// ... and again each time it has waited this much longer.
const REMIND: Duration = Duration::from_secs(600);
/// Maximum number of remembered damaged objects; further ones are not logged.
const DAMAGE_MAX: usize = 1024;

/// What was logged so far. Times are the waiting times of reads.
#[derive(Default)]
struct Watch {
    /// The longest wait when it was last logged, and when it was last checked.
    told: Option<(Duration, Duration)>,
    damage: BTreeSet<(String, String)>,
}

impl Watch {
    fn look(&mut self, waiting: Option<Waiting>, damage: Vec<Damage>) -> Vec<Event> {
        let mut events = Vec::new();
        for Damage { what, source, why } in damage {
            let room = self.damage.len() < DAMAGE_MAX;
            if room && self.damage.insert((what.clone(), source.clone())) {
                events.push(Event::Damaged { what, source, error: why });
            }
        }
        match (waiting.filter(|waiting| waiting.waited >= SLOW), self.told) {
            (None, Some((_, last))) => {
                events.push(Event::ReadsGoOn { seconds: last.as_secs() });
                self.told = None;
            }
            (None, None) => {}
            (Some(Waiting { what, waited, why }), told) => {
                // The read that waited longest may have been answered, so that another one is the longest now.
                let again = told.is_none_or(|(at, _)| waited >= at + REMIND);
                if again {
                    events.push(Event::ReadsWait { what, seconds: waited.as_secs(), why });
                }
                let at = if again { waited } else { told.map_or(waited, |(at, _)| at.min(waited)) };
                self.told = Some((at, waited));
            }
        }
        events
    }
}

/// A thread that checks the disk until this is dropped.
pub(super) struct Watcher {
    ended: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    /// Starts to check `mirror` and to report to `log`.
    pub(super) fn start(mirror: Arc<Mirror>, log: Log) -> Result<Self> {
        let ended = Arc::new((Mutex::new(false), Condvar::new()));
        let ends = Arc::clone(&ended);
        let work = move || {
            let mut watch = Watch::default();
            loop {
                let mut is_over = ends.0.lock();
                ends.1.wait_while_for(&mut is_over, |over| !*over, LOOK);
                if *is_over {
                    return;
                }
                drop(is_over);
                watch.look(mirror.waiting(), mirror.damage()).iter().for_each(|event| log(event));
            }
        };
        let thread = std::thread::Builder::new().name("watch".into()).spawn(work);
        let thread = thread.map_err(|error| Error::from_source(ErrorKind::Io, "watch a disk", error))?;
        Ok(Self { ended, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        *self.ended.0.lock() = true;
        self.ended.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_told_of_once_in_a_while_and_so_is_its_end() {
        let waits = |seconds: u64| {
            let waited = Duration::from_secs(seconds);
            Some(Waiting { what: "chunk 7".into(), waited, why: Some("nobody there".into()) })
        };
        let mut watch = Watch::default();
        assert!(watch.look(None, Vec::new()).is_empty() && watch.look(waits(1), Vec::new()).is_empty());
        let told = watch.look(waits(3), Vec::new());
        assert!(
            matches!(&told[..], [Event::ReadsWait { what, seconds: 3, .. }] if what == "chunk 7"),
            "{told:?}"
        );
        assert!((4..603).all(|seconds| watch.look(waits(seconds), Vec::new()).is_empty()));
        assert_eq!(watch.look(waits(603), Vec::new()).len(), 1);
        // Another read, which has waited less, is the longest now.
        assert!(watch.look(waits(10), Vec::new()).is_empty());
        assert!(matches!(watch.look(waits(1), Vec::new())[..], [Event::ReadsGoOn { seconds: 10 }]));
        assert!(watch.look(None, Vec::new()).is_empty());
    }

    #[test]
    fn damage_is_told_of_once_for_each_source() {
        let damage = |source: &str| Damage { what: "chunk 7".into(), source: source.into(), why: "x".into() };
        let mut watch = Watch::default();
        assert_eq!(watch.look(None, vec![damage("a")]).len(), 1);
        assert!(watch.look(None, vec![damage("a")]).is_empty());
        assert_eq!(watch.look(None, vec![damage("a"), damage("b")]).len(), 1);
    }
}
