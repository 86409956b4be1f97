//! Looks for damage on the device's disk, slowly and for ever, and mends it from the other components: what is computed
//! must have the checksum that was stored, so a repair can't make anything worse. formats/cluster.md, section 7.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use proto::cluster::ObjectId;
use reqwest::Client;

use super::Device;
use super::rebuild::{compute, rebuild};
use super::work::blocking;
use crate::clock::monotonic;
use crate::http::{Failure, Reply};
use crate::problem::{Problem, Word};
use crate::wire::RebuildTask;

/// What is verified at once.
const STEP_BYTES: u64 = 4 << 20;

/// Verifies an object at `rate` bytes per second; what is damaged is reported.
pub(super) async fn verify(device: &Arc<Device>, id: ObjectId, rate: u64) {
    let mut at = 0;
    loop {
        let pause = device.scrubs.rates.take(0, STEP_BYTES, rate, monotonic());
        tokio::time::sleep(pause).await;
        let step = blocking(device, move |device| {
            let object = device.store.get(id)?;
            let end = object.row().length.min(at + STEP_BYTES);
            if at < end {
                object.read(at, end)?;
            }
            Ok(end)
        });
        match step.await {
            Ok(end) if end > at => {
                device.scrubs.verified_bytes.fetch_add(end - at, Ordering::Relaxed);
                at = end;
            }
            // The end.
            Ok(_) => return,
            // Damage, or an object that was removed meanwhile.
            Err(problem) => return device.scrubs.hear(id, &problem),
        }
    }
}

/// Mends an object, which is the component that `task` names.
pub(super) async fn mend(device: &Arc<Device>, http: &Client, id: ObjectId, task: &RebuildTask) -> Reply<()> {
    let found = blocking(device, move |device| match device.store.get(id) {
        Ok(object) => object.damaged_pieces().map(Some),
        // Its file is gone: all of it is computed anew.
        Err(problem) if problem.word == Word::Damaged => Ok(None),
        Err(problem) => Err(problem),
    });
    let Some(pieces) = found.await.map_err(Failure::Refused)? else {
        rebuild(device, http, task, (&device.scrubs.rates, None)).await?;
        device.scrubs.mended_bytes.fetch_add(task.length, Ordering::Relaxed);
        return Ok(());
    };
    for piece in pieces {
        mend_piece(device, http, id, task, piece).await?;
    }
    Ok(())
}

async fn mend_piece(
    device: &Arc<Device>,
    http: &Client,
    id: ObjectId,
    task: &RebuildTask,
    piece: Range<u64>,
) -> Reply<()> {
    let content = compute(device, http, task, piece.clone()).await?;
    let too_few = || Failure::Unreachable("too few components are left to mend another".to_owned());
    let content = content.ok_or_else(too_few)?;
    let bytes = content.len() as u64;
    let mended = blocking(device, move |device| {
        let object = device.store.get(id)?;
        if object.mend(piece.start, &content)? {
            return Ok(());
        }
        let detail = format!("what the others give for object {id} at {} has another checksum", piece.start);
        Err(Problem::new(Word::Damaged, detail))
    });
    mended.await.map_err(Failure::Refused)?;
    device.scrubs.mended_bytes.fetch_add(bytes, Ordering::Relaxed);
    Ok(())
}
