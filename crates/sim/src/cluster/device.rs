//! Simulated devices: components and entries in memory, of which a crash leaves what was committed.

use std::collections::{BTreeMap, BTreeSet};

use proto::cluster::{DeviceId, Holder, Map, Run, State, teachers};

use super::world::{Answer, Entry, Event, LEASE, Party, Request, SLOTS, Time, World, slot};

/// Longest wait of a device for an answer.
const PATIENCE: Time = 600;

/// A component of a segment.
#[derive(Debug, Clone, Default)]
pub(super) struct Component {
    pub(super) length: u64,
    pub(super) fence: u32,
    pub(super) sealed: bool,
    pub(super) parts: BTreeMap<u64, (Run, u64)>,
}

/// What a device knows.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    pub(super) components: BTreeMap<u64, Component>,
    pub(super) entries: BTreeMap<u32, Entry>,
    pub(super) map: Map,
}

/// One device.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) number: u32,
    pub(super) up: bool,
    pub(super) erased: bool,
    life: u64,
    pub(super) live: Disk,
    pub(super) durable: Disk,
    lease_end: Time,
    /// Answers that wait for the next commit.
    waiting: Vec<(u64, Party, Answer)>,
    committing: bool,
    /// Slots that were copied, by the `from` that they were copied for.
    copied: BTreeSet<(usize, u64)>,
    /// Copies under way: the slots with their `from`, and how many have yet to teach them.
    lessons: BTreeMap<(usize, u64), usize>,
    asked: BTreeMap<u64, (u64, Vec<(usize, u64)>)>,
}

impl Device {
    pub(super) fn new(number: u32, map: Map) -> Self {
        let disk = Disk { components: BTreeMap::new(), entries: BTreeMap::new(), map };
        Self {
            number,
            up: true,
            erased: false,
            life: 0,
            live: disk.clone(),
            durable: disk,
            lease_end: 0,
            waiting: Vec::new(),
            committing: false,
            copied: BTreeSet::new(),
            lessons: BTreeMap::new(),
            asked: BTreeMap::new(),
        }
    }

    fn id(&self) -> DeviceId {
        DeviceId(self.number)
    }

    fn holds(&self, slot: usize, enough: fn(&Holder) -> bool) -> bool {
        let own = self.id();
        self.live.map.holders(slot).iter().any(|holder| holder.device == own && enough(holder))
    }

    /// Follows a newer map: forgets slots that it does not hold, or held not all the time.
    fn adopt(&mut self, map: Map) {
        let since = |map: &Map, slot: usize| {
            map.holders(slot)
                .iter()
                .find(|holder| holder.device == DeviceId(self.number))
                .map(|holder| holder.since)
        };
        let kept: Vec<bool> = (0..SLOTS)
            .map(|slot| since(&map, slot).is_some() && since(&map, slot) == since(&self.live.map, slot))
            .collect();
        self.live.entries.retain(|name, _| kept[slot(*name)]);
        self.live.map = map;
        let own = self.id();
        let map = &self.live.map;
        let waits = |&(slot, from): &(usize, u64)| {
            map.holders(slot)
                .iter()
                .any(|holder| holder.device == own && holder.from == from && !holder.is_ready())
        };
        self.copied.retain(waits);
        self.lessons.clear();
        self.asked.clear();
        // Durable before anything is done under it.
        self.durable = self.live.clone();
    }

    fn append(&mut self, segment: u64, at: u64, parts: &[(Run, u64)], fence: u32) -> Answer {
        let component = self.live.components.entry(segment).or_default();
        if component.sealed || fence < component.fence {
            return Answer::Refused;
        }
        let same = parts.iter().all(|part| component.parts.get(&part.0.at) == Some(part));
        if component.length > at && same {
            return Answer::Done;
        }
        if component.length != at {
            return Answer::Refused;
        }
        for part in parts {
            component.parts.insert(part.0.at, *part);
            component.length = part.0.end();
        }
        Answer::Done
    }

    fn insert(&mut self, entries: &[Entry]) -> Answer {
        let newer = entries.iter().filter_map(|entry| {
            let held = self.live.entries.get(&entry.name)?;
            (held != entry && held.version() >= entry.version()).then_some(held.stamp)
        });
        if let Some(newer) = newer.max() {
            return Answer::Stale(newer);
        }
        entries.iter().for_each(|entry| self.learn(*entry));
        Answer::Done
    }

    /// Answers what it has then.
    fn replace(&mut self, old: Option<Entry>, new: Entry) -> Answer {
        if self.live.entries.get(&new.name).copied() == old {
            self.live.entries.insert(new.name, new);
        }
        Answer::Found(self.live.entries.get(&new.name).copied())
    }

    fn learn(&mut self, entry: Entry) {
        let older = self.live.entries.get(&entry.name).is_some_and(|held| held.version() >= entry.version());
        if !older {
            self.live.entries.insert(entry.name, entry);
        }
    }

    fn seal(&mut self, segment: u64, length: u64) -> Answer {
        let component = self.live.components.entry(segment).or_default();
        if !component.sealed {
            component.length = component.length.min(length);
            component.parts.retain(|_, (run, _)| run.end() <= length);
            component.sealed = true;
        }
        Answer::Done
    }
}

impl World {
    fn device(&mut self, number: u32) -> &mut Device {
        &mut self.devices[number as usize - 1]
    }

    pub(super) fn crash(&mut self, number: u32) {
        let device = self.device(number);
        device.up = false;
        device.life += 1;
        device.live = device.durable.clone();
        device.waiting.clear();
        device.committing = false;
        device.lease_end = 0;
        device.copied.clear();
        device.lessons.clear();
        device.asked.clear();
    }

    pub(super) fn start(&mut self, number: u32) {
        let device = self.device(number);
        if device.erased || device.up {
            return;
        }
        device.up = true;
        self.at(self.now + 1, Event::Tick(Party::Device(number)));
    }

    pub(super) fn erase(&mut self, number: u32) {
        self.crash(number);
        let device = self.device(number);
        device.erased = true;
        device.live.components.clear();
        device.live.entries.clear();
        device.durable = device.live.clone();
        self.metadata.declare_lost(DeviceId(number));
    }

    /// A heartbeat, and copies of what is to be learned.
    pub(super) fn device_tick(&mut self, number: u32) {
        let device = self.device(number);
        if !device.up {
            return;
        }
        let ready = device.copied.iter().copied().collect();
        let sent = self.now;
        let beat = Request::Heartbeat { device: number, ready, sent };
        self.ask(Party::Device(number), Party::Metadata, beat, PATIENCE);
        self.copy(number);
        let next = self.now + LEASE / 3 + self.below(100);
        self.at(next, Event::Tick(Party::Device(number)));
    }

    fn copy(&mut self, number: u32) {
        let device = self.device(number);
        if !device.asked.is_empty() {
            return;
        }
        let (map, own) = (device.live.map.clone(), device.id());
        device.lessons.clear();
        let mut sources: BTreeMap<DeviceId, Vec<(usize, u64)>> = BTreeMap::new();
        for slot in 0..SLOTS {
            let holders = map.holders(slot);
            let waits = |holder: &&Holder| {
                holder.device == own
                    && holder.takes_entries()
                    && !holder.is_ready()
                    && !device.copied.contains(&(slot, holder.from))
            };
            let Some(learner) = holders.iter().find(waits) else { continue };
            let Some(chosen) = teachers(holders, learner, |device| map.answers(device)) else { continue };
            device.lessons.insert((slot, learner.from), chosen.len());
            if chosen.is_empty() {
                device.copied.insert((slot, learner.from));
            }
            for source in chosen {
                sources.entry(source).or_default().push((slot, learner.from));
            }
        }
        let epoch = map.epoch;
        for (source, slots) in sources {
            let request = Request::Copy { slots: slots.iter().map(|(slot, _)| *slot).collect(), epoch };
            let id = self.ask(Party::Device(number), Party::Device(source.0), request, PATIENCE);
            self.device(number).asked.insert(id, (epoch, slots));
        }
    }

    pub(super) fn device_told(&mut self, number: u32, id: u64, answer: Answer) {
        let now = self.now;
        let device = self.device(number);
        if !device.up {
            return;
        }
        match answer {
            Answer::Pulse { map, sent } => {
                let epoch = map.epoch;
                if epoch > device.live.map.epoch {
                    device.adopt(map);
                }
                if device.live.map.epoch >= epoch && device.live.map.answers(device.id()) {
                    device.lease_end = device.lease_end.max((sent + LEASE).min(now + LEASE));
                }
            }
            Answer::Copied(entries) => {
                let Some((epoch, slots)) = device.asked.remove(&id) else { return };
                if epoch != device.live.map.epoch {
                    return;
                }
                entries.into_iter().for_each(|entry| device.learn(entry));
                // Durable before it is reported.
                device.durable = device.live.clone();
                for slot in slots {
                    if let Some(left) = device.lessons.get_mut(&slot) {
                        *left -= 1;
                        if *left == 0 {
                            device.copied.insert(slot);
                        }
                    }
                }
            }
            _ => drop(device.asked.remove(&id)),
        }
    }

    pub(super) fn device_gives_up(&mut self, number: u32, id: u64) {
        self.device(number).asked.remove(&id);
    }

    pub(super) fn device_asked(&mut self, number: u32, id: u64, from: Party, request: Request) {
        let now = self.now;
        let device = self.device(number);
        if !device.up {
            return;
        }
        let has_lease = now < device.lease_end;
        let epoch = device.live.map.epoch;
        let answer = match request {
            Request::Append { expires, .. }
            | Request::Insert { expires, .. }
            | Request::Replace { expires, .. }
            | Request::Find { expires, .. }
                if now > expires =>
            {
                Answer::Refused
            }
            Request::Append { epoch: sent, .. } | Request::Insert { epoch: sent, .. } if sent < epoch => {
                Answer::Epoch
            }
            Request::Append { .. }
            | Request::Insert { .. }
            | Request::Replace { .. }
            | Request::Free { .. }
                if !has_lease =>
            {
                Answer::Refused
            }
            Request::Free { segment } => {
                device.live.components.remove(&segment);
                Answer::Done
            }
            Request::Append { segment, at, parts, fence, .. } => device.append(segment, at, &parts, fence),
            Request::Insert { epoch: sent, .. } if sent != epoch => Answer::Epoch,
            Request::Insert { entries, .. } => {
                let held = entries.iter().all(|entry| device.holds(slot(entry.name), Holder::takes_entries));
                let answer = if held { device.insert(&entries) } else { Answer::Epoch };
                if matches!(answer, Answer::Done) {
                    self.names_only_what_is_there(number, &entries);
                }
                answer
            }
            Request::Find { epoch: sent, .. } | Request::Replace { epoch: sent, .. } if sent != epoch => {
                Answer::Epoch
            }
            Request::Replace { old, new, .. } if device.holds(slot(new.name), Holder::is_ready) => {
                device.replace(old, new)
            }
            Request::Find { name, .. } if device.holds(slot(name), Holder::is_ready) && has_lease => {
                Answer::Found(device.live.entries.get(&name).copied())
            }
            Request::Copy { epoch: sent, .. } if sent != epoch => Answer::Epoch,
            Request::Copy { slots, .. }
                if has_lease && slots.iter().all(|&slot| device.holds(slot, |_| true)) =>
            {
                let wanted = device.live.entries.values().filter(|entry| slots.contains(&slot(entry.name)));
                Answer::Copied(wanted.copied().collect())
            }
            Request::Fence { .. } | Request::Seal { .. } if !has_lease => Answer::Refused,
            Request::Fence { segment, fence } => {
                let component = device.live.components.entry(segment).or_default();
                component.fence = component.fence.max(fence);
                Answer::Length(component.length)
            }
            Request::Seal { segment, length } => device.seal(segment, length),
            _ => Answer::Refused,
        };
        self.answer_when_durable(number, (id, from, answer));
    }

    /// Keeps an answer until the next commit, which answers all that wait for it.
    fn answer_when_durable(&mut self, number: u32, answer: (u64, Party, Answer)) {
        let device = self.device(number);
        device.waiting.push(answer);
        if !std::mem::replace(&mut device.committing, true) {
            let life = device.life;
            let later = self.now + 1 + self.below(15);
            self.at(later, Event::Commit { device: number, life });
        }
    }

    /// Nobody inserts an entry of a segment that was given up.
    fn names_only_what_is_there(&mut self, number: u32, entries: &[Entry]) {
        for entry in entries {
            let Some(segment) = entry.value.map(|value| value.segment) else { continue };
            if self.metadata.is_given_up(segment) {
                let what = format!("name {} is in segment {segment} at device {number}", entry.name);
                self.violate("an entry names no segment that was emptied", what);
            }
        }
    }

    /// What was changed is durable, and answered.
    pub(super) fn commit(&mut self, number: u32, life: u64) {
        let device = self.device(number);
        if device.life != life {
            return;
        }
        device.committing = false;
        device.durable = device.live.clone();
        let answers = std::mem::take(&mut device.waiting);
        let is_down =
            self.metadata.map.device(DeviceId(number)).is_some_and(|device| device.state == State::Down);
        let changed =
            |(_, _, answer): &(u64, Party, Answer)| matches!(answer, Answer::Done | Answer::Length(_));
        if is_down && answers.iter().any(changed) {
            self.violate(
                "a device that is down changes nothing",
                format!("device {number} acknowledged a change"),
            );
        }
        for (id, to, answer) in answers {
            self.reply(id, to, answer);
        }
    }
}
