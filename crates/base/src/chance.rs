//! A seeded generator of pseudo-random numbers, passed as an argument, so that a run can be repeated from its seed.

/// A deterministic generator of pseudo-random numbers. Not for secrets.
#[derive(Debug, Clone)]
pub struct Chance(fastrand::Rng);

impl Chance {
    /// Creates a generator. Equal seeds give equal sequences.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Creates a generator for one part of a system. What it returns does not depend on later calls on `self`.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::from_seed(self.0.u64(..))
    }

    /// A random number, uniform over all 64-bit numbers.
    pub fn u64(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A random number, uniform in `0..bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.0.u64(..bound) }
    }

    /// True with probability `per_million / 1_000_000`.
    pub fn hits(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(per_million)
    }

    /// Fills `bytes` with pseudo-random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_sequences() {
        let (mut a, mut b) = (Chance::from_seed(7), Chance::from_seed(7));
        assert!((0..100).all(|_| a.u64() == b.u64()));
        assert_ne!(Chance::from_seed(7).u64(), Chance::from_seed(8).u64());
    }

    #[test]
    fn bounds_hold() {
        let mut chance = Chance::from_seed(1);
        assert_eq!(chance.below(0), 0);
        assert!((0..1000).all(|_| chance.below(3) < 3));
        assert!(!chance.hits(0));
        assert!(chance.hits(1_000_000));
    }
}
