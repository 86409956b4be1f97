//! Which components of lost devices are rebuilt where: the most exposed segments first, each component on another
//! device that has none of the segment, many devices at once. formats/cluster.md, section 7.

use std::collections::{BTreeMap, BTreeSet};

use base::{Error, ErrorKind, Result};
use proto::cluster::{DeviceId, Map, Movable, State, balance, place_slots, rights};

use super::cluster::Metadata;
use super::compaction::LeftComponent;
use super::engine::{Condition, Write};
use super::segments::{key, text};
use crate::clock::monotonic;
use crate::wire::{LayoutAttribute, RebuildSource, RebuildTask, Rebuilt, Segment, SegmentState};

/// Components that one device rebuilds at the same time: one uses the link while the other waits for the slowest of its
/// sources. These are 16 answers at a time, as many as a client takes.
const TASKS_PER_DEVICE: usize = 2;

/// Tasks that are looked at for one heartbeat.
const LOOKED_AT_MAX: usize = 256;

/// Whether a component is to be rebuilt by a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Yes,
    /// Not by this device, or not now.
    NotHere,
    /// It need not be rebuilt any more.
    Never,
}

/// Whether what is on a device must be put elsewhere.
fn must_leave(map: &Map, device: DeviceId) -> bool {
    map.device(device).is_none_or(|device| matches!(device.state, State::Lost | State::Draining))
}

impl Metadata {
    /// Declares that what a device held is gone, or is to be moved away.
    pub(super) fn retire(&self, device: DeviceId, state: State) -> Result<()> {
        if self.is_recalling() {
            return if state == State::Lost { self.recall_without(device) } else { Err(self.recalling()) };
        }
        self.may_retire(device, state)?;
        let mut known = false;
        self.change_map(|map| {
            let found = map.devices.iter_mut().find(|known| known.device == device);
            known = found.is_some();
            let changed = found.is_some_and(|found| std::mem::replace(&mut found.state, state) != state);
            if changed {
                place_slots(map, false);
            }
            changed
        })?;
        if known {
            // At once, so that the next status tells of it.
            return self.plan_rebuild();
        }
        Err(Error::new(ErrorKind::NotFound, format!("there is no device {device} in this cluster")))
    }

    /// Refuses what would throw good data away, or bring back what was given up.
    fn may_retire(&self, device: DeviceId, state: State) -> Result<()> {
        let refused = |what: &str| Err(Error::new(ErrorKind::Refused, format!("device {device} {what}")));
        let now = self.map().device(device).map(|device| device.state);
        match (now, state) {
            (Some(State::Lost), State::Draining) => refused("is lost: what it held is rebuilt already"),
            (Some(State::Up | State::Draining), State::Lost) if self.is_heard(device) => {
                refused("answers: stop it first if its data is gone, or drain it")
            }
            _ => Ok(()),
        }
    }

    /// Looks for what is to be rebuilt, when the map has changed.
    pub(super) fn plan_rebuild(&self) -> Result<()> {
        let map = self.map();
        // Before the segments are listed: one that is sealed meanwhile asks for another look.
        if std::mem::replace(&mut self.rebuild.lock().looked_at, map.epoch) == map.epoch {
            return Ok(());
        }
        let mut exposed: Vec<(usize, u64, u8)> = Vec::new();
        if map.devices.iter().any(|device| must_leave(&map, device.device)) {
            for segment in self.segments()?.iter().filter(|segment| segment.state == SegmentState::Sealed) {
                let leaving: Vec<u8> = (0u8..)
                    .zip(&segment.devices)
                    .filter(|(_, device)| must_leave(&map, **device))
                    .map(|(component, _)| component)
                    .collect();
                let parts = leaving.iter().map(|&component| (leaving.len(), segment.segment, component));
                exposed.extend(parts);
            }
        }
        exposed.sort_by_key(|&(lost, segment, component)| (std::cmp::Reverse(lost), segment, component));
        let mut rebuild = self.rebuild.lock();
        // Devices that went take their tasks along: these are found again.
        let up = |device: &DeviceId| map.device(*device).is_some_and(|device| device.state == State::Up);
        rebuild.given.retain(|device, _| up(device));
        let given: BTreeSet<(u64, u8)> = rebuild.given.values().flatten().copied().collect();
        let exposed = exposed.into_iter().map(|(_, segment, component)| (segment, component));
        // What is to be moved only waits for all that is to be rebuilt.
        let moves: Vec<_> = rebuild.moves.keys().copied().collect();
        rebuild.waiting = exposed.chain(moves).filter(|task| !given.contains(task)).collect();
        rebuild.progressed = monotonic();
        Ok(())
    }

    /// Plans moves from devices that are fuller than others. Returns how many.
    pub(super) fn rebalance(&self) -> Result<u64> {
        let mut map = self.map();
        {
            // What the devices hold, whatever else is on their disks.
            let seen = self.devices.lock();
            for device in &mut map.devices {
                if let Some(seen) = seen.get(&device.device) {
                    (device.bytes, device.free) = (seen.used.saturating_add(seen.free), seen.free);
                }
            }
        }
        let segments = self.segments()?;
        let movable = |segment: &Segment| !segment.devices.iter().any(|&device| must_leave(&map, device));
        let movable: Vec<_> = segments
            .iter()
            .filter(|segment| movable(segment))
            .map(|segment| Movable {
                segment: segment.segment,
                length: segment.length,
                devices: &segment.devices,
            })
            .collect();
        let moves = balance(&map, &movable);
        let mut rebuild = self.rebuild.lock();
        rebuild.moves =
            moves.iter().map(|planned| ((planned.segment, planned.component), planned.to)).collect();
        rebuild.looked_at = 0;
        drop(rebuild);
        self.plan_rebuild()?;
        Ok(moves.len() as u64)
    }

    /// What a device is to rebuild now: what it was given before, and more if it has few.
    pub(super) fn tasks_for(&self, map: &Map, device: DeviceId) -> Result<Vec<RebuildTask>> {
        if map.device(device).is_none_or(|device| device.state != State::Up) {
            return Ok(Vec::new());
        }
        let mut rebuild = self.rebuild.lock();
        let mut own = rebuild.given.remove(&device).unwrap_or_default();
        // What was done meanwhile, also by others, is not done again: a device has one component of a segment at most.
        own.retain(|&task| self.is_due(map, &rebuild.moves, device, task) == Due::Yes);
        let moves = rebuild.moves.clone();
        let (mut at, mut looked) = (0, 0);
        while own.len() < TASKS_PER_DEVICE && at < rebuild.waiting.len() && looked < LOOKED_AT_MAX {
            looked += 1;
            let task = rebuild.waiting[at];
            let taken = own.iter().any(|(segment, _)| *segment == task.0)
                || rebuild.given.values().flatten().any(|given| *given == task);
            match self.is_due(map, &moves, device, task) {
                Due::Never => {
                    rebuild.waiting.remove(at);
                    rebuild.moves.remove(&task);
                }
                Due::Yes if !taken => {
                    rebuild.waiting.remove(at);
                    own.insert(task);
                }
                _ => at += 1,
            }
        }
        // The next call looks at others first.
        if !rebuild.waiting.is_empty() {
            let by = at % rebuild.waiting.len();
            rebuild.waiting.rotate_left(by);
        }
        let tasks = own.iter().map(|&(segment, component)| self.task(map, segment, component)).collect();
        if !own.is_empty() {
            rebuild.given.insert(device, own);
        }
        tasks
    }

    /// Whether a device is to rebuild this component now.
    fn is_due(
        &self,
        map: &Map,
        moves: &BTreeMap<(u64, u8), DeviceId>,
        device: DeviceId,
        (number, component): (u64, u8),
    ) -> Due {
        let Ok(segment) = self.segment(number) else { return Due::Never };
        let held = segment.devices.get(usize::from(component));
        let Some(&held) = held.filter(|_| segment.state == SegmentState::Sealed) else { return Due::Never };
        match moves.get(&(number, component)) {
            _ if must_leave(map, held) => {}
            // It waits for one that is away for a moment.
            Some(&to) if !segment.devices.contains(&to) && !must_leave(map, to) => {
                if to != device {
                    return Due::NotHere;
                }
            }
            _ => return Due::Never,
        }
        let enough =
            segment.devices.iter().filter(|&&device| map.answers(device)).count() >= usize::from(segment.k);
        if segment.devices.contains(&device) || !enough { Due::NotHere } else { Due::Yes }
    }

    fn task(&self, map: &Map, number: u64, component: u8) -> Result<RebuildTask> {
        let segment = self.segment(number)?;
        let source = |&device: &DeviceId| {
            let known = map.device(device).filter(|known| known.state.answers())?;
            let place = (segment.group, number);
            let capability = self.capability(device, place, (rights::READ, 0), 0).ok()?;
            Some(RebuildSource { address: known.address.clone(), capability })
        };
        let layout = LayoutAttribute {
            component: Some(component),
            devices: segment.devices.clone(),
            k: segment.k,
            m: segment.m,
            segment: number,
        };
        Ok(RebuildTask {
            segment: number,
            group: segment.group,
            k: segment.k,
            m: segment.m,
            component,
            length: segment.length,
            sources: segment.devices.iter().map(source).collect(),
            devices: segment.devices.clone(),
            layout: layout.text(),
        })
    }

    /// What a device needs to mend the component that it has of a sealed segment.
    pub(super) fn component_of(&self, number: u64, device: DeviceId) -> Result<RebuildTask> {
        let segment = self.segment(number)?;
        let place = segment.devices.iter().position(|own| *own == device);
        let place = place
            .filter(|_| segment.state == SegmentState::Sealed)
            .and_then(|place| u8::try_from(place).ok());
        let missing = || {
            let detail = format!("device {device} has no component of a sealed segment {number}");
            Error::new(ErrorKind::NotFound, detail)
        };
        let place = place.ok_or_else(missing)?;
        let mut task = self.task(&self.map(), number, place)?;
        // What it has itself is what it wants to mend.
        task.sources[usize::from(place)] = None;
        Ok(task)
    }

    /// A device has rebuilt a component: it lies there from now on.
    pub(super) fn rebuilt(&self, number: u64, done: &Rebuilt) -> Result<()> {
        let (segment, stored) = self.stored_segment(number)?;
        let place = usize::from(done.component);
        let map = self.map();
        // Not whether this instance gave the task: another one may have.
        let held = segment.devices.get(place).copied();
        let leaves = held.is_some_and(|device| must_leave(&map, device));
        let task = (number, done.component);
        let is_moved = self.rebuild.lock().moves.get(&task) == Some(&done.device);
        let fits = (leaves || (is_moved && held.is_some()))
            && !segment.devices.contains(&done.device)
            && map.device(done.device).is_some_and(|device| device.state == State::Up)
            && segment.state == SegmentState::Sealed;
        if !fits {
            let detail = format!("component {place} of segment {number} was not to be rebuilt there");
            return Err(Error::new(ErrorKind::Refused, detail));
        }
        let mut devices = segment.devices.clone();
        devices[place] = done.device;
        let now = Segment { devices, ..segment };
        let condition = Condition::Revision(key(number), stored.revision);
        let mut writes = vec![Write::Put(key(number), text(&now))];
        if let Some(held) = held.filter(|_| !leaves) {
            // What it had is removed when readers have had time to learn that it is elsewhere.
            let left = LeftComponent { segment: number, group: now.group, device: held, since: self.now_s() };
            writes.push(left.write());
        }
        if !self.engine.commit(&[condition], &writes)? {
            return Err(Error::new(ErrorKind::Unreachable, format!("segment {number} changed meanwhile")));
        }
        let mut rebuild = self.rebuild.lock();
        rebuild.progressed = monotonic();
        rebuild.moves.remove(&task);
        for (device, own) in &mut rebuild.given {
            own.retain(|&(segment, component)| {
                segment != number || (component != done.component && *device != done.device)
            });
        }
        Ok(())
    }
}
