//! Measures whether the chunks that other machines read help this machine, and gives them up if they do not.

use base::{Duration, Instant};

use crate::machine::prefetch::expected::Expected;
use crate::machine::state::Core;

/// Minimum number of first reads that the other machines' reads did not predict, before the prediction is given up.
const MISSES_MIN: u32 = 64;
/// After this time most of the fetched chunks must have been read, if there were at least [`TRIAL_READS_MIN`] first
/// reads.
const TRIAL: Duration = Duration::from_secs(60);
/// See [`TRIAL`].
const TRIAL_READS_MIN: u32 = 32;

impl Core {
    /// Compares first reads with the expected ones. If this machine reads other chunks than the others did, the
    /// expectation is given up, unless most of what it fetched was useful.
    pub(in crate::machine) fn compare_expected(&mut self, fresh: &[u64]) {
        if self.supply.expected.known.is_empty() {
            return;
        }
        for &chunk in fresh {
            let foretold = self.supply.expected.known.contains(&chunk);
            if foretold || !self.is_chunk_here(chunk) {
                self.supply.expected.count(foretold);
            }
        }
        let Expected { hits, misses, .. } = self.supply.expected;
        if misses >= MISSES_MIN && misses > 3 * hits && self.was_in_vain() {
            self.supply.expected.give_up();
        }
    }

    /// Gives up the expected chunks if [`TRIAL`] has passed and most of those that were fetched were not read.
    pub(in crate::machine) fn judge_expected(&mut self, now: Instant) {
        let Expected { hits, misses, since, .. } = self.supply.expected;
        let is_due = since.is_some_and(|since| since + TRIAL <= now) && hits + misses >= TRIAL_READS_MIN;
        if is_due && self.was_in_vain() {
            self.supply.expected.give_up();
        }
    }

    /// Whether other machines read `chunk`, as far as that is remembered.
    pub(in crate::machine) fn is_foretold(&self, chunk: u64) -> bool {
        self.supply.expected.known.contains(&chunk)
    }

    /// Whether most of the bytes that were fetched as expected were not read.
    fn was_in_vain(&self) -> bool {
        self.counters.expected_bytes > 2 * self.counters.expected_used_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Held;
    use crate::machine::prefetch::expected::{EXPECTED_MAX, MISSES_DOUBT};
    use crate::machine::types::{Config, Counters, Cut, Done, Io, Item, OpId, Request, Step};

    const CUT: Cut = Cut { size_sectors: 400 * 512, chunk_sectors: 512, height: 2 };

    fn core(fetches_max: usize) -> Core {
        let config = Config {
            sources: vec![fetches_max],
            fetches_max,
            demand_reserve: 0,
            give_up: None,
            ahead_chunks_max: 0,
            background_per_second: 0,
            journal_bytes_max: 1 << 30,
        };
        Core::new(CUT, config, Held::default(), 64)
    }

    /// Executes the steps of an operation successfully, until it waits or is over.
    fn drive(core: &mut Core, now: Instant, id: OpId) {
        while let Step::Do(io) = core.step(now, id) {
            let done = match io {
                Io::Fetch { item: Item::Node(_), .. } => Done::Node { empty: vec![false; 256], bytes: 1000 },
                Io::Fetch { item: Item::Chunk(_), .. } => Done::Chunk(100),
                Io::Append(_) => Done::Appended(64),
                _ => Done::Well,
            };
            core.done(now, id, done);
        }
    }

    /// Fetches all that the core wants.
    fn fetch_all(core: &mut Core, now: Instant) {
        loop {
            if let Some(id) = core.poll_begin(now).or_else(|| core.poll_wake()) {
                drive(core, now, id);
            } else {
                return;
            }
        }
    }

    fn read(core: &mut Core, now: Instant, chunk: u64) {
        let sectors = CUT.chunk(chunk);
        if core.is_here(&sectors) {
            core.read_here(&sectors);
        } else {
            let id = core.submit(Request::Read(sectors));
            drive(core, now, id);
        }
    }

    /// The next chunk that the core requests. Its fetch is left unanswered; fetches of nodes are answered.
    fn next_chunk(core: &mut Core) -> (OpId, u64) {
        loop {
            let id = core.poll_begin(Instant::ZERO).expect("something is wanted");
            match core.step(Instant::ZERO, id) {
                Step::Do(Io::Fetch { item: Item::Chunk(chunk), .. }) => return (id, chunk),
                Step::Do(Io::Fetch { .. }) => {
                    core.done(Instant::ZERO, id, Done::Node { empty: vec![false; 256], bytes: 1000 });
                    drive(core, Instant::ZERO, id);
                }
                step => panic!("{step:?}"),
            }
        }
    }

    fn order(expected: &mut Expected) -> Vec<u64> {
        std::iter::from_fn(|| expected.next(Instant::ZERO)).collect()
    }

    #[test]
    fn what_is_heard_later_is_merged_in() {
        let mut expected = Expected::default();
        expected.add(&[1, 2, 3, 4]);
        expected.add(&[10, 2, 20, 21, 4, 40, 1]);
        assert_eq!(order(&mut expected), [10, 1, 2, 20, 21, 3, 4, 40]);
        // A chunk that follows none in the queue goes to the front.
        expected.add(&[50, 51]);
        expected.add(&[60, 61, 60, 50, 70]);
        assert_eq!(order(&mut expected), [60, 61, 50, 70, 51]);
        expected.add(&(0..2 * EXPECTED_MAX as u64).collect::<Vec<_>>());
        assert_eq!((expected.queue.len(), expected.known.len()), (EXPECTED_MAX, EXPECTED_MAX));
    }

    #[test]
    fn a_chunk_that_is_read_on_its_way_was_of_use() {
        let mut core = core(1);
        core.expect_reads(&[5, 6, 7]);
        let (id, chunk) = next_chunk(&mut core);
        assert_eq!(chunk, 5);
        let reader = core.submit(Request::Read(CUT.chunk(5)));
        assert_eq!(core.step(Instant::ZERO, reader), Step::Wait);
        core.done(Instant::ZERO, id, Done::Chunk(100));
        drive(&mut core, Instant::ZERO, id);
        assert_eq!(core.poll_wake(), Some(reader));
        drive(&mut core, Instant::ZERO, reader);
        let once = Counters {
            demanded_chunks: 1,
            prefetched_bytes: 100,
            prefetched_used_bytes: 100,
            expected_bytes: 100,
            expected_used_bytes: 100,
            node_bytes: 2000,
            ..Counters::default()
        };
        assert_eq!(core.counters(), once);
        // A chunk that is still queued when a read demands it does not count as prefetched.
        let reader = core.submit(Request::Read(CUT.chunk(6)));
        assert_eq!(core.step(Instant::ZERO, reader), Step::Wait);
        fetch_all(&mut core, Instant::ZERO);
        assert_eq!((core.counters().demanded_bytes, core.counters().prefetched_bytes), (100, 200));
        assert_eq!(core.counters().prefetched_unused_bytes(), 100);
        // A chunk that is read twice counts as used once.
        read(&mut core, Instant::ZERO, 7);
        read(&mut core, Instant::ZERO, 7);
        assert_eq!((core.counters().expected_bytes, core.counters().expected_used_bytes), (200, 200));
    }

    #[test]
    fn what_others_read_is_given_up_where_this_machine_reads_elsewhere() {
        let mut core = core(2);
        core.expect_reads(&(0..150).collect::<Vec<_>>());
        fetch_all(&mut core, Instant::ZERO);
        for chunk in 200..200 + u64::from(MISSES_MIN) {
            assert!(core.expects());
            read(&mut core, Instant::ZERO, chunk);
            fetch_all(&mut core, Instant::ZERO);
        }
        assert!(!core.expects());
        core.expect_reads(&[399]);
        fetch_all(&mut core, Instant::ZERO);
        assert!(!core.is_here(&CUT.chunk(399)));
    }

    #[test]
    fn what_others_read_waits_while_it_is_in_doubt() {
        let mut core = core(1);
        core.expect_reads(&(0..150).collect::<Vec<_>>());
        let (id, _) = next_chunk(&mut core);
        let read_one = |core: &mut Core, chunk| {
            let reader = core.submit(Request::Read(CUT.chunk(chunk)));
            assert_eq!(core.step(Instant::ZERO, reader), Step::Wait);
        };
        (300..301 + u64::from(MISSES_DOUBT)).for_each(|chunk| read_one(&mut core, chunk));
        core.done(Instant::ZERO, id, Done::Chunk(100));
        drive(&mut core, Instant::ZERO, id);
        fetch_all(&mut core, Instant::ZERO);
        let doubted = core.counters().expected_bytes;
        assert!(doubted < 500, "{doubted}");
        read_one(&mut core, 140);
        fetch_all(&mut core, Instant::ZERO);
        assert!(core.counters().expected_bytes > 10_000);
    }

    #[test]
    fn what_is_mostly_of_use_is_not_given_up() {
        let mut core = core(2);
        core.expect_reads(&(0..100).collect::<Vec<_>>());
        fetch_all(&mut core, Instant::ZERO);
        (0..60).for_each(|chunk| read(&mut core, Instant::ZERO, chunk));
        // After the boot it reads arbitrary chunks.
        for chunk in 100..400 {
            read(&mut core, Instant::ZERO, chunk);
            fetch_all(&mut core, Instant::ZERO + 2 * TRIAL);
        }
        assert!(core.expects());
    }

    #[test]
    fn what_is_not_read_in_a_long_time_is_given_up() {
        let mut core = core(2);
        core.expect_reads(&(0..300).collect::<Vec<_>>());
        fetch_all(&mut core, Instant::ZERO);
        (0..40).for_each(|chunk| read(&mut core, Instant::ZERO, chunk));
        fetch_all(&mut core, Instant::ZERO + TRIAL / 2);
        assert!(core.expects());
        fetch_all(&mut core, Instant::ZERO + TRIAL);
        assert!(!core.expects());
    }
}
