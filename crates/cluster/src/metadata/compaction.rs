//! Which segments are compacted, by whom, and when their space is used again. formats/cluster.md, section 9.

use std::collections::{BTreeMap, VecDeque};

use base::{Error, ErrorKind, Result};
use proto::cluster::{
    COMPONENT_BYTES, Capability, DeviceId, Map, ObjectId, Sealed, State, may_free, rights, worth_compacting,
};
use serde::{Deserialize, Serialize};

use super::cluster::{Metadata, parse};
use super::engine::{Condition, Write, for_each};
use super::segments::{emptied_key, key, text};
use crate::clock::monotonic;
use crate::http::{Failure, get_json, send};
use crate::problem::Word;
use crate::wire::{
    CAPABILITY_HEADER, CompactTask, EPOCH_HEADER, EmptiedRequest, Segment, SegmentState, SegmentUsage,
};

/// Clients that rebuild the index, as a list of numbers: what they found may come back, so nothing is emptied.
const SALVAGES: &str = "salvages";
/// Segments that are compacted at the same time.
const AT_ONCE: usize = 2;
/// Longest wait for what a device counts.
const USAGE_MAX: std::time::Duration = std::time::Duration::from_secs(60);

/// A component that was moved away from a device, which still has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct LeftComponent {
    pub(super) segment: u64,
    pub(super) group: u32,
    pub(super) device: DeviceId,
    /// Seconds since 1970.
    pub(super) since: u64,
}

impl LeftComponent {
    fn key(&self) -> String {
        format!("left/{:016x}/{:08x}", self.segment, self.device.0)
    }

    pub(super) fn write(&self) -> Write {
        Write::Put(self.key(), serde_json::to_vec(self).expect("it is plain data"))
    }
}

/// What is known of a segment of which `live` bytes are in use.
fn sealed(segment: &Segment, live: u64) -> Sealed {
    let stored = match segment.content {
        0 => u64::from(segment.k) * segment.length,
        content => content,
    };
    Sealed { segment: segment.segment, group: segment.group, stored, live }
}

impl Metadata {
    /// Frees what was emptied long enough ago, and looks from time to time what else could be.
    pub(super) async fn reclaim(&self) -> Result<()> {
        // A state that was restored says what was to be freed in its time: devices are heard first.
        if self.is_recalling() || monotonic().since(*self.started.lock()) < self.lease * 3 {
            return Ok(());
        }
        self.free_emptied().await?;
        self.free_left().await?;
        self.end_salvages()?;
        let pause = self.lifetime / 4;
        if monotonic().since(self.compaction.lock().planned) < pause {
            return Ok(());
        }
        let map = self.map();
        let waiting = match map.is_index_whole() && self.salvages()?.0.is_empty() {
            true => self.find_garbage(&map).await?,
            false => VecDeque::new(),
        };
        let mut compaction = self.compaction.lock();
        compaction.planned = monotonic();
        // One that can't be compacted, such as one that can't be read, must not hold up all others.
        compaction.given.clear();
        let tried = |segments: &Vec<u64>| segments.iter().any(|segment| compaction.tried.contains(segment));
        let (again, fresh): (Vec<_>, Vec<_>) = waiting.into_iter().partition(tried);
        compaction.tried = again.iter().flatten().copied().collect();
        compaction.waiting = fresh.into_iter().chain(again).collect();
        Ok(())
    }

    /// Segments that are worth compacting, in tasks. Only a hint: who compacts them looks at each name.
    async fn find_garbage(&self, map: &Map) -> Result<VecDeque<Vec<u64>>> {
        let now = self.now_s();
        // Before the devices count: all entries of what is sealed are inserted.
        let mut segments = self.segments()?;
        segments.retain(|segment| segment.since <= now);
        if segments.is_empty() {
            return Ok(VecDeque::new());
        }
        let capabilities = self.capabilities(map, 0, |capability| Capability {
            group: None,
            rights: rights::READ_INDEX,
            ..capability
        })?;
        let mut live: BTreeMap<u64, u64> = BTreeMap::new();
        for device in map.reachable() {
            let request = self.http.get(format!("{}/device/v1/index/usage", device.address));
            let capability = capabilities.get(&device.device).cloned().unwrap_or_default();
            let request = request.header(CAPABILITY_HEADER, capability).header(EPOCH_HEADER, map.epoch);
            // Of slots that are left out, everything would seem to be garbage.
            let Ok(usage) = get_json::<SegmentUsage>(request.timeout(USAGE_MAX)).await else {
                return Ok(VecDeque::new());
            };
            usage
                .segments
                .into_iter()
                .for_each(|(segment, bytes)| *live.entry(segment).or_default() += bytes);
        }
        let live = |segment: &Segment| live.get(&segment.segment).copied().unwrap_or(0);
        let sealed: Vec<_> = segments.iter().map(|segment| sealed(segment, live(segment))).collect();
        Ok(worth_compacting(&sealed, u64::from(map.k) * COMPONENT_BYTES).into())
    }

    /// What a device is to compact.
    pub(super) fn compaction_for(&self, map: &Map, device: DeviceId) -> Option<CompactTask> {
        if map.device(device).is_none_or(|device| device.state != State::Up) {
            return None;
        }
        let task = |segments: &[u64]| {
            let known = segments.iter().filter_map(|&number| self.segment(number).ok());
            let sealed: Vec<_> = known.filter(|segment| segment.state == SegmentState::Sealed).collect();
            let group = sealed.first()?.group;
            Some(CompactTask { segments: sealed.iter().map(|segment| segment.segment).collect(), group })
        };
        let rebuilds = self.rebuild.lock().goes_first(monotonic(), self.lifetime / 4);
        let mut compaction = self.compaction.lock();
        if let Some(task) = compaction.given.get(&device).and_then(|given| task(given)) {
            return Some(task);
        }
        compaction.given.remove(&device);
        while !rebuilds
            && compaction.given.len() < AT_ONCE
            && let Some(segments) = compaction.waiting.pop_front()
        {
            if let Some(task) = task(&segments) {
                compaction.tried.extend(&segments);
                compaction.given.insert(device, segments);
                return Some(task);
            }
        }
        None
    }

    /// Nothing of any name lies in a segment any more.
    pub(super) fn emptied(&self, number: u64, request: &EmptiedRequest) -> Result<()> {
        let refused = |why: &str| {
            Err(Error::new(ErrorKind::Refused, format!("segment {number} can't be emptied: {why}")))
        };
        // Of one that slept for long, what it moved may not be there any more.
        if self.is_client_gone(request.client) {
            return refused("the client's lease has ended");
        }
        let (segment, stored) = self.stored_segment(number)?;
        let now = self.now_s();
        match segment.state {
            SegmentState::Emptied => return Ok(()),
            SegmentState::Sealed if segment.since <= now => {}
            _ => return refused("entries of what is there may still be on their way"),
        }
        let (salvages, salvage) = self.salvages()?;
        if !salvages.is_empty() {
            return refused("the index is being rebuilt");
        }
        let emptied = Segment { state: SegmentState::Emptied, since: now, ..segment };
        let conditions = [Condition::Revision(key(number), stored.revision), salvage];
        let writes = [Write::Remove(key(number)), Write::Put(emptied_key(number), text(&emptied))];
        if !self.engine.commit(&conditions, &writes)? {
            return refused("it changed meanwhile");
        }
        self.compaction.lock().given.retain(|_, given| {
            given.retain(|&given| given != number);
            !given.is_empty()
        });
        Ok(())
    }

    /// Removes the components of segments that are empty, once nobody can read them any more.
    async fn free_emptied(&self) -> Result<()> {
        let mut due = Vec::new();
        let now = self.now_s();
        for_each(self.engine.as_ref(), "emptied/", |key, stored| {
            let segment: Segment = parse(key, &stored.value)?;
            if may_free(segment.since, now, self.lifetime.as_secs()) {
                due.push((segment, stored.revision));
            }
            Ok(())
        })?;
        let map = self.map();
        let is_lost = |device: DeviceId| map.device(device).is_none_or(|known| known.state == State::Lost);
        for (segment, revision) in due {
            let left: Vec<_> = segment.devices.iter().copied().filter(|&device| !is_lost(device)).collect();
            // One that is down removes its component when it answers again.
            if left.iter().all(|&device| map.answers(device)) && self.remove_components(&segment, &left).await
            {
                let key = emptied_key(segment.segment);
                self.engine.commit(&[Condition::Revision(key.clone(), revision)], &[Write::Remove(key)])?;
            }
        }
        Ok(())
    }

    /// Removes components where they were moved away.
    async fn free_left(&self) -> Result<()> {
        let (mut due, now) = (Vec::new(), self.now_s());
        for_each(self.engine.as_ref(), "left/", |key, stored| {
            let left: LeftComponent = parse(key, &stored.value)?;
            if may_free(left.since, now, self.lifetime.as_secs()) {
                due.push((left, stored.revision));
            }
            Ok(())
        })?;
        let map = self.map();
        for (left, revision) in due {
            let segment = self.segment(left.segment).ok();
            // It may have been moved back; and a device that is lost is not asked any more.
            let is_home = segment.as_ref().is_some_and(|segment| segment.devices.contains(&left.device));
            let is_lost = map.device(left.device).is_none_or(|device| device.state == State::Lost);
            let freed = is_home || is_lost || {
                let id = ObjectId { group: left.group, number: left.segment };
                map.answers(left.device) && self.remove_component(id, left.device, 0).await
            };
            if freed {
                let condition = Condition::Revision(left.key(), revision);
                self.engine.commit(&[condition], &[Write::Remove(left.key())])?;
            }
        }
        Ok(())
    }

    async fn remove_components(&self, segment: &Segment, devices: &[DeviceId]) -> bool {
        let id = ObjectId { group: segment.group, number: segment.segment };
        for &device in devices {
            if !self.remove_component(id, device, segment.fence).await {
                return false;
            }
        }
        true
    }

    async fn remove_component(&self, id: ObjectId, device: DeviceId, fence: u32) -> bool {
        let order = (reqwest::Method::DELETE, rights::REMOVE);
        let removed = match self.to_component((id, fence), device, "", order) {
            Ok(request) => send(request).await.map(drop),
            Err(failure) => Err(failure),
        };
        let gone = |failure: Failure| failure.word() == Some(Word::Missing);
        removed.map_or_else(gone, |()| true)
    }

    /// A client rebuilds the index: nothing is emptied while it lives, and as long as it could insert something.
    pub(super) fn begin_salvage(&self, client: u64) -> Result<()> {
        loop {
            let (mut salvages, condition) = self.salvages()?;
            if salvages.contains(&client) {
                return Ok(());
            }
            salvages.push(client);
            if self.put_salvages(&salvages, condition)? {
                return Ok(());
            }
        }
    }

    fn end_salvages(&self) -> Result<()> {
        let (mut salvages, condition) = self.salvages()?;
        let all = salvages.len();
        salvages.retain(|&client| monotonic() <= self.end_of_client(client) + self.lifetime);
        if salvages.len() < all {
            self.put_salvages(&salvages, condition)?;
        }
        Ok(())
    }

    /// The clients that rebuild the index, and the condition that they are still the ones.
    fn salvages(&self) -> Result<(Vec<u64>, Condition)> {
        let name = SALVAGES.to_owned();
        match self.engine.get(SALVAGES)? {
            None => Ok((Vec::new(), Condition::Absent(name))),
            Some(found) => Ok((parse(SALVAGES, &found.value)?, Condition::Revision(name, found.revision))),
        }
    }

    fn put_salvages(&self, salvages: &[u64], condition: Condition) -> Result<bool> {
        let write = match salvages {
            [] => Write::Remove(SALVAGES.to_owned()),
            some => Write::Put(SALVAGES.to_owned(), serde_json::to_vec(some).expect("they are numbers")),
        };
        self.engine.commit(&[condition], &[write])
    }
}
