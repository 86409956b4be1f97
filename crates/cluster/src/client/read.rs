//! Reads contents by their entries. Runs that are read in order are fetched whole and kept for a while, with the names
//! in their directories: small contents that were stored together are mostly read together.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use proto::cluster::{
    ALIGN_BYTES, DIRECTORY_HEADER_BYTES, DeviceId, Entry, ObjectId, Piece, Reading, Run, RunCache, RunKey,
    Width, checksum, decode_directory, directory_lengths,
};
use reqwest::Method;
use tokio::sync::OnceCell;

use super::fetch::{Layout, Turns, fetch};
use super::session::Session;
use crate::http::{Failure, Reply, get_json};
use crate::problem::{Problem, Word};
use crate::wire::{LayoutAttribute, Segment};

/// Longest wait for a device that is asked for a layout.
const DEVICE_MAX: std::time::Duration = std::time::Duration::from_secs(3);
/// Layouts that are remembered.
const LAYOUTS_MAX: usize = 65_536;

/// What a client remembers of what it read.
#[derive(Debug, Default)]
pub(super) struct Reads {
    layouts: Mutex<HashMap<u64, Arc<Layout>>>,
    kept: Mutex<Kept>,
    turns: Turns,
}

#[derive(Debug, Default)]
struct Kept {
    which: RunCache,
    /// Those of `which`.
    runs: HashMap<RunKey, Cell>,
    /// Whole contents in kept runs, by name.
    names: HashMap<String, (RunKey, Entry)>,
}

/// The place of a run, which may be on its way.
type Cell = Arc<OnceCell<Arc<WholeRun>>>;

impl Kept {
    /// The place of a run, after others were dropped for it.
    fn place(&mut self, key: RunKey, dropped: &[RunKey]) -> Cell {
        for old in dropped {
            self.runs.remove(old);
            self.names.retain(|_, (run, _)| run != old);
        }
        Arc::clone(self.runs.entry(key).or_default())
    }
}

#[derive(Debug)]
struct WholeRun {
    content: Bytes,
}

impl Reads {
    /// The content of a name, if a run that is kept has it.
    pub(super) fn at_hand(&self, name: &str) -> Option<Entry> {
        self.kept.lock().names.get(name).map(|(_, entry)| entry.clone())
    }

    /// A name was stored anew or deleted: what is kept of it is old.
    pub(super) fn forget(&self, name: &str) {
        self.kept.lock().names.remove(name);
    }

    /// Reads `range` of the content that `entry` describes.
    pub(super) async fn read(
        self: &Arc<Self>,
        session: &Arc<Session>,
        entry: &Entry,
        range: Range<u64>,
    ) -> Reply<Bytes> {
        let mut parts = Vec::new();
        let mut from = 0;
        for piece in &entry.pieces {
            let to = from + u64::from(piece.length);
            let (first, behind) = (range.start.max(from), range.end.min(to));
            if first < behind {
                parts.push((*piece, first - from..behind - from));
            }
            from = to;
        }
        if let [(piece, range)] = parts.as_slice() {
            return self.piece(session, *piece, range.clone()).await;
        }
        let reads: Vec<_> =
            parts.into_iter().map(|(piece, range)| self.piece(session, piece, range)).collect();
        let mut whole = BytesMut::with_capacity(usize::try_from(range.end - range.start).unwrap_or(0));
        // Few at a time: each of them asks as many devices as a segment has data components.
        let mut reads = futures::stream::StreamExt::buffered(futures::stream::iter(reads), 2);
        while let Some(part) = futures::stream::StreamExt::next(&mut reads).await {
            whole.extend_from_slice(&part?);
        }
        Ok(whole.freeze())
    }

    /// Reads a piece; it has its checksum.
    pub(super) async fn whole_piece(self: &Arc<Self>, session: &Arc<Session>, piece: Piece) -> Reply<Bytes> {
        self.piece(session, piece, 0..u64::from(piece.length)).await
    }

    async fn piece(
        self: &Arc<Self>,
        session: &Arc<Session>,
        piece: Piece,
        range: Range<u64>,
    ) -> Reply<Bytes> {
        let piece = &piece;
        let offset = u64::from(piece.offset);
        let in_run = offset + range.start..offset + range.end;
        let bytes = match self.kept_run(piece) {
            Some((cell, ahead)) => {
                let run = cell.get_or_try_init(|| self.whole_run(session, piece)).await?;
                if ahead {
                    self.fetch_ahead(session, piece);
                }
                let slice = usize::try_from(in_run.start).ok().zip(usize::try_from(in_run.end).ok());
                let (from, to) =
                    slice.filter(|&(_, to)| to <= run.content.len()).ok_or_else(|| damaged(piece))?;
                run.content.slice(from..to)
            }
            None => self.fetch(session, piece, in_run).await?,
        };
        let is_whole = range.start == 0 && range.end == u64::from(piece.length);
        if is_whole && checksum(&bytes) != piece.sum {
            // Nothing that was kept is believed any more.
            self.distrust(piece);
            let again = self.fetch(session, piece, offset..offset + range.end).await?;
            return if checksum(&again) == piece.sum { Ok(again) } else { Err(damaged(piece)) };
        }
        Ok(bytes)
    }

    /// Forgets the run and the layout of a piece that came back wrong.
    fn distrust(&self, piece: &Piece) {
        self.layouts.lock().remove(&piece.segment);
        let key = (piece.segment, piece.run.at);
        let mut kept = self.kept.lock();
        kept.which.forget(key);
        if kept.runs.remove(&key).is_some() {
            kept.names.retain(|_, (run, _)| *run != key);
        }
    }

    /// The place of the run of `piece` among those that are kept, if it is there or belongs there, and whether the run
    /// behind it is to be fetched ahead.
    fn kept_run(&self, piece: &Piece) -> Option<(Cell, bool)> {
        let key = (piece.segment, piece.run.at);
        let mut kept = self.kept.lock();
        match kept.which.read(piece) {
            Reading::Alone => None,
            Reading::Kept { ahead } => Some((kept.place(key, &[]), ahead)),
            Reading::Whole { dropped, ahead } => Some((kept.place(key, &dropped), ahead)),
        }
    }

    /// Fetches the run behind the one of `piece` while this one is used, if there is one.
    fn fetch_ahead(self: &Arc<Self>, session: &Arc<Session>, piece: &Piece) {
        let (reads, session, piece) = (Arc::clone(self), Arc::clone(session), *piece);
        let at = piece.run.end();
        if self.kept.lock().which.has((piece.segment, at)) {
            return;
        }
        tokio::spawn(async move {
            // Its length stands at its beginning. At the end of the segment there is nothing.
            let head = Piece { run: Run { at, bytes: ALIGN_BYTES }, ..piece };
            let head = reads.fetch(&session, &head, 0..DIRECTORY_HEADER_BYTES as u64).await.ok()?;
            let (_, bytes) = directory_lengths(&head)?;
            let next = Piece { run: Run { at, bytes }, ..piece };
            let cell = {
                let mut kept = reads.kept.lock();
                let dropped = kept.which.fetch_ahead(next.segment, next.run, next.width)?;
                kept.place((next.segment, at), &dropped)
            };
            // If it fails, the reader that needs it tries again.
            cell.get_or_try_init(|| reads.whole_run(&session, &next)).await.ok().map(drop)
        });
    }

    /// Fetches a run, and learns the names in it.
    async fn whole_run(&self, session: &Arc<Session>, piece: &Piece) -> Reply<Arc<WholeRun>> {
        let (run, width) = (piece.run, piece.width);
        let content = self.fetch(session, piece, 0..run.content_bytes(width)).await?;
        if let Some((items, _)) = decode_directory(&content) {
            let key = (piece.segment, run.at);
            let mut kept = self.kept.lock();
            // A run that was given up meanwhile would leave its names behind.
            if !kept.runs.contains_key(&key) {
                return Ok(Arc::new(WholeRun { content }));
            }
            for item in items.into_iter().filter(|item| item.whole == u64::from(item.length)) {
                let (offset, length, sum) = (item.offset, item.length, item.sum);
                let place = Piece { segment: piece.segment, run, width, offset, length, sum };
                let entry =
                    Entry { stamp: item.stamp, moves: 0, bytes: Some(item.whole), pieces: vec![place] };
                kept.names.insert(item.name, (key, entry));
            }
        }
        Ok(Arc::new(WholeRun { content }))
    }

    async fn fetch(&self, session: &Arc<Session>, piece: &Piece, range: Range<u64>) -> Reply<Bytes> {
        let layout = self.layout(session, piece.segment).await?;
        match fetch(session, &self.turns, &layout, piece.run, range.clone()).await {
            Ok((bytes, stale)) => {
                if stale {
                    self.layouts.lock().remove(&piece.segment);
                }
                Ok(bytes)
            }
            // Perhaps components were rebuilt elsewhere.
            Err(failure) => {
                self.layouts.lock().remove(&piece.segment);
                let newer = self.layout(session, piece.segment).await?;
                if newer == layout {
                    return Err(failure);
                }
                Ok(fetch(session, &self.turns, &newer, piece.run, range).await?.0)
            }
        }
    }

    async fn layout(&self, session: &Arc<Session>, segment: u64) -> Reply<Arc<Layout>> {
        if let Some(layout) = self.layouts.lock().get(&segment) {
            return Ok(Arc::clone(layout));
        }
        let told = match session.is_cut_off() {
            true => ask_devices(session, segment).await,
            false => None,
        };
        let asked = match told {
            Some(layout) => return self.remember(segment, layout),
            None => session.get::<Segment>(&format!("segments/{segment}")).await,
        };
        let layout = match asked {
            Ok(found) => layout(segment, found.k, found.m, found.devices),
            // The devices know it, too.
            Err(failure @ (Failure::Unreachable(_) | Failure::Untrusted(_))) => {
                ask_devices(session, segment).await.ok_or(failure)?
            }
            Err(failure) => return Err(failure),
        };
        self.remember(segment, layout)
    }

    fn remember(&self, segment: u64, layout: Option<Arc<Layout>>) -> Reply<Arc<Layout>> {
        let layout = layout.ok_or_else(|| Failure::Unreachable(format!("segment {segment} has no width")))?;
        let mut layouts = self.layouts.lock();
        if layouts.len() >= LAYOUTS_MAX {
            layouts.clear();
        }
        layouts.insert(segment, Arc::clone(&layout));
        Ok(layout)
    }
}

fn layout(segment: u64, k: u8, m: u8, devices: Vec<DeviceId>) -> Option<Arc<Layout>> {
    let width = Width::new(k, m).filter(|width| devices.len() == usize::from(width.components()))?;
    Some(Arc::new(Layout { segment, width, devices }))
}

/// Asks one device after the other for the layout of a segment.
async fn ask_devices(session: &Session, segment: u64) -> Option<Option<Arc<Layout>>> {
    let map = session.map();
    let id = ObjectId { group: session.group(), number: segment };
    for device in map.reachable() {
        let path = format!("objects/{id}/attributes");
        let request = session.to_device(&map, device.device, Method::GET, &path, None);
        let request = request.timeout(DEVICE_MAX);
        let Ok(pages) = get_json::<serde_json::Value>(request).await else { continue };
        let told = pages["256"]["0"]["text"]
            .as_str()
            .and_then(|text| serde_json::from_str::<LayoutAttribute>(text).ok());
        if let Some(told) = told.filter(|told| told.segment == segment) {
            return Some(layout(segment, told.k, told.m, told.devices));
        }
    }
    None
}

fn damaged(piece: &Piece) -> Failure {
    let detail = format!("what was read of segment {} at {} is damaged", piece.segment, piece.run.at);
    Failure::Refused(Problem::new(Word::Damaged, detail))
}
