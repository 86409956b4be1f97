//! Which devices get what: components of new segments, and slots of the index. Pure functions of the map, so that the
//! metadata service and the simulator decide alike. formats/cluster.md, section 3.

use std::collections::HashMap;

use super::map::{Device, Holder, Map, SLOTS, State};
use super::{DeviceId, Width};

/// The devices for a new segment, and its width: that of the map, or narrower with the same parity when fewer devices
/// are up. Devices with more free space come more often; a failure domain gets as few components as possible. `salt`
/// decides among equals. `None` if not even one data component fits beside the parity.
#[must_use]
pub fn choose_devices(map: &Map, avoid: &[DeviceId], salt: u64) -> Option<(Width, Vec<DeviceId>)> {
    let usable = |device: &&Device| device.state == State::Up && !avoid.contains(&device.device);
    let mut devices: Vec<&Device> = map.devices.iter().filter(usable).collect();
    devices.sort_by(|a, b| draw(a, salt).total_cmp(&draw(b, salt)));
    let wanted = usize::from(map.k) + usize::from(map.m);
    let count = devices.len().min(wanted);
    let data = u8::try_from(count).ok()?.checked_sub(map.m)?;
    let width = Width::new(data, map.m)?;
    let mut in_domain: HashMap<&str, usize> = HashMap::new();
    let mut chosen: Vec<DeviceId> = Vec::with_capacity(count);
    // Round r takes devices from domains that have r components so far.
    for round in 0..count {
        for device in &devices {
            let here = in_domain.entry(&device.domain).or_default();
            if chosen.len() < count && *here == round && !chosen.contains(&device.device) {
                *here += 1;
                chosen.push(device.device);
            }
        }
    }
    Some((width, chosen))
}

/// The place of a device in a random order that favours free space: the smallest come first. Efraimidis and Spirakis,
/// Information Processing Letters 97 (2006).
fn draw(device: &Device, salt: u64) -> f64 {
    let free = (device.free.max(1)) as f64;
    let random = (mixed(salt, device.device.0.into()) >> 11) as f64 / (1u64 << 53) as f64;
    -random.max(f64::MIN_POSITIVE).ln() / free
}

/// 64 bits that depend on all bits of both: the finaliser of SplitMix64 over them.
fn mixed(a: u64, b: u64) -> u64 {
    let mut mix = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mix = (mix ^ (mix >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mix = (mix ^ (mix >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mix ^ (mix >> 31)
}

/// Gives each slot as many holders as it should have, as far as there are devices, and replaces holders that are down
/// or lost. The last ready holder of a slot is never replaced: only it knows what was acknowledged. Returns whether
/// anything changed. The caller raises the epoch by one.
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
    for slot in 0..SLOTS {
        changed |= replace(map, slot) | fill(map, slot, false);
    }
    changed
}

/// Takes away holders that can't answer, or that are to be drained, where a ready one stays.
fn replace(map: &mut Map, slot: usize) -> bool {
    let before = map.slots[slot].len();
    let state = |holder: &Holder| map.device(holder.device).map_or(State::Lost, |device| device.state);
    let stays = |holder: &&Holder| holder.ready && state(holder) == State::Up;
    if map.slots[slot].iter().any(|holder| stays(&holder)) {
        let mut kept: Vec<_> =
            map.slots[slot].iter().filter(|holder| state(holder) == State::Up).copied().collect();
        // One too many, after a last holder came back: the replacements know everything by now.
        if kept.iter().all(|holder| holder.ready) {
            kept.truncate(map.holders_wanted());
        }
        map.slots[slot] = kept;
    } else {
        // A ready holder that drains or is down is the last that knows; one that is not ready helps nobody.
        let helps = |holder: &&Holder| match state(holder) {
            State::Lost => false,
            State::Down => holder.ready,
            State::Up | State::Draining => true,
        };
        let kept: Vec<_> = map.slots[slot].iter().filter(helps).copied().collect();
        map.slots[slot] = kept;
    }
    map.slots[slot].len() != before
}

/// Adds holders until the slot has enough.
fn fill(map: &mut Map, slot: usize, ready: bool) -> bool {
    let wanted = map.holders_wanted();
    let mut changed = false;
    let counted = |map: &Map, holder: &Holder| {
        map.device(holder.device).is_some_and(|device| device.state == State::Up)
    };
    while map.slots[slot].iter().filter(|holder| counted(map, holder)).count() < wanted {
        let Some(next) = best(map, slot) else { break };
        map.slots[slot].push(Holder { device: next, ready, since: map.epoch + 1 });
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
    use super::*;
    use base::Chance;

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
            assert_eq!(now.len(), 3);
            assert_eq!(now.iter().filter(|holder| !holder.ready).count(), usize::from(had));
            assert!(now.iter().all(|holder| holder.device != DeviceId(4)));
            if !had {
                assert_eq!(was, now);
            }
        }
    }

    /// Whatever comes and goes, in any order: a slot keeps a holder that knows everything, unless that was lost.
    #[test]
    fn the_last_that_knows_is_kept() {
        for seed in 0..200 {
            let mut chance = Chance::from_seed(seed);
            let mut map = map(10);
            place_slots(&mut map, true);
            for _ in 0..40 {
                let device = u32::try_from(chance.below(10)).expect("small") + 1;
                let states = [State::Up, State::Down, State::Down, State::Draining];
                set(&mut map, device, states[usize::try_from(chance.below(4)).expect("small")]);
                place_slots(&mut map, false);
                let again = map.clone();
                assert!(!place_slots(&mut map, false), "seed {seed}: one call is enough");
                assert_eq!(again, map);
                for holders in &mut map.slots {
                    assert!(holders.iter().any(|holder| holder.ready), "seed {seed}: {holders:?}");
                    let mut names: Vec<_> = holders.iter().map(|holder| holder.device).collect();
                    names.sort_unstable();
                    names.dedup();
                    assert_eq!(names.len(), holders.len(), "seed {seed}: twice the same holder");
                    // Some become ready meanwhile.
                    for holder in holders {
                        holder.ready |= chance.below(3) == 0;
                    }
                }
            }
        }
    }

    #[test]
    fn segments_get_narrower_with_the_same_parity() {
        let mut map = map(10);
        let (width, devices) = choose_devices(&map, &[], 1).expect("enough devices");
        assert_eq!((width.data, width.parity, devices.len()), (8, 2, 10));
        set(&mut map, 1, State::Down);
        let (width, devices) = choose_devices(&map, &[DeviceId(2)], 1).expect("enough devices");
        assert_eq!((width.data, width.parity, devices.len()), (6, 2, 8));
        assert!(!devices.contains(&DeviceId(1)) && !devices.contains(&DeviceId(2)));
        for device in 3..=10 {
            set(&mut map, device, State::Down);
        }
        assert_eq!(choose_devices(&map, &[], 1), None);
    }

    #[test]
    fn domains_share_a_segment_evenly() {
        let mut map = map(20);
        for device in &mut map.devices {
            device.domain = format!("rack-{}", device.device.0 % 5);
        }
        for salt in 0..50 {
            let (_, devices) = choose_devices(&map, &[], salt).expect("enough devices");
            for rack in 0..5 {
                assert_eq!(devices.iter().filter(|device| device.0 % 5 == rack).count(), 2, "salt {salt}");
            }
        }
    }

    #[test]
    fn more_free_space_is_chosen_more_often() {
        let mut map = map(20);
        map.devices[0].free = 1 << 43;
        map.devices[1].free = 1 << 36;
        let mut chosen = [0; 2];
        for salt in 0..1000 {
            let (_, devices) = choose_devices(&map, &[], salt).expect("enough devices");
            chosen[0] += usize::from(devices.contains(&DeviceId(1)));
            chosen[1] += usize::from(devices.contains(&DeviceId(2)));
        }
        assert!(chosen[0] > 900 && chosen[1] < 100, "{chosen:?}");
    }
}
