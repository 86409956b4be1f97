//! Collects the sectors that matter, in any order and in bounded memory. If there are too many runs, the smallest gaps
//! between them count as allocated.

use base::limits::MAP_RUNS_MAX;
use base::{Extent, ExtentSet};

/// The sectors that matter, until [`Coverage::into_set`] makes an [`ExtentSet`] of them.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    runs: Vec<Extent>,
    /// A gap of at most this number of sectors between two runs counts as allocated.
    gap_sectors: u64,
}

impl Coverage {
    /// Adds a run of sectors. Its end must not pass 2^64.
    pub(crate) fn add(&mut self, run: Extent) {
        if run.is_empty() {
            return;
        }
        match self.runs.last_mut() {
            Some(last)
                if last.start <= run.start && run.start <= last.end().saturating_add(self.gap_sectors) =>
            {
                *last = Extent::between(last.start, last.end().max(run.end()));
            }
            _ => self.runs.push(run),
        }
        if self.runs.len() > MAP_RUNS_MAX {
            // Half of the limit, so that the next run does not sort all of them again.
            self.shrink(MAP_RUNS_MAX / 2);
        }
    }

    /// Adds all runs of `other`, with `sectors` added to each start.
    pub(crate) fn add_moved(&mut self, other: Self, sectors: u64) {
        for run in other.runs {
            self.add(Extent::new(run.start + sectors, run.count));
        }
    }

    /// The runs added so far, some of which may touch or overlap.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Extent> + '_ {
        self.runs.iter().copied()
    }

    /// The sectors as a set, each run widened to whole units of `unit_sectors` and cut to `window`.
    pub(crate) fn into_set(mut self, unit_sectors: u64, window: Extent) -> ExtentSet {
        self.merge();
        let widen = |run: &Extent| {
            let end = run.end().next_multiple_of(unit_sectors);
            Extent::between(run.start / unit_sectors * unit_sectors, end).intersection(window)
        };
        self.runs.iter().filter_map(widen).collect()
    }

    /// Joins runs until there are at most `count`: closes larger and larger gaps.
    fn shrink(&mut self, count: usize) {
        self.merge();
        while self.runs.len() > count {
            self.gap_sectors = (self.gap_sectors * 2).max(8);
            self.merge();
        }
    }

    /// Sorts the runs and joins those that overlap, touch, or have a gap of at most `gap_sectors` between them.
    fn merge(&mut self) {
        self.runs.sort_unstable();
        let gap = self.gap_sectors;
        self.runs.dedup_by(|next, run| {
            let joins = next.start <= run.end().saturating_add(gap);
            if joins {
                *run = Extent::between(run.start, run.end().max(next.end()));
            }
            joins
        });
    }
}

#[cfg(test)]
mod tests {
    use base::Chance;

    use super::*;

    #[test]
    fn holds_what_was_added_in_any_order() {
        for seed in 0..100 {
            let mut chance = Chance::from_seed(seed);
            let (mut coverage, mut set) = (Coverage::default(), ExtentSet::new());
            for _ in 0..50 {
                let run = Extent::new(chance.below(500), chance.below(9));
                coverage.add(run);
                set.insert(run);
            }
            assert_eq!(coverage.into_set(1, Extent::new(0, 600)), set, "seed {seed}");
        }
    }

    #[test]
    fn errs_towards_allocated_when_runs_are_too_many() {
        let mut coverage = Coverage::default();
        let count = 2 * MAP_RUNS_MAX as u64;
        // Every run is followed by a gap of one sector, every thousandth by a long one.
        let at = |n: u64| 2 * n + n / 1000 * 5000;
        (0..count).for_each(|n| coverage.add(Extent::new(at(n), 1)));
        let set = coverage.into_set(1, Extent::new(0, u64::MAX));
        assert!(set.runs().len() <= MAP_RUNS_MAX);
        assert!((0..count).step_by(7).all(|n| set.contains(Extent::new(at(n), 1))));
        assert!(
            !set.contains(Extent::new(at(count - 1) - 4000, 1)) || set.runs().len() > 1,
            "long gaps stay free"
        );
    }

    #[test]
    fn widens_to_logical_sectors_inside_the_window() {
        let mut coverage = Coverage::default();
        coverage.add(Extent::new(9, 1));
        coverage.add(Extent::new(30, 3));
        let set = coverage.into_set(8, Extent::new(8, 24));
        assert_eq!(set.runs(), [Extent::new(8, 8), Extent::new(24, 8)]);
    }
}
