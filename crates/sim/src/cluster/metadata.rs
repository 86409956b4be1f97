//! The simulated metadata service: its map and segments survive restarts, who was heard does not.

use std::collections::{BTreeMap, BTreeSet};

use base::Chance;
use proto::cluster::{
    Device, DeviceId, Map, State, UNIT_BYTES, choose_devices, compacts_from, may_free, place_slots,
};

use super::world::{
    Answer, DATA, DEVICES, Event, LEASE, LIFETIME, PARITY, Party, Request, SLOTS, Time, World,
};

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
    /// From when on it may be compacted, once it is sealed.
    since: Time,
    /// Since when nothing lies there any more.
    emptied: Option<Time>,
}

impl Segment {
    fn seal(&mut self, length: u64, now: Time, taken: bool) {
        if self.sealed.is_none() {
            self.sealed = Some(length);
            self.since = compacts_from(now, taken, LIFETIME);
        }
    }
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
    /// Clients from which segments were taken.
    gone: BTreeSet<(usize, u64)>,
    /// Segments that are being freed, and the requests under way.
    freeing: BTreeMap<u64, BTreeSet<u64>>,
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
            gone: BTreeSet::new(),
            freeing: BTreeMap::new(),
            salt: chance.u64(),
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Map) -> bool) {
        if change(&mut self.map) {
            place_slots(&mut self.map, false);
            self.map.epoch += 1;
        }
    }

    /// Whether a segment was emptied, or removed after that.
    pub(super) fn is_given_up(&self, segment: u64) -> bool {
        self.segments.get(&segment).is_none_or(|known| known.emptied.is_some())
    }

    fn is_gone(&self, client: (usize, u64), now: Time) -> bool {
        let grace = self.started + 3 * LEASE;
        now > self.clients.get(&client).copied().unwrap_or(grace)
    }

    fn renew(&mut self, client: (usize, u64), now: Time, joins: bool) -> Answer {
        let known = self.clients.contains_key(&client);
        if self.gone.contains(&client) || (self.is_gone(client, now) && (known || !joins)) {
            return Answer::Gone(client.1);
        }
        self.clients.insert(client, now + 3 * LEASE);
        Answer::Renewed { map: self.map.clone(), expires: now + LIFETIME, incarnation: client.1 }
    }

    fn emptied(&mut self, segment: u64, client: (usize, u64), now: Time) -> Answer {
        if self.is_gone(client, now) {
            return Answer::Refused;
        }
        match self.segments.get_mut(&segment) {
            Some(known) if known.sealed.is_some() && known.since <= now => {
                known.emptied.get_or_insert(now);
                Answer::Done
            }
            _ => Answer::Refused,
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
        self.metadata.freeing.clear();
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
            Request::Join { client, incarnation } => service.renew((client, incarnation), now, true),
            Request::Renew { client, incarnation } => service.renew((client, incarnation), now, false),
            Request::Emptied { segment, client, incarnation } => {
                service.emptied(segment, (client, incarnation), now)
            }
            Request::Open { client, incarnation, avoid } => {
                service.salt = service.salt.wrapping_add(1);
                let chosen = choose_devices(&service.map, &avoid, service.salt)
                    .or_else(|| choose_devices(&service.map, &[], service.salt));
                match chosen {
                    None => Answer::Refused,
                    Some((width, devices)) => {
                        service.next_segment += 1;
                        let segment = service.next_segment;
                        let (data, client) = (width.data, (client, incarnation));
                        let devices_of = devices.clone();
                        let new = Segment {
                            devices: devices_of,
                            data,
                            client,
                            fence: 0,
                            sealed: None,
                            since: 0,
                            emptied: None,
                        };
                        service.segments.insert(segment, new);
                        Answer::Segment { segment, devices, data, opened_as: incarnation }
                    }
                }
            }
            Request::Sealed { segment, length, client, incarnation } => {
                let known = service.segments.get_mut(&segment);
                let own = |known: &&mut Segment| known.fence == 0 && known.client == (client, incarnation);
                if let Some(known) = known.filter(own) {
                    known.seal(length, now, false);
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
        self.free_segments();
        if self.metadata.map.is_index_whole() {
            let may = |segment: &Segment| {
                segment.sealed.is_some() && segment.emptied.is_none() && segment.since <= now
            };
            let segments = self.metadata.segments.iter();
            let found: Vec<u64> =
                segments.filter(|(_, segment)| may(segment)).map(|(number, _)| *number).collect();
            if !found.is_empty() {
                let chosen = self.below(found.len() as u64) as usize;
                self.compact(found[chosen]);
            }
        }
    }

    /// Removes the components of what was emptied long enough ago.
    fn free_segments(&mut self) {
        let now = self.now;
        let service = &mut self.metadata;
        let due = |(number, segment): (&u64, &Segment)| {
            let emptied = segment.emptied.filter(|&emptied| may_free(emptied, now, LIFETIME))?;
            let free = !service.freeing.contains_key(number);
            free.then(|| (*number, segment.devices.clone(), emptied))
        };
        let due: Vec<_> = service.segments.iter().filter_map(due).collect();
        for (segment, devices, _) in due {
            let map = &self.metadata.map;
            let is_lost =
                |device: &DeviceId| map.device(*device).is_none_or(|device| device.state == State::Lost);
            let left: Vec<DeviceId> = devices.into_iter().filter(|device| !is_lost(device)).collect();
            if left.iter().any(|&device| !map.answers(device)) {
                continue;
            }
            let mut asked = BTreeSet::new();
            for device in left {
                let to = Party::Device(device.0);
                asked.insert(self.ask(Party::Metadata, to, Request::Free { segment }, PATIENCE));
            }
            self.metadata.freeing.insert(segment, asked);
        }
    }

    fn freed(&mut self, id: u64, answer: Option<&Answer>) {
        let service = &mut self.metadata;
        let found = service.freeing.iter_mut().find(|(_, asked)| asked.contains(&id));
        let Some((&segment, asked)) = found else { return };
        asked.remove(&id);
        let is_last = asked.is_empty();
        if !matches!(answer, Some(Answer::Done)) {
            service.freeing.remove(&segment);
        } else if is_last {
            service.freeing.remove(&segment);
            service.segments.remove(&segment);
            self.freed += 1;
        }
    }

    /// Takes segments from clients whose lease has ended.
    fn take_segments(&mut self) {
        let now = self.now;
        let service = &mut self.metadata;
        let gone = |client: &(usize, u64)| service.is_gone(*client, now);
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
            service.gone.insert(known.client);
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
            self.freed(id, answer.as_ref());
            return;
        };
        let now = self.now;
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
            known.seal(length, now, true);
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
