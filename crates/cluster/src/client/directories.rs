//! Reads what is in a segment: each run begins with a directory. formats/cluster.md, section 2.

use proto::cluster::{
    ALIGN_BYTES, DIRECTORY_HEADER_BYTES, Item, Piece, Run, Width, decode_directory, directory_lengths,
};

use super::fetch::{Layout, Turns, fetch};
use super::session::Session;
use crate::http::{Failure, Reply};
use crate::problem::{Problem, Word};
use crate::wire::Segment;

/// Calls `each` with the items of all runs of a segment, and where they lie.
pub(super) async fn read_directories(
    session: &Session,
    segment: &Segment,
    mut each: impl FnMut(Item, Piece),
) -> Reply<()> {
    let width = Width::new(segment.k, segment.m).ok_or_else(|| damaged(segment, 0))?;
    let layout = Layout { segment: segment.segment, width, devices: segment.devices.clone() };
    let turns = Turns::default();
    let mut at = 0;
    while at < segment.length {
        // The directory begins in the first unit, wherever the run ends.
        let head = Run { at, bytes: ALIGN_BYTES };
        let (head, _) = fetch(session, &turns, &layout, head, 0..DIRECTORY_HEADER_BYTES as u64).await?;
        let (directory, bytes) = directory_lengths(&head).ok_or_else(|| damaged(segment, at))?;
        let run = Run { at, bytes };
        if u64::from(directory) > run.content_bytes(width) {
            return Err(damaged(segment, at));
        }
        let (content, _) = fetch(session, &turns, &layout, run, 0..u64::from(directory)).await?;
        let (items, _) = decode_directory(&content).ok_or_else(|| damaged(segment, at))?;
        for item in items {
            let Item { offset, length, sum, .. } = item;
            each(item, Piece { segment: segment.segment, run, width, offset, length, sum });
        }
        at = run.end();
    }
    Ok(())
}

fn damaged(segment: &Segment, at: u64) -> Failure {
    let detail = format!("segment {} has no directory at {at}", segment.segment);
    Failure::Refused(Problem::new(Word::Damaged, detail))
}
