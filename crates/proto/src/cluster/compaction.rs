//! Rules by which contents leave a segment, so that its space can be used again. formats/cluster.md, section 9.

use super::{Entry, Map, Piece};

/// What is to be done with a name, of whose content something was stored in a segment that is compacted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: all holders have the same, and it does not lie there.
    Settled,
    /// All holders are to get this version, with its pieces in that segment stored elsewhere first. It is newer than
    /// what any of them has.
    Replace(Entry),
}

/// What is to be done with a name, whose entry is `held` at each of its holders; `None` at one that never had any.
///
/// All must have been asked: one that was left out may have an entry that the others do not know, of a content whose
/// storing or deletion broke off.
#[must_use]
pub fn judge(segment: u64, held: &[Option<Entry>]) -> Verdict {
    // Two versions that say the same of themselves come from two compactions: which one stays does not matter.
    let newest = held.iter().flatten().max_by_key(|entry| (entry.version(), entry.encode()));
    let Some(newest) = newest else { return Verdict::Settled };
    let agreed = held.iter().all(|held| held.as_ref() == Some(newest));
    if agreed && !newest.lies_in(segment) {
        return Verdict::Settled;
    }
    Verdict::Replace(Entry { moves: newest.moves.saturating_add(1), ..newest.clone() })
}

impl Entry {
    /// Whether a piece of the content is in a segment.
    #[must_use]
    pub fn lies_in(&self, segment: u64) -> bool {
        self.pieces.iter().any(|piece| piece.segment == segment)
    }

    /// The pieces that are in a segment, each with where it begins in the content.
    pub fn pieces_in(&self, segment: u64) -> impl Iterator<Item = (u64, &Piece)> {
        let mut behind = 0;
        let placed = self.pieces.iter().map(move |piece| {
            let from = behind;
            behind += u64::from(piece.length);
            (from, piece)
        });
        placed.filter(move |(_, piece)| piece.segment == segment)
    }
}

impl Map {
    /// Whether every slot has all the holders that it should, and no others, and all of them have everything. Then an
    /// entry that none of them has can't come back with a device that was away: that one forgets what it had.
    #[must_use]
    pub fn is_index_whole(&self) -> bool {
        let whole = |slot: usize| {
            let holders = self.holders(slot);
            let serves = |device| self.answers(device);
            holders.len() == self.holders_wanted()
                && holders
                    .iter()
                    .all(|holder| holder.takes_entries() && holder.is_ready() && serves(holder.device))
        };
        !self.slots.is_empty() && (0..self.slots.len()).all(whole)
    }
}

/// From when on a sealed segment may be compacted. The client that appended has told that all entries of it are
/// inserted, or it is gone since `taken`: then until the last capability that it may use has expired, after `lifetime`.
#[must_use]
pub fn compacts_from(sealed: u64, taken: bool, lifetime: u64) -> u64 {
    if taken { sealed.saturating_add(lifetime) } else { sealed }
}

/// Whether the space of a segment may be used again, which nothing lies in since `emptied`: who found an entry before
/// that can read it until its capability expires.
#[must_use]
pub fn may_free(emptied: u64, now: u64, lifetime: u64) -> bool {
    now > emptied.saturating_add(lifetime)
}

#[cfg(test)]
mod tests {
    use super::super::{Run, Width};
    use super::*;

    fn entry(stamp: u64, moves: u32, segments: &[u64]) -> Entry {
        let width = Width::new(2, 1).expect("a width");
        let run = Run { at: 0, bytes: 4096 };
        let piece = |&segment: &u64| Piece { segment, run, width, offset: 0, length: 10, sum: 1 };
        let pieces: Vec<_> = segments.iter().map(piece).collect();
        Entry { stamp, moves, bytes: Some(10 * segments.len() as u64), pieces }
    }

    #[test]
    fn what_lies_elsewhere_is_settled() {
        assert_eq!(judge(7, &[None, None]), Verdict::Settled);
        let elsewhere = Some(entry(5, 0, &[8]));
        assert_eq!(judge(7, &[elsewhere.clone(), elsewhere]), Verdict::Settled);
        let deleted = Some(Entry::tombstone(9));
        assert_eq!(judge(7, &[deleted.clone(), deleted]), Verdict::Settled);
    }

    #[test]
    fn what_lies_there_gets_a_newer_version() {
        let here = entry(5, 2, &[8, 7]);
        let Verdict::Replace(newer) = judge(7, &[Some(here.clone()), Some(here.clone())]) else {
            panic!("it lies there")
        };
        assert!(newer.version() > here.version());
        assert_eq!(newer.pieces_in(7).map(|(from, _)| from).collect::<Vec<_>>(), [10]);
    }

    #[test]
    fn holders_that_differ_get_the_newest_of_them() {
        let newer = |held: &[Option<Entry>]| match judge(7, held) {
            Verdict::Replace(entry) => (entry.stamp, entry.moves, entry.bytes.is_some()),
            Verdict::Settled => panic!("they differ"),
        };
        // A put that reached one holder counts, since a reader may have seen it; so does a deletion.
        assert_eq!(newer(&[None, Some(entry(5, 0, &[7]))]), (5, 1, true));
        assert_eq!(newer(&[Some(entry(5, 0, &[7])), Some(Entry::tombstone(6))]), (6, 1, false));
        // More moves do not win over a newer content.
        assert_eq!(newer(&[Some(entry(5, 9, &[8])), Some(entry(6, 0, &[8]))]), (6, 1, true));
        // Two compactions moved it at the same time.
        assert_eq!(newer(&[Some(entry(5, 1, &[8])), Some(entry(5, 1, &[9]))]), (5, 2, true));
    }

    #[test]
    fn taken_segments_wait_for_capabilities_to_expire() {
        assert_eq!(compacts_from(100, false, 60), 100);
        assert_eq!(compacts_from(100, true, 60), 160);
        assert!(!may_free(100, 160, 60));
        assert!(may_free(100, 161, 60));
    }
}
