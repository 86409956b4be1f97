//! Rebuilds the index from the segments: each run begins with a directory of the names in it. What the index knows
//! already, or knows to be deleted, stays as it is. formats/cluster.md, section 2.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proto::cluster::{
    ALIGN_BYTES, DIRECTORY_HEADER_BYTES, Entry, Item, Piece, Run, Width, decode_directory, directory_lengths,
};
use reqwest::Method;

use super::access::ClusterAccess;
use super::fetch::{Durations, Layout, fetch};
use super::session::Session;
use crate::http::{Failure, Reply};
use crate::problem::{Problem, Word};
use crate::wire::{IndexRebuilt, Segment, SegmentList, SegmentState, Segments};

/// Segments in one answer.
const PAGE: usize = 500;
/// The length that parts of a content give whose whole length was not known yet.
const UNKNOWN: u64 = u64::MAX - 1;
/// Wait for segments of clients that died to be sealed.
const PAUSE: Duration = Duration::from_millis(500);

/// What a rebuild of the index did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Salvage {
    /// Segments that were read.
    pub segments: u64,
    /// Names found in them.
    pub names: u64,
    /// Names that the index did not know.
    pub restored: u64,
    /// Segments, or parts of them, that could not be read.
    pub unreadable: u64,
}

/// The pieces of one content, by where they begin in it.
type Pieces = BTreeMap<u64, (Piece, u64)>;

/// Rebuilds the index of all groups. `told` hears of each segment.
pub(super) async fn salvage(access: &ClusterAccess, told: impl Fn(&Salvage)) -> Reply<Salvage> {
    let mut done = Salvage::default();
    let (first, segments) = settled(access).await?;
    let epoch = first.map().epoch;
    let groups: BTreeSet<u32> = segments.iter().map(|segment| segment.group).collect();
    for group in groups {
        let access = ClusterAccess { group, ..access.clone() };
        let session = Session::open(access).await.map_err(|error| Failure::Refused(error.into()))?;
        let mut found: BTreeMap<String, BTreeMap<u64, Pieces>> = BTreeMap::new();
        for segment in segments.iter().filter(|segment| segment.group == group) {
            if read_segment(&session, segment, &mut found).await.is_err() {
                done.unreadable += 1;
            }
            done.segments += 1;
            told(&done);
        }
        for (name, stamps) in found {
            // The newest one that is whole.
            let entries = stamps.into_iter().rev().filter_map(|(stamp, pieces)| entry(stamp, &pieces));
            let Some(entry) = entries.into_iter().next() else { continue };
            done.names += 1;
            done.restored += u64::from(session.restore(&name, &entry).await?);
        }
    }
    // Slots that nobody knew all of are known again, if those that were asked hold them still.
    first.tell(Method::POST, "index/rebuilt", &IndexRebuilt { epoch }).await?;
    Ok(done)
}

/// All segments, once those of clients that died are sealed.
async fn settled(access: &ClusterAccess) -> Reply<(Arc<Session>, Vec<Segment>)> {
    let session = Session::open(access.clone()).await.map_err(|error| Failure::Refused(error.into()))?;
    loop {
        let mut segments = Vec::new();
        loop {
            let after = segments.last().map_or(0, |segment: &Segment| segment.segment);
            let page: Segments = session.ask("segments/list", &SegmentList { after, limit: PAGE }).await?;
            segments.extend(page.segments);
            if !page.more {
                break;
            }
        }
        if segments.iter().all(|segment| segment.state == SegmentState::Sealed) {
            return Ok((session, segments));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Reads the directories of all runs of a segment.
async fn read_segment(
    session: &Session,
    segment: &Segment,
    found: &mut BTreeMap<String, BTreeMap<u64, Pieces>>,
) -> Reply<()> {
    let width = Width::new(segment.k, segment.m).ok_or_else(|| damaged(segment, 0))?;
    let layout = Layout { segment: segment.segment, width, devices: segment.devices.clone() };
    let durations = Durations::default();
    let mut at = 0;
    while at < segment.length {
        // The directory begins in the first unit, wherever the run ends.
        let head = Run { at, bytes: ALIGN_BYTES };
        let (head, _) = fetch(session, &durations, &layout, head, 0..DIRECTORY_HEADER_BYTES as u64).await?;
        let (directory, bytes) = directory_lengths(&head).ok_or_else(|| damaged(segment, at))?;
        let run = Run { at, bytes };
        if u64::from(directory) > run.content_bytes(width) {
            return Err(damaged(segment, at));
        }
        let (content, _) = fetch(session, &durations, &layout, run, 0..u64::from(directory)).await?;
        let (items, _) = decode_directory(&content).ok_or_else(|| damaged(segment, at))?;
        for item in items {
            let Item { offset, length, sum, .. } = item;
            let piece = Piece { segment: segment.segment, run, width, offset, length, sum };
            let stamps = found.entry(item.name).or_default();
            stamps.entry(item.stamp).or_default().insert(item.from, (piece, item.whole));
        }
        at = run.end();
    }
    Ok(())
}

fn damaged(segment: &Segment, at: u64) -> Failure {
    let detail = format!("segment {} has no directory at {at}", segment.segment);
    Failure::Refused(Problem::new(Word::Damaged, detail))
}

/// The entry of a content, if its pieces are all there.
fn entry(stamp: u64, pieces: &Pieces) -> Option<Entry> {
    let mut end = 0;
    for (from, (piece, _)) in pieces {
        if *from != end {
            return None;
        }
        end += u64::from(piece.length);
    }
    let (_, (_, whole)) = pieces.last_key_value()?;
    if *whole != UNKNOWN && *whole != end {
        return None;
    }
    Some(Entry { stamp, bytes: Some(end), pieces: pieces.values().map(|(piece, _)| *piece).collect() })
}
