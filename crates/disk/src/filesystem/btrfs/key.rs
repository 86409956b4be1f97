//! Keys of items.

use super::super::little_endian::u64_at;

/// The key of an item. Items of a tree are in the order of their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) object: u64,
    pub(super) kind: u8,
    pub(super) offset: u64,
}

impl Key {
    pub(super) const BYTES: usize = 17;
    pub(super) const MIN: Self = Self { object: 0, kind: 0, offset: 0 };
    pub(super) const MAX: Self = Self { object: u64::MAX, kind: u8::MAX, offset: u64::MAX };

    pub(super) fn at(bytes: &[u8], at: usize) -> Self {
        Self { object: u64_at(bytes, at), kind: bytes[at + 8], offset: u64_at(bytes, at + 9) }
    }
}
