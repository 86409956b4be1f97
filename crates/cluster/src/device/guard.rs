//! Who may do what on this device now: capability, epoch of the map, and the device's own lease.
//! formats/cluster.md, sections 4 and 5.

use std::time::Duration;

use axum::http::HeaderMap;
use base::Instant;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use parking_lot::RwLock;
use proto::cluster::{Capability, DeviceId, DeviceKey, Flaw, Holder, Map, Request};
use tokio::sync::watch;

use crate::clock::{ServiceTime, monotonic, system_ns};
use crate::problem::{Answer, Problem, Word};
use crate::wire::{CAPABILITY_HEADER, EPOCH_HEADER};

/// A map is at most so many epochs behind that of a client.
const EPOCHS_AHEAD_MAX: u64 = 1 << 20;
/// How long a request waits for the map that its sender has already.
const MAP_WAIT: Duration = Duration::from_secs(2);

/// What the device knows of its cluster.
#[derive(Debug)]
pub(super) struct Guard {
    member: RwLock<Member>,
    /// The epoch of the map, for those that wait for it.
    epoch: watch::Sender<u64>,
    /// The newest epoch that a request named: the agent fetches the map.
    seen: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Member {
    device: Option<DeviceId>,
    key: Option<(DeviceKey, u32)>,
    map: Option<Map>,
    lease_end: Instant,
    /// As the metadata service told last.
    time: Option<ServiceTime>,
}

/// What a command that was let in may do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Permit {
    /// The fence of its capability.
    pub(super) fence: u32,
    /// The epoch of the sender's map.
    pub(super) epoch: u64,
}

/// Whether a command changes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    Changes,
}

impl Guard {
    pub(super) fn new(map: Option<Map>) -> Self {
        let epoch = map.as_ref().map_or(0, |map| map.epoch);
        Self {
            member: RwLock::new(Member { map, ..Member::default() }),
            epoch: watch::Sender::new(epoch),
            seen: watch::Sender::new(epoch),
        }
    }

    /// Lets a command in, or says why not.
    pub(super) async fn admit(
        &self,
        headers: &HeaderMap,
        request: Request,
        effect: Effect,
    ) -> Answer<Permit> {
        let capability = self.allowing(headers, &request)?;
        let epoch = self.same_epoch(headers).await?;
        if effect == Effect::Changes && !self.has_lease() {
            let detail = "the device has not heard from the metadata service, and takes no change meanwhile";
            return Err(Problem::new(Word::NoLease, detail));
        }
        Ok(Permit { fence: capability.fence, epoch })
    }

    /// The first capability of a command that allows it.
    fn allowing(&self, headers: &HeaderMap, request: &Request) -> Answer<Capability> {
        let text = headers.get(CAPABILITY_HEADER).ok_or_else(|| refused(Flaw::Unknown))?;
        let now = self.now_ns() / 1_000_000_000;
        let mut failed = refused(Flaw::Unknown);
        // Entries of what lies in several segments come with one for each.
        for text in text.as_bytes().split(|&byte| byte == b',') {
            let capability = self.capability(text)?;
            match capability.allows(request, now) {
                Ok(()) => return Ok(capability),
                Err(flaw) => failed = refused(flaw),
            }
        }
        Err(failed)
    }

    fn capability(&self, text: &[u8]) -> Answer<Capability> {
        let unknown = || refused(Flaw::Unknown);
        let bytes = BASE64.decode(text).map_err(|_| unknown())?;
        let member = self.member.read();
        let (Some(device), Some((key, key_epoch))) = (member.device, &member.key) else {
            return Err(Problem::new(Word::NoLease, "the device has not joined its cluster yet"));
        };
        Capability::unseal(&bytes, key, device, *key_epoch).map_err(refused)
    }

    /// Refuses an older epoch, and waits a moment for a newer one.
    async fn same_epoch(&self, headers: &HeaderMap) -> Answer<u64> {
        let sent = headers.get(EPOCH_HEADER).and_then(|epoch| epoch.to_str().ok()?.parse::<u64>().ok());
        let sent =
            sent.ok_or_else(|| Problem::new(Word::Invalid, format!("the header {EPOCH_HEADER} is missing")))?;
        let own = self.epoch();
        if sent < own {
            let detail = format!("the sender's map has epoch {sent}, the device's {own}");
            return Err(Problem::new(Word::Epoch, detail).with_number(own));
        }
        if sent - own > EPOCHS_AHEAD_MAX {
            return Err(Problem::new(Word::Invalid, format!("{sent} is not an epoch of this cluster")));
        }
        if sent > own && !self.catch_up(sent).await {
            let detail = format!("the device could not get the map of epoch {sent} in time");
            return Err(Problem::new(Word::NoLease, detail));
        }
        Ok(sent)
    }

    /// Somebody has the map of `epoch`: fetches it, and waits a moment for it. Returns whether it came.
    pub(super) async fn catch_up(&self, epoch: u64) -> bool {
        self.seen.send_if_modified(|seen| std::mem::replace(seen, epoch.max(*seen)) < epoch);
        let mut own = self.epoch.subscribe();
        let wait = tokio::time::timeout(MAP_WAIT, own.wait_for(|&own| own >= epoch));
        matches!(wait.await, Ok(Ok(_)))
    }

    /// Refuses a command without a capability of this device, before its body is read.
    pub(super) fn knows(&self, headers: &HeaderMap) -> Answer<()> {
        let text = headers.get(CAPABILITY_HEADER).ok_or_else(|| refused(Flaw::Unknown))?;
        text.as_bytes().split(|&byte| byte == b',').try_for_each(|text| self.capability(text).map(drop))
    }

    pub(super) fn epoch(&self) -> u64 {
        *self.epoch.borrow()
    }

    /// The epochs of the maps that are followed.
    pub(super) fn epochs(&self) -> watch::Receiver<u64> {
        self.epoch.subscribe()
    }

    /// The newest epoch that a request named.
    pub(super) fn seen(&self) -> watch::Receiver<u64> {
        self.seen.subscribe()
    }

    pub(super) fn has_lease(&self) -> bool {
        monotonic() < self.member.read().lease_end
    }

    pub(super) fn device(&self) -> Option<DeviceId> {
        self.member.read().device
    }

    /// The epoch of its key; 0 before it joined.
    pub(super) fn key_epoch(&self) -> u32 {
        self.member.read().key.as_ref().map_or(0, |(_, epoch)| *epoch)
    }

    pub(super) fn map(&self) -> Option<Map> {
        self.member.read().map.clone()
    }

    /// Whether this device holds the slot in a way that `enough` accepts.
    pub(super) fn holds(&self, slot: usize, enough: fn(&Holder) -> bool) -> bool {
        let member = self.member.read();
        let (Some(device), Some(map)) = (member.device, &member.map) else { return false };
        map.holders(slot).iter().any(|holder| holder.device == device && enough(holder))
    }

    /// Whether the map counts this device among those that answer.
    pub(super) fn is_counted(&self) -> bool {
        let member = self.member.read();
        let (Some(device), Some(map)) = (member.device, &member.map) else { return false };
        map.answers(device)
    }

    /// The device is this one, and its capabilities are made with this key.
    pub(super) fn joined(&self, device: DeviceId, key: DeviceKey, key_epoch: u32) {
        let mut member = self.member.write();
        member.device = Some(device);
        member.key = Some((key, key_epoch));
    }

    /// The metadata service's time was `ns` (nanoseconds since 1970) at `at`.
    pub(super) fn told_time(&self, ns: u64, at: Instant) {
        self.member.write().time = Some(ServiceTime::told(ns, at));
    }

    /// The cluster's time in nanoseconds since 1970. Only without a metadata service it is this machine's clock that
    /// counts.
    pub(super) fn now_ns(&self) -> u64 {
        self.member.read().time.map_or_else(system_ns, |time| time.ns(monotonic()))
    }

    /// The lease lasts until `end`.
    pub(super) fn renewed(&self, end: Instant) {
        self.member.write().lease_end = end;
    }

    /// Follows this map from now on.
    pub(super) fn follow(&self, map: Map) {
        let epoch = map.epoch;
        self.member.write().map = Some(map);
        self.epoch.send_replace(epoch);
    }
}

fn refused(flaw: Flaw) -> Problem {
    match flaw {
        Flaw::Unknown => {
            let detail = "the capability is missing or forged, for another device, or revoked";
            Problem::new(Word::Capability, detail)
        }
        Flaw::Expired(at) => {
            Problem::new(Word::Expired, format!("the capability ended at second {at} since 1970"))
        }
        Flaw::Narrower => {
            let detail = "the capability does not allow this command, object or range";
            Problem::new(Word::Rights, detail)
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use proto::cluster::{ObjectId, rights};

    use super::*;

    /// What a guard says of a capability that ends at second `expires`, if the service's time is second `now`.
    fn told(now: u64, expires: u64) -> Option<Word> {
        let (key, device) = (DeviceKey::from_bytes([3; 32]), DeviceId(1));
        let guard = Guard::new(None);
        guard.joined(device, key.clone(), 1);
        guard.told_time(now * 1_000_000_000, monotonic());
        let capability = Capability {
            device,
            key_epoch: 1,
            group: None,
            number: None,
            range: 0..u64::MAX,
            rights: rights::ALL,
            expires,
            fence: 0,
            holder: 1,
        };
        let mut headers = HeaderMap::new();
        let sealed = HeaderValue::from_str(&BASE64.encode(capability.seal(&key))).unwrap();
        headers.insert(CAPABILITY_HEADER, sealed);
        headers.insert(EPOCH_HEADER, HeaderValue::from(0u64));
        let object = ObjectId { group: 1, number: 1 };
        let request = Request { right: rights::READ, object, from: 0, to: 1 };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(guard.admit(&headers, request, Effect::Reads)).err().map(|problem| problem.word)
    }

    #[test]
    fn capabilities_are_judged_by_the_services_time_whatever_this_machines_clock_shows() {
        let here = system_ns() / 1_000_000_000;
        let hour = 3600;
        assert_eq!(told(here, here + hour), None);
        // This clock is two hours ahead of the service's, and twenty years, and two hours behind.
        assert_eq!(told(here - 2 * hour, here - hour), None);
        assert_eq!(told(here - 175_200 * hour, here - 175_199 * hour), None);
        assert_eq!(told(here + 2 * hour, here + 3 * hour), None);
        assert_eq!(told(here + 2 * hour, here + hour), Some(Word::Expired));
    }
}
