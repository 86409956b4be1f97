//! Rebuilds the index from the segments: each run begins with a directory of the names in it. What the index knows
//! already, or knows to be deleted, stays as it is. formats/cluster.md, section 2.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proto::cluster::{Entry, Item, Piece};
use reqwest::Method;

use super::access::ClusterAccess;
use super::directories::read_directories;
use super::session::Session;
use crate::clock::monotonic;
use crate::http::{Failure, Reply};
use crate::wire::{IndexRebuilt, Segment, SegmentList, SegmentState, Segments};

/// Segments in one answer.
const PAGE: usize = 500;
/// The length that parts of a content give whose whole length was not known yet.
const UNKNOWN: u64 = u64::MAX - 1;
/// Wait for segments of clients that died to be sealed.
const PAUSE: Duration = Duration::from_millis(500);
/// How long the same segments may stay open: longer than a lease of a client, and than what declares a device down.
const OPEN_MAX: Duration = Duration::from_secs(120);

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
            let each = |item: Item, piece| {
                let stamps = found.entry(item.name).or_default();
                stamps.entry(item.stamp).or_default().insert(item.from, (piece, item.whole));
            };
            if read_directories(&session, segment, each).await.is_err() {
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
    let client = session.client();
    let (mut waits_for, mut since) = (Vec::new(), monotonic());
    loop {
        let mut segments = Vec::new();
        loop {
            let after = segments.last().map_or(0, |segment: &Segment| segment.segment);
            let page: Segments =
                session.ask("segments/list", &SegmentList { client, after, limit: PAGE }).await?;
            segments.extend(page.segments);
            if !page.more {
                break;
            }
        }
        let open = segments.iter().filter(|segment| segment.state != SegmentState::Sealed);
        let open: Vec<u64> = open.map(|segment| segment.segment).collect();
        if open.is_empty() {
            return Ok((session, segments));
        }
        if open != waits_for {
            (waits_for, since) = (open, monotonic());
        } else if monotonic().since(since) > OPEN_MAX {
            return Err(stay_open(&open));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// These segments are not sealed: too few of their devices answer.
fn stay_open(segments: &[u64]) -> Failure {
    let numbers: Vec<_> = segments.iter().take(10).map(ToString::to_string).collect();
    let detail = format!(
        "segments can't be sealed, since too few of their devices answer: {}{}. Start these devices, or declare them \
         lost",
        numbers.join(", "),
        if segments.len() > numbers.len() { ", …" } else { "" }
    );
    Failure::Unreachable(detail)
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
    let pieces = pieces.values().map(|(piece, _)| *piece).collect();
    Some(Entry { stamp, moves: 0, bytes: Some(end), pieces })
}
