//! Lets machines that start from the same version tell each other what they read. The server lists each chunk once,
//! in the order in which some machine first read it. The lists are only in memory, bounded, and forgotten when no
//! machine has asked for a while. formats/api.md, "Boot profiles".

use std::collections::{HashMap, HashSet};

use base::limits::PROFILE_CHUNKS_MAX;
use net::profile::{
    ANSWER_CHUNKS_MAX, Cursor, EXCHANGE_CHUNKS_MAX, ExchangeAnswer, ExchangeRequest, chunks_of, runs_of,
};
use parking_lot::{Mutex, MutexGuard};

/// Maximum number of versions; a new one replaces the version that was idle for longest.
const TELLINGS_MAX: usize = 64;
/// A version is forgotten after this many seconds without a request.
const IDLE_SECONDS: u64 = 120;
/// Maximum number of machines counted per version, and the seconds without a request after which a machine no longer
/// counts.
const MACHINES_MAX: usize = 4096;
const MACHINE_SECONDS: u64 = 30;
/// Each machine lengthens the pause of all by this, so that all machines together send at most 500 requests a second.
const PAUSE_MS_EACH: u32 = 2;
/// Shortest pause between two requests of a machine.
const PAUSE_MS_MIN: u32 = 100;
/// Maximum number of images whose last boot is remembered, and the least seconds between two kept boots of one image.
const BOOTS_MAX: usize = 1024;
const BOOT_SECONDS: u64 = 30;

/// The reads reported for each version.
pub(crate) struct Reads {
    /// Part of the lists' names, which makes them differ from those of an earlier start of the server.
    epoch: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tellings: HashMap<(String, u64), Telling>,
    begun: u32,
    /// When the last boot of each image was kept, in seconds.
    boots: HashMap<String, u64>,
}

/// The reads reported for one version.
struct Telling {
    name: u64,
    /// Number of chunks of the version.
    chunks: u64,
    /// Chunks in the order of their first reads, each once.
    order: Vec<u64>,
    known: HashSet<u64>,
    /// When each machine last sent a request, in seconds.
    machines: HashMap<u64, u64>,
    swept: u64,
    asked: u64,
}

impl Reads {
    /// Starts with no reads. `epoch` differs between starts of the server.
    pub(crate) fn new(epoch: u32) -> Self {
        Self { epoch, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Adds the reads of a machine at `now` (seconds) and answers with those of the others. `None` if the version is
    /// not known yet: call [`Self::begin`] first.
    pub(crate) fn exchange(
        &self,
        now: u64,
        image: &str,
        request: &ExchangeRequest,
    ) -> Option<ExchangeAnswer> {
        let mut state = self.state();
        state.tellings.retain(|_, telling| now.saturating_sub(telling.asked) < IDLE_SECONDS);
        let telling = state.tellings.get_mut(&(image.to_owned(), request.version))?;
        Some(telling.exchange(now, request))
    }

    /// Starts to collect the reads of a version that has `chunks` chunks.
    pub(crate) fn begin(&self, now: u64, image: &str, version: u64, chunks: u64) {
        let mut state = self.state();
        let key = (image.to_owned(), version);
        if state.tellings.contains_key(&key) {
            return;
        }
        if state.tellings.len() == TELLINGS_MAX {
            let quietest = state.tellings.iter().min_by_key(|(_, telling)| telling.asked);
            let quietest = quietest.map(|(key, _)| key.clone());
            quietest.into_iter().for_each(|key| drop(state.tellings.remove(&key)));
        }
        state.begun += 1;
        let name = u64::from(self.epoch) << 32 | u64::from(state.begun);
        let telling = Telling {
            name,
            chunks,
            order: Vec::new(),
            known: HashSet::new(),
            machines: HashMap::new(),
            swept: now,
            asked: now,
        };
        state.tellings.insert(key, telling);
    }

    /// Whether a boot of `image` that ends at `now` should be kept. Machines that start together read much the same,
    /// so one boot per `BOOT_SECONDS` is enough.
    pub(crate) fn keeps_boot(&self, now: u64, image: &str) -> bool {
        let boots = &mut self.state().boots;
        boots.retain(|_, kept| now.saturating_sub(*kept) < BOOT_SECONDS);
        if boots.contains_key(image) || boots.len() == BOOTS_MAX {
            return false;
        }
        boots.insert(image.to_owned(), now);
        true
    }
}

impl Telling {
    fn exchange(&mut self, now: u64, request: &ExchangeRequest) -> ExchangeAnswer {
        self.asked = now;
        self.meet(now, request.machine);
        let Cursor { telling, at } = request.cursor;
        // An unknown cursor is from before a restart or an eviction: the list starts again.
        let heard = if telling == self.name { self.order.len().min(at as usize) } else { 0 };
        let (before, until) = (self.order.len(), self.order.len().min(heard + ANSWER_CHUNKS_MAX));
        let runs = runs_of(&self.order[heard..until]);
        for chunk in chunks_of(&request.runs, EXCHANGE_CHUNKS_MAX) {
            if chunk < self.chunks && self.order.len() < PROFILE_CHUNKS_MAX && self.known.insert(chunk) {
                self.order.push(chunk);
            }
        }
        // A machine that has received all older entries skips the ones that it just added itself.
        let at = if until == before { self.order.len() } else { until };
        let cursor = Cursor { telling: self.name, at: u32::try_from(at).expect("a bounded length") };
        let machines = u32::try_from(self.machines.len()).expect("a bounded count");
        ExchangeAnswer { cursor, runs, pause_ms: (machines * PAUSE_MS_EACH).max(PAUSE_MS_MIN) }
    }

    fn meet(&mut self, now: u64, machine: u64) {
        if now.saturating_sub(self.swept) >= MACHINE_SECONDS / 2 {
            self.machines.retain(|_, seen| now.saturating_sub(*seen) < MACHINE_SECONDS);
            self.swept = now;
        }
        if self.machines.len() < MACHINES_MAX || self.machines.contains_key(&machine) {
            self.machines.insert(machine, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(reads: &Reads, now: u64, machine: u64, cursor: Cursor, chunks: &[u64]) -> (Cursor, Vec<u64>, u32) {
        let request = ExchangeRequest { version: 1, machine, cursor, runs: runs_of(chunks) };
        let answer = reads.exchange(now, "web", &request).unwrap();
        (answer.cursor, chunks_of(&answer.runs, usize::MAX), answer.pause_ms)
    }

    fn begun() -> Reads {
        let reads = Reads::new(7);
        reads.begin(0, "web", 1, 100_000);
        reads
    }

    #[test]
    fn machines_hear_what_others_read_and_nothing_twice() {
        let reads = begun();
        let (first, heard, _) = ask(&reads, 0, 1, Cursor::default(), &[5, 6, 9]);
        assert!(heard.is_empty());
        let (second, heard, _) = ask(&reads, 0, 2, Cursor::default(), &[5, 7, 100_000]);
        assert_eq!(heard, [5, 6, 9]);
        assert!(ask(&reads, 0, 2, second, &[]).1.is_empty());
        let (first, heard, _) = ask(&reads, 0, 1, first, &[1]);
        assert_eq!(heard, [7]);
        assert!(ask(&reads, 0, 1, first, &[]).1.is_empty());
        assert_eq!(ask(&reads, 0, 2, second, &[]).1, [1]);
        // A cursor of another list, or one past the end.
        assert_eq!(ask(&reads, 0, 3, Cursor { telling: 3, at: 2 }, &[]).1, [5, 6, 9, 7, 1]);
        assert!(ask(&reads, 0, 3, Cursor { at: u32::MAX, ..first }, &[]).1.is_empty());
    }

    #[test]
    fn what_is_told_is_bounded() {
        let reads = begun();
        for from in 0..60u64 {
            let chunks: Vec<u64> = (from * 1000..from * 1000 + 1000).collect();
            ask(&reads, 0, 1, Cursor::default(), &chunks);
        }
        let (mut cursor, mut sum) = (Cursor::default(), 0);
        loop {
            let (next, heard, _) = ask(&reads, 0, 2, cursor, &[]);
            assert!(heard.len() <= ANSWER_CHUNKS_MAX);
            if heard.is_empty() {
                break;
            }
            (cursor, sum) = (next, sum + heard.len());
        }
        assert_eq!(sum, PROFILE_CHUNKS_MAX);
        for machine in 0..2 * MACHINES_MAX as u64 {
            ask(&reads, 0, machine, cursor, &[]);
        }
        for version in 2..2 * TELLINGS_MAX as u64 {
            reads.begin(1, "web", version, 1);
        }
        let state = reads.state();
        assert_eq!(state.tellings.len(), TELLINGS_MAX);
        assert!(state.tellings.values().all(|telling| telling.machines.len() <= MACHINES_MAX));
    }

    #[test]
    fn a_thousand_machines_ask_less_often_and_those_who_left_do_not_count() {
        let reads = begun();
        let pause = |now, machines: u64| {
            (0..machines).map(|machine| ask(&reads, now, machine, Cursor::default(), &[]).2).last().unwrap()
        };
        assert_eq!((pause(0, 3), pause(0, 1000)), (PAUSE_MS_MIN, 2000));
        assert_eq!(pause(MACHINE_SECONDS, 3), PAUSE_MS_MIN);
    }

    #[test]
    fn a_version_that_nobody_asks_about_is_forgotten() {
        let reads = begun();
        let (cursor, ..) = ask(&reads, 0, 1, Cursor::default(), &[5]);
        let request = ExchangeRequest { version: 1, machine: 1, cursor, runs: Vec::new() };
        assert!(reads.exchange(IDLE_SECONDS - 1, "web", &request).is_some());
        assert!(reads.exchange(2 * IDLE_SECONDS, "web", &request).is_none());
        reads.begin(2 * IDLE_SECONDS, "web", 1, 10);
        let (again, heard, _) = ask(&reads, 2 * IDLE_SECONDS, 1, cursor, &[3]);
        assert!(again.telling != cursor.telling && heard.is_empty());
    }

    #[test]
    fn of_boots_at_the_same_time_one_is_kept() {
        let reads = begun();
        assert!(reads.keeps_boot(0, "web") && !reads.keeps_boot(1, "web") && reads.keeps_boot(1, "lab"));
        assert!(reads.keeps_boot(BOOT_SECONDS, "web"));
        let kept = (0..2 * BOOTS_MAX).filter(|number| reads.keeps_boot(1000, &number.to_string())).count();
        assert_eq!(kept, BOOTS_MAX);
    }
}
