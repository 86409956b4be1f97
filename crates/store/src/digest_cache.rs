//! A bounded cache of bytes by digest.

use std::collections::{HashMap, VecDeque};

use base::Digest;
use bytes::Bytes;
use parking_lot::Mutex;

/// Bytes by digest, at most `BYTES_MAX` of them; the oldest are evicted first.
#[derive(Debug, Default)]
pub(crate) struct DigestCache<const BYTES_MAX: usize>(Mutex<Inside>);

#[derive(Debug, Default)]
struct Inside {
    kept: HashMap<Digest, Bytes>,
    order: VecDeque<Digest>,
    bytes: usize,
}

impl<const BYTES_MAX: usize> DigestCache<BYTES_MAX> {
    /// The bytes with this digest, if they are kept.
    pub(crate) fn get(&self, digest: &Digest) -> Option<Bytes> {
        self.0.lock().kept.get(digest).cloned()
    }

    /// Keeps `bytes`.
    pub(crate) fn keep(&self, digest: Digest, bytes: &Bytes) {
        let mut inside = self.0.lock();
        if inside.kept.insert(digest, bytes.clone()).is_none() {
            inside.order.push_back(digest);
            inside.bytes += bytes.len();
        }
        while inside.bytes > BYTES_MAX {
            let Some(oldest) = inside.order.pop_front() else { break };
            inside.bytes -= inside.kept.remove(&oldest).map_or(0, |bytes| bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_not_more_than_there_is_room_for() {
        let kept = DigestCache::<1000>::default();
        let digest = |number: u8| Digest::of(&[number]);
        for number in 0..100 {
            kept.keep(digest(number), &vec![number; 99].into());
            kept.keep(digest(number), &vec![number; 99].into());
            assert_eq!(kept.get(&digest(number)).unwrap(), vec![number; 99]);
        }
        let found: Vec<_> = (0..100).filter(|number| kept.get(&digest(*number)).is_some()).collect();
        assert_eq!(found, (90..100).collect::<Vec<_>>());
        kept.keep(digest(100), &vec![0; 1001].into());
        assert!((0..=100).all(|number| kept.get(&digest(number)).is_none()), "what does not fit is not kept");
    }
}
