//! Copies the slots that the device is to hold from those that can teach them. formats/cluster.md, section 3.

use std::collections::BTreeMap;
use std::time::Duration;

use proto::cluster::{DeviceId, Holder, Map, decode_batch, teachers};

use super::Agent;
use crate::device::Device;
use crate::device::work::blocking;
use crate::http::{Failure, Reply, get_json, send};
use crate::problem::{Answer, Problem, Word};
use crate::slots::slots_text;
use crate::wire::{CAPABILITY_HEADER, EPOCH_HEADER, MORE_HEADER};

/// Waits before a slot that could not be copied is tried again.
const COPY_PAUSE: Duration = Duration::from_millis(500);
/// Longest wait for an answer of a source.
const SOURCE_MAX: Duration = Duration::from_secs(10);
/// Entries in one answer to a copy.
const COPY_BATCH: usize = 4096;

impl Agent {
    pub(super) async fn copy_for_ever(&self) {
        loop {
            let own = self.device.guard.epoch();
            if self.copy_all().await {
                // Nothing is left to copy under this map.
                let mut epoch = self.device.guard.epochs();
                let _ = epoch.wait_for(|&epoch| epoch > own).await;
            } else {
                tokio::time::sleep(COPY_PAUSE).await;
            }
        }
    }

    /// Copies all slots that wait for it, as far as their ready holders answer. Returns whether none is left.
    async fn copy_all(&self) -> bool {
        let (Some(map), Some(own)) = (self.device.guard.map(), self.device.guard.device()) else {
            return false;
        };
        let mut sources: BTreeMap<DeviceId, Vec<(usize, u64)>> = BTreeMap::new();
        // How many have yet to teach a slot.
        let mut lessons: BTreeMap<(usize, u64), usize> = BTreeMap::new();
        let mut complete = true;
        for (slot, holders) in map.slots.iter().enumerate() {
            let waits = |holder: &&Holder| {
                holder.device == own
                    && holder.takes_entries()
                    && !holder.is_ready()
                    && !self.copied.lock().contains(&(slot, holder.from))
            };
            let Some(learner) = holders.iter().find(waits) else { continue };
            let Some(chosen) = teachers(holders, learner, |device| map.answers(device)) else {
                complete = false;
                continue;
            };
            let key = (slot, learner.from);
            if chosen.is_empty() {
                // What it had before it came back reaches to where it goes on.
                self.copied.lock().insert(key);
                self.news.notify_one();
            }
            lessons.insert(key, chosen.len());
            chosen.into_iter().for_each(|device| sources.entry(device).or_default().push(key));
        }
        for (source, slots) in sources {
            if self.copy_from(&map, source, &slots).await.is_err() {
                complete = false;
                continue;
            }
            for slot in slots {
                let left = lessons.get_mut(&slot).expect("it was counted");
                *left -= 1;
                if *left == 0 {
                    self.copied.lock().insert(slot);
                }
            }
            self.news.notify_one();
        }
        complete
    }

    async fn copy_from(&self, map: &Map, source: DeviceId, slots: &[(usize, u64)]) -> Reply<()> {
        let address = map.device(source).map(|device| device.address.clone()).unwrap_or_default();
        let capability = self.peers.lock().get(&source).cloned().unwrap_or_default();
        let get = |path: &str| {
            let request = self.client.get(format!("{address}/device/v1/index/{path}"));
            let request = request.timeout(SOURCE_MAX);
            request.header(CAPABILITY_HEADER, &capability).header(EPOCH_HEADER, map.epoch)
        };
        let groups: Vec<u32> = get_json(get("groups")).await?;
        let numbers: Vec<usize> = slots.iter().map(|(slot, _)| *slot).collect();
        let text = slots_text(&numbers);
        for group in groups {
            let mut after = String::new();
            loop {
                let limit = COPY_BATCH.to_string();
                let query = [
                    ("group", group.to_string()),
                    ("slots", text.clone()),
                    ("after", after),
                    ("limit", limit),
                ];
                let answer = send(get("copy").query(&query)).await?;
                let more = answer.headers().get(MORE_HEADER).is_some_and(|more| more == "true");
                let body = answer.bytes().await.map_err(|error| Failure::Unreachable(error.to_string()))?;
                let items = decode_batch(&body)
                    .ok_or_else(|| Failure::Unreachable("the answer is not a batch of names".to_owned()))?;
                after = items.last().map(|item| item.name.clone()).unwrap_or_default();
                let slots = slots.to_vec();
                blocking(&self.device, move |device| {
                    let _same_map = device.index.hold();
                    device.still_waits(&slots)?;
                    Ok(device.index.insert(items)?)
                })
                .await
                .map_err(Failure::Refused)?;
                if !more {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Device {
    /// Whether all these slots are still to be copied here.
    fn still_waits(&self, slots: &[(usize, u64)]) -> Answer<()> {
        let map = self.guard.map();
        let own = self.guard.device();
        let waits = |&(slot, from): &(usize, u64)| {
            let holders = map.as_ref().map_or(&[][..], |map| map.holders(slot));
            holders.iter().any(|holder| Some(holder.device) == own && holder.from == from)
        };
        if slots.iter().all(waits) {
            return Ok(());
        }
        Err(Problem::new(Word::NotReady, "the map changed while a slot was copied"))
    }
}
