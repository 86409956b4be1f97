//! What was appended lately, in memory: it is written past the page cache, and mostly read soon.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

/// Contents of an object, by where they begin. They do not overlap.
#[derive(Debug, Default)]
pub(super) struct Recent(BTreeMap<u64, Bytes>);

impl Recent {
    pub(super) fn add(&mut self, at: u64, content: Bytes) {
        self.0.insert(at, content);
    }

    /// Forgets what begins at `at`.
    pub(super) fn forget(&mut self, at: u64) {
        self.0.remove(&at);
    }

    /// Forgets everything: the object is changed.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The bytes from `from` to `to`, if all of them are here.
    pub(super) fn get(&self, from: u64, to: u64) -> Option<Bytes> {
        let (&first, _) = self.0.range(..=from).next_back()?;
        let mut parts = Vec::new();
        let mut at = from;
        for (&begin, content) in self.0.range(first..) {
            let end = begin + content.len() as u64;
            if begin > at || end <= at {
                return None;
            }
            let (skip, keep) = (small(at - begin)?, small(to.min(end) - begin)?);
            parts.push(content.slice(skip..keep));
            at = to.min(end);
            if at == to {
                break;
            }
        }
        match parts.len() {
            _ if at < to => None,
            1 => parts.pop(),
            _ => {
                let mut whole = BytesMut::with_capacity(small(to - from)?);
                parts.iter().for_each(|part| whole.extend_from_slice(part));
                Some(whole.freeze())
            }
        }
    }
}

fn small(bytes: u64) -> Option<usize> {
    usize::try_from(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_found_if_all_of_it_is_here() {
        let mut recent = Recent::default();
        assert_eq!(recent.get(0, 1), None);
        recent.add(10, Bytes::from_static(b"abcde"));
        recent.add(15, Bytes::from_static(b"fgh"));
        recent.add(20, Bytes::from_static(b"xyz"));
        assert_eq!(recent.get(10, 15).unwrap(), "abcde");
        assert_eq!(recent.get(11, 13).unwrap(), "bc");
        assert_eq!(recent.get(12, 17).unwrap(), "cdefg");
        assert_eq!(recent.get(10, 18).unwrap(), "abcdefgh");
        for (from, to) in [(9, 12), (17, 19), (12, 21), (18, 20), (22, 24), (30, 31)] {
            assert_eq!(recent.get(from, to), None, "{from}..{to}");
        }
        recent.forget(10);
        assert_eq!(recent.get(12, 17), None);
        assert_eq!(recent.get(15, 17).unwrap(), "fg");
        recent.clear();
        assert_eq!(recent.get(15, 17), None);
    }
}
