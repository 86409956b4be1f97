//! Remembers which version each publication made, so that a client that lost the answer repeats the request with the
//! same key and gets the same version.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum number of remembered publications; clients repeat a request within minutes.
const REMEMBERED_MAX: usize = 1024;

/// The number of the published version, once there is one. Locked while the publication runs, so that a repeated
/// request waits for the first.
pub(crate) type Slot = Arc<tokio::sync::Mutex<Option<u64>>>;

type Key = (String, Vec<u8>);

/// Publications by image and idempotency key.
#[derive(Default)]
pub(crate) struct Publications(Mutex<(HashMap<Key, Slot>, VecDeque<Key>)>);

impl Publications {
    /// The slot of this publication; the same one for an equal image and key.
    pub(crate) fn slot(&self, image: &str, key: Vec<u8>) -> Slot {
        let mut guard = self.0.lock();
        let (slots, order) = &mut *guard;
        let key = (image.to_owned(), key);
        if let Some(slot) = slots.get(&key) {
            return slot.clone();
        }
        if order.len() == REMEMBERED_MAX
            && let Some(oldest) = order.pop_front()
        {
            slots.remove(&oldest);
        }
        order.push_back(key.clone());
        slots.entry(key).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_share_a_slot_and_old_ones_are_forgotten() {
        let publications = Publications::default();
        let first = publications.slot("web", b"1".to_vec());
        *first.try_lock().unwrap() = Some(7);
        assert_eq!(*publications.slot("web", b"1".to_vec()).try_lock().unwrap(), Some(7));
        assert_eq!(*publications.slot("lab", b"1".to_vec()).try_lock().unwrap(), None);
        for key in 0..REMEMBERED_MAX {
            publications.slot("web", format!("k{key}").into_bytes());
        }
        assert_eq!(*publications.slot("web", b"1".to_vec()).try_lock().unwrap(), None);
        assert!(publications.0.lock().0.len() <= REMEMBERED_MAX);
    }
}
