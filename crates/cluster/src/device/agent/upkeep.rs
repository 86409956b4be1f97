//! What the device does for its objects by itself: rebuilds components of lost devices, seals and completes those that
//! it missed the end of, looks for damage and mends it, and moves what is in use out of segments with garbage.
//! formats/cluster.md, sections 8 and 9.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use proto::cluster::ObjectId;

use super::{Agent, AgentSetting};
use crate::client::{ClusterAccess, Pace, compact};
use crate::clock::monotonic;
use crate::device::rebuild::{complete, rebuild};
use crate::device::scrub::{mend, verify};
use crate::device::work::blocking;
use crate::http::{Failure, Reply};
use crate::wire::{CompactTask, ComponentRequest, RebuildTask, Rebuilt, SegmentState};

/// How often components that are not sealed are looked at.
const TIDY_EVERY: Duration = Duration::from_secs(20);
/// Wait before a segment that could not be compacted is tried again.
const COMPACT_PAUSE: Duration = Duration::from_secs(5);
/// Wait before something else that failed is tried again.
const PAUSE: Duration = Duration::from_millis(500);

impl Agent {
    /// Rebuilds all components that it is told to, at the same time: one alone waits for the slowest of its sources
    /// while this device's link is idle.
    pub(super) async fn rebuild_for_ever(&self) {
        let mut tasks = self.tasks.subscribe();
        let (mut under_way, mut running) = (HashSet::new(), FuturesUnordered::new());
        loop {
            let told: Vec<RebuildTask> = tasks.borrow_and_update().clone();
            let fresh = told.into_iter().filter(|task| under_way.insert(task.segment));
            running.extend(fresh.map(|task| self.rebuild_one(task)));
            tokio::select! {
                Some(segment) = running.next() => {
                    under_way.remove(&segment);
                }
                changed = tasks.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Rebuilds a component, and returns its segment.
    async fn rebuild_one(&self, task: RebuildTask) -> u64 {
        let setting = (&self.device.rates, self.setting.rebuild_bytes_per_second);
        let rebuilt = rebuild(&self.device, &self.client, &task, setting).await;
        let done = match rebuilt {
            Ok(()) => self.tell_rebuilt(&task).await,
            Err(failure) => Err(failure),
        };
        // What was done, or failed, comes again with the next heartbeat if it is still to be done.
        self.tasks.send_modify(|tasks| tasks.retain(|other| other.segment != task.segment));
        match done {
            // Others are waiting: the next heartbeat is due now.
            Ok(()) => self.news.notify_one(),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
        task.segment
    }

    /// Compacts segments, as a client of the cluster.
    pub(super) async fn compact_for_ever(&self) {
        let mut task = self.compaction.subscribe();
        loop {
            let given = task.wait_for(Option::is_some).await.ok().and_then(|task| task.clone());
            let Some(CompactTask { segments, group }) = given else { return };
            let AgentSetting { metadata, token, rebuild_bytes_per_second, .. } = self.setting.clone();
            let access = ClusterAccess { metadata, group, token, immutable: &[], last: Arc::default() };
            let device = Arc::clone(&self.device);
            let pace: Pace = Arc::new(move |bytes| {
                let wait = |rate| device.rates.take(group, bytes, rate, monotonic());
                rebuild_bytes_per_second.map_or(Duration::ZERO, wait)
            });
            match compact(access, &segments, pace).await {
                Ok(()) => self.news.notify_one(),
                Err(_) => tokio::time::sleep(COMPACT_PAUSE).await,
            }
            // What failed comes again with the next heartbeat if it is still to be done.
            self.compaction.send_if_modified(|task| task.take_if(|task| task.segments == segments).is_some());
        }
    }

    /// Mends what reads found damaged, and looks through all objects in between.
    pub(super) async fn scrub_for_ever(&self) {
        let rate = self.setting.scrub_bytes_per_second;
        loop {
            let all = blocking(&self.device, |device| {
                let mut all = BTreeSet::new();
                device.store.tables().all_objects(|id, _| {
                    all.insert(id);
                })?;
                Ok(all)
            });
            let all: BTreeSet<ObjectId> = all.await.unwrap_or_default();
            self.device.scrubs.keep_only(&all);
            for id in all {
                self.mend_waiting().await;
                verify(&self.device, id, rate).await;
            }
            self.mend_waiting().await;
            self.device.scrubs.rest().await;
        }
    }

    async fn mend_waiting(&self) {
        while let Some(id) = self.device.scrubs.next() {
            // What can't be mended now is found again, by a read or by the next round.
            match self.mend_one(id).await {
                Ok(()) => self.device.scrubs.mended(id),
                Err(failure) => self.device.scrubs.not_mended(id, &failure.to_string()),
            }
        }
    }

    async fn mend_one(&self, id: ObjectId) -> Reply<()> {
        let task = self.own_component(id).await?;
        if task.group != id.group {
            return Ok(());
        }
        mend(&self.device, &self.client, id, &task).await
    }

    /// What is known of the component of segment `id` that is this device's.
    pub(super) async fn own_component(&self, id: ObjectId) -> Reply<RebuildTask> {
        let device = self.device.guard.device().expect("it joined before");
        self.ask(&format!("segments/{}/component", id.number), &ComponentRequest { device }).await
    }

    async fn tell_rebuilt(&self, task: &RebuildTask) -> Reply<()> {
        let device = self.device.guard.device().expect("it joined before");
        let path = format!("segments/{}/rebuilt", task.segment);
        let rebuilt = Rebuilt { component: task.component, device };
        self.post(&path, &rebuilt).await
    }

    pub(super) async fn tidy_for_ever(&self) {
        loop {
            tokio::time::sleep(TIDY_EVERY).await;
            // What can't be sealed now is tried again.
            let _ = self.tidy().await;
        }
    }

    /// Seals components whose segment was sealed while this device did not answer.
    async fn tidy(&self) -> Reply<()> {
        let open = blocking(&self.device, |device| {
            let mut open = Vec::new();
            device.store.tables().all_objects(|id, row| {
                if !row.sealed && id.holds_data() {
                    open.push(id);
                }
            })?;
            Ok(open)
        });
        let mut incomplete = 0;
        for id in open.await.map_err(Failure::Refused)? {
            // One that can't be sealed now must not keep others open.
            incomplete += u64::from(self.seal_as_segment(id).await.is_err());
        }
        self.device.scrubs.incomplete.store(incomplete, Ordering::Relaxed);
        Ok(())
    }

    pub(super) async fn seal_as_segment(&self, id: ObjectId) -> Reply<()> {
        let own = self.device.guard.device().expect("it joined before");
        let segment = match self.segment(id.number).await {
            Ok(segment) => segment,
            // An object that is no component of a segment is its creator's business.
            Err(Failure::Refused(_)) => return Ok(()),
            Err(failure) => return Err(failure),
        };
        // One that is being rebuilt here is not this device's yet.
        let is_own = segment.group == id.group && segment.devices.contains(&own);
        if segment.state != SegmentState::Sealed || !is_own {
            return Ok(());
        }
        let length = blocking(&self.device, move |device| Ok(device.store.get(id)?.row().length));
        let length = length.await.map_err(Failure::Refused)?;
        if length < segment.length {
            // It missed runs while it was away.
            let task = self.own_component(id).await?;
            return complete(&self.device, &self.client, &task, length).await;
        }
        let bytes = segment.length;
        let sealed = blocking(&self.device, move |device| device.store.seal_at_most(id, bytes));
        sealed.await.map_err(Failure::Refused)
    }
}
