//! Tells a metadata service that was restored what it does not know: segments, and the map. formats/cluster.md,
//! section 7.

use reqwest::Method;
use serde::Deserialize;

use super::Agent;
use crate::device::work::blocking;
use crate::http::{Failure, Reply, ask_in_turn, with_json};
use crate::problem::{Problem, Word};
use crate::wire::{Recall, RecalledSegment};

/// Segments in one request.
const PAGE: usize = 200;

/// What the creator of a component gave it.
#[derive(Debug, Deserialize)]
struct Layout {
    segment: u64,
    k: u8,
    m: u8,
    devices: Vec<proto::cluster::DeviceId>,
}

impl Agent {
    /// Tells all. The map comes last: who has told it has told everything.
    pub(super) async fn recall(&self) -> Reply<()> {
        let segments = blocking(&self.device, |device| {
            let mut ids = Vec::new();
            device.store.tables().all_objects(|id, _| ids.push(id))?;
            let mut segments = Vec::new();
            for id in ids.into_iter().filter(|id| id.holds_data()) {
                let layout = device.store.layout(id)?.unwrap_or_default();
                // What is no component of a segment has another layout, or none.
                let Ok(Layout { segment, k, m, devices }) = serde_json::from_slice(&layout) else { continue };
                if segment == id.number {
                    segments.push(RecalledSegment { segment, group: id.group, k, m, devices });
                }
            }
            Ok(segments)
        });
        for page in segments.await.map_err(Failure::Refused)?.chunks(PAGE) {
            self.post("segments/recall", &page).await?;
        }
        let guard = &self.device.guard;
        let missing = || Failure::Refused(Problem::new(Word::NoLease, "the device has no map"));
        let recall = Recall {
            identity: self.device.identity.clone(),
            key_epoch: guard.key_epoch(),
            map: guard.map().ok_or_else(missing)?,
        };
        let device = guard.device().expect("it joined before");
        self.post(&format!("devices/{device}/recall"), &recall).await
    }

    /// A request without an answer that matters.
    pub(super) async fn post(&self, path: &str, body: &impl serde::Serialize) -> Reply<()> {
        let request = |address: &str| with_json(self.to(Method::POST, address, path), body);
        ask_in_turn(self.instances(), request, |answer| answer.map(drop)).await
    }
}
