//! Which devices get the slots of the index. Pure functions of the map, so that the metadata service and the simulator
//! decide alike. formats/cluster.md, section 3.

use super::DeviceId;
use super::choice::mixed;
use super::map::{Device, Holder, Map, SLOTS, State};

/// Gives each slot as many holders as it should have, as far as there are devices, and replaces holders that are down
/// or lost. The last ready holder of a slot is never replaced: only it knows what was acknowledged. Returns whether
/// anything changed; then the caller raises the epoch by one. Called once in each epoch.
///
/// The first time, with `form`, all holders are ready: there is nothing to know yet. Before that there are no slots.
pub fn place_slots(map: &mut Map, form: bool) -> bool {
    if map.slots.is_empty() {
        if !form {
            return false;
        }
        map.slots = vec![Vec::new(); SLOTS];
        for slot in 0..SLOTS {
            fill(map, slot, true);
        }
        return true;
    }
    let mut changed = false;
    let next = map.epoch + 1;
    for slot in 0..map.slots.len() {
        changed |= extend(map, slot, next) | replace(map, slot) | fill(map, slot, false);
    }
    changed
}

/// Raises the epoch of a map by more than one, with nothing acknowledged in between.
pub fn skip_epochs(map: &mut Map, epoch: u64) {
    for slot in 0..map.slots.len() {
        extend(map, slot, epoch);
    }
    map.epoch = epoch;
}

/// A device came back with an older copy of what it had: nobody knows what its part of the index lacks, so it learns
/// all of it again. Before the other changes of the map, and before [`place_slots`].
pub fn start_over(map: &mut Map, device: DeviceId) {
    let next = map.epoch + 1;
    for holders in &mut map.slots {
        holders.retain(|holder| holder.device != device || holder.takes_entries());
        for holder in holders.iter_mut().filter(|holder| holder.device == device) {
            holder.from = next;
            holder.had.clear();
        }
    }
}

/// While a slot has too few holders that take entries, nothing is acknowledged: what a holder has is everything beyond
/// the epoch in which it retired, too, up to the one that comes.
fn extend(map: &mut Map, slot: usize, next: u64) -> bool {
    let (epoch, wanted) = (map.epoch, map.holders_wanted());
    let holders = &mut map.slots[slot];
    if holders.iter().filter(|holder| holder.takes_entries()).count() >= wanted {
        return false;
    }
    let mut changed = false;
    for holder in holders {
        for until in holder.had.iter_mut().map(|(_, until)| until).chain([&mut holder.until]) {
            if *until == epoch && epoch > 0 {
                *until = next;
                changed = true;
            }
        }
    }
    changed
}

/// Retires holders that can't answer, or that are to be drained, where a ready one stays, and forgets those that are
/// needed no more.
fn replace(map: &mut Map, slot: usize) -> bool {
    let before = map.slots[slot].clone();
    let state = |holder: &Holder| map.device(holder.device).map_or(State::Lost, |device| device.state);
    let stays = |holder: &Holder| holder.is_ready() && state(holder) == State::Up;
    let has_successor = before.iter().any(stays);
    let full = before.iter().filter(|holder| stays(holder)).count() >= map.holders_wanted();
    let mut kept = Vec::with_capacity(before.len());
    for holder in &before {
        match state(holder) {
            State::Lost => {}
            State::Up if holder.takes_entries() => kept.push(holder.clone()),
            // All that are wanted know everything: what it has is needed no more.
            _ if full => {}
            _ if !holder.takes_entries() => kept.push(holder.clone()),
            State::Down | State::Draining if has_successor || !holder.is_ready() => {
                kept.push(Holder { until: map.epoch + 1, ..holder.clone() });
            }
            _ => kept.push(holder.clone()),
        }
    }
    // One too many, after a last holder came back: the others know everything by now.
    if full {
        let mut ready = 0;
        kept.retain(|holder| {
            ready += usize::from(holder.is_ready());
            !holder.is_ready() || ready <= map.holders_wanted()
        });
    }
    let changed = kept != before;
    map.slots[slot] = kept;
    changed
}

/// Adds holders until the slot has enough.
fn fill(map: &mut Map, slot: usize, ready: bool) -> bool {
    let wanted = map.holders_wanted();
    let mut changed = false;
    let counted = |map: &Map, holder: &Holder| {
        holder.takes_entries() && map.device(holder.device).is_some_and(|device| device.state == State::Up)
    };
    while map.slots[slot].iter().filter(|holder| counted(map, holder)).count() < wanted {
        let epoch = map.epoch + 1;
        let from = if ready { 0 } else { epoch };
        if let Some(next) = best(map, slot) {
            map.slots[slot].push(Holder::new(next, from, epoch));
        } else {
            // One that retired comes back. It forgets nothing, and copies what it missed.
            let state = |device: DeviceId| map.device(device).map_or(State::Lost, |device| device.state);
            let returns = |holder: &Holder| !holder.takes_entries() && state(holder.device) == State::Up;
            let Some(place) = map.slots[slot].iter().position(returns) else { break };
            let holder = &mut map.slots[slot][place];
            holder.had.push((holder.from, holder.until));
            (holder.from, holder.until) = (epoch, 0);
        }
        changed = true;
    }
    changed
}

/// The device that should hold the slot next: in a domain that has none of it if possible, and then by the highest
/// random weight (Thaler and Ravishankar, IEEE/ACM Transactions on Networking 6, 1998), so that few slots move when
/// devices come and go.
fn best(map: &Map, slot: usize) -> Option<DeviceId> {
    let holders = map.holders(slot);
    let domains: Vec<&str> = holders
        .iter()
        .filter_map(|holder| map.device(holder.device))
        .map(|device| device.domain.as_str())
        .collect();
    let free = |device: &&Device| {
        device.state == State::Up && !holders.iter().any(|holder| holder.device == device.device)
    };
    let rank = |device: &&Device| {
        let alone = !domains.contains(&device.domain.as_str());
        (alone, mixed(slot as u64 + 1, u64::from(device.device.0) << 20))
    };
    map.devices.iter().filter(free).max_by_key(rank).map(|device| device.device)
}

#[cfg(test)]
mod tests {
    use super::super::map::teachers;
    use super::*;
    use base::Chance;
    use std::collections::{BTreeSet, HashMap};

    fn map(devices: u32) -> Map {
        let device = |number| Device {
            device: DeviceId(number),
            address: String::new(),
            domain: format!("host-{number}"),
            state: State::Up,
            bytes: 1 << 40,
            free: 1 << 40,
        };
        Map {
            cluster: String::new(),
            epoch: 1,
            k: 8,
            m: 2,
            unit: 65536,
            devices: (1..=devices).map(device).collect(),
            slots: Vec::new(),
        }
    }

    fn set(map: &mut Map, device: u32, state: State) {
        map.devices[device as usize - 1].state = state;
    }

    #[test]
    fn slots_spread_evenly() {
        let mut map = map(10);
        assert!(!place_slots(&mut map, false), "not before the cluster is formed");
        assert!(place_slots(&mut map, true));
        assert!(!place_slots(&mut map, false), "nothing to change");
        let mut held = [0; 11];
        for holders in &map.slots {
            assert_eq!(holders.len(), 3);
            holders.iter().for_each(|holder| held[holder.device.0 as usize] += 1);
        }
        assert!(held[1..].iter().all(|slots| (240..380).contains(slots)), "{held:?}");
    }

    #[test]
    fn a_device_that_is_down_is_replaced_by_one_that_is_not_ready() {
        let mut map = map(10);
        place_slots(&mut map, true);
        let before = map.clone();
        set(&mut map, 4, State::Down);
        assert!(place_slots(&mut map, false));
        for (was, now) in before.slots.iter().zip(&map.slots) {
            let had = was.iter().any(|holder| holder.device == DeviceId(4));
            let taking: Vec<_> = now.iter().filter(|holder| holder.takes_entries()).collect();
            assert_eq!(taking.len(), 3);
            assert_eq!(taking.iter().filter(|holder| !holder.is_ready()).count(), usize::from(had));
            assert!(taking.iter().all(|holder| holder.device != DeviceId(4)));
            // It stays, and could teach the new one, until that one knows everything.
            let retired = now.iter().find(|holder| holder.device == DeviceId(4));
            assert_eq!(retired.is_some(), had);
            if let Some(retired) = retired {
                let new = taking.iter().find(|holder| !holder.is_ready()).expect("it has a successor");
                assert_eq!(retired.until, new.since);
            }
        }
        assert!(!place_slots(&mut map, false), "one call is enough");
    }

    #[test]
    fn a_device_with_an_older_copy_learns_all_again() {
        let mut map = map(10);
        place_slots(&mut map, true);
        map.epoch = 5;
        let before = map.clone();
        start_over(&mut map, DeviceId(4));
        place_slots(&mut map, false);
        for (was, now) in before.slots.iter().zip(&map.slots) {
            for (was, now) in was.iter().zip(now) {
                let is_it = now.device == DeviceId(4);
                assert_eq!((now.is_ready(), now.takes_entries()), (!is_it, true));
                assert_eq!((now.device, now.since), (was.device, was.since), "it forgets nothing");
            }
            let learner = now.iter().find(|holder| holder.device == DeviceId(4));
            assert!(learner.is_none_or(|learner| teachers(now, learner, |_| true).is_some()));
        }
        // What a retired one had counts no more.
        map.slots[0][0] = Holder { until: 3, ..Holder::new(DeviceId(1), 0, 1) };
        start_over(&mut map, DeviceId(1));
        assert!(map.slots[0].iter().all(|holder| holder.device != DeviceId(1)));
    }

    /// Devices that come and go in any order, of which two are erased: a ready holder knows every entry that was
    /// acknowledged, and as long as those that are left come back, some holder knows each of them.
    #[test]
    fn what_was_acknowledged_is_known() {
        for seed in 0..100 {
            let mut world = World::new(seed);
            for _ in 0..120 {
                world.step();
                world.check();
            }
            // Those that are left come back, and copy until nothing is left to copy.
            world.revive();
            for _ in 0..40 {
                world.copy_everywhere();
                world.check();
            }
            for slot in 0..World::SLOTS {
                let taking = world.map.slots[slot].iter().filter(|holder| holder.takes_entries());
                assert!(taking.clone().count() >= 3, "seed {seed}: {:?}", world.map.slots[slot]);
                assert!(
                    taking.clone().all(|holder| holder.is_ready()),
                    "seed {seed}: {:?}",
                    world.map.slots[slot]
                );
            }
        }
    }

    struct World {
        seed: u64,
        chance: Chance,
        map: Map,
        /// What each device knows of each slot, and the `since` for which it does.
        knows: HashMap<(DeviceId, usize), (u64, BTreeSet<u32>)>,
        acknowledged: Vec<u32>,
        erased: usize,
    }

    impl World {
        const SLOTS: usize = 8;

        fn new(seed: u64) -> Self {
            let mut map = map(9);
            place_slots(&mut map, true);
            map.epoch += 1;
            let mut world = Self {
                seed,
                chance: Chance::from_seed(seed),
                map,
                knows: HashMap::new(),
                acknowledged: vec![0; Self::SLOTS],
                erased: 0,
            };
            world.adopt();
            world
        }

        fn below(&mut self, bound: usize) -> usize {
            usize::try_from(self.chance.below(bound as u64)).expect("small")
        }

        fn state(&self, device: DeviceId) -> State {
            self.map.device(device).map_or(State::Lost, |device| device.state)
        }

        fn step(&mut self) {
            match self.below(8) {
                0..=1 => {
                    let device = self.below(9);
                    let states = [State::Up, State::Up, State::Down, State::Draining];
                    if self.map.devices[device].state != State::Lost {
                        self.map.devices[device].state = states[self.below(4)];
                        self.place();
                    }
                }
                2 if self.erased < 2 && self.below(10) == 0 => {
                    let device = self.below(9);
                    self.erased += usize::from(self.map.devices[device].state != State::Lost);
                    self.map.devices[device].state = State::Lost;
                    self.knows.retain(|(known, _), _| known.0 as usize != device + 1);
                    self.place();
                }
                3..=5 => self.insert(),
                _ => {
                    let slot = self.below(Self::SLOTS);
                    self.copy(slot);
                }
            }
        }

        fn place(&mut self) {
            place_slots(&mut self.map, false);
            self.map.epoch += 1;
            self.adopt();
        }

        /// Devices that answer follow the map: they forget what they held not all the time.
        fn adopt(&mut self) {
            for slot in 0..Self::SLOTS {
                for device in self.map.devices.iter().filter(|device| device.state != State::Down) {
                    let holder = self.map.slots[slot].iter().find(|holder| holder.device == device.device);
                    let known = self.knows.entry((device.device, slot)).or_default();
                    if holder.is_none_or(|holder| holder.since != known.0) {
                        *known = (holder.map_or(0, |holder| holder.since), BTreeSet::new());
                    }
                }
            }
        }

        /// An entry reaches all holders that take entries, if all answer, or some of them and is not acknowledged.
        fn insert(&mut self) {
            let slot = self.below(Self::SLOTS);
            let taking: Vec<_> = self.map.slots[slot]
                .iter()
                .filter(|holder| holder.takes_entries())
                .map(|holder| holder.device)
                .collect();
            if taking.len() >= 3 && taking.iter().all(|&device| self.state(device) != State::Down) {
                let entry = self.acknowledged[slot];
                self.acknowledged[slot] += 1;
                for device in taking {
                    self.knows.entry((device, slot)).or_default().1.insert(entry);
                }
            }
        }

        /// A holder that is not ready copies from one that can teach it.
        fn copy(&mut self, slot: usize) {
            let answers = |world: &Self, device| !matches!(world.state(device), State::Down | State::Lost);
            let holders = self.map.slots[slot].clone();
            let Some(learner) = holders
                .iter()
                .find(|holder| holder.takes_entries() && !holder.is_ready() && answers(self, holder.device))
            else {
                return;
            };
            let Some(teachers) = teachers(&holders, learner, |device| answers(self, device)) else { return };
            for teacher in teachers {
                let taught = self.knows[&(teacher, slot)].1.clone();
                self.knows.entry((learner.device, slot)).or_default().1.extend(taught);
            }
            for holder in &mut self.map.slots[slot] {
                if holder.device == learner.device {
                    (holder.from, holder.had) = (0, Vec::new());
                }
            }
            self.place();
        }

        fn copy_everywhere(&mut self) {
            (0..Self::SLOTS).for_each(|slot| self.copy(slot));
        }

        fn revive(&mut self) {
            for device in &mut self.map.devices {
                if device.state != State::Lost {
                    device.state = State::Up;
                }
            }
            self.place();
        }

        fn check(&self) {
            for slot in 0..Self::SLOTS {
                let holders = &self.map.slots[slot];
                let all: BTreeSet<u32> = (0..self.acknowledged[slot]).collect();
                let known = |holder: &Holder| self.knows.get(&(holder.device, slot)).map(|known| &known.1);
                for holder in holders.iter().filter(|holder| holder.is_ready()) {
                    assert_eq!(known(holder), Some(&all), "seed {}: {holder:?} of {holders:?}", self.seed);
                }
                let together: BTreeSet<u32> = holders.iter().filter_map(known).flatten().copied().collect();
                assert_eq!(together, all, "seed {}: {holders:?}", self.seed);
                let mut names: Vec<_> = holders.iter().map(|holder| holder.device).collect();
                names.sort_unstable();
                names.dedup();
                assert_eq!(names.len(), holders.len(), "seed {}: twice the same holder", self.seed);
            }
        }
    }
}
