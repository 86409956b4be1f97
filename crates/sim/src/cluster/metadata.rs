//! The simulated metadata service: its map and segments survive restarts, who was heard does not.

use std::collections::BTreeMap;

use base::Chance;
use proto::cluster::{Device, DeviceId, Map, State, UNIT_BYTES, choose_devices, place_slots};

use super::world::{Answer, DATA, DEVICES, Event, LEASE, PARITY, Party, Request, SLOTS, Time, World};

/// Longest wait for a device's answer.
const PATIENCE: Time = 1500;

/// A segment.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) devices: Vec<DeviceId>,
    pub(super) data: u8,
    client: (usize, u64),
    fence: u32,
    pub(super) sealed: Option<u64>,
}

/// A segment that is being taken: who was asked, and what they have.
#[derive(Debug)]
struct Taking {
    segment: u64,
    asked: BTreeMap<u64, DeviceId>,
    lengths: BTreeMap<DeviceId, u64>,
    sealing: bool,
}

/// The service.
#[derive(Debug)]
pub(super) struct Metadata {
    pub(super) map: Map,
    pub(super) segments: BTreeMap<u64, Segment>,
    next_segment: u64,
    pub(super) away_until: Time,
    started: Time,
    heard: BTreeMap<u32, Time>,
    clients: BTreeMap<(usize, u64), Time>,
    taking: Vec<Taking>,
    salt: u64,
}

impl Metadata {
    pub(super) fn new(chance: &mut Chance) -> Self {
        let device = |number| Device {
            device: DeviceId(number),
            address: String::new(),
            domain: format!("host-{number}"),
            state: State::Up,
            bytes: 1 << 40,
            free: 1 << 40,
        };
        let mut map = Map {
            cluster: String::new(),
            epoch: 1,
            k: DATA,
            m: PARITY,
            unit: UNIT_BYTES,
            devices: (1..=DEVICES).map(device).collect(),
            slots: Vec::new(),
        };
        place_slots(&mut map, true);
        // The others only take time.
        map.slots.truncate(SLOTS);
        map.epoch += 1;
        Self {
            map,
            segments: BTreeMap::new(),
            next_segment: 0,
            away_until: 0,
            started: 0,
            heard: BTreeMap::new(),
            clients: BTreeMap::new(),
            taking: Vec::new(),
            salt: chance.u64(),
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Map) -> bool) {
        if change(&mut self.map) {
            place_slots(&mut self.map, false);
            self.map.epoch += 1;
        }
    }

    pub(super) fn declare_lost(&mut self, device: DeviceId) {
        self.change(|map| {
            let known = map.devices.iter_mut().find(|known| known.device == device);
            known.is_some_and(|known| std::mem::replace(&mut known.state, State::Lost) != State::Lost)
        });
    }
}

impl World {
    pub(super) fn metadata_restarts(&mut self) {
        let away = self.below(6000);
        self.metadata.away_until = self.now + away;
        self.metadata.started = self.now + away;
        self.metadata.heard.clear();
        self.metadata.clients.clear();
        self.metadata.taking.clear();
    }

    pub(super) fn metadata_asked(&mut self, id: u64, from: Party, request: Request) {
        let now = self.now;
        let service = &mut self.metadata;
        if now < service.away_until {
            return;
        }
        let answer = match request {
            Request::Heartbeat { device, ready, sent } => {
                service.heard.insert(device, now);
                service.change(|map| {
                    let mut changed = false;
                    let known = map.devices.iter_mut().find(|known| known.device.0 == device);
                    if let Some(known) = known.filter(|known| known.state == State::Down) {
                        known.state = State::Up;
                        changed = true;
                    }
                    for (slot, from) in ready {
                        let learns = |holder: &&mut proto::cluster::Holder| {
                            holder.device.0 == device && holder.from == from && holder.takes_entries()
                        };
                        for holder in map.slots[slot].iter_mut().filter(learns) {
                            holder.had.clear();
                            changed |= std::mem::replace(&mut holder.from, 0) != 0;
                        }
                    }
                    changed
                });
                Answer::Pulse { map: service.map.clone(), sent }
            }
            Request::Renew { client, incarnation } => {
                service.clients.insert((client, incarnation), now + 3 * LEASE);
                Answer::Renewed(service.map.clone())
            }
            Request::Open { client, incarnation, avoid } => {
                service.clients.insert((client, incarnation), now + 3 * LEASE);
                service.salt = service.salt.wrapping_add(1);
                let chosen = choose_devices(&service.map, &avoid, service.salt)
                    .or_else(|| choose_devices(&service.map, &[], service.salt));
                match chosen {
                    None => Answer::Refused,
                    Some((width, devices)) => {
                        service.next_segment += 1;
                        let segment = service.next_segment;
                        let (data, client) = (width.data, (client, incarnation));
                        let new = Segment { devices: devices.clone(), data, client, fence: 0, sealed: None };
                        service.segments.insert(segment, new);
                        Answer::Segment { segment, devices, data }
                    }
                }
            }
            Request::Sealed { segment, length } => {
                let known = service.segments.get_mut(&segment);
                if let Some(known) = known.filter(|known| known.fence == 0) {
                    known.sealed.get_or_insert(length);
                }
                Answer::Done
            }
            _ => Answer::Refused,
        };
        self.reply(id, from, answer);
    }

    pub(super) fn metadata_tick(&mut self) {
        self.at(self.now + LEASE / 4, Event::Tick(Party::Metadata));
        let now = self.now;
        let service = &mut self.metadata;
        if now < service.away_until {
            return;
        }
        let patience = LEASE + LEASE / 2;
        let (heard, started) = (&service.heard, service.started);
        let silent: Vec<DeviceId> = service
            .map
            .reachable()
            .map(|device| device.device)
            .filter(|device| now > heard.get(&device.0).copied().unwrap_or(started) + patience)
            .collect();
        service.change(|map| {
            for device in map.devices.iter_mut().filter(|device| silent.contains(&device.device)) {
                device.state = State::Down;
            }
            !silent.is_empty()
        });
        self.take_segments();
    }

    /// Takes segments from clients whose lease has ended.
    fn take_segments(&mut self) {
        let now = self.now;
        let service = &mut self.metadata;
        let grace = service.started + 3 * LEASE;
        let gone = |client: &(usize, u64)| now > service.clients.get(client).copied().unwrap_or(grace);
        let busy = |segment: u64| service.taking.iter().any(|taking| taking.segment == segment);
        let lost: Vec<u64> = service
            .segments
            .iter()
            .filter(|(number, segment)| segment.sealed.is_none() && gone(&segment.client) && !busy(**number))
            .map(|(number, _)| *number)
            .collect();
        for segment in lost {
            let service = &mut self.metadata;
            let known = service.segments.get_mut(&segment).expect("it was found");
            known.fence += 1;
            let (fence, devices) = (known.fence, known.devices.clone());
            let asked: Vec<DeviceId> =
                devices.into_iter().filter(|&device| service.map.answers(device)).collect();
            let mut taking =
                Taking { segment, asked: BTreeMap::new(), lengths: BTreeMap::new(), sealing: false };
            for device in asked {
                let request = Request::Fence { segment, fence };
                let id = self.ask(Party::Metadata, Party::Device(device.0), request, PATIENCE);
                taking.asked.insert(id, device);
            }
            if !taking.asked.is_empty() {
                self.metadata.taking.push(taking);
            }
        }
    }

    pub(super) fn metadata_told(&mut self, id: u64, answer: Option<Answer>) {
        let service = &mut self.metadata;
        let Some(place) = service.taking.iter().position(|taking| taking.asked.contains_key(&id)) else {
            return;
        };
        let taking = &mut service.taking[place];
        let device = taking.asked.remove(&id).expect("it was asked");
        match answer {
            Some(Answer::Length(length)) => drop(taking.lengths.insert(device, length)),
            Some(Answer::Done) if taking.sealing => {}
            // All that count as up must answer: else it is tried again with the next tick.
            _ => drop(service.taking.remove(place)),
        }
        let Some(taking) = service.taking.get_mut(place).filter(|taking| taking.asked.is_empty()) else {
            return;
        };
        let segment = taking.segment;
        let known = service.segments.get_mut(&segment).expect("it is being taken");
        let mut lengths: Vec<u64> = taking.lengths.values().copied().collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        let Some(&length) = lengths.get(usize::from(known.data) - 1) else {
            service.taking.remove(place);
            return;
        };
        if taking.sealing {
            known.sealed.get_or_insert(length);
            self.taken += 1;
            self.metadata.taking.remove(place);
            return;
        }
        taking.sealing = true;
        let seals: Vec<(DeviceId, u64)> =
            taking.lengths.iter().map(|(device, own)| (*device, (*own).min(length))).collect();
        for (device, length) in seals {
            let id = self.ask(
                Party::Metadata,
                Party::Device(device.0),
                Request::Seal { segment, length },
                PATIENCE,
            );
            self.metadata.taking[place].asked.insert(id, device);
        }
    }
}
