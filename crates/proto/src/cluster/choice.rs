//! Which devices get the components of a new segment: a pure function of the map, so that the metadata service and the
//! simulator decide alike.

use std::collections::HashMap;

use super::map::{Device, Map, State};
use super::{DeviceId, Width};

/// The devices for a new segment, and its width: that of the map, or narrower with the same parity when fewer devices
/// are up. Devices with more free space come more often; a failure domain gets as few components as possible. Equal
/// devices take turns from one `number` of a segment to the next, so that all have the same to do. `None` if not even
/// one data component fits beside the parity.
#[must_use]
pub fn choose_devices(map: &Map, avoid: &[DeviceId], number: u64) -> Option<(Width, Vec<DeviceId>)> {
    let usable = |device: &&Device| device.state == State::Up && !avoid.contains(&device.device);
    let mut devices: Vec<&Device> = map.devices.iter().filter(usable).collect();
    let wanted = usize::from(map.k) + usize::from(map.m);
    let count = devices.len().min(wanted);
    let data = u8::try_from(count).ok()?.checked_sub(map.m)?;
    let width = Width::new(data, map.m)?;
    take_turns(&mut devices, number, count);
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

/// Orders devices for the segment `number`, which takes `count`. They stand in a circle, mixed anew after as many
/// segments as there are devices; until then each of them has had each component once. Those with more free space move
/// to the front as in a random order by Efraimidis and Spirakis, Information Processing Letters 97 (2006), only that
/// the places in the circle stand for the random numbers.
fn take_turns(devices: &mut Vec<&Device>, number: u64, count: usize) {
    let (all, count) = (devices.len() as u64, count as u64);
    let (circle, turn) = (number / all, number % all);
    devices.sort_by_key(|device| mixed(circle, device.device.0.into()));
    // Each begins where the one before has ended; once round, one place further, or the same would begin again.
    let once_round = all / common_divisor(all, count);
    let start = usize::try_from((turn * count + turn / once_round) % all).expect("a place of a device");
    devices.rotate_left(start);
    let place = |place: usize| 1.0 - (place as f64 + 0.5) / all as f64;
    let mut ordered: Vec<_> = (0..).map(place).zip(devices.drain(..)).collect();
    ordered.sort_by(|a, b| key(*a).total_cmp(&key(*b)));
    devices.extend(ordered.into_iter().map(|(_, device)| device));
}

/// The smallest come first.
fn key((place, device): (f64, &Device)) -> f64 {
    -place.ln() / device.free.max(1) as f64
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// 64 bits that depend on all bits of both: the finaliser of SplitMix64 over them.
pub(super) fn mixed(a: u64, b: u64) -> u64 {
    let mut mix = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mix = (mix ^ (mix >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mix = (mix ^ (mix >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mix ^ (mix >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

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
        for number in 0..50 {
            let (_, devices) = choose_devices(&map, &[], number).expect("enough devices");
            for rack in 0..5 {
                assert_eq!(
                    devices.iter().filter(|device| device.0 % 5 == rack).count(),
                    2,
                    "segment {number}"
                );
            }
        }
    }

    #[test]
    fn equal_devices_take_turns() {
        for count in [10, 13, 15, 20, 100] {
            let map = map(count);
            let mut had = BTreeSet::new();
            for number in 0..u64::from(count) {
                let (_, devices) = choose_devices(&map, &[], number).expect("enough devices");
                // The first that go round once have nothing in common.
                let fresh = number >= u64::from(count) / 10
                    || had.iter().all(|&(_, device)| !devices.contains(&device));
                assert!(fresh, "segment {number} of {count} devices");
                let new = devices.into_iter().enumerate().filter(|&component| had.insert(component)).count();
                assert_eq!(new, 10, "a device has a component for the second time");
            }
        }
        let (map, mut pairs) = (map(100), BTreeSet::new());
        for number in 0..1000 {
            let (_, devices) = choose_devices(&map, &[], number).expect("enough devices");
            if devices.contains(&DeviceId(1)) {
                pairs.extend(devices);
            }
        }
        assert!(pairs.len() > 80, "a device that is lost is rebuilt from {} others", pairs.len());
    }

    #[test]
    fn more_free_space_is_chosen_more_often() {
        let mut map = map(20);
        map.devices[0].free = 1 << 43;
        map.devices[1].free = 1 << 36;
        let mut chosen = [0; 2];
        for number in 0..1000 {
            let (_, devices) = choose_devices(&map, &[], number).expect("enough devices");
            chosen[0] += usize::from(devices.contains(&DeviceId(1)));
            chosen[1] += usize::from(devices.contains(&DeviceId(2)));
        }
        assert!(chosen[0] > 900 && chosen[1] < 100, "{chosen:?}");
    }
}
