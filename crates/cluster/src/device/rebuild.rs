//! Rebuilds components of lost devices on this one: reads the same range of k others, computes it, appends it. A
//! rebuild that was interrupted goes on where it ended. formats/cluster.md, section 7.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt as _};
use proto::cluster::{ALIGN_BYTES, DeviceId, ObjectId, State, Width};
use proto::code::{encode_stripe, recover_stripe};
use reqwest::{Client, header};

use super::Device;
use super::rate::Rates;
use super::work::blocking;
use crate::clock::monotonic;
use crate::http::{Failure, Reply, send_for_bytes};
use crate::problem::{Answer, Problem, Word};
use crate::wire::{CAPABILITY_HEADER, EPOCH_HEADER, RebuildTask};

/// What is read of each source at once.
const STEP_BYTES: u64 = 2 << 20;
/// Longest wait for one source.
const SOURCE_MAX: Duration = Duration::from_secs(20);
/// Newer maps that one request follows.
const EPOCHS_MAX: u32 = 8;

/// Rebuilds one component. `rate`: bytes per second, at most.
pub(super) async fn rebuild(
    device: &Arc<Device>,
    http: &Client,
    task: &RebuildTask,
    (rates, rate): (&Rates, Option<u64>),
) -> Reply<()> {
    let id = ObjectId { group: task.group, number: task.segment };
    let begun = {
        let task = task.clone();
        blocking(device, move |device| begin(device, id, &task))
    };
    let Some(from) = begun.await.map_err(Failure::Refused)? else { return Ok(()) };
    extend(device, http, task, (rates, rate), from).await
}

/// Completes a component that this device has and that ends early: it missed runs while it was away.
pub(super) async fn complete(
    device: &Arc<Device>,
    http: &Client,
    task: &RebuildTask,
    from: u64,
) -> Reply<()> {
    extend(device, http, task, (&device.rates, None), from).await
}

/// Appends what is missing behind `at`, and seals the component. It ends before the segment does if fewer than k others
/// have what comes behind, and can never have it: what a client that died had sent to some devices only, of which one
/// was lost since. All that was acknowledged is on all components, so it lies before that.
async fn extend(
    device: &Arc<Device>,
    http: &Client,
    task: &RebuildTask,
    (rates, rate): (&Rates, Option<u64>),
    mut at: u64,
) -> Reply<()> {
    let id = ObjectId { group: task.group, number: task.segment };
    let mut step = STEP_BYTES;
    while at < task.length {
        let end = task.length.min(at + step);
        if let Some(rate) = rate {
            tokio::time::sleep(rates.take(task.group, end - at, rate, monotonic())).await;
        }
        let Some(computed) = compute(device, http, task, at..end).await? else {
            if end - at <= u64::from(ALIGN_BYTES) {
                break;
            }
            // It may be there in part.
            step = (step / 2).max(ALIGN_BYTES.into());
            continue;
        };
        blocking(device, move |device| {
            let mut content = device.buffers.take(computed.len());
            content.copy_from_slice(&computed);
            // Durable at the end, with the seal; what a power cut takes is computed again.
            device.store.append(id, at, &content.freeze(), u32::MAX, false)
        })
        .await
        .map_err(Failure::Refused)?;
        at = end;
    }
    blocking(device, move |device| device.store.seal(id, at, u32::MAX)).await.map_err(Failure::Refused)
}

/// The bytes `range` of the component that `task` names, from those of others. `None` if fewer than k others have them,
/// or ever will.
pub(super) async fn compute(
    device: &Arc<Device>,
    http: &Client,
    task: &RebuildTask,
    range: Range<u64>,
) -> Reply<Option<Vec<u8>>> {
    let width = Width::new(task.k, task.m).ok_or_else(|| invalid("an invalid width"))?;
    let target = usize::from(task.component);
    let whole_tiles = |at: u64| at.is_multiple_of(u64::from(ALIGN_BYTES));
    let fits = [task.sources.len(), task.devices.len()] == [usize::from(width.components()); 2]
        && target < task.sources.len();
    if !fits || !whole_tiles(range.start) || !whole_tiles(range.end) {
        return Err(invalid("other components than its width, or a part of a tile"));
    }
    // One that is to leave still has it.
    if task.sources[target].is_some()
        && let (_, Ok(own)) = read_one(device, http, task, (range.start, range.end), target).await
    {
        return Ok(Some(own.to_vec()));
    }
    let Some(parts) = read_others(device, http, task, (range.start, range.end)).await? else {
        return Ok(None);
    };
    let computed = tokio::task::spawn_blocking(move || restore(width, &parts, target)).await;
    computed.map(Some).map_err(|error| Failure::Refused(Problem::failed("compute a component", error)))
}

/// Where the rebuild goes on; `None` if it is done. What an earlier rebuild of another component left is removed.
fn begin(device: &Device, id: ObjectId, task: &RebuildTask) -> Answer<Option<u64>> {
    let own = device.guard.device();
    let elsewhere =
        |(place, held): (usize, &DeviceId)| Some(*held) == own && place != usize::from(task.component);
    if task.devices.iter().enumerate().any(elsewhere) {
        let detail = format!("this device holds another component of segment {}", task.segment);
        return Err(Problem::new(Word::Invalid, detail));
    }
    match device.store.get(id) {
        Ok(object) => {
            let row = object.row();
            let same = device.store.layout(id)?.as_deref() == Some(task.layout.as_bytes());
            if same && (!row.sealed || row.length == task.length) {
                return Ok((!row.sealed).then_some(row.length));
            }
            drop(object);
            device.store.remove(id)?;
        }
        Err(problem) if problem.word == Word::Missing => {}
        Err(problem) if problem.word == Word::Damaged => device.store.remove(id)?,
        Err(problem) => return Err(problem),
    }
    device.store.create(id, task.layout.clone().into_bytes())?;
    Ok(Some(0))
}

fn invalid(what: &str) -> Failure {
    Failure::Refused(Problem::new(Word::Invalid, format!("the metadata service wants a rebuild with {what}")))
}

/// A range of one component. A source that has a newer map is asked again under that one: while the index moves, each
/// slot that is ready makes a new epoch, and what was read of the others would be lost.
async fn read_one(
    device: &Device,
    http: &Client,
    task: &RebuildTask,
    (from, to): (u64, u64),
    number: usize,
) -> (usize, Reply<Bytes>) {
    let Some(source) = &task.sources[number] else {
        return (number, Err(Failure::Unreachable("that device does not answer".to_owned())));
    };
    let id = ObjectId { group: task.group, number: task.segment };
    let address = &source.address;
    let mut tries = 0;
    loop {
        let request = http.get(format!("{address}/device/v1/objects/{id}?component={number}"));
        let request = request
            .header(CAPABILITY_HEADER, &source.capability)
            .header(EPOCH_HEADER, device.guard.epoch())
            .header(header::RANGE, format!("bytes={from}-{}", to - 1));
        let answer = match send_for_bytes(request.timeout(SOURCE_MAX)).await {
            Ok(bytes) if bytes.len() as u64 == to - from => Ok(bytes),
            Ok(_) => {
                let shorter = Problem::new(Word::Range, "a component is shorter than its segment");
                Err(Failure::Refused(shorter))
            }
            Err(Failure::Refused(Problem { word: Word::Epoch, number: Some(newer), .. }))
                if tries < EPOCHS_MAX =>
            {
                tries += 1;
                device.guard.catch_up(newer).await;
                continue;
            }
            Err(failure) => Err(failure),
        };
        return (number, answer);
    }
}

/// The range of as many other components as are needed, each at its place. `None` if fewer have it, or ever will.
async fn read_others(
    device: &Device,
    http: &Client,
    task: &RebuildTask,
    range: (u64, u64),
) -> Reply<Option<Vec<Option<Bytes>>>> {
    let needed = usize::from(task.k);
    let mut parts: Vec<Option<Bytes>> = vec![None; task.sources.len()];
    let mut waiting = (0..task.sources.len()).filter(|&number| number != usize::from(task.component));
    let read = |number| read_one(device, http, task, range, number);
    let mut reads: FuturesUnordered<_> = waiting.by_ref().take(needed).map(read).collect();
    let mut last = Failure::Unreachable("too few components answer to rebuild another".to_owned());
    let (mut found, mut without) = (0, 0);
    let map = device.guard.map();
    let is_lost = |number: usize| {
        let known = map.as_ref().and_then(|map| map.device(task.devices[number]));
        known.is_some_and(|known| known.state == State::Lost)
    };
    while let Some((number, answer)) = reads.next().await {
        match answer {
            Ok(bytes) => {
                parts[number] = Some(bytes);
                found += 1;
            }
            Err(failure) => {
                // One that is shorter, or not there, would have to be computed from the others itself.
                let has_not = matches!(failure.word(), Some(Word::Range | Word::Missing));
                without += usize::from(has_not || is_lost(number));
                last = failure;
                reads.extend(waiting.next().map(read));
            }
        }
    }
    match found {
        found if found >= needed => Ok(Some(parts)),
        _ if parts.len() - 1 - without < needed => Ok(None),
        _ => Err(last),
    }
}

/// The bytes of component `target`, of those of k others. All parts are equally long.
fn restore(width: Width, parts: &[Option<Bytes>], target: usize) -> Vec<u8> {
    let data = usize::from(width.data);
    let bytes = parts.iter().flatten().next().map_or(0, Bytes::len);
    // The code works on whole tiles; components end at one.
    assert!(bytes.is_multiple_of(ALIGN_BYTES as usize), "segments end at tiles");
    let known: Vec<Option<&[u8]>> = parts[..data].iter().map(Option::as_deref).collect();
    let symbols: Vec<(u16, &[u8])> =
        (0u16..).zip(&parts[data..]).filter_map(|(row, part)| Some((row, part.as_deref()?))).collect();
    let mut units: Vec<Option<Vec<u8>>> =
        known.iter().map(|part| part.is_none().then(|| vec![0; bytes])).collect();
    {
        let mut missing: Vec<&mut [u8]> = units.iter_mut().flatten().map(Vec::as_mut_slice).collect();
        let lost = missing.len();
        recover_stripe(&known, &symbols[..lost], &mut missing);
    }
    if target < data {
        return units[target].take().expect("the target is not among the others");
    }
    let whole: Vec<&[u8]> = known
        .iter()
        .zip(&units)
        .map(|(known, unit)| known.or(unit.as_deref()).expect("it is known or was computed"))
        .collect();
    let mut parity = vec![vec![0; bytes]; width.parity.into()];
    let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    encode_stripe(&whole, &mut rows);
    parity.swap_remove(target - data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Chance;

    #[test]
    fn every_component_comes_back_from_any_k_others() {
        let width = Width::new(4, 2).unwrap();
        let mut chance = Chance::from_seed(3);
        let mut whole: Vec<Vec<u8>> = vec![vec![0; 8192]; 6];
        let (data, parity) = whole.split_at_mut(4);
        data.iter_mut().for_each(|part| chance.fill(part));
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        encode_stripe(&data, &mut rows);
        for target in 0..6 {
            for also in (0..6).filter(|&also| also != target) {
                let part = |number: usize| {
                    (number != target && number != also).then(|| Bytes::copy_from_slice(&whole[number]))
                };
                let parts: Vec<_> = (0..6).map(part).collect();
                assert!(restore(width, &parts, target) == whole[target], "{target} without {also}");
            }
        }
    }
}
