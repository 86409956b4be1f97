//! Compares what lies on this device by what the metadata service knows with what is here: components that are missing,
//! since the device was away when their segment was sealed or since its folder is an older copy, are computed anew;
//! files that the database does not know go when nobody needs them. formats/cluster.md, section 8.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::stream::StreamExt as _;
use proto::cluster::{DeviceId, ObjectId};
use reqwest::Method;

use super::Agent;
use crate::device::Device;
use crate::device::rebuild::rebuild;
use crate::device::work::blocking;
use crate::http::{Failure, Reply, ask_in_turn, json};
use crate::problem::{Answer, Word};
use crate::wire::{Holdings, HoldingsRequest, Segment, SegmentState};

/// Wait while the device is not counted.
const PAUSE: Duration = Duration::from_millis(500);
/// What could not be done is tried again after so many such waits.
const PAUSES: u32 = 40;
/// Components that are computed anew at the same time.
const AT_ONCE: usize = 2;

impl Agent {
    pub(super) async fn find_missing_for_ever(&self) {
        loop {
            if self.device.guard.has_lease() {
                // What can't be done now is tried again.
                let _ = self.find_missing().await;
                let _ = self.settle_orphans().await;
            }
            // Who was away looks at once: until then it is not known what is missing.
            for _ in 0..PAUSES {
                tokio::time::sleep(PAUSE).await;
                if self.searching.load(Ordering::Relaxed) {
                    break;
                }
            }
        }
    }

    /// Computes what is missing here, once after the device was away.
    async fn find_missing(&self) -> Reply<()> {
        let found = match self.was_away.swap(false, Ordering::Relaxed) {
            true => self.look_at_all().await,
            false => self.look_at_unsure().await,
        };
        if found.is_err() {
            self.was_away.store(true, Ordering::Relaxed);
        }
        found
    }

    /// Compares all segments. Of one that is open nobody knows yet how long it will be.
    async fn look_at_all(&self) -> Reply<()> {
        let own = self.own();
        let (mut lacking, mut unsure, mut after) = (Vec::new(), BTreeSet::new(), 0);
        loop {
            let wanted = HoldingsRequest { after };
            let page: Holdings = self.ask(&format!("devices/{own}/segments"), &wanted).await?;
            unsure.extend(page.open.iter().map(|segment| segment.segment));
            lacking.extend(self.lacking(page.segments).await?);
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        *self.unsure.lock() = unsure;
        self.compute(lacking).await
    }

    /// Looks which of the segments that were open have ended, and what is missing of these.
    async fn look_at_unsure(&self) -> Reply<()> {
        let unsure = self.unsure.lock().clone();
        for number in unsure {
            let ended = match self.segment(number).await {
                Ok(segment) if segment.state == SegmentState::Open => continue,
                // It is gone, or of devices that took over meanwhile.
                Err(failure) if failure.word() == Some(Word::Missing) => None,
                Ok(segment) => Some(segment).filter(|segment| segment.devices.contains(&self.own())),
                Err(failure) => return Err(failure),
            };
            let lacking = self.lacking(ended.into_iter().collect()).await?;
            self.unsure.lock().remove(&number);
            self.compute(lacking).await?;
        }
        Ok(())
    }

    /// Tells what is missing, and computes it.
    async fn compute(&self, lacking: Vec<ObjectId>) -> Reply<()> {
        self.missing.store(lacking.len() as u64, Ordering::Relaxed);
        // It may have been away once more.
        let searching = self.was_away.load(Ordering::Relaxed) || !self.unsure.lock().is_empty();
        if self.searching.swap(searching, Ordering::Relaxed) != searching || !lacking.is_empty() {
            self.news.notify_one();
        }
        let computed = futures::stream::iter(lacking).map(async |id| {
            let done = self.compute_one(id).await;
            if done.is_ok() {
                self.missing.fetch_sub(1, Ordering::Relaxed);
            }
            done
        });
        // One that can't be computed now must not keep others missing.
        let all: Vec<Reply<()>> = computed.buffer_unordered(AT_ONCE).collect().await;
        all.into_iter().collect()
    }

    /// Those of these sealed segments whose component is not here, or too short.
    async fn lacking(&self, segments: Vec<Segment>) -> Reply<Vec<ObjectId>> {
        let all: Vec<_> = segments.iter().map(|segment| (component(segment), segment.length)).collect();
        let lacking = blocking(&self.device, move |device| device.lacking(all));
        lacking.await.map_err(Failure::Refused)
    }

    pub(super) async fn segment(&self, number: u64) -> Reply<Segment> {
        let request = |address: &str| self.to(Method::GET, address, &format!("segments/{number}"));
        ask_in_turn(self.instances(), request, json).await
    }

    async fn compute_one(&self, id: ObjectId) -> Reply<()> {
        let is_there = blocking(&self.device, move |device| Ok(device.store.tables().object(id)?.is_some()));
        if is_there.await.map_err(Failure::Refused)? {
            // It missed the end.
            return self.seal_as_segment(id).await;
        }
        let task = self.own_component(id).await?;
        let setting = (&self.device.rates, self.setting.rebuild_bytes_per_second);
        rebuild(&self.device, &self.client, &task, setting).await
    }

    /// Removes files that the database does not know, if nobody needs them.
    async fn settle_orphans(&self) -> Reply<()> {
        if self.device.store.orphans.count() == 0 {
            return Ok(());
        }
        let listed = blocking(&self.device, |device| Ok(device.store.orphans.list()?));
        for (id, path) in listed.await.map_err(Failure::Refused)? {
            // Only a service that counts this device knows as much as the device does.
            if self.device.guard.has_lease() && self.is_rubbish(id).await? {
                let removed = blocking(&self.device, move |device| Ok(device.store.orphans.remove(&path)?));
                removed.await.map_err(Failure::Refused)?;
            }
        }
        Ok(())
    }

    /// Whether nobody needs a file of this object that the database does not know: the segment is gone, its component
    /// lies elsewhere, or is here, sealed.
    async fn is_rubbish(&self, id: ObjectId) -> Reply<bool> {
        let segment = match self.segment(id.number).await {
            Ok(segment) => segment,
            Err(failure) if failure.word() == Some(Word::Missing) => return Ok(true),
            Err(failure) => return Err(failure),
        };
        if component(&segment) != id || !segment.devices.contains(&self.own()) {
            return Ok(true);
        }
        if segment.state == SegmentState::Open {
            return Ok(false);
        }
        let row = blocking(&self.device, move |device| Ok(device.store.tables().object(id)?));
        let row = row.await.map_err(Failure::Refused)?;
        Ok(row.is_some_and(|row| row.sealed && row.length >= segment.length))
    }

    /// The number of this device, which has joined.
    fn own(&self) -> DeviceId {
        self.device.guard.device().expect("it joined before")
    }
}

/// The object that each component of a segment is.
fn component(segment: &Segment) -> ObjectId {
    ObjectId { group: segment.group, number: segment.segment }
}

impl Device {
    /// Those of these objects that are not here, or have fewer bytes than this.
    fn lacking(&self, all: Vec<(ObjectId, u64)>) -> Answer<Vec<ObjectId>> {
        let mut lacking = Vec::new();
        for (id, length) in all {
            // One that was made just now is not in the database yet.
            let has = match self.store.tables().object(id)? {
                Some(row) if row.sealed => true,
                Some(row) => row.length >= length,
                None => !self.store.get(id).is_err_and(|problem| problem.word == Word::Missing),
            };
            if !has {
                lacking.push(id);
            }
        }
        Ok(lacking)
    }
}
