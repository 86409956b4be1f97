//! Ordered sets of object numbers, for up to `SESSION_OBJECTS_MAX` objects.

/// A set of objects `0..bound`: one bit each, and a summary that skips empty words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectSet {
    words: Vec<u64>,
    /// Bit `i` is set where `words[i]` is not 0.
    summary: Vec<u64>,
    bound: u64,
    len: u64,
}

impl ObjectSet {
    /// The empty set of objects below `bound`.
    #[must_use]
    pub fn new(bound: u64) -> Self {
        let words = index(bound.div_ceil(64));
        Self { words: vec![0; words], summary: vec![0; words.div_ceil(64)], bound, len: 0 }
    }

    /// How many objects it holds.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it holds none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it holds `object`.
    #[must_use]
    pub fn contains(&self, object: u64) -> bool {
        object < self.bound && self.words[index(object / 64)] >> (object % 64) & 1 == 1
    }

    /// Adds `object`, which is below the bound; true if it was not there.
    pub fn insert(&mut self, object: u64) -> bool {
        assert!(object < self.bound, "object {object} of {}", self.bound);
        let word = index(object / 64);
        let new = self.words[word] >> (object % 64) & 1 == 0;
        self.words[word] |= 1 << (object % 64);
        self.summary[word / 64] |= 1 << (word % 64);
        self.len += u64::from(new);
        new
    }

    /// Takes `object` out; true if it was there.
    pub fn remove(&mut self, object: u64) -> bool {
        if !self.contains(object) {
            return false;
        }
        let word = index(object / 64);
        self.words[word] &= !(1 << (object % 64));
        if self.words[word] == 0 {
            self.summary[word / 64] &= !(1 << (word % 64));
        }
        self.len -= 1;
        true
    }

    /// The first object at or behind `from`.
    #[must_use]
    pub fn next_from(&self, from: u64) -> Option<u64> {
        if from >= self.bound || self.len == 0 {
            return None;
        }
        let word = index(from / 64);
        let rest = self.words[word] & (u64::MAX << (from % 64));
        if rest != 0 {
            return Some(from / 64 * 64 + u64::from(rest.trailing_zeros()));
        }
        let word = self.next_word(word + 1)?;
        Some(word as u64 * 64 + u64::from(self.words[word].trailing_zeros()))
    }

    /// The first object at or behind `from` that it does *not* hold; the bound if it holds all.
    #[must_use]
    pub fn next_gap_from(&self, from: u64) -> u64 {
        let mut at = from;
        while at < self.bound {
            let gaps = !self.words[index(at / 64)] & (u64::MAX << (at % 64));
            if gaps != 0 {
                return (at / 64 * 64 + u64::from(gaps.trailing_zeros())).min(self.bound);
            }
            at = (at / 64 + 1) * 64;
        }
        self.bound
    }

    /// The first word at or behind `from` that is not 0.
    fn next_word(&self, from: usize) -> Option<usize> {
        let mut group = from / 64;
        let mut bits = *self.summary.get(group)? & (u64::MAX << (from % 64));
        while bits == 0 {
            group += 1;
            bits = *self.summary.get(group)?;
        }
        Some(group * 64 + bits.trailing_zeros() as usize)
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("below SESSION_OBJECTS_MAX")
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Chance;
    use std::collections::BTreeSet;

    #[test]
    fn behaves_as_a_set() {
        for seed in 0..50 {
            let mut chance = Chance::from_seed(seed);
            let bound = 1 + chance.below(20_000);
            let (mut set, mut model) = (ObjectSet::new(bound), BTreeSet::new());
            for _ in 0..500 {
                let object = chance.below(bound);
                if chance.hits(600_000) {
                    assert_eq!(set.insert(object), model.insert(object), "seed {seed}");
                } else {
                    assert_eq!(set.remove(object), model.remove(&object), "seed {seed}");
                }
                let from = chance.below(bound + 2);
                assert_eq!(set.next_from(from), model.range(from..).next().copied(), "seed {seed}");
                let gap = (from..bound).find(|object| !model.contains(object)).unwrap_or(bound);
                assert_eq!(set.next_gap_from(from), gap, "seed {seed}");
                assert_eq!(set.len(), model.len() as u64, "seed {seed}");
            }
        }
    }
}
