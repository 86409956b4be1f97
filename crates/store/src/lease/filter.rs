//! A set of digests in fixed memory with false positives but no false negatives (Bloom, "Space/time trade-offs in
//! hash coding", 1970). The false-positive rate is about 10^-10 with 64 bits per digest, 10^-6 with 32, and high if
//! the set is overfull.

use base::Digest;

/// Bits that are set for each digest.
const PROBES: u64 = 16;
const BITS_MIN: u64 = 1 << 16;

/// A set of pairs of a digest and a small number.
#[derive(Debug)]
pub(crate) struct Filter {
    words: Vec<u64>,
    seed: u64,
}

impl Filter {
    /// An empty set for about `count` digests with `bits` bits each, in at most `bytes_max` bytes (a power of two).
    /// Sets with other seeds have other false positives.
    pub(crate) fn new(count: u64, bits: u64, bytes_max: u64, seed: u64) -> Self {
        let bits = count.saturating_mul(bits).clamp(BITS_MIN, bytes_max * 8).next_power_of_two();
        let words = usize::try_from(bits / 64).expect("bytes_max fits memory");
        Self { words: vec![0; words], seed }
    }

    pub(crate) fn insert(&mut self, digest: &Digest, beside: u8) {
        for (word, bit) in self.places(digest, beside) {
            self.words[word] |= bit;
        }
    }

    pub(crate) fn contains(&self, digest: &Digest, beside: u8) -> bool {
        self.places(digest, beside).all(|(word, bit)| self.words[word] & bit != 0)
    }

    /// The words and bits of a digest: double hashing with two parts of the digest, which are uniformly random
    /// already.
    fn places(&self, digest: &Digest, beside: u8) -> impl Iterator<Item = (usize, u64)> + use<> {
        let half = |at: usize| u64::from_le_bytes(*digest.0[at..].first_chunk().expect("32 bytes"));
        let first = half(0) ^ self.seed ^ u64::from(beside).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let step = half(8) | 1;
        let mask = self.words.len() as u64 * 64 - 1;
        (0..PROBES).map(move |probe| {
            let mixed = first.wrapping_add(probe.wrapping_mul(step)).wrapping_mul(0xd6e8_feb8_6659_fd93);
            let bit = (mixed >> 20) & mask;
            (usize::try_from(bit / 64).expect("below the length"), 1 << (bit % 64))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(number: u32) -> Digest {
        Digest::of(&number.to_le_bytes())
    }

    #[test]
    fn nothing_is_forgotten_and_little_is_made_up() {
        let mut filter = Filter::new(50_000, 64, 1 << 20, 7);
        (0..50_000).for_each(|number| filter.insert(&digest(number), 0));
        assert!((0..50_000).all(|number| filter.contains(&digest(number), 0)));
        assert!(!(50_000..150_000).any(|number| filter.contains(&digest(number), 0)));
        assert!(!(0..50_000).any(|number| filter.contains(&digest(number), 1)), "other numbers beside");
    }

    #[test]
    fn overfull_it_still_forgets_nothing_and_other_seeds_err_elsewhere() {
        let made_up = |seed| -> Vec<u32> {
            let mut filter = Filter::new(1 << 40, 64, 1 << 13, seed);
            (0..4000).for_each(|number| filter.insert(&digest(number), 0));
            assert!((0..4000).all(|number| filter.contains(&digest(number), 0)));
            (4000..14_000).filter(|&number| filter.contains(&digest(number), 0)).collect()
        };
        let (one, two) = (made_up(1), made_up(2));
        assert!(!one.is_empty() && one.len() < 2000 && one != two, "{} {}", one.len(), two.len());
    }
}
