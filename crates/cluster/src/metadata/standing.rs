//! How many segments lack components, or would lose data with the next device that fails.

use base::Result;
use proto::cluster::{DeviceId, Map, State};

use super::cluster::Metadata;
use crate::wire::Segment;

/// How whole all segments are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Open segments.
    pub(super) open: u64,
    /// Sealed segments.
    pub(super) sealed: u64,
    /// Segments with a component on a lost device: it has to be rebuilt.
    pub(super) lacking: u64,
    /// Segments of which no further component may fail.
    pub(super) unprotected: u64,
    /// Segments of which too few components answer.
    pub(super) unreadable: u64,
}

impl Standing {
    /// Counts where the components of a segment are.
    fn add(&mut self, map: &Map, segment: &Segment) {
        let state = |device: &&DeviceId| map.device(**device).map(|device| device.state);
        let is_lost = |device: &&DeviceId| state(device).is_none_or(|state| state == State::Lost);
        let lost = segment.devices.iter().filter(is_lost).count();
        let away = segment.devices.iter().filter(|device| !map.answers(**device)).count();
        let parity = usize::from(segment.m);
        self.lacking += u64::from(lost > 0);
        self.unprotected += u64::from(away > 0 && away == parity);
        self.unreadable += u64::from(away > parity);
    }
}

impl Metadata {
    /// How whole all segments are, under `map`.
    pub(super) fn standing(&self, map: &Map) -> Result<Standing> {
        let (open, sealed) = (self.open_segments()?, self.segments()?);
        let (opened, ended) = (open.len() as u64, sealed.len() as u64);
        let mut standing = Standing { open: opened, sealed: ended, ..Standing::default() };
        open.iter().chain(&sealed).for_each(|segment| standing.add(map, segment));
        Ok(standing)
    }
}

#[cfg(test)]
mod tests {
    use proto::cluster::Device;

    use super::*;
    use crate::wire::SegmentState;

    #[test]
    fn lost_parts_are_lacking_and_parts_that_are_away_only_cost_protection() {
        use State::{Down, Draining, Lost, Up};
        let device = |(number, state): (u32, State)| Device {
            device: DeviceId(number),
            address: String::new(),
            domain: String::new(),
            state,
            bytes: 0,
            free: 0,
        };
        let map = |states: [State; 4]| Map {
            cluster: String::new(),
            epoch: 1,
            k: 2,
            m: 1,
            unit: 65_536,
            devices: (1..).zip(states).map(device).collect(),
            slots: Vec::new(),
        };
        let segment = Segment {
            segment: 1,
            group: 1,
            k: 2,
            m: 1,
            devices: vec![DeviceId(1), DeviceId(2), DeviceId(3)],
            state: SegmentState::Open,
            length: 0,
            client: 1,
            fence: 0,
            content: 0,
            since: 0,
        };
        let counts = |states| {
            let mut standing = Standing::default();
            standing.add(&map(states), &segment);
            (standing.lacking, standing.unprotected, standing.unreadable)
        };
        assert_eq!(counts([Up, Up, Up, Lost]), (0, 0, 0), "it has nothing on the fourth");
        assert_eq!(counts([Up, Draining, Up, Up]), (0, 0, 0));
        assert_eq!(counts([Up, Down, Up, Up]), (0, 1, 0));
        assert_eq!(counts([Up, Lost, Up, Up]), (1, 1, 0));
        assert_eq!(counts([Up, Lost, Down, Up]), (1, 0, 1));
    }
}
