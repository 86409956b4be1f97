//! A state that was restored is older than what devices know: they tell what is missing. formats/cluster.md, section 7.
//!
//! The newest map that any device has says who holds what of the index: an older one would call a device ready that
//! was replaced. So the service answers nobody before all devices of that map have told theirs, except those that are
//! declared lost. Then it goes on from the newest one, with an epoch and numbers far beyond all that were in use.

use std::collections::BTreeMap;

use base::{Error, ErrorKind, Result};
use proto::cluster::{DeviceId, State, Width, place_slots, skip_epochs};

use super::cluster::{Metadata, SeenDevice, parse};
use super::engine::{Condition, Write};
use super::members::{Kept, Member, member_key};
use super::recalled::Recalled;
use super::segments::{emptied_key, key, open_key, text};
use crate::clock::monotonic;
use crate::recall::{Recall, RecalledSegment};
use crate::wire::{DeviceHealth, Segment, SegmentState};

/// Epochs that are left out: a device may know one that no other has told of.
const EPOCHS: u64 = 1 << 16;
/// Numbers of segments and clients that are left out.
const NUMBERS: u64 = 1 << 32;
/// The fence of segments that devices told of: above those that were given out.
const FENCE: u32 = 1 << 16;

/// This instance did not ask: what a device tells counts only for a service whose state is older. A device that has to
/// tell is asked with its next heartbeat, and tells all.
fn not_asked() -> Error {
    Error::new(
        ErrorKind::Unreachable,
        "the state of this metadata service is not older than what devices know",
    )
}

impl Metadata {
    /// Whether devices still tell what this instance does not know.
    pub(super) fn is_recalling(&self) -> bool {
        self.recalled.lock().is_older
    }

    /// The devices that are waited for.
    pub(super) fn waits_for(&self) -> Vec<DeviceId> {
        self.recalled.lock().missing()
    }

    /// Why nobody is answered now.
    pub(super) fn recalling(&self) -> Error {
        let missing: Vec<_> = self.waits_for().iter().map(ToString::to_string).collect();
        let detail = format!(
            "the state of the metadata service was restored and is older than the devices': it waits for devices {}",
            missing.join(", ")
        );
        Error::new(ErrorKind::Revoked, detail)
    }

    /// Asks a device that has a newer map to tell what it knows: `Incomplete`. `Revoked` if it did, and others did not.
    pub(super) fn is_newest(&self, device: DeviceId, epoch: u64) -> Result<()> {
        if epoch <= self.map().epoch && !self.is_recalling() {
            return Ok(());
        }
        // Another instance may lead by now, and have made the newer map: then its state is older, and nothing is wrong.
        self.newest_map()?;
        {
            let mut recalled = self.recalled.lock();
            // Under the lock: all may have told meanwhile, and the map be the newest one.
            recalled.is_older |= epoch > self.map().epoch;
            if !recalled.is_older {
                return Ok(());
            }
            let mut devices = self.devices.lock();
            let unknown = SeenDevice { health: DeviceHealth::unknown(), ..SeenDevice::default() };
            let known = devices.get(&device).copied().unwrap_or(unknown);
            devices.insert(device, SeenDevice { at: monotonic(), ..known });
            drop(devices);
            if !recalled.told.contains(&device) {
                let detail = "the state of the metadata service is older than what this device knows";
                return Err(Error::new(ErrorKind::Incomplete, detail));
            }
        }
        Err(self.recalling())
    }

    /// Segments that a device has components of. Those that are not known are sealed where their components end.
    pub(super) fn recall_segments(&self, device: DeviceId, told: &[RecalledSegment]) -> Result<()> {
        if !self.is_recalling() {
            return Err(not_asked());
        }
        let mut known = std::mem::take(&mut self.recalled.lock().segments);
        if known.is_empty() {
            for below in ["segment/", "open/", "emptied/"] {
                known.extend(self.segments_below(below)?.iter().map(|known| known.segment));
            }
        }
        for told in told {
            let RecalledSegment { segment: number, group, k, m, ref devices, component } = *told;
            let fits = Width::new(k, m).is_some_and(|width| usize::from(width.components()) == devices.len());
            if !fits || usize::from(component) >= devices.len() {
                continue;
            }
            let mut recalled = self.recalled.lock();
            let holders = recalled.holders.entry(number).or_default();
            if !holders.contains(&(device, component)) {
                holders.push((device, component));
            }
            drop(recalled);
            if !known.insert(number) {
                continue;
            }
            let devices = devices.clone();
            let (state, client, length) = (SegmentState::Open, 0, 0);
            let (fence, content, since) = (FENCE, 0, 0);
            let segment = Segment {
                segment: number,
                group,
                k,
                m,
                devices,
                state,
                length,
                client,
                fence,
                content,
                since,
            };
            let absent = [open_key(number), key(number), emptied_key(number)].map(Condition::Absent);
            self.engine.commit(&absent, &[Write::Put(open_key(number), text(&segment))])?;
        }
        // Two devices that tell at the same time find the same ones unknown; one commit of each counts.
        self.recalled.lock().segments.append(&mut known);
        Ok(())
    }

    /// Components that were moved since the copy: where they should be there are none, and another device has them.
    fn find_moved(&self, holders: &BTreeMap<u64, Vec<(DeviceId, u8)>>) -> Result<()> {
        for below in ["segment/", "open/"] {
            for segment in self.segments_below(below)? {
                let told = holders.get(&segment.segment).map_or(&[][..], Vec::as_slice);
                let mut devices = segment.devices.clone();
                for component in 0..devices.len() {
                    let is_it = |part: u8| usize::from(part) == component;
                    if told.iter().any(|&(device, part)| is_it(part) && device == devices[component]) {
                        continue;
                    }
                    let other = told.iter().find(|(device, part)| is_it(*part) && !devices.contains(device));
                    devices[component] = other.map_or(devices[component], |(device, _)| *device);
                }
                let key = format!("{below}{:016x}", segment.segment);
                if devices == segment.devices {
                    continue;
                }
                if let Some(found) = self.engine.get(&key)? {
                    let moved = text(&Segment { devices, ..segment });
                    let condition = Condition::Revision(key.clone(), found.revision);
                    self.engine.commit(&[condition], &[Write::Put(key, moved)])?;
                }
            }
        }
        Ok(())
    }

    /// What a device knows of itself and of the cluster.
    pub(super) fn recall(&self, device: DeviceId, told: Recall) -> Result<()> {
        if told.map.cluster != self.map().cluster {
            return Err(Error::new(ErrorKind::Refused, format!("device {device} is of another cluster")));
        }
        // Who asked was another instance, which leads no more, or the answer to a request that came twice.
        if !self.is_recalling() {
            return Err(not_asked());
        }
        self.recall_member(device, &told)?;
        {
            let mut recalled = self.recalled.lock();
            recalled.told.insert(device);
            // A map that is as old as this instance's says nothing of what is missing.
            let is_newer = told.map.epoch > self.map().epoch;
            if is_newer && recalled.newest.as_ref().is_none_or(|newest| newest.epoch < told.map.epoch) {
                recalled.newest = Some(told.map);
            }
        }
        self.end_recall()
    }

    /// Goes on without a device.
    pub(super) fn recall_without(&self, device: DeviceId) -> Result<()> {
        self.recalled.lock().lost.insert(device);
        self.end_recall()
    }

    /// A device keeps its number. All its capabilities are void: the service does not know any more which it gave.
    fn recall_member(&self, device: DeviceId, told: &Recall) -> Result<()> {
        let (key, own) = (member_key(device), format!("identity/{}", told.identity));
        loop {
            let found = self.engine.get(&key)?;
            let known: Option<Member> = found.as_ref().map(|found| parse(&key, &found.value)).transpose()?;
            if known.as_ref().is_some_and(|known| known.identity != told.identity) {
                return Err(Error::new(ErrorKind::NotFound, format!("device {device} is another one")));
            }
            let key_epoch = known.map_or(0, |known| known.key_epoch).max(told.key_epoch) + 1;
            // Its own count is the newest there is.
            let kept = Kept::default();
            let member = Member { device, identity: told.identity.clone(), key_epoch, kept };
            let condition = match &found {
                None => Condition::Absent(key.clone()),
                Some(found) => Condition::Revision(key.clone(), found.revision),
            };
            let member = serde_json::to_vec(&member).expect("it is plain data");
            let writes =
                [Write::Put(key.clone(), member), Write::Put(own.clone(), device.0.to_string().into_bytes())];
            if self.engine.commit(&[condition], &writes)? {
                return Ok(());
            }
        }
    }

    /// Goes on from the newest map, if all have told theirs.
    fn end_recall(&self) -> Result<()> {
        let mut recalled = self.recalled.lock();
        let Some(newest) = recalled.newest.clone().filter(|_| recalled.missing().is_empty()) else {
            return Ok(());
        };
        let devices = newest.devices.iter().map(|device| u64::from(device.device.0)).max().unwrap_or(0);
        self.skip("segment", |number| number + NUMBERS)?;
        self.skip("client", |number| number + NUMBERS)?;
        self.skip("device", |number| number.max(devices))?;
        self.find_moved(&recalled.holders)?;
        let lost = recalled.lost.clone();
        self.change_map(|map| {
            let own = map.epoch;
            *map = newest.clone();
            skip_epochs(map, own.max(newest.epoch) + EPOCHS);
            for device in map.devices.iter_mut().filter(|device| lost.contains(&device.device)) {
                device.state = State::Lost;
            }
            place_slots(map, false);
            true
        })?;
        // Everybody gets a lease from now on to be heard.
        *self.started.lock() = monotonic();
        *recalled = Recalled::default();
        Ok(())
    }

    /// Changes the number that was given out last.
    fn skip(&self, what: &str, change: impl Fn(u64) -> u64) -> Result<()> {
        let key = format!("next/{what}");
        loop {
            let found = self.engine.get(&key)?;
            let number: u64 = found.as_ref().map_or(Ok(0), |found| parse(&key, &found.value))?;
            let condition = match &found {
                None => Condition::Absent(key.clone()),
                Some(found) => Condition::Revision(key.clone(), found.revision),
            };
            let next = change(number).to_string().into_bytes();
            if self.engine.commit(&[condition], &[Write::Put(key.clone(), next)])? {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use proto::cluster::Width;

    use super::*;
    use crate::database::Opening;
    use crate::metadata::ClusterSetting;
    use crate::metadata::engine::{Embedded, Engine, Stored};
    use crate::token::ClusterToken;
    use crate::wire::{Heartbeat, JoinRequest};

    /// The engine of one instance of several: it fails once another one leads.
    #[derive(Debug)]
    struct Seat(Arc<Embedded>, AtomicBool);

    impl Seat {
        fn is_own(&self) -> Result<()> {
            match self.1.load(Ordering::Relaxed) {
                true => Err(Error::new(ErrorKind::Revoked, "another instance leads")),
                false => Ok(()),
            }
        }
    }

    impl Engine for Seat {
        fn get(&self, key: &str) -> Result<Option<Stored>> {
            self.is_own().and_then(|()| self.0.get(key))
        }

        fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<(String, Stored)>> {
            self.is_own().and_then(|()| self.0.list(prefix, after, limit))
        }

        fn commit(&self, conditions: &[Condition], writes: &[Write]) -> Result<bool> {
            self.is_own().and_then(|()| self.0.commit(conditions, writes))
        }
    }

    fn instance(engine: Arc<dyn Engine>) -> Arc<Metadata> {
        let (width, lease) = (Width::new(2, 1).unwrap(), Duration::from_secs(3));
        let setting = ClusterSetting { width, lease, lifetime: lease * 10, tls: false };
        Metadata::open(engine, ClusterToken::random().unwrap(), &setting).unwrap()
    }

    fn join(metadata: &Metadata) -> DeviceId {
        let request = JoinRequest {
            identity: "0".repeat(32),
            address: "http://10.0.0.7:7420".to_owned(),
            domain: "a".to_owned(),
            bytes: 1,
            free: 1,
            epoch: 0,
            clock: None,
            cluster: String::new(),
            start: "a".to_owned(),
            commits: 1,
        };
        metadata.join(&request).unwrap().device
    }

    fn beat(metadata: &Metadata, device: DeviceId, epoch: u64) -> Result<()> {
        let beat = Heartbeat {
            identity: "0".repeat(32),
            epoch,
            used: 0,
            free: 1,
            ready: Vec::new(),
            clock: None,
            cluster: metadata.map().cluster,
            commits: 1,
            health: DeviceHealth::default(),
        };
        metadata.heartbeat(device, &beat).map(drop)
    }

    #[test]
    fn an_instance_that_was_deposed_does_not_say_that_the_state_is_older() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Arc::new(Embedded::open(&folder.path().join("a.redb"), Opening::OrNew).unwrap());
        let seat = Arc::new(Seat(Arc::clone(&engine), AtomicBool::new(false)));
        let deposed = instance(Arc::<Seat>::clone(&seat));
        let device = join(&deposed);
        // Another one leads, which the first one has yet to learn.
        let leader = instance(engine);
        leader.begin_epoch().unwrap();
        let epoch = leader.map().epoch;
        assert!(deposed.map().epoch < epoch);
        seat.1.store(true, Ordering::Relaxed);
        assert_eq!(beat(&deposed, device, epoch).unwrap_err().kind(), ErrorKind::Revoked);
        assert!(!deposed.is_recalling());
        // What a device tells although nobody asked changes nothing.
        let told = Recall { identity: "0".repeat(32), key_epoch: 1, map: leader.map() };
        assert!(leader.recall(device, told).is_err());
        let segment = RecalledSegment {
            segment: 9,
            group: 1,
            k: 2,
            m: 1,
            devices: vec![device, DeviceId(7), DeviceId(8)],
            component: 0,
        };
        assert!(leader.recall_segments(device, &[segment]).is_err());
        assert!(!leader.is_recalling() && leader.open_segments().unwrap().is_empty());
        assert_eq!(leader.map().epoch, epoch);
        // The state is the newest one, also in the hands of an instance that slept.
        seat.1.store(false, Ordering::Relaxed);
        beat(&deposed, device, epoch).unwrap();
        // A state that was restored is older, whoever leads.
        assert_eq!(beat(&leader, device, epoch + 1).unwrap_err().kind(), ErrorKind::Incomplete);
        assert!(leader.is_recalling());
    }
}
