//! Which segments are worth compacting. formats/cluster.md, section 9.

use std::collections::BTreeMap;

/// Length of the components of a full segment: 1 GB of data at 8 + 2, the visit of seed 002, section 4.
pub const COMPONENT_BYTES: u64 = 128 << 20;
/// So many short segments of about the same length are put together.
const ALIKE: usize = 8;
/// Most segments of one task.
const TASK_SEGMENTS_MAX: usize = 64;

/// A sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// Its number.
    pub segment: u64,
    /// Its group: only contents of one group are stored together.
    pub group: u32,
    /// Bytes of contents that were stored there.
    pub stored: u64,
    /// Bytes of them that are in use.
    pub live: u64,
}

impl Sealed {
    /// Less than three quarters are in use.
    fn is_wasteful(&self) -> bool {
        u128::from(self.live) * 4 < u128::from(self.stored) * 3
    }

    /// Short segments of one class differ by a factor of less than eight. Putting eight of them together makes one of
    /// the next class, so each byte is moved as often as there are classes, not each time that a segment comes.
    fn class(&self) -> u32 {
        self.stored.max(1).ilog2() / ALIKE.ilog2()
    }
}

/// The segments that are worth compacting, in tasks: what is in use in the segments of a task is stored together.
/// Those of which little is in use come first. `full` is the content of a full segment, in bytes.
#[must_use]
pub fn worth_compacting(sealed: &[Sealed], full: u64) -> Vec<Vec<u64>> {
    let mut alike: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    let is_short = |one: &Sealed| !one.is_wasteful() && one.stored < full / ALIKE as u64;
    for one in sealed.iter().filter(|one| is_short(one)) {
        *alike.entry((one.group, one.class())).or_default() += 1;
    }
    let is_one_of_many = |one: &Sealed| {
        is_short(one) && alike.get(&(one.group, one.class())).is_some_and(|&count| count >= ALIKE)
    };
    let mut worth: Vec<_> = sealed.iter().filter(|one| one.is_wasteful() || is_one_of_many(one)).collect();
    worth.sort_by_key(|one| (!one.is_wasteful(), one.live, one.segment));
    let mut tasks: Vec<Vec<u64>> = Vec::new();
    // The task of each group that others may be added to, and what is in use of it.
    let mut open: BTreeMap<u32, (usize, u64)> = BTreeMap::new();
    for one in worth {
        match open.get_mut(&one.group) {
            Some((task, live)) if *live + one.live <= full && tasks[*task].len() < TASK_SEGMENTS_MAX => {
                tasks[*task].push(one.segment);
                *live += one.live;
            }
            _ => {
                open.insert(one.group, (tasks.len(), one.live));
                tasks.push(vec![one.segment]);
            }
        }
    }
    tasks
}

#[cfg(test)]
mod tests {
    use base::Chance;
    use proptest::prelude::*;

    use super::*;

    const FULL: u64 = 1 << 30;

    fn sealed(segment: u64, group: u32, stored: u64, live: u64) -> Sealed {
        Sealed { segment, group, stored, live }
    }

    #[test]
    fn full_segments_in_use_stay() {
        assert!(worth_compacting(&[], FULL).is_empty());
        let full: Vec<_> = (0..20).map(|segment| sealed(segment, 1, FULL, FULL * 3 / 4)).collect();
        assert!(worth_compacting(&full, FULL).is_empty());
    }

    #[test]
    fn segments_with_garbage_go_together_the_emptiest_first() {
        let found = worth_compacting(
            &[
                sealed(1, 1, FULL, FULL / 2),
                sealed(2, 1, FULL, FULL / 4),
                sealed(3, 2, FULL, 0),
                sealed(4, 1, FULL, FULL / 3),
            ],
            FULL,
        );
        assert_eq!(found, [vec![3], vec![2, 4], vec![1]], "groups apart, and no more than a full segment");
    }

    #[test]
    fn few_short_segments_stay_and_many_alike_go_together() {
        let short = |count: u64| (0..count).map(|segment| sealed(segment, 1, 1000, 1000)).collect::<Vec<_>>();
        assert!(worth_compacting(&short(7), FULL).is_empty());
        assert_eq!(worth_compacting(&short(8), FULL), [(0..8).collect::<Vec<u64>>()]);
        assert!(worth_compacting(&short(8), 4000).is_empty(), "not short");
        let mut mixed = short(7);
        mixed.push(sealed(7, 2, 1000, 1000));
        mixed.push(sealed(8, 1, 50_000, 50_000));
        assert!(worth_compacting(&mixed, FULL).is_empty(), "another group, another class");
    }

    proptest! {
        /// Clients come, store a little and go, and some of it is deleted: few segments stay, and what is moved is
        /// bounded by what was stored.
        #[test]
        fn segments_do_not_pile_up_and_bytes_are_moved_a_few_times(seed in any::<u64>()) {
            let mut chance = Chance::from_seed(seed);
            let (mut segments, mut next, mut came, mut moved) = (Vec::<Sealed>::new(), 0, 0, 0);
            for _ in 0..400 {
                for _ in 0..chance.below(6) {
                    let stored = 1 << chance.below(24);
                    segments.push(sealed(next, 1, stored, stored));
                    next += 1;
                    came += stored;
                }
                if !segments.is_empty() && chance.below(3) == 0 {
                    let at = usize::try_from(chance.below(segments.len() as u64)).unwrap();
                    segments[at].live = chance.below(segments[at].live + 1);
                }
                for task in worth_compacting(&segments, FULL) {
                    let (gone, stay): (Vec<Sealed>, Vec<Sealed>) =
                        segments.iter().partition(|one| task.contains(&one.segment));
                    prop_assert_eq!(gone.len(), task.len(), "each in one task");
                    let live: u64 = gone.iter().map(|one| one.live).sum();
                    segments = stay;
                    moved += live;
                    // A client has several writers, each with a segment of its own.
                    for part in 0..4 {
                        let stored = if part == 0 { live - live / 4 * 3 } else { live / 4 };
                        if stored > 0 {
                            segments.push(sealed(next, 1, stored, stored));
                            next += 1;
                        }
                    }
                }
            }
            // At most seven of each class, and those of a compaction that is just over.
            prop_assert!(segments.len() < 8 * 11 + 4, "{} segments", segments.len());
            prop_assert!(moved < came * 10, "{moved} bytes were moved, {came} came");
        }
    }
}
