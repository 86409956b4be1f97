//! A hash of everything that happens in a run: equal runs have equal traces.

/// FNV-1a over 64-bit words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trace(u64);

impl Trace {
    pub(crate) const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Adds an event to the hash.
    pub(crate) fn note(&mut self, words: &[u64]) {
        for word in words {
            self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
        }
    }

    pub(crate) const fn value(self) -> u64 {
        self.0
    }
}
