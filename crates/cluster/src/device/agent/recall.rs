//! Tells a metadata service that was restored what it does not know: segments, and the map. formats/cluster.md,
//! section 7.

use proto::cluster::DeviceId;
use reqwest::Method;

use super::Agent;
use crate::device::work::blocking;
use crate::http::{Failure, Reply, ask_in_turn, with_json};
use crate::problem::{Problem, Word};
use crate::recall::{Recall, RecalledSegment};
use crate::wire::LayoutAttribute;

/// Segments in one request.
const PAGE: usize = 200;

/// What a device tells of a component that it has.
fn told_by(device: DeviceId, group: u32, layout: LayoutAttribute) -> Option<RecalledSegment> {
    let LayoutAttribute { component, devices, k, m, segment } = layout;
    let place = || u8::try_from(devices.iter().position(|&own| own == device)?).ok();
    let component = component.or_else(place)?;
    Some(RecalledSegment { segment, group, k, m, devices, component })
}

impl Agent {
    /// Tells all. The map comes last: who has told it has told everything.
    pub(super) async fn recall(&self) -> Reply<()> {
        let own = self.device.guard.device().expect("it joined before");
        let segments = blocking(&self.device, move |device| {
            let mut ids = Vec::new();
            device.store.tables().all_objects(|id, row| {
                // What is sealed and empty was given back: the service forgot it on purpose.
                if !row.sealed || row.length > 0 {
                    ids.push(id);
                }
            })?;
            let mut segments = Vec::new();
            for id in ids.into_iter().filter(|id| id.holds_data()) {
                let layout = device.store.layout(id)?.unwrap_or_default();
                // What is no component of a segment has another layout, or none.
                let layout = serde_json::from_slice::<LayoutAttribute>(&layout).ok();
                let layout = layout.filter(|layout| layout.segment == id.number);
                segments.extend(layout.and_then(|layout| told_by(own, id.group, layout)));
            }
            Ok(segments)
        });
        for page in segments.await.map_err(Failure::Refused)?.chunks(PAGE) {
            self.post(&format!("devices/{own}/recall/segments"), &page).await?;
        }
        let guard = &self.device.guard;
        let missing = || Failure::Refused(Problem::new(Word::NoLease, "the device has no map"));
        let recall = Recall {
            identity: self.device.identity.clone(),
            key_epoch: guard.key_epoch(),
            map: guard.map().ok_or_else(missing)?,
        };
        self.post(&format!("devices/{own}/recall"), &recall).await
    }

    /// A request without an answer that matters.
    pub(super) async fn post(&self, path: &str, body: &impl serde::Serialize) -> Reply<()> {
        let request = |address: &str| with_json(self.to(Method::POST, address, path), body);
        ask_in_turn(self.instances(), request, |answer| answer.map(drop)).await
    }
}
