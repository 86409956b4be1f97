//! Bundles: how stored objects are packed into the objects of a session, and which of them a receiver misses.
//! Source: `formats/api.md`, "Bundles".
//!
//! The objects of a session have about equal size, so that the erasure code has enough blocks per object, whatever
//! the sizes of the stored objects. Each head is an object of its own, because receivers need the heads to learn all
//! lengths. The stored objects after the heads are packed in order, without padding, up to a number of blocks per
//! bundle. Both ends compute the same packing from the lengths. Digests are those of the stored objects: a bundle is
//! split before anything is verified.

use std::ops::Range;

use base::limits::OBJECT_BYTES_MAX;
use proto::multicast::ObjectSet;

/// Most blocks of a bundle of several stored objects: a code over this many blocks costs little and wastes little.
pub(crate) const BUNDLE_BLOCKS: u16 = 256;
/// The same for attached disks, where applications wait for single chunks: about one chunk, so that little else comes
/// with it.
pub const BUNDLE_BLOCKS_ATTACHED: u16 = 64;
/// The largest such number that a receiver accepts in a grant.
pub(crate) const BUNDLE_BLOCKS_MAX: u16 = 1024;
/// A bundle of which a receiver misses less than one part in `SCATTERED_PARTS` of the bytes is fetched by unicast.
const SCATTERED_PARTS: u64 = 4;

/// Which stored objects make up each object of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packing {
    heads: usize,
    /// The first stored object of each bundle after the heads.
    firsts: Vec<u32>,
    /// Lengths of the stored objects, and of the bundles, in bytes.
    lengths: Vec<u32>,
    bundle_bytes: Vec<u32>,
}

impl Packing {
    /// Packs stored objects of these `lengths` (in bytes) into bundles of at most `bundle_blocks` blocks. The first
    /// `heads` objects stay alone.
    ///
    /// # Panics
    /// If there are more heads than objects, or more than 2^32 objects.
    #[must_use]
    pub fn new(lengths: Vec<u32>, heads: u64, block_bytes: u16, bundle_blocks: u16) -> Self {
        let heads = usize::try_from(heads).ok().filter(|&heads| heads <= lengths.len());
        let heads = heads.expect("heads are some of the objects");
        let most = (u32::from(block_bytes) * u32::from(bundle_blocks)).min(OBJECT_BYTES_MAX);
        let (mut firsts, mut bundle_bytes) = (Vec::new(), Vec::<u32>::new());
        let mut bytes = 0u64;
        for (stored, &length) in lengths.iter().enumerate().skip(heads) {
            bytes += u64::from(length);
            if firsts.is_empty() || bytes > u64::from(most) {
                firsts.push(u32::try_from(stored).expect("fewer objects than 2^32"));
                bundle_bytes.push(0);
                bytes = length.into();
            }
            *bundle_bytes.last_mut().expect("a bundle was begun") += length;
        }
        Self { heads, firsts, lengths, bundle_bytes }
    }

    /// Number of objects of the session: heads and bundles.
    #[must_use]
    pub fn objects(&self) -> u64 {
        (self.heads + self.firsts.len()) as u64
    }

    /// Number of stored objects, including heads.
    #[must_use]
    pub fn stored_objects(&self) -> u64 {
        self.lengths.len() as u64
    }

    /// The stored objects in object `object` of the session, which must exist.
    #[must_use]
    pub fn stored(&self, object: u64) -> Range<u64> {
        let object = usize::try_from(object).expect("the object exists");
        let Some(bundle) = object.checked_sub(self.heads) else {
            return object as u64..object as u64 + 1;
        };
        let end = self.firsts.get(bundle + 1).map_or(self.stored_objects(), |&first| first.into());
        self.firsts[bundle].into()..end
    }

    /// The object of the session that contains stored object `stored`, which must exist.
    #[must_use]
    pub fn object_of(&self, stored: u64) -> u64 {
        if stored < self.heads as u64 {
            return stored;
        }
        let behind = self.firsts.partition_point(|&first| u64::from(first) <= stored);
        (self.heads + behind - 1) as u64
    }

    /// Length in bytes of object `object` of the session, which must exist.
    #[must_use]
    pub fn bytes(&self, object: u64) -> u32 {
        let index = usize::try_from(object).expect("the object exists");
        if index < self.heads { self.lengths[index] } else { self.bundle_bytes[index - self.heads] }
    }

    /// Each stored object in object `object` of the session, with the range of its bytes inside it.
    pub fn parts(&self, object: u64) -> impl Iterator<Item = (u64, Range<usize>)> + '_ {
        let stored = self.stored(object);
        let lengths = self.lengths_of(stored.clone()).iter();
        stored.zip(lengths).scan(0, |begin, (stored, &length)| {
            let part = *begin..*begin + length as usize;
            *begin = part.end;
            Some((stored, part))
        })
    }

    fn lengths_of(&self, stored: Range<u64>) -> &[u32] {
        let index = |number: u64| usize::try_from(number).expect("the object exists");
        &self.lengths[index(stored.start)..index(stored.end)]
    }
}

/// How a receiver gets what it misses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ways {
    /// Objects to be received from the session.
    pub objects: Vec<Range<u64>>,
    /// Stored objects to be fetched by unicast, because only a small part of their bundles is missing.
    pub scattered: Vec<u64>,
}

/// What a receiver misses, as stored objects. Until the lengths are known, it can want only heads.
#[derive(Debug)]
pub(crate) struct Lacked {
    heads: u64,
    packing: Option<Packing>,
    stored: ObjectSet,
    /// Those of `stored` that are fetched in another way than from the session.
    otherwise: ObjectSet,
}

impl Lacked {
    /// A receiver of a session of `stored_objects` that misses nothing yet.
    #[must_use]
    pub(crate) fn new(heads: u64, stored_objects: u64) -> Self {
        let none = ObjectSet::new(stored_objects);
        Self { heads, packing: None, stored: none.clone(), otherwise: none }
    }

    /// Sets the packing, once all heads and therefore all lengths are known.
    pub(crate) fn learn(&mut self, packing: Packing) {
        debug_assert_eq!(packing.heads as u64, self.heads);
        self.packing = Some(packing);
    }

    /// Whether `stored` can be wanted now.
    #[must_use]
    pub(crate) fn is_known(&self, stored: u64) -> bool {
        stored < self.packing.as_ref().map_or(self.heads, Packing::stored_objects)
    }

    /// Adds `ranges` of known stored objects, and returns how to get them. If only a few objects of a bundle are
    /// missing, unicast is cheaper, unless other receivers miss them too. So unicast is used if less than a quarter
    /// of the bundle is missing (with more than four `receivers`: less than one part in `receivers`), for at most
    /// `scattered_bytes` in total, which is reduced by what is used.
    pub(crate) fn want(&mut self, ranges: &[Range<u64>], receivers: u32, scattered_bytes: &mut u64) -> Ways {
        let mut ways = Ways::default();
        for stored in ranges.iter().cloned().flatten() {
            self.stored.insert(stored);
        }
        let mut next = 0;
        for range in ranges {
            let Some(last) = range.clone().last() else { continue };
            let (first, last) = (self.object_of(range.start).max(next), self.object_of(last));
            for object in first..=last {
                self.choose_way(object, receivers, scattered_bytes, &mut ways);
            }
            next = next.max(last + 1);
        }
        ways
    }

    fn choose_way(&mut self, object: u64, receivers: u32, scattered_bytes: &mut u64, ways: &mut Ways) {
        let mut lacked: Vec<u64> = Vec::new();
        let (mut lacked_bytes, mut bytes) = (0, 0);
        if let Some(packing) = &self.packing {
            for (stored, part) in packing.parts(object) {
                bytes += part.len() as u64;
                if self.stored.contains(stored) && !self.otherwise.contains(stored) {
                    lacked_bytes += part.len() as u64;
                    lacked.push(stored);
                }
            }
        }
        let share = SCATTERED_PARTS.max(receivers.into());
        if lacked_bytes * share < bytes && lacked_bytes <= *scattered_bytes {
            *scattered_bytes -= lacked_bytes;
            ways.scattered.extend(lacked.into_iter().filter(|&stored| self.otherwise.insert(stored)));
            return;
        }
        match ways.objects.last_mut() {
            Some(run) if run.end == object => run.end += 1,
            _ => ways.objects.push(object..object + 1),
        }
    }

    /// `stored` has arrived. Returns its object of the session if nothing of that object is missing any more.
    pub(crate) fn have(&mut self, stored: u64) -> Option<u64> {
        self.otherwise.remove(stored);
        if !self.stored.remove(stored) {
            return None;
        }
        let object = self.object_of(stored);
        let packing = self.packing.as_ref();
        let of_it = packing.map_or(stored..stored + 1, |packing| packing.stored(object));
        self.stored.next_from(of_it.start).is_none_or(|next| next >= of_it.end).then_some(object)
    }

    /// Notes that `stored` is fetched in another way; false if that is already so, or if it is not missing.
    pub(crate) fn get_otherwise(&mut self, stored: u64) -> bool {
        self.stored.contains(stored) && self.otherwise.insert(stored)
    }

    /// Whether `stored` is missing.
    #[must_use]
    pub(crate) fn contains(&self, stored: u64) -> bool {
        self.stored.contains(stored)
    }

    /// The number of missing stored objects, and how many of them should come from the session.
    #[must_use]
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.stored.len(), self.stored.len() - self.otherwise.len())
    }

    /// The missing stored objects in object `object` of the session, which has `bytes` bytes, with their ranges in
    /// it. `None` if the object should have another length.
    #[must_use]
    pub(crate) fn parts(&self, object: u64, bytes: usize) -> Option<Vec<(u64, Range<usize>)>> {
        let Some(packing) = &self.packing else { return Some(vec![(object, 0..bytes)]) };
        (packing.bytes(object) as usize == bytes)
            .then(|| packing.parts(object).filter(|(stored, _)| self.stored.contains(*stored)).collect())
    }

    /// All stored objects in `object` of the session.
    #[must_use]
    pub(crate) fn stored(&self, object: u64) -> Range<u64> {
        self.packing.as_ref().map_or(object..object + 1, |packing| packing.stored(object))
    }

    /// Length in bytes of `object` of the session, once the lengths are known.
    #[must_use]
    pub(crate) fn bytes_of(&self, object: u64) -> Option<u32> {
        self.packing.as_ref().map(|packing| packing.bytes(object))
    }

    /// Length in bytes of a stored object, once the lengths are known.
    #[must_use]
    pub(crate) fn stored_bytes(&self, stored: u64) -> Option<u32> {
        self.packing.as_ref()?.lengths_of(stored..stored + 1).first().copied()
    }

    /// The object of the session that contains `stored`, which must be known.
    #[must_use]
    pub(crate) fn object_of(&self, stored: u64) -> u64 {
        self.packing.as_ref().map_or(stored, |packing| packing.object_of(stored))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numbers(ranges: Vec<Range<u64>>) -> Vec<u64> {
        ranges.into_iter().flatten().collect()
    }

    fn packing() -> Packing {
        // Blocks of 1000 bytes, bundles of at most 4.
        Packing::new(vec![9000, 10, 1500, 2500, 1, 5000, 0, 3999, 1, 1], 2, 1000, 4)
    }

    #[test]
    fn heads_stay_alone_and_the_rest_fills_bundles() {
        let packing = packing();
        let stored: Vec<_> = (0..packing.objects()).map(|object| packing.stored(object)).collect();
        assert_eq!(stored, [0..1, 1..2, 2..4, 4..5, 5..6, 6..9, 9..10]);
        let bytes: Vec<_> = (0..packing.objects()).map(|object| packing.bytes(object)).collect();
        assert_eq!(bytes, [9000, 10, 4000, 1, 5000, 4000, 1]);
        assert_eq!(packing.parts(5).collect::<Vec<_>>(), [(6, 0..0), (7, 0..3999), (8, 3999..4000)]);
    }

    proptest! {
        #[test]
        fn every_packing_holds_everything_once_in_order_within_its_bound(
            lengths in prop::collection::vec(0..400_000u32, 1..200),
            heads in 0..20u64,
            bundle_blocks in 1..=BUNDLE_BLOCKS_MAX,
        ) {
            let heads = heads.min(lengths.len() as u64);
            let packing = Packing::new(lengths.clone(), heads, 1424, bundle_blocks);
            let mut next = 0;
            for object in 0..packing.objects() {
                let stored = packing.stored(object);
                prop_assert!(stored.start == next && stored.end > next);
                next = stored.end;
                prop_assert!(object >= heads || stored == (object..object + 1));
                prop_assert!(
                    packing.bytes(object).div_ceil(1424) <= bundle_blocks.into() || stored.clone().count() == 1
                );
                let mut at = 0;
                for (one, part) in packing.parts(object) {
                    prop_assert_eq!(packing.object_of(one), object);
                    prop_assert!(part.start == at && part.len() == lengths[usize::try_from(one).unwrap()] as usize);
                    at = part.end;
                }
                prop_assert_eq!(at, packing.bytes(object) as usize);
                // The packing is greedy: the next stored object would not have fitted.
                let more = lengths.get(usize::try_from(next).unwrap()).filter(|_| object >= heads);
                prop_assert!(more.is_none_or(|more| packing.bytes(object) + more > 1424 * u32::from(bundle_blocks)));
            }
            prop_assert_eq!(next, packing.stored_objects());
        }

        #[test]
        fn whatever_is_wanted_comes_one_way_or_the_other(
            wanted in prop::collection::vec(any::<bool>(), 100),
            receivers in 1..40u32,
            scattered_bytes in 0..60_000u64,
        ) {
            let packing = Packing::new(vec![700; 100], 3, 1000, 20);
            let mut lacked = Lacked::new(3, 100);
            lacked.learn(packing.clone());
            let ranges: Vec<_> = (0..100u64)
                .filter(|&one| wanted[usize::try_from(one).unwrap()])
                .map(|one| one..one + 1)
                .collect();
            let mut left = scattered_bytes;
            let ways = lacked.want(&ranges, receivers, &mut left);
            prop_assert_eq!(scattered_bytes - left, ways.scattered.len() as u64 * 700);
            for (stored, wanted) in (0..).zip(wanted) {
                let object = packing.object_of(stored);
                let by_session = ways.objects.iter().any(|run| run.contains(&object));
                prop_assert_eq!(lacked.contains(stored), wanted);
                prop_assert!(!wanted || by_session != ways.scattered.contains(&stored));
            }
            for object in ways.objects.iter().cloned().flatten() {
                prop_assert!(packing.stored(object).any(|stored| lacked.contains(stored)), "nobody lacks {object}");
            }
        }
    }

    #[test]
    fn a_receiver_knows_heads_first_and_then_all() {
        let mut lacked = Lacked::new(2, 10);
        assert!(lacked.is_known(1) && !lacked.is_known(2));
        assert_eq!(numbers(lacked.want(&[0..1, 1..2], 1, &mut 1000).objects), [0, 1]);
        assert_eq!(lacked.parts(0, 77), Some(vec![(0, 0..77)]));
        assert_eq!((lacked.have(0), lacked.have(0)), (Some(0), None));
        lacked.learn(packing());
        assert_eq!(lacked.want(&[2..4, 7..10], 1, &mut 0).objects, [2..3, 5..7]);
        assert_eq!(
            (lacked.parts(5, 4000), lacked.parts(5, 3999)),
            (Some(vec![(7, 0..3999), (8, 3999..4000)]), None)
        );
        assert_eq!((lacked.have(7), lacked.have(8)), (None, Some(5)));
    }

    #[test]
    fn little_of_a_bundle_comes_by_unicast_unless_many_lack_it() {
        let packing = Packing::new(vec![100; 40], 0, 1000, 1);
        for (receivers, scattered_bytes, objects, scattered) in [
            (1, 1000, (1..3), vec![3, 5]),
            (4, 1000, (1..3), vec![3, 5]),
            (5, 1000, (0..3), vec![]),
            (1, 199, (0..3), vec![]),
        ] {
            let mut lacked = Lacked::new(0, 40);
            lacked.learn(packing.clone());
            let ways = lacked.want(&[3..4, 5..6, 10..20, 25..28], receivers, &mut { scattered_bytes });
            assert_eq!((numbers(ways.objects), ways.scattered), (objects.collect(), scattered));
            assert!(!lacked.get_otherwise(3) || receivers > 4 || scattered_bytes < 200);
            assert!(!lacked.get_otherwise(4) && lacked.get_otherwise(10) && !lacked.get_otherwise(10));
        }
    }
}
