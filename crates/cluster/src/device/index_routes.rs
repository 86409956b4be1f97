//! The commands on the index, over HTTP. formats/cluster.md, sections 3 and 6.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use proto::cluster::{
    BatchItem, Entry, Holder, ObjectId, Request, SLOTS, decode_batch, encode_batch, rights, slot_of,
};
use serde::Deserialize;

use super::Device;
use super::guard::{Effect, Permit};
use super::index::Wanted;
use super::tables::Replacement;
use super::work::blocking;
use crate::problem::{Answer, Problem, Word};
use crate::slots::slots_of;
use crate::wire::{MORE_HEADER, OLD_HEADER, SegmentUsage};

/// How far the stamp of an entry may be ahead of the cluster's time, or of the entry that it replaces: one far ahead
/// could never be replaced.
const STAMPS_AHEAD_MAX_NS: u64 = 10 * 60 * 1_000_000_000;

#[derive(Debug, Deserialize)]
struct Listing {
    group: u32,
    /// Numbers of slots, with commas between them, or ranges: `0-9,12`.
    slots: String,
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    after: String,
    #[serde(default = "limit")]
    limit: usize,
}

fn limit() -> usize {
    1000
}

type Shared = State<Arc<Device>>;

pub(super) fn routes() -> Router<Arc<Device>> {
    Router::new()
        .route("/index", get(list).post(insert))
        .route("/index/get", post(find))
        .route("/index/replace", post(replace))
        .route("/index/usage", get(usage))
        .route("/index/copy", get(copy))
        .route("/index/groups", get(of_all_groups))
}

async fn insert(State(device): Shared, headers: HeaderMap, body: Bytes) -> Answer<StatusCode> {
    let items = batch(&body)?;
    let mut epoch = 0;
    for object in owners(&items) {
        let request = Request { right: rights::WRITE_INDEX, object, from: 0, to: 0 };
        epoch = device.guard.admit(&headers, request, Effect::Changes).await?.epoch;
    }
    are_entries(items.iter())?;
    blocking(&device, move |device| {
        let _same_map = device.index.hold();
        is_still(device, epoch)?;
        device.store.has_room_for_entries()?;
        holds_all(device, &items, Holder::takes_entries)?;
        // The sender's clock is behind another's: what is acknowledged must win over what was there before.
        if let Some(newer) = device.index.newer(&items)? {
            let detail = format!("a name has an entry with the stamp {newer}, which is newer");
            return Err(Problem::new(Word::Stale, detail).with_number(newer));
        }
        are_of_now(device, &items)?;
        Ok(device.index.insert(items)?)
    })
    .await?;
    Ok(StatusCode::OK)
}

/// On which objects a right is needed for these entries: the segments in which their contents lie. A deletion, and a
/// content without a byte, names none, and needs the right to all names of the group.
fn owners(items: &[BatchItem]) -> BTreeSet<ObjectId> {
    let mut owners = BTreeSet::new();
    for item in items {
        let pieces = Entry::decode(&item.entry).map(|entry| entry.pieces).unwrap_or_default();
        if pieces.is_empty() {
            owners.insert(ObjectId::of_group(item.group));
        }
        owners.extend(pieces.iter().map(|piece| ObjectId { group: item.group, number: piece.segment }));
    }
    owners
}

/// The map may have changed since a request was let in: then others hold the slot, too.
fn is_still(device: &Device, epoch: u64) -> Answer<()> {
    if device.guard.epoch() == epoch {
        return Ok(());
    }
    let detail = "the map changed while the request waited";
    Err(Problem::new(Word::Epoch, detail).with_number(device.guard.epoch()))
}

/// Refuses stamps far ahead of the cluster's time, unless what they replace is as far ahead.
fn are_of_now(device: &Device, items: &[BatchItem]) -> Answer<()> {
    let latest = device.guard.now_ns().saturating_add(STAMPS_AHEAD_MAX_NS);
    let stamp = |item: &BatchItem| Entry::version_of(&item.entry).map_or(0, |version| version.stamp);
    let mut held: Vec<BatchItem> = items.iter().filter(|item| stamp(item) > latest).cloned().collect();
    let ahead: Vec<u64> = held.iter().map(stamp).collect();
    device.index.get(&mut held)?;
    let wrong =
        held.iter().zip(ahead).find(|(held, ahead)| *ahead > stamp(held).saturating_add(STAMPS_AHEAD_MAX_NS));
    wrong.map_or(Ok(()), |(wrong, _)| {
        let detail = format!("the stamp of `{}` is minutes ahead of the cluster's time", wrong.name);
        Err(Problem::new(Word::Invalid, detail))
    })
}

fn are_entries<'a>(mut items: impl Iterator<Item = &'a BatchItem>) -> Answer<()> {
    match items.find(|item| Entry::decode(&item.entry).is_err()) {
        Some(wrong) => Err(Problem::new(Word::Invalid, format!("the entry of `{}` is invalid", wrong.name))),
        None => Ok(()),
    }
}

/// Puts entries in the place of those that the sender found here, and answers what is here now.
async fn replace(State(device): Shared, headers: HeaderMap, body: Bytes) -> Answer<Response> {
    let items = batch(&body)?;
    let mut epoch = 0;
    for group in groups(&items) {
        epoch = admit(&device, &headers, rights::WRITE_INDEX, group, Effect::Changes).await?.epoch;
    }
    let (pairs, rest) = items.as_chunks::<2>();
    let in_pairs = pairs.iter().all(|[old, new]| (old.group, &old.name) == (new.group, &new.name));
    if !in_pairs || !rest.is_empty() {
        return Err(Problem::new(Word::Invalid, "each name must stand there twice"));
    }
    are_entries(pairs.iter().map(|[_, new]| new))?;
    let replacements = pairs.iter().map(|[old, new]| Replacement {
        group: new.group,
        name: new.name.clone(),
        old: old.entry.clone(),
        new: new.entry.clone(),
    });
    let replacements: Vec<_> = replacements.collect();
    let mut now: Vec<_> = pairs.iter().map(|[old, _]| old.clone()).collect();
    blocking(&device, move |device| {
        let _same_map = device.index.hold();
        is_still(device, epoch)?;
        device.store.has_room_for_entries()?;
        holds_all(device, &now, Holder::is_ready)?;
        device.index.replace(replacements)?;
        device.index.get(&mut now)?;
        Ok(Body::from(encode_batch(&now)).into_response())
    })
    .await
}

/// The bytes of content in each segment, by the slots of which this device is the first holder.
async fn usage(State(device): Shared, headers: HeaderMap) -> Answer<Json<SegmentUsage>> {
    admit(&device, &headers, rights::READ_INDEX, 0, Effect::Reads).await?;
    blocking(&device, |device| {
        // It takes a while, and may be a little wrong: the map is not kept from changing.
        let (map, own) = (device.guard.map(), device.guard.device());
        let is_first = |slot: &usize| {
            let holders = map.as_ref().map_or(&[][..], |map| map.holders(*slot));
            holders.first().is_some_and(|first| first.is_ready() && Some(first.device) == own)
        };
        let slots = (0..SLOTS).filter(is_first).collect();
        Ok(SegmentUsage { segments: device.index.usage(&slots)? })
    })
    .await
    .map(Json)
}

async fn find(State(device): Shared, headers: HeaderMap, body: Bytes) -> Answer<Response> {
    let mut items = batch(&body)?;
    for group in groups(&items) {
        admit(&device, &headers, rights::READ_INDEX, group, Effect::Reads).await?;
    }
    let may_be_old = headers.contains_key(OLD_HEADER);
    blocking(&device, move |device| {
        let _same_map = device.index.hold();
        holds_all(device, &items, Holder::is_ready)?;
        device.index.get(&mut items)?;
        // What is found stays true, content does not change. That a name is missing may not be true any more.
        if !may_be_old && !device.guard.has_lease() && items.iter().any(|item| item.entry.is_empty()) {
            let detail = "the device has not heard from the metadata service, and can't say what is missing";
            return Err(Problem::new(Word::NoLease, detail));
        }
        Ok(Body::from(encode_batch(&items)).into_response())
    })
    .await
}

async fn list(State(device): Shared, Query(listing): Query<Listing>, headers: HeaderMap) -> Answer<Response> {
    listed(device, listing, headers, rights::LIST, false).await
}

async fn copy(State(device): Shared, Query(listing): Query<Listing>, headers: HeaderMap) -> Answer<Response> {
    listed(device, listing, headers, rights::READ_INDEX, true).await
}

/// The groups that have names here: what a device that copies slots asks first.
async fn of_all_groups(State(device): Shared, headers: HeaderMap) -> Answer<Json<Vec<u32>>> {
    admit(&device, &headers, rights::READ_INDEX, 0, Effect::Reads).await?;
    blocking(&device, |device| Ok(device.index.groups()?)).await.map(Json)
}

async fn listed(
    device: Arc<Device>,
    listing: Listing,
    headers: HeaderMap,
    right: u32,
    tombstones: bool,
) -> Answer<Response> {
    admit(&device, &headers, right, listing.group, Effect::Reads).await?;
    // A device that copies slots must not take what is old for all there is.
    let may_be_old = headers.contains_key(OLD_HEADER) && !tombstones;
    let slots = slots_of(&listing.slots)
        .ok_or_else(|| Problem::new(Word::Invalid, "slots are numbers and ranges: `0-9,12`"))?;
    let Listing { group, prefix, after, limit, .. } = listing;
    blocking(&device, move |device| {
        let _same_map = device.index.hold();
        // Whoever copies knows what each holder can teach.
        let enough: fn(&Holder) -> bool = if tombstones { |_| true } else { Holder::is_ready };
        if let Some(slot) = slots.iter().find(|&&slot| !device.guard.holds(slot, enough)) {
            return Err(not_ready(*slot));
        }
        if !may_be_old && !device.guard.has_lease() {
            let detail = "the device has not heard from the metadata service, and can't say what there is";
            return Err(Problem::new(Word::NoLease, detail));
        }
        let slots = slots.into_iter().collect();
        let (items, more) = device.index.list(&Wanted { group, slots, prefix, after, limit, tombstones })?;
        let mut answer = Body::from(encode_batch(&items)).into_response();
        let more = HeaderValue::from_static(if more { "true" } else { "false" });
        answer.headers_mut().insert(MORE_HEADER, more);
        Ok(answer)
    })
    .await
}

fn batch(body: &Bytes) -> Answer<Vec<BatchItem>> {
    decode_batch(body)
        .filter(|items| !items.is_empty())
        .ok_or_else(|| Problem::new(Word::Invalid, "the body is not a batch of names"))
}

fn groups(items: &[BatchItem]) -> Vec<u32> {
    let mut groups: Vec<_> = items.iter().map(|item| item.group).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

async fn admit(
    device: &Device,
    headers: &HeaderMap,
    right: u32,
    group: u32,
    effect: Effect,
) -> Answer<Permit> {
    let request = Request { right, object: ObjectId::of_group(group), from: 0, to: 0 };
    device.guard.admit(headers, request, effect).await
}

fn holds_all(device: &Device, items: &[BatchItem], enough: fn(&Holder) -> bool) -> Answer<()> {
    let missing =
        items.iter().map(|item| slot_of(&item.name)).find(|&slot| !device.guard.holds(slot, enough));
    missing.map_or(Ok(()), |slot| Err(not_ready(slot)))
}

fn not_ready(slot: usize) -> Problem {
    Problem::new(Word::NotReady, format!("the device does not hold slot {slot}, or still copies it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;
    use crate::database::Opening;

    #[test]
    fn no_stamp_is_minutes_ahead_of_the_clusters_time_but_over_one_that_is() {
        let folder = tempfile::tempdir().unwrap();
        let device = Device::open(folder.path(), Opening::OrNew).unwrap();
        let (now, minute) = (1_700_000_000_000_000_000, 60_000_000_000);
        let item = |name: &str, stamp| BatchItem {
            group: 1,
            name: name.to_owned(),
            entry: Entry::tombstone(stamp).encode(),
        };
        let word = |items: &[BatchItem]| are_of_now(&device, items).err().map(|problem| problem.word);
        // Years behind the clock of this machine, which does not matter.
        device.guard.told_time(now, monotonic());
        assert_eq!(word(&[item("a", now), item("b", now + 9 * minute)]), None);
        assert_eq!(word(&[item("a", now), item("b", now + 12 * minute)]), Some(Word::Invalid));
        // A client whose clock was a day ahead put one before.
        let day = 1440 * minute;
        device.index.insert(vec![item("b", now + day)]).unwrap();
        assert_eq!(word(&[item("b", now + day + 1024)]), None, "it can be replaced");
        assert_eq!(word(&[item("b", now + day + 12 * minute)]), Some(Word::Invalid));
        assert_eq!(word(&[item("a", now + day + 1024)]), Some(Word::Invalid), "others are not");
    }
}
