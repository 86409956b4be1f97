//! Sets of numbers (bytes, sectors, chunks) that change at random places. The runs are in a search tree, so a change
//! stays cheap in a set of a million runs. [`crate::ExtentSet`] is for sectors in ascending order.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of numbers, stored as runs with gaps between them: the start of each run maps to its end (exclusive).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunSet(BTreeMap<u64, u64>);

impl RunSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of runs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The number of elements.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// The runs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(&start, &end)| start..end)
    }

    /// Adds all numbers of `run`.
    pub fn insert(&mut self, run: Range<u64>) {
        if run.is_empty() {
            return;
        }
        let (mut start, mut end) = (run.start, run.end);
        if let Some((&before, &until)) = self.0.range(..=start).next_back()
            // `>=`: runs that only touch are joined as well.
            && until >= start
        {
            (start, end) = (before, end.max(until));
        }
        while let Some((&next, &until)) = self.0.range(start..=end).next() {
            self.0.remove(&next);
            end = end.max(until);
        }
        self.0.insert(start, end);
    }

    /// Removes all numbers of `run`.
    pub fn remove(&mut self, run: Range<u64>) {
        if run.is_empty() {
            return;
        }
        if let Some((&before, &until)) = self.0.range(..run.start).next_back()
            && until > run.start
        {
            self.0.insert(before, run.start);
            if until > run.end {
                self.0.insert(run.end, until);
                return;
            }
        }
        while let Some((&next, &until)) = self.0.range(run.clone()).next() {
            self.0.remove(&next);
            if until > run.end {
                self.0.insert(run.end, until);
            }
        }
    }

    /// The parts of the set inside `window`, in ascending order.
    pub fn within(&self, window: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        // At most one run begins before the window and reaches into it.
        let first = self.0.range(..window.start).next_back().map(|(&start, &end)| start..end);
        let rest = self.0.range(window.start..window.end.max(window.start)).map(|(&start, &end)| start..end);
        first
            .into_iter()
            .chain(rest)
            .map(move |run| run.start.max(window.start)..run.end.min(window.end))
            .filter(|run| !run.is_empty())
    }

    /// The parts of `window` that are not in the set, in ascending order.
    pub fn gaps(&self, window: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let (mut at, end) = (window.start, window.end);
        let mut runs = self.within(window);
        std::iter::from_fn(move || {
            loop {
                let gap = match runs.next() {
                    Some(run) => std::mem::replace(&mut at, run.end)..run.start,
                    None if at < end => std::mem::replace(&mut at, end)..end,
                    None => return None,
                };
                if !gap.is_empty() {
                    return Some(gap);
                }
            }
        })
    }

    /// Whether the set contains all numbers of `run`. True if `run` is empty.
    #[must_use]
    pub fn contains(&self, run: &Range<u64>) -> bool {
        run.is_empty() || self.0.range(..=run.start).next_back().is_some_and(|(_, &until)| until >= run.end)
    }

    /// The first number after the last run; 0 if the set is empty.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(_, &end)| end)
    }

    /// The run that contains all of `window`, which must not be empty; `None` if no single run does.
    #[must_use]
    pub fn around(&self, window: &Range<u64>) -> Option<Range<u64>> {
        let (&start, &end) = self.0.range(..=window.start).next_back()?;
        (window.end <= end).then_some(start..end)
    }

    /// The first run that ends after `start`; it may begin before `start`.
    #[must_use]
    pub fn next_from(&self, start: u64) -> Option<Range<u64>> {
        let before = self.0.range(..=start).next_back().filter(|&(_, &end)| end > start);
        before.or_else(|| self.0.range(start..).next()).map(|(&start, &end)| start..end)
    }

    /// Whether the set contains any number of `run`.
    #[must_use]
    pub fn touches(&self, run: &Range<u64>) -> bool {
        self.within(run.clone()).next().is_some()
    }

    /// Adds all numbers of `other`.
    pub fn extend(&mut self, other: &Self) {
        other.iter().for_each(|run| self.insert(run));
    }
}

impl FromIterator<Range<u64>> for RunSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(runs: I) -> Self {
        let mut set = Self::new();
        runs.into_iter().for_each(|run| set.insert(run));
        set
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small sets")]
mod tests {
    use super::*;
    use crate::Chance;

    /// Compares every operation with a plain array of booleans.
    #[test]
    fn behaves_as_a_set_of_numbers() {
        for seed in 0..300 {
            let mut chance = Chance::from_seed(seed);
            let (mut set, mut model) = (RunSet::new(), [false; 96]);
            for _ in 0..40 {
                let start = chance.below(97);
                let run = start..start + chance.below(97 - start);
                let add = chance.below(3) > 0;
                if add {
                    set.insert(run.clone())
                } else {
                    set.remove(run.clone())
                }
                run.for_each(|at| model[at as usize] = add);
                let expected: RunSet =
                    (0..96).filter(|&at| model[at as usize]).map(|at| at..at + 1).collect();
                assert_eq!(set, expected, "seed {seed}");
                assert_eq!(set.sum(), model.iter().filter(|&&set| set).count() as u64);
                let window = chance.below(50)..50 + chance.below(47);
                let inside: u64 = set.within(window.clone()).map(|run| run.end - run.start).sum();
                let outside: u64 = set.gaps(window.clone()).map(|run| run.end - run.start).sum();
                assert_eq!(inside + outside, window.end - window.start, "seed {seed}");
                assert!(set.gaps(window.clone()).all(|gap| !set.touches(&gap)), "seed {seed}");
                assert_eq!(set.contains(&window), outside == 0, "seed {seed}");
                assert_eq!(set.around(&window).is_some(), outside == 0, "seed {seed}");
                assert_eq!(set.end(), model.iter().rposition(|&set| set).map_or(0, |last| last as u64 + 1));
                let next = (window.start..96).find(|&at| model[at as usize]);
                let found = set.next_from(window.start).map(|run| run.start.max(window.start));
                assert_eq!(found, next, "seed {seed}");
                assert_eq!(set.touches(&window), inside > 0, "seed {seed}");
            }
        }
    }
}
