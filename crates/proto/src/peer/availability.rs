//! Which objects of a version somebody holds: one bit each, in batches of 32.

use std::ops::Range;

/// Number of objects in a batch.
pub const BATCH_OBJECTS: u32 = 32;

/// Some objects of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Part {
    /// Number of the batch.
    pub batch: u32,
    /// Which of its objects; the lowest bit is the first.
    pub mask: u32,
}

impl Part {
    /// The numbers of its objects, ascending.
    pub fn objects(self) -> impl Iterator<Item = u64> {
        let first = u64::from(self.batch) * u64::from(BATCH_OBJECTS);
        (0..BATCH_OBJECTS).filter(move |bit| self.mask >> bit & 1 == 1).map(move |bit| first + u64::from(bit))
    }

    /// How many objects it has.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.mask.count_ones()
    }
}

/// The batch of an object, and its bit there.
///
/// # Panics
/// If the number is not one of a version: those are below 2^37.
#[must_use]
pub fn batch_of(object: u64) -> Part {
    let batch = u32::try_from(object / u64::from(BATCH_OBJECTS)).expect("numbers of objects are bounded");
    Part { batch, mask: 1 << (object % u64::from(BATCH_OBJECTS)) }
}

/// The `count` lowest bits that are set, at least one.
pub(super) fn lowest(mask: u32, count: u32) -> u32 {
    let mut rest = mask;
    for _ in 0..count.max(1) {
        rest &= rest.wrapping_sub(1);
    }
    mask & !rest
}

/// A set of objects of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Availability {
    objects: u32,
    held: u32,
    masks: Vec<u32>,
}

impl Availability {
    /// None of `objects` objects.
    #[must_use]
    pub fn none(objects: u32) -> Self {
        Self { objects, held: 0, masks: vec![0; objects.div_ceil(BATCH_OBJECTS) as usize] }
    }

    /// Number of objects of the version.
    #[must_use]
    pub const fn objects(&self) -> u32 {
        self.objects
    }

    /// How many of them are in the set.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.held
    }

    /// Number of batches of the version.
    #[must_use]
    pub fn batches(&self) -> u32 {
        u32::try_from(self.masks.len()).expect("from a u32")
    }

    /// Whether all of them are.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.held == self.objects
    }

    /// Which objects of a batch are in the set; none for a batch that the version does not have.
    #[must_use]
    pub fn mask(&self, batch: u32) -> u32 {
        self.masks.get(batch as usize).copied().unwrap_or(0)
    }

    /// Whether `object` is in the set.
    #[must_use]
    pub fn has(&self, object: u64) -> bool {
        object < u64::from(self.objects) && {
            let Part { batch, mask } = batch_of(object);
            self.mask(batch) & mask != 0
        }
    }

    /// Adds an object, or removes it. Numbers that the version does not have are ignored.
    pub fn set(&mut self, object: u64, held: bool) {
        if object < u64::from(self.objects) {
            let Part { batch, mask } = batch_of(object);
            let before = self.mask(batch);
            self.set_mask(batch, if held { before | mask } else { before & !mask });
        }
    }

    /// Says which objects of a batch are in the set.
    pub(super) fn set_mask(&mut self, batch: u32, mask: u32) {
        let valid = self.valid(batch);
        if let Some(place) = self.masks.get_mut(batch as usize) {
            self.held = self.held - place.count_ones() + (mask & valid).count_ones();
            *place = mask & valid;
        }
    }

    /// The objects that this batch has at all: the last one may be short.
    fn valid(&self, batch: u32) -> u32 {
        match self.objects.saturating_sub(batch.saturating_mul(BATCH_OBJECTS)) {
            0 => 0,
            left @ 1..BATCH_OBJECTS => (1 << left) - 1,
            _ => u32::MAX,
        }
    }

    /// Replaces everything within `window` by the objects of `runs`.
    pub fn replace(&mut self, window: Range<u32>, runs: impl Iterator<Item = Range<u32>>) {
        self.fill(window.clone(), false);
        for run in runs {
            self.fill(run.start.max(window.start)..run.end.min(window.end), true);
        }
    }

    /// Adds all objects of a run, or removes them.
    pub fn fill(&mut self, run: Range<u32>, held: bool) {
        let end = run.end.min(self.objects);
        let mut at = run.start;
        while at < end {
            let batch = at / BATCH_OBJECTS;
            let stop = end.min((batch + 1).saturating_mul(BATCH_OBJECTS));
            let width = stop - at;
            let ones =
                if width == BATCH_OBJECTS { u32::MAX } else { ((1 << width) - 1) << (at % BATCH_OBJECTS) };
            let before = self.mask(batch);
            self.set_mask(batch, if held { before | ones } else { before & !ones });
            at = stop;
        }
    }

    /// The runs of its objects within `window`, ascending.
    pub fn runs(&self, window: Range<u32>) -> impl Iterator<Item = Range<u32>> + '_ {
        let end = window.end.min(self.objects);
        let mut at = window.start;
        std::iter::from_fn(move || {
            let start = self.next(at, end, true)?;
            at = self.next(start, end, false).unwrap_or(end);
            Some(start..at)
        })
    }

    /// The first object from `at` on, before `end`, that is in the set, or is not.
    fn next(&self, mut at: u32, end: u32, held: bool) -> Option<u32> {
        while at < end {
            let mask = self.mask(at / BATCH_OBJECTS);
            let rest = if held { mask } else { !mask } >> (at % BATCH_OBJECTS);
            if rest != 0 {
                return Some(at + rest.trailing_zeros()).filter(|&found| found < end);
            }
            at = (at / BATCH_OBJECTS + 1).saturating_mul(BATCH_OBJECTS);
        }
        None
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "tests count to some hundreds")]
mod tests {
    use base::{Chance, runs::RunSet};

    use super::*;

    #[test]
    fn behaves_as_a_set_of_numbers() {
        let mut chance = Chance::from_seed(3);
        for objects in [1, 31, 32, 33, 100, 257] {
            let (mut set, mut model) = (Availability::none(objects), RunSet::new());
            for _ in 0..200 {
                let (a, b) = (chance.below(u64::from(objects) + 1), chance.below(u64::from(objects) + 1));
                let (run, held) = (a.min(b)..a.max(b), chance.below(3) > 0);
                set.fill(run.start as u32..run.end as u32, held);
                if held && !run.is_empty() {
                    model.insert(run);
                } else if !run.is_empty() {
                    model.remove(run);
                }
                assert_eq!(u64::from(set.count()), model.sum());
                let runs: Vec<_> = set.runs(0..objects).map(|run| run.start.into()..run.end.into()).collect();
                assert_eq!(runs, model.iter().collect::<Vec<Range<u64>>>());
                let object = chance.below(u64::from(objects));
                assert_eq!(set.has(object), model.contains(&(object..object + 1)));
            }
        }
    }

    #[test]
    fn numbers_that_do_not_exist_are_never_held() {
        let mut set = Availability::none(40);
        set.fill(0..1000, true);
        set.set(40, true);
        set.set_mask(1, u32::MAX);
        set.set_mask(9, u32::MAX);
        assert!(set.is_whole() && !set.has(40) && set.mask(1) == 0xff && set.mask(9) == 0);
    }
}
