//! Follows the boot of a machine: prefetches the chunks that the boot profile names, reports the chunks that the
//! machine reads so that others can prefetch them, and records the boot once it is over.

use std::sync::Arc;
use std::time::Duration;

use base::limits::PROFILE_DISK_BYTES_MAX;
use base::{Instant, Result};
use net::profile::{Cursor, EXCHANGE_CHUNKS_MAX};
use store::Stamp;

use super::shared::Shared;
use crate::images::{BootProfiles, ReadReport, ReadUpdate};

/// A boot is over at the latest this long after the first read.
const BOOT_MAX: Duration = Duration::from_secs(120);
/// A boot lasts at least this long.
const BOOT_MIN: Duration = Duration::from_secs(15);
/// After [`BOOT_MIN`], a boot ends when no chunk was read for the first time for this long.
const QUIET: Duration = Duration::from_secs(10);
/// If fewer chunks are read, it was not the boot of a machine, and nothing is recorded.
const BOOT_CHUNKS_MIN: usize = 16;
/// A machine that has not begun to boot receives the reads of others for this long.
const WAITS_MAX: Duration = Duration::from_secs(120);

/// How often the reads are examined.
const LOOK: Duration = Duration::from_millis(100);
/// How often they are examined if the boot has not begun after [`WAITS_MAX`].
const LOOK_IDLE: Duration = Duration::from_secs(1);
/// Longest pause between two exchanges that failed or brought nothing new in either direction.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The progress of a boot. Time and counts are arguments.
#[derive(Debug)]
struct Boot {
    begun: Instant,
    /// When the first chunk was read.
    first: Option<Instant>,
    /// When a chunk was last read for the first time.
    last: Instant,
    read: usize,
    chunks_max: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing was read yet; `long`: for [`WAITS_MAX`].
    Waits {
        long: bool,
    },
    Runs,
    /// The machine has booted.
    Over,
    /// It read more than a boot does.
    Beyond,
}

impl Boot {
    fn new(now: Instant, chunks_max: usize) -> Self {
        Self { begun: now, first: None, last: now, read: 0, chunks_max }
    }

    /// Updates the state at time `now`, when `read` chunks were read in total.
    fn look(&mut self, now: Instant, read: usize) -> Phase {
        if read > self.read {
            (self.read, self.last) = (read, now);
            self.first.get_or_insert(now);
        }
        let Some(first) = self.first else {
            return Phase::Waits { long: now.since(self.begun) >= WAITS_MAX };
        };
        let lasts = now.since(first);
        match () {
            () if read >= self.chunks_max => Phase::Beyond,
            () if lasts >= BOOT_MAX || (lasts >= BOOT_MIN && now.since(self.last) >= QUIET) => Phase::Over,
            () => Phase::Runs,
        }
    }
}

/// When the next exchange with the server takes place.
#[derive(Debug)]
struct Pace {
    /// Not before this time, as the server demands.
    earliest: Instant,
    /// At this time if there is nothing to report.
    latest: Instant,
    pause: Duration,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { earliest: now, latest: now, pause: LOOK }
    }

    fn is_due(&self, now: Instant, has_news: bool) -> bool {
        now >= if has_news { self.earliest } else { self.latest }
    }

    /// Notes an exchange after which the server demands `pause`. If it brought nothing new in either direction, the
    /// next one comes later.
    fn exchanged(&mut self, now: Instant, pause: Duration, brought: bool) {
        self.pause = if brought { pause } else { (self.pause * 2).min(PAUSE_MAX) }.max(pause);
        (self.earliest, self.latest) = (now + pause, now + self.pause);
    }

    fn failed(&mut self, now: Instant) {
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        (self.earliest, self.latest) = (now + self.pause, now + self.pause);
    }
}

/// Records the boot of one disk, and prefetches what earlier boots read.
pub(super) struct BootRecorder {
    shared: Arc<Shared>,
    profiles: Arc<dyn BootProfiles>,
    stamp: Stamp,
    image: String,
    version: u64,
    machine: u64,
    cursor: Cursor,
    /// How many of the first reads were reported.
    told: usize,
    /// Whether the boot profile was received.
    has_profile: bool,
    /// Whether reports can be made: the server understands them.
    is_heard: bool,
    /// Whether the boot is recorded at the end: the disk was new.
    records: bool,
}

impl BootRecorder {
    pub(super) fn new(shared: Arc<Shared>, profiles: Arc<dyn BootProfiles>, stamp: Stamp) -> Self {
        let (image, version, records) = {
            let state = shared.lock();
            let held = state.core.held();
            let is_new = held.clean.is_empty() && held.dirty.is_empty() && held.suspect.is_empty();
            (state.manifest.image.clone(), state.manifest.number, is_new && state.core.order().is_empty())
        };
        let machine = net::clock::jitter().u64();
        let cursor = Cursor::default();
        Self {
            shared,
            profiles,
            stamp,
            image,
            version,
            machine,
            cursor,
            told: 0,
            has_profile: false,
            is_heard: true,
            records,
        }
    }

    /// Runs until the machine has booted, or the disk is closed.
    pub(super) fn run(mut self) {
        let now = self.shared.now();
        let chunk_bytes = u64::from(self.shared.layout.chunk.bytes());
        let chunks_max =
            usize::try_from(PROFILE_DISK_BYTES_MAX / chunk_bytes).expect("a count of chunks in 1 GiB");
        let (mut boot, mut pace) = (Boot::new(now, chunks_max), Pace::new(now));
        loop {
            let now = self.shared.now();
            let (read, ends) = {
                let state = self.shared.lock();
                (state.core.order().len(), state.ends())
            };
            let phase = boot.look(now, read);
            match (ends, phase) {
                // If the disk was dropped and not closed, nothing is recorded, as after a kill.
                (Some(true), Phase::Waits { .. } | Phase::Runs | Phase::Over) => return self.record(),
                (Some(_), _) => return,
                (None, Phase::Over) => return self.record(),
                (None, Phase::Beyond) => return,
                (None, Phase::Waits { long: true }) => {}
                (None, _) if pace.is_due(now, read > self.told) => self.ask(&mut pace),
                (None, _) => {}
            }
            let pause = if phase == (Phase::Waits { long: true }) { LOOK_IDLE } else { LOOK };
            self.shared.pause_recorder(pause);
        }
    }

    fn ask(&mut self, pace: &mut Pace) {
        if !self.has_profile {
            match self.profiles.boot_profile(&self.image, self.version) {
                Ok(order) => {
                    self.has_profile = true;
                    self.shared.expect_reads(&order.unwrap_or_default());
                }
                Err(_) => return pace.failed(self.shared.now()),
            }
        }
        if self.is_heard && self.shared.lock().core.expects() {
            match self.exchange() {
                Ok(Some((pause, brought))) => return pace.exchanged(self.shared.now(), pause, brought),
                Ok(None) => self.is_heard = false,
                Err(_) => return pace.failed(self.shared.now()),
            }
        }
        pace.exchanged(self.shared.now(), PAUSE_MAX, false);
    }

    /// Reports reads and receives those of others. Returns the pause that the server demands, and whether there was
    /// anything new in either direction.
    fn exchange(&mut self) -> Result<Option<(Duration, bool)>> {
        let chunks: Vec<u64> = {
            let state = self.shared.lock();
            state.core.order().iter().skip(self.told).take(EXCHANGE_CHUNKS_MAX).copied().collect()
        };
        let told =
            ReadReport { version: self.version, machine: self.machine, cursor: self.cursor, chunks: &chunks };
        let Some(ReadUpdate { cursor, chunks: heard, pause }) =
            self.profiles.share_reads(&self.image, told)?
        else {
            return Ok(None);
        };
        self.cursor = cursor;
        self.told += chunks.len();
        self.shared.expect_reads(&heard);
        Ok(Some((pause, !chunks.is_empty() || !heard.is_empty())))
    }

    /// Records the chunks that were read, if a machine booted from a new disk.
    fn record(&self) {
        let chunks: Vec<u64> = {
            let state = self.shared.lock();
            let core = &state.core;
            core.order().iter().copied().filter(|&chunk| !core.is_empty(chunk)).collect()
        };
        if self.records && chunks.len() >= BOOT_CHUNKS_MIN {
            // Profiles are only hints, so an error does not matter: the next boot is recorded again.
            let _ = self.profiles.record_boot(&self.image, self.version, &chunks, &self.stamp);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_start_is_over_when_it_is_quiet_and_not_before() {
        let mut boot = Boot::new(at(0), 4096);
        assert_eq!(boot.look(at(60), 0), Phase::Waits { long: false });
        assert_eq!(boot.look(at(119), 0), Phase::Waits { long: false });
        assert_eq!(boot.look(at(120), 0), Phase::Waits { long: true });
        // Time counts from the first read.
        assert_eq!(boot.look(at(200), 1), Phase::Runs);
        assert_eq!(boot.look(at(214), 1), Phase::Runs);
        assert_eq!(boot.look(at(214), 2), Phase::Runs);
        assert_eq!(boot.look(at(223), 2), Phase::Runs);
        assert_eq!(boot.look(at(224), 2), Phase::Over);
    }

    #[test]
    fn a_start_that_does_not_end_is_cut_off() {
        let mut boot = Boot::new(at(0), 4096);
        for second in 0..120 {
            assert_eq!(boot.look(at(second), usize::try_from(1 + second).unwrap()), Phase::Runs);
        }
        assert_eq!(boot.look(at(120), 200), Phase::Over);
        assert_eq!(Boot::new(at(0), 4096).look(at(1), 4096), Phase::Beyond);
    }

    #[test]
    fn who_has_nothing_to_tell_asks_ever_less_often() {
        let server = Duration::from_millis(200);
        let mut pace = Pace::new(at(0));
        assert!(pace.is_due(at(0), false));
        let mut pauses = Vec::new();
        for _ in 0..10 {
            pace.exchanged(at(0), server, false);
            pauses.push(pace.latest.since(at(0)));
        }
        assert!(pauses.is_sorted() && pauses[0] == server && *pauses.last().unwrap() == PAUSE_MAX);
        // New reads to report do not wait that long, but for the pause that the server demands.
        assert!(!pace.is_due(at(0), true) && pace.is_due(at(1), true) && !pace.is_due(at(1), false));
        pace.exchanged(at(1), server, true);
        assert!(pace.is_due(at(2), false));
        // A server with very many machines demands even longer pauses.
        pace.exchanged(at(2), 2 * PAUSE_MAX, false);
        assert!(!pace.is_due(at(11), true) && pace.is_due(at(12), true));
        (0..10).for_each(|_| pace.failed(at(20)));
        assert!(!pace.is_due(at(24), true) && pace.is_due(at(25), true));
    }
}
