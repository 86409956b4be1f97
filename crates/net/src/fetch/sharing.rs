//! Which part of what a session brings this machine keeps for others.

use proto::peer::is_kept;

use crate::api::SessionGrant;
use crate::multicast::ELSEWHERE_LEAST;

/// What this machine saw of its session. Receivers that began together have the same, so each keeps a share for those
/// that may come later. Once somebody did, all keep everything: who came late is served by many, and more may come.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    receiver: u32,
    receivers: u32,
    objects: u64,
    taken: u64,
    /// Somebody joined late.
    is_spread: bool,
}

impl Sharing {
    pub(super) fn of_session(grant: &SessionGrant) -> Self {
        Self {
            receiver: grant.receiver,
            receivers: grant.receivers,
            objects: grant.stored_objects,
            taken: 0,
            is_spread: !grant.elsewhere.is_empty(),
        }
    }

    /// The session has so many receivers now.
    pub(super) fn see(&mut self, receivers: u32) {
        // Before, the session sends a new receiver again what it missed.
        let is_late = self.taken > self.objects / ELSEWHERE_LEAST;
        self.is_spread |= is_late && receivers > self.receivers;
        self.receivers = receivers;
    }

    /// An object has arrived in the session. Returns whether it is to be kept.
    pub(super) fn took(&mut self, object: u64) -> bool {
        self.taken += 1;
        self.is_spread || is_kept(object, self.receiver, self.receivers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(receiver: u32, receivers: u32) -> Sharing {
        Sharing { receiver, receivers, objects: 3200, ..Sharing::default() }
    }

    fn kept(sharing: &mut Sharing, objects: std::ops::Range<u64>) -> usize {
        objects.filter(|object| sharing.took(*object)).count()
    }

    #[test]
    fn receivers_that_begin_together_keep_a_share_each() {
        let mut all: Vec<Sharing> = (0..10).map(|receiver| of(receiver, receiver + 1)).collect();
        all.iter_mut().for_each(|one| one.see(10));
        assert!(all.iter_mut().all(|one| kept(one, 0..3200) == 640));
        let mut alone = of(0, 1);
        assert_eq!(kept(&mut alone, 0..3200), 3200);
    }

    #[test]
    fn once_somebody_came_late_everything_is_kept() {
        let mut one = of(0, 1);
        one.see(10);
        assert_eq!(kept(&mut one, 0..320), 64);
        one.see(9);
        assert_eq!(kept(&mut one, 320..608), 64, "one left");
        one.see(10);
        assert_eq!(kept(&mut one, 608..3200), 2592);
    }
}
