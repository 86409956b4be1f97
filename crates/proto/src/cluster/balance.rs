//! Which components are to be moved so that devices are equally full: after new ones joined. A pure function, like
//! those of `placement`.

use std::collections::BTreeMap;

use super::{Device, DeviceId, Map, State};

/// Devices that differ from their share by less than this part of it count as equally full: 1 / 16.
const TOLERANCE: i128 = 16;

/// A component that is to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Its segment.
    pub segment: u64,
    /// Its number there.
    pub component: u8,
    /// Where it goes.
    pub to: DeviceId,
}

/// A segment that may be moved in parts.
#[derive(Debug, Clone, Copy)]
pub struct Movable<'a> {
    /// Its number.
    pub segment: u64,
    /// The bytes of each component.
    pub length: u64,
    /// The device of each component.
    pub devices: &'a [DeviceId],
}

/// Components to be moved from devices that are fuller than the mean to those that are emptier. At most one of each
/// segment: while it is moved, all others are where readers know them. No failure domain gets more components of a
/// segment than the one that gives.
#[must_use]
pub fn balance(map: &Map, segments: &[Movable<'_>]) -> Vec<Move> {
    let up: Vec<_> = map.devices.iter().filter(|device| device.state == State::Up).collect();
    let all: i128 = up.iter().map(|device| i128::from(device.bytes)).sum();
    let used: i128 = up.iter().map(|device| i128::from(device.bytes.saturating_sub(device.free))).sum();
    if all == 0 {
        return Vec::new();
    }
    let share =
        |device: DeviceId| used * map.device(device).map_or(0, |device| i128::from(device.bytes)) / all;
    // What each has beyond its share, in bytes.
    let beyond = |device: &&Device| {
        let own = i128::from(device.bytes.saturating_sub(device.free));
        (device.device, own - share(device.device))
    };
    let mut excess: BTreeMap<DeviceId, i128> = up.iter().map(beyond).collect();
    let differs = |device: DeviceId, by: i128| by.abs() > share(device) / TOLERANCE;
    let domain = |device: DeviceId| map.device(device).map_or("", |device| device.domain.as_str());
    let mut moves = Vec::new();
    for &Movable { segment, length, devices } in segments {
        let length = i128::from(length);
        let fullest = (0u8..).zip(devices).max_by_key(|(_, device)| excess.get(device).copied());
        let Some((component, &from)) = fullest else { continue };
        let Some(&over) = excess.get(&from).filter(|&&over| over > 0) else { continue };
        let here = |wanted: &str| devices.iter().filter(|&&device| domain(device) == wanted).count();
        let fits = |to: DeviceId| {
            let (giving, taking) = (domain(from), domain(to));
            !devices.contains(&to) && (giving == taking || here(taking) < here(giving))
        };
        let emptiest = excess
            .iter()
            .filter(|(to, under)| **under < 0 && fits(**to))
            .min_by_key(|(_, under)| **under)
            .map(|(to, under)| (*to, *under));
        // Only if both come nearer to their share: else it would go back and forth.
        let pays = |(to, under): &(DeviceId, i128)| {
            over - under > length && (differs(from, over) || differs(*to, *under))
        };
        if let Some((to, under)) = emptiest.filter(pays) {
            excess.insert(from, over - length);
            excess.insert(to, under + length);
            moves.push(Move { segment, component, to });
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Chance;
    use proptest::prelude::*;

    const SIZE: u64 = 1 << 30;
    const LENGTH: u64 = 4 << 20;

    fn device(number: u32, domain: u32, used: u64) -> Device {
        Device {
            device: DeviceId(number),
            address: String::new(),
            domain: format!("rack-{domain}"),
            state: State::Up,
            bytes: SIZE,
            free: SIZE - used,
        }
    }

    fn map(devices: Vec<Device>) -> Map {
        Map { cluster: String::new(), epoch: 1, k: 2, m: 1, unit: 65536, devices, slots: Vec::new() }
    }

    /// Segments over the first `old` of `count` devices, three components each.
    fn segments(chance: &mut Chance, old: u64, count: u64) -> Vec<Vec<DeviceId>> {
        let one = |chance: &mut Chance| {
            let first = chance.below(old);
            (0..3).map(|part| DeviceId(u32::try_from((first + part) % old).unwrap())).collect()
        };
        (0..count).map(|_| one(chance)).collect()
    }

    fn used(devices: &[Vec<DeviceId>], number: u32) -> u64 {
        devices.iter().flatten().filter(|device| device.0 == number).count() as u64 * LENGTH
    }

    fn movable(segments: &[Vec<DeviceId>]) -> Vec<Movable<'_>> {
        (1..).zip(segments).map(|(segment, devices)| Movable { segment, length: LENGTH, devices }).collect()
    }

    #[test]
    fn equally_full_devices_stay_as_they_are() {
        let segments = vec![vec![DeviceId(0), DeviceId(1), DeviceId(2)]; 20];
        let devices = (0..3).map(|number| device(number, number, used(&segments, number))).collect();
        assert_eq!(balance(&map(devices), &movable(&segments)), []);
        assert_eq!(balance(&map(Vec::new()), &[]), []);
    }

    proptest! {
        #[test]
        fn new_devices_get_their_share(seed in any::<u64>(), new in 1u32..5, racks in 1u32..10) {
            let mut chance = Chance::from_seed(seed);
            let mut segments = segments(&mut chance, 6, 150);
            // Rounds, as an operator would order them: one component of each segment at a time.
            for _ in 0..4 {
                let devices = |number| device(number, number % racks, used(&segments, number));
                let map = map((0..6 + new).map(devices).collect());
                let moves = balance(&map, &movable(&segments));
                for Move { segment, component, to } in moves {
                    let devices = &mut segments[usize::try_from(segment).unwrap() - 1];
                    let spread = |devices: &[DeviceId]| {
                        let in_rack = |rack| devices.iter().filter(|device| device.0 % racks == rack).count();
                        (0..racks).map(in_rack).max()
                    };
                    let before = spread(devices);
                    prop_assert!(!devices.contains(&to), "two components on one device");
                    devices[usize::from(component)] = to;
                    prop_assert!(spread(devices) <= before, "more in one rack than before");
                }
            }
            let all: Vec<u64> = (0..6 + new).map(|number| used(&segments, number)).collect();
            let mean = all.iter().sum::<u64>() / all.len() as u64;
            // With few racks, domains can keep parts where they are.
            if racks >= 6 + new {
                for bytes in all {
                    prop_assert!(bytes.abs_diff(mean) <= mean / 16 + 2 * LENGTH, "{bytes} where {mean} is the mean");
                }
            }
        }
    }
}
