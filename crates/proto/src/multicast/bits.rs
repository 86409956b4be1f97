//! Ordered sets of the numbers of objects (up to `SESSION_OBJECTS_MAX`) and of the blocks of one object.

/// A set of objects `0..bound`: one bit per object, and a summary that lets searches skip empty words.
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

    /// Number of objects in the set.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `object` is in the set; false if it is not below the bound.
    #[must_use]
    pub fn contains(&self, object: u64) -> bool {
        object < self.bound && self.words[index(object / 64)] >> (object % 64) & 1 == 1
    }

    /// Adds `object`, which must be below the bound; true if it was not in the set.
    pub fn insert(&mut self, object: u64) -> bool {
        assert!(object < self.bound, "object {object} of {}", self.bound);
        let word = index(object / 64);
        let new = self.words[word] >> (object % 64) & 1 == 0;
        self.words[word] |= 1 << (object % 64);
        self.summary[word / 64] |= 1 << (word % 64);
        self.len += u64::from(new);
        new
    }

    /// Removes `object`; true if it was in the set.
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

    /// The first object at or after `from`.
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

    /// The first object at or after `from` that is *not* in the set; the bound if there is none.
    #[must_use]
    pub(crate) fn next_gap_from(&self, from: u64) -> u64 {
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

    /// The first word at or after `from` that is not 0.
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

/// A set of block numbers of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockSet {
    words: Box<[u64]>,
    blocks: u32,
    len: u32,
}

impl BlockSet {
    /// The empty set of blocks below `blocks`.
    pub(super) fn empty(blocks: u32) -> Self {
        Self { words: vec![0; blocks.div_ceil(64) as usize].into(), blocks, len: 0 }
    }

    /// The set of all blocks below `blocks`.
    pub(super) fn full(blocks: u32) -> Self {
        let mut words: Box<[u64]> = vec![u64::MAX; blocks.div_ceil(64) as usize].into();
        if let (Some(last), 1..) = (words.last_mut(), blocks % 64) {
            *last = (1 << (blocks % 64)) - 1;
        }
        Self { words, blocks, len: blocks }
    }

    /// The number of blocks of the object.
    pub(super) const fn bound(&self) -> u32 {
        self.blocks
    }

    /// Number of blocks in the set.
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn contains(&self, block: u32) -> bool {
        block < self.blocks && self.words[block as usize / 64] >> (block % 64) & 1 == 1
    }

    /// Adds `block`; true if it was not in the set. Blocks out of bounds are not added.
    pub(super) fn insert(&mut self, block: u32) -> bool {
        let new = block < self.blocks && !self.contains(block);
        if new {
            self.words[block as usize / 64] |= 1 << (block % 64);
            self.len += 1;
        }
        new
    }

    /// Removes `block`; true if it was in the set.
    pub(super) fn remove(&mut self, block: u32) -> bool {
        let there = self.contains(block);
        if there {
            self.words[block as usize / 64] &= !(1 << (block % 64));
            self.len -= 1;
        }
        there
    }

    /// Removes all blocks.
    pub(super) fn clear(&mut self) {
        self.words.fill(0);
        self.len = 0;
    }

    /// The first block at or after `from`.
    pub(super) fn next_from(&self, from: u32) -> Option<u32> {
        let mut mask = u64::MAX << (from % 64);
        for (index, word) in (from / 64..).zip(self.words.get(from as usize / 64..)?) {
            let bits = word & mask;
            if bits != 0 {
                return Some(index * 64 + bits.trailing_zeros());
            }
            mask = u64::MAX;
        }
        None
    }

    /// Byte `index` of the set as a bitmap, lowest block first; blocks at or after `end` count as absent.
    pub(super) fn byte(&self, index: u32, end: u32) -> u8 {
        let word = self.words.get(index as usize / 8).copied().unwrap_or(0);
        let byte = word.to_le_bytes()[index as usize % 8];
        let keep = end.saturating_sub(index * 8).min(8);
        byte & u8::try_from((1u16 << keep) - 1).expect("eight bits")
    }
}

/// An object's number as an index into memory.
pub(super) fn index(number: u64) -> usize {
    usize::try_from(number).expect("below SESSION_OBJECTS_MAX")
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests {
    use super::*;
    use base::Chance;
    use std::collections::BTreeSet;

    #[test]
    fn blocks_behave_as_a_set() {
        for seed in 0..50 {
            let mut chance = Chance::from_seed(seed);
            let blocks = 1 + chance.below(200) as u32;
            let (mut set, mut model) = (BlockSet::full(blocks), (0..blocks).collect::<BTreeSet<_>>());
            for _ in 0..200 {
                let block = chance.below(blocks.into()) as u32;
                if chance.hits(400_000) {
                    assert_eq!(set.insert(block), model.insert(block), "seed {seed}");
                } else {
                    assert_eq!(set.remove(block), model.remove(&block), "seed {seed}");
                }
                let from = chance.below(250) as u32;
                assert_eq!(set.next_from(from), model.range(from..).next().copied(), "seed {seed}");
                assert_eq!(set.len() as usize, model.len(), "seed {seed}");
                let end = chance.below(250) as u32;
                let bit = set.byte(block / 8, end) >> (block % 8) & 1 == 1;
                assert_eq!(bit, model.contains(&block) && block < end, "seed {seed}");
            }
        }
    }

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
