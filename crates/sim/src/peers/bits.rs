//! A bit for each chunk.

/// A bit for each chunk of an image.
#[derive(Debug, Clone, Default)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    /// No bit is set.
    pub(super) fn new(count: u32) -> Self {
        Self(vec![0; count.div_ceil(64) as usize])
    }

    pub(super) fn has(&self, index: u32) -> bool {
        self.0[index as usize / 64] >> (index % 64) & 1 == 1
    }

    /// Sets a bit; returns whether it was clear.
    pub(super) fn set(&mut self, index: u32) -> bool {
        let (word, bit) = (&mut self.0[index as usize / 64], 1 << (index % 64));
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    pub(super) fn clear(&mut self, index: u32) {
        self.0[index as usize / 64] &= !(1 << (index % 64));
    }

    /// Whether `count` bits from `first` are all set.
    pub(super) fn has_all(&self, first: u32, count: u32) -> bool {
        (first..first + count).all(|index| self.has(index))
    }
}
