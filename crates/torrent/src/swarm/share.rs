//! Which pieces a member brings from afar: of near members each takes another share, so that each piece comes once.
//! They need not agree on anything: a piece is the task of the member whose name and piece give the greatest number
//! (rendezvous hashing, Thaler and Ravishankar 1998), and each one knows the names of those it is connected to.

use std::collections::BTreeMap;

use base::Chance;

use super::output::Key;
use crate::bits::Bits;

/// The name of a member, as its handshake has it.
pub(crate) type Name = [u8; 20];

/// The share of one member.
pub(super) struct Share {
    own: Name,
    near: BTreeMap<Key, Name>,
    /// The pieces that are its task.
    tasks: Bits,
}

impl Share {
    /// Nobody is near, so every one of `pieces` pieces is the task of `own`.
    pub(super) fn of_all(own: Name, pieces: u32) -> Self {
        Self { own, near: BTreeMap::new(), tasks: Bits::all(pieces) }
    }

    /// A near member has come.
    pub(super) fn joined(&mut self, key: Key, name: Name) {
        self.near.insert(key, name);
        let mut tasks = Bits::none(self.tasks.len());
        let stays = |piece: &u32| claim(&name, *piece) <= claim(&self.own, *piece);
        for piece in self.tasks.iter().filter(stays) {
            tasks.insert(piece);
        }
        self.tasks = tasks;
    }

    /// It has gone, and its tasks are those of others. Nothing changes if it was not near.
    pub(super) fn left(&mut self, key: Key) {
        if self.near.remove(&key).is_some() {
            self.divide();
        }
    }

    /// Whether nobody is near.
    pub(super) fn is_alone(&self) -> bool {
        self.near.is_empty()
    }

    /// Whether `piece` is this member's task.
    pub(super) fn has(&self, piece: u32) -> bool {
        self.tasks.has(piece)
    }

    fn divide(&mut self) {
        let pieces = self.tasks.len();
        let mut tasks = Bits::none(pieces);
        for piece in 0..pieces {
            let own = claim(&self.own, piece);
            if self.near.values().all(|other| claim(other, piece) <= own) {
                tasks.insert(piece);
            }
        }
        self.tasks = tasks;
    }
}

fn claim(name: &Name, piece: u32) -> u64 {
    let random = name[12..].try_into().map_or(0, u64::from_be_bytes);
    // Far apart for one piece and the next.
    Chance::from_seed(random ^ u64::from(piece).wrapping_mul(0x9E37_79B9_7F4A_7C15)).u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u64) -> Name {
        let mut name = [7; 20];
        name[12..].copy_from_slice(&Chance::from_seed(number).u64().to_be_bytes());
        name
    }

    #[test]
    fn each_piece_is_the_task_of_one_and_shares_are_alike() {
        let members: Vec<Share> = (0..8)
            .map(|own| {
                let mut share = Share::of_all(name(own), 4000);
                (0..8).filter(|other| *other != own).for_each(|other| share.joined(other, name(other)));
                share
            })
            .collect();
        for piece in 0..4000 {
            assert_eq!(members.iter().filter(|share| share.has(piece)).count(), 1, "piece {piece}");
        }
        for share in &members {
            let count = share.tasks.count();
            assert!((400..600).contains(&count), "{count}");
        }
    }

    #[test]
    fn tasks_of_those_that_go_are_those_of_others() {
        let mut share = Share::of_all(name(0), 100);
        assert!(share.is_alone() && share.tasks.is_full());
        share.joined(1, name(1));
        assert!(!share.is_alone() && !share.tasks.is_full());
        share.joined(2, name(2));
        share.left(9);
        let before: Vec<u32> = share.tasks.iter().collect();
        share.left(2);
        share.joined(2, name(2));
        assert!(share.tasks.iter().eq(before), "the order of coming makes no difference");
        share.left(2);
        share.left(1);
        assert!(share.is_alone() && share.tasks.is_full());
    }
}
