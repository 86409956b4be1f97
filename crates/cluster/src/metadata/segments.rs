//! Segments: opened for a client, sealed by it, or taken from it when its lease has ended.
//! formats/cluster.md, sections 2 and 4.

use base::{Error, ErrorKind, Instant, Result};
use proto::cluster::{DeviceId, ObjectId, State, choose_devices, compacts_from, rights};

use super::cluster::{Metadata, parse};
use super::engine::{Condition, Stored, Write, for_each};
use crate::clock::monotonic;
use crate::http::{Failure, Reply, send, send_json};
use crate::wire::{
    CAPABILITY_HEADER, EPOCH_HEADER, Fenced, Holdings, HoldingsRequest, SealRequest, Segment, SegmentAnswer,
    SegmentList, SegmentRequest, SegmentState, Segments,
};

/// How a component is told to change.
const ORDER: (reqwest::Method, u32) = (reqwest::Method::POST, rights::MANAGE);
/// Most segments in one answer.
const LIST_MAX: usize = 1000;

/// Where a sealed segment is kept.
pub(super) fn key(segment: u64) -> String {
    format!("segment/{segment:016x}")
}

/// Where a segment is kept that nothing lies in any more.
pub(super) fn emptied_key(segment: u64) -> String {
    format!("emptied/{segment:016x}")
}

/// That a segment was taken from a client, which may not know.
pub(super) fn gone_key(client: u64) -> String {
    format!("gone/{client:016x}")
}

/// Where an open segment is kept: there are few of them, and they are looked at often.
pub(super) fn open_key(segment: u64) -> String {
    format!("open/{segment:016x}")
}

/// The object that each component is, and the fence that a capability for it needs.
fn component(segment: &Segment) -> (ObjectId, u32) {
    (ObjectId { group: segment.group, number: segment.segment }, segment.fence)
}

pub(super) fn text(segment: &Segment) -> Vec<u8> {
    serde_json::to_vec(segment).expect("it is plain data")
}

impl Metadata {
    /// Opens a segment for a client.
    pub(super) fn open_segment(&self, request: &SegmentRequest) -> Result<SegmentAnswer> {
        let map = self.map_with_space();
        if map.slots.is_empty() {
            let joined = map.devices.len();
            let wanted = map.k + map.m;
            let detail =
                format!("the cluster takes data when {wanted} devices have joined; {joined} have so far");
            return Err(Error::new(ErrorKind::Unreachable, detail));
        }
        let number = self.next("segment")?;
        // Devices to avoid are a wish: with too few others they are used all the same.
        let chosen = choose_devices(&map, &request.avoid, number);
        let (width, devices) = chosen.or_else(|| choose_devices(&map, &[], number)).ok_or_else(|| {
            let detail = format!("no segment can be opened: fewer than {} devices answer", map.m + 1);
            Error::new(ErrorKind::Unreachable, detail)
        })?;
        let segment = Segment {
            segment: number,
            group: request.group,
            k: width.data,
            m: width.parity,
            devices: devices.clone(),
            state: SegmentState::Open,
            length: 0,
            client: request.client,
            fence: 0,
            content: 0,
            since: 0,
        };
        let put = Write::Put(open_key(number), text(&segment));
        self.engine.commit(&[Condition::Absent(open_key(number))], &[put])?;
        let allowed = rights::CREATE | rights::APPEND | rights::READ | rights::READ_ATTRIBUTES;
        let capability = |device: &DeviceId| {
            self.capability(*device, (request.group, number), (allowed, 0), request.client)
        };
        let capabilities = devices.iter().map(capability).collect::<Result<_>>()?;
        let index = self.rights_of_segment(request.group, number, request.client)?;
        Ok(SegmentAnswer {
            client: request.client,
            segment: number,
            k: width.data,
            m: width.parity,
            devices,
            capabilities,
            index,
        })
    }

    pub(super) fn stored_segment(&self, number: u64) -> Result<(Segment, Stored)> {
        // In the order of its life: one that changes between two looks is found by the second.
        for key in [open_key(number), key(number), emptied_key(number)] {
            if let Some(found) = self.engine.get(&key)? {
                return Ok((parse(&key, &found.value)?, found));
            }
        }
        Err(Error::new(ErrorKind::NotFound, format!("there is no segment {number}")))
    }

    pub(super) fn segment(&self, number: u64) -> Result<Segment> {
        Ok(self.stored_segment(number)?.0)
    }

    /// All sealed segments.
    pub(super) fn segments(&self) -> Result<Vec<Segment>> {
        self.segments_below("segment/")
    }

    /// All open segments.
    pub(super) fn open_segments(&self) -> Result<Vec<Segment>> {
        self.segments_below("open/")
    }

    /// A page of sealed segments; before the first one, all that are open.
    pub(super) fn list_segments(&self, wanted: &SegmentList) -> Result<Segments> {
        self.begin_salvage(wanted.client)?;
        let limit = wanted.limit.clamp(1, LIST_MAX);
        let open = self.open_segments()?;
        if wanted.after == 0 && !open.is_empty() {
            return Ok(Segments { segments: open, more: false });
        }
        let after = if wanted.after == 0 { String::new() } else { key(wanted.after) };
        let mut found = self.engine.list("segment/", &after, limit + 1)?;
        let more = found.len() > limit;
        found.truncate(limit);
        let segments = found.iter().map(|(key, stored)| parse(key, &stored.value)).collect::<Result<_>>()?;
        Ok(Segments { segments, more })
    }

    /// A page of the sealed segments of which a device has a component; with the first one, those that are open.
    pub(super) fn segments_of(&self, device: DeviceId, wanted: HoldingsRequest) -> Result<Holdings> {
        if self.is_recalling() {
            return Err(self.recalling());
        }
        // Before those that are sealed: one that changes between two looks is in both.
        let mut open = if wanted.after == 0 { self.open_segments()? } else { Vec::new() };
        let after = if wanted.after == 0 { String::new() } else { key(wanted.after) };
        let found = self.engine.list("segment/", &after, LIST_MAX)?;
        let is_full = found.len() == LIST_MAX;
        let segments = found.iter().map(|(key, stored)| parse(key, &stored.value));
        let mut segments: Vec<Segment> = segments.collect::<Result<_>>()?;
        let next = segments.last().filter(|_| is_full).map(|last| last.segment);
        for some in [&mut segments, &mut open] {
            some.retain(|segment| segment.devices.contains(&device));
        }
        Ok(Holdings { segments, open, next })
    }

    pub(super) fn segments_below(&self, prefix: &str) -> Result<Vec<Segment>> {
        let mut segments = Vec::new();
        for_each(self.engine.as_ref(), prefix, |key, stored| {
            segments.push(parse(key, &stored.value)?);
            Ok(())
        })?;
        Ok(segments)
    }

    /// The client has sealed the components.
    pub(super) fn seal_segment(&self, number: u64, request: &SealRequest) -> Result<()> {
        let (segment, stored) = self.stored_segment(number)?;
        match segment.state {
            SegmentState::Sealed if segment.length == request.length => return Ok(()),
            SegmentState::Open if segment.client == request.client && segment.fence == 0 => {}
            _ => {
                let detail = format!("segment {number} is not this client's any more");
                return Err(Error::new(ErrorKind::Refused, detail));
            }
        }
        self.finish_segment(segment, &stored, (request.length, request.content), false)
    }

    /// Records that a segment is sealed. One without content is forgotten.
    fn finish_segment(
        &self,
        segment: Segment,
        stored: &Stored,
        (length, content): (u64, u64),
        taken: bool,
    ) -> Result<()> {
        let number = segment.segment;
        let since = compacts_from(self.now_s(), taken, self.lifetime.as_secs());
        let sealed = Segment { state: SegmentState::Sealed, length, content, since, ..segment };
        let mut writes = vec![Write::Remove(open_key(number))];
        if length > 0 {
            writes.push(Write::Put(key(number), text(&sealed)));
        }
        let condition = Condition::Revision(open_key(number), stored.revision);
        if self.engine.commit(&[condition], &writes)? {
            // If one of its devices was lost meanwhile, it is looked at again.
            self.rebuild.lock().looked_at = 0;
            return Ok(());
        }
        Err(Error::new(ErrorKind::Refused, format!("segment {number} was sealed by somebody else")))
    }

    /// Takes segments from clients whose lease has ended.
    pub(super) async fn sweep_segments(&self) -> Result<()> {
        if self.is_recalling() {
            return Ok(());
        }
        for segment in self.open_segments()? {
            if self.is_client_gone(segment.client) {
                let gone = gone_key(segment.client);
                self.engine.commit(&[Condition::Absent(gone.clone())], &[Write::Put(gone, Vec::new())])?;
                // What does not work now is tried again with the next sweep.
                let _ = self.take_segment(segment.segment).await;
            }
        }
        Ok(())
    }

    pub(super) fn is_client_gone(&self, client: u64) -> bool {
        monotonic() > self.end_of_client(client)
    }

    /// When the lease of a client ends. One of an earlier start of this service has a lease from then on to come back.
    pub(super) fn end_of_client(&self, client: u64) -> Instant {
        let end = self.clients.lock().get(&client).map(|seen| seen.end);
        end.unwrap_or_else(|| *self.started.lock() + self.lease * 3)
    }

    /// Fences the components, and seals them where k of them still are: what was acknowledged is on all of them, so it
    /// lies before that place even if as many as may be lost have lost it, and all before it can be read.
    pub(super) async fn take_segment(&self, number: u64) -> Reply<()> {
        let refused = |error: Error| Failure::Refused(error.into());
        let (segment, stored) = self.stored_segment(number).map_err(refused)?;
        let fence = segment.fence + 1;
        let fenced = Segment { fence, ..segment.clone() };
        if segment.state != SegmentState::Open {
            return Ok(());
        }
        let condition = Condition::Revision(open_key(number), stored.revision);
        let raised = self.engine.commit(&[condition], &[Write::Put(open_key(number), text(&fenced))]);
        if !raised.map_err(refused)? {
            return Ok(());
        }
        let map = self.map();
        let mut lengths: Vec<(DeviceId, u64)> = Vec::new();
        let mut failed = None;
        // A device that is down seals its component when it comes back.
        for &device in segment.devices.iter().filter(|&&device| map.answers(device)) {
            match self.command::<Fenced>(&fenced, device, &format!("fence?fence={fence}")).await {
                Ok(answer) => lengths.push((device, answer.length)),
                Err(failure) => failed = Some(failure),
            }
        }
        let mut sorted: Vec<u64> = lengths.iter().map(|(_, length)| *length).collect();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        let lost = |device: DeviceId| map.device(device).is_none_or(|known| known.state == State::Lost);
        let left = segment.devices.iter().filter(|&&device| !lost(device)).count();
        let length = match sorted.get(usize::from(segment.k) - 1) {
            Some(&length) => length,
            // More are lost than may be: nobody can know any more what was acknowledged, so all that is left stays.
            None if left < usize::from(segment.k) && lengths.len() == left => {
                sorted.first().copied().unwrap_or(0)
            }
            // Too few answer to know what was acknowledged: tried again when more have come back.
            None => return failed.map_or(Ok(()), Err),
        };
        // One that did not answer can't complete a run alone, since the others are fenced. Shorter ones are completed
        // and sealed by their devices.
        for (device, _) in lengths.into_iter().filter(|(_, own)| *own >= length) {
            self.end_component(&fenced, device, length).await?;
        }
        let (now, stored) = self.stored_segment(number).map_err(refused)?;
        if now.fence != fence || now.state != SegmentState::Open {
            return Ok(());
        }
        self.finish_segment(now, &stored, (length, 0), true).map_err(refused)
    }

    /// Seals a component. One with nothing in it stays, empty: who still has a right to append finds it sealed.
    async fn end_component(&self, segment: &Segment, device: DeviceId, length: u64) -> Reply<()> {
        let command = format!("/seal?bytes={length}");
        send(self.to_component(component(segment), device, &command, ORDER)?).await.map(drop)
    }

    async fn command<T: serde::de::DeserializeOwned>(
        &self,
        segment: &Segment,
        device: DeviceId,
        command: &str,
    ) -> Reply<T> {
        let request = self.to_component(component(segment), device, &format!("/{command}"), ORDER)?;
        send_json(request, &()).await
    }

    pub(super) fn to_component(
        &self,
        (id, fence): (ObjectId, u32),
        device: DeviceId,
        command: &str,
        (method, right): (reqwest::Method, u32),
    ) -> Reply<reqwest::RequestBuilder> {
        let map = self.map();
        let allowed = (right, fence);
        let capability = self.capability(device, (id.group, id.number), allowed, 0);
        let capability = capability.map_err(|error| Failure::Refused(error.into()))?;
        let address = map.device(device).map(|device| device.address.clone()).unwrap_or_default();
        let request = self.http.request(method, format!("{address}/device/v1/objects/{id}{command}"));
        let request = request.timeout(self.lease);
        Ok(request.header(CAPABILITY_HEADER, capability).header(EPOCH_HEADER, map.epoch))
    }
}
