//! The versions that machines fetch now. The server reads each under a lease in the repository, so that a prune waits
//! for those that began before the version was removed, and no machine is left with half a disk. A lease is given up
//! some time after the last sign of a fetch. Disks that are attached give no such sign: they would hold it for months.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use base::{ErrorKind, Result, chain};
use parking_lot::Mutex;
use store::{ImageName, Reading, Reference, Repository, Stamp};
use tokio::time::Instant;

use crate::clock;
use crate::event::{Event, Log};

/// How long a version is kept after the last sign of a fetch: the join of a session or a swarm, or a report of a
/// machine, which come every few seconds.
const LINGER: Duration = Duration::from_secs(30);
/// The same after a machine has said that its fetch is over. Others that just joined have reported by then.
const LAST: Duration = Duration::from_secs(3);
/// How often it is looked for prunes that have begun.
const RENEW: Duration = Duration::from_secs(5);
/// How long a version that was removed is kept at most.
const REMOVED_MAX: Duration = Duration::from_secs(24 * 3600);
/// Most versions at the same time; further ones are not protected.
const READINGS_MAX: usize = 256;

/// See the module.
pub(crate) struct Readings {
    repository: Arc<Repository>,
    log: Log,
    /// What users are told about the leases' owner.
    creator: String,
    held: Mutex<HashMap<Key, Held>>,
    /// Held while a lease is taken, so that machines that begin together take one.
    turn: Mutex<()>,
    /// It was said that versions are not protected.
    told: AtomicBool,
}

type Key = (ImageName, u64);

struct Held {
    /// `None` if the server may not write to the repository.
    reading: Option<Reading>,
    until: Instant,
    renewed: Instant,
    /// When the version was found to be removed.
    removed: Option<Instant>,
}

impl Readings {
    pub(crate) fn new(repository: Arc<Repository>, log: Log) -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let creator = format!("the server on {}", host.trim_end());
        let (held, turn, told) = Default::default();
        Self { repository, log, creator, held, turn, told }
    }

    /// A machine fetches `image@number`. Blocks if it is the first one. `NotFound` if the version was removed before.
    pub(crate) fn begin(&self, image: &ImageName, number: u64) -> Result<()> {
        if self.touch(image, number) {
            return Ok(());
        }
        let _turn = self.turn.lock();
        if self.touch(image, number) || self.held.lock().len() >= READINGS_MAX {
            return Ok(());
        }
        let reading = match Reading::begin(&self.repository, image, number, &self.stamp()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(error),
            Err(error) => {
                if !self.told.swap(true, Relaxed) {
                    (self.log)(&Event::ReadersNotProtected { error: chain(&error) });
                }
                None
            }
            Ok(reading) => Some(reading),
        };
        let now = Instant::now();
        let held = Held { reading, until: now + LINGER, renewed: now, removed: None };
        self.held.lock().insert((image.clone(), number), held);
        Ok(())
    }

    /// A machine still fetches the version. False if it is not held.
    pub(crate) fn touch(&self, image: &ImageName, number: u64) -> bool {
        let mut all = self.held.lock();
        let held = all.get_mut(&(image.clone(), number));
        held.map(|held| held.until = Instant::now() + LINGER).is_some()
    }

    /// A machine says that its fetch of the version is over.
    pub(crate) fn end(&self, reference: &Reference) {
        let Reference::Version(image, number) = reference else { return };
        if let Some(held) = self.held.lock().get_mut(&(image.clone(), *number)) {
            held.until = held.until.min(Instant::now() + LAST);
        }
    }

    /// Ends what nobody fetches any more. `reported` are the versions that machines report that they fetch, `sent`
    /// those of sessions, which end some time after their last machine. Blocks. Must be called every second.
    pub(crate) fn sweep(&self, reported: &[String], sent: &[String]) {
        let now = Instant::now();
        let signs = reported.iter().map(|of| (of, LINGER)).chain(sent.iter().map(|of| (of, LAST)));
        for (reference, time) in signs {
            if let Ok(Reference::Version(image, number)) = reference.parse()
                && let Some(held) = self.held.lock().get_mut(&(image, number))
            {
                held.until = held.until.max(now + time);
            }
        }
        let is_over = |held: &Held| {
            held.until <= now || held.removed.is_some_and(|removed| now - removed >= REMOVED_MAX)
        };
        let due: Vec<_> = {
            let mut all = self.held.lock();
            let due = |held: &Held| is_over(held) || now - held.renewed >= RENEW;
            let keys: Vec<_> = all.iter().filter(|(_, held)| due(held)).map(|(key, _)| key.clone()).collect();
            // Leases are written without the lock. Who begins to fetch one of these versions now takes another lease.
            keys.into_iter().filter_map(|key| all.remove_entry(&key)).collect()
        };
        for (key, mut held) in due.into_iter().filter(|(_, held)| !is_over(held)) {
            if let Some(reading) = &mut held.reading {
                match reading.renew(&self.stamp()) {
                    Ok(is_there) => held.removed = if is_there { None } else { held.removed.or(Some(now)) },
                    Err(error) if error.kind() == ErrorKind::Revoked => continue,
                    // The lease lives; the next look may succeed.
                    Err(_) => {}
                }
            }
            held.renewed = now;
            self.held.lock().entry(key).or_insert(held);
        }
    }

    /// The server ends.
    pub(crate) fn end_all(&self) {
        self.held.lock().clear();
    }

    fn stamp(&self) -> Stamp {
        Stamp { created: clock::now_rfc3339(), creator: self.creator.clone() }
    }
}
