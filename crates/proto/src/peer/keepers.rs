//! Which objects of a session its receivers keep for others.

use super::BATCH_OBJECTS;

/// So many receivers of a session keep each of its objects for others: one that serves it, and one if that leaves.
const KEEPERS: u32 = 2;

/// Whether a receiver keeps an object for others that a session brought to all of them. `receiver` is its number in the
/// session; there are `receivers` now. If all keep everything, most of it is never asked for, and all can hold no more
/// than one of them; so each batch is kept by [`KEEPERS`] whose numbers follow each other. Of receivers that came while
/// others left, more or fewer may keep it; the server has what nobody keeps.
#[must_use]
pub fn is_kept(object: u64, receiver: u32, receivers: u32) -> bool {
    let batch = object / u64::from(BATCH_OBJECTS);
    (batch + u64::from(receiver)) % u64::from(receivers.max(1)) < u64::from(KEEPERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_is_kept_by_as_many_as_told_and_each_receiver_keeps_as_much() {
        for receivers in 1..40 {
            let keepers = |object| (0..receivers).filter(|one| is_kept(object, *one, receivers)).count();
            let all = u64::from(receivers * BATCH_OBJECTS);
            assert!((0..all).all(|object| keepers(object) == KEEPERS.min(receivers) as usize));
            let kept = |receiver| (0..all).filter(|object| is_kept(*object, receiver, receivers)).count();
            assert!((0..receivers).all(|one| kept(one) == (KEEPERS.min(receivers) * BATCH_OBJECTS) as usize));
        }
        assert!(is_kept(7, 3, 0), "a receiver that knows of nobody keeps everything");
    }

    #[test]
    fn a_batch_is_kept_whole_or_not() {
        let of = |object| (0..5).map(|receiver| is_kept(object, receiver, 5)).collect::<Vec<_>>();
        assert!((0..32).all(|object| of(object) == of(0)));
        assert_ne!(of(31), of(32));
    }
}
