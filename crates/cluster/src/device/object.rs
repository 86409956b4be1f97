//! One object: its file, the checksums of what is in it, and its changes.
//!
//! Bytes behind the length that the database knows do not count, so an append needs no journal. What is written over
//! older bytes is kept in the database first, and written again after a crash.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use base::Error;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard, RwLock};
use proto::cluster::{ObjectId, UNIT_BYTES, checksum};

use super::commit::{Commits, Pending, Ticket};
use super::file::ObjectFile;
use super::recent::Recent;
use super::tables::{Change, ObjectRow, SummedPiece};
use crate::clock::system_ns;
use crate::problem::{Answer, Problem, Word};
use crate::wire::LAYOUT_ATTRIBUTE;

/// Longest content that is written over older content in one command.
pub(super) const REWRITE_BYTES_MAX: usize = 4 << 20;

/// An object that is in use.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) id: ObjectId,
    file: Arc<ObjectFile>,
    /// Held by whoever changes the object; says up to where space is laid out.
    laid_out: Mutex<u64>,
    state: RwLock<State>,
    /// Which component of its segment it is, once somebody asked.
    pub(super) component: OnceLock<Option<u8>>,
}

#[derive(Debug)]
struct State {
    row: ObjectRow,
    /// Checksums of all bytes, in order and without gaps.
    pieces: Vec<SummedPiece>,
    /// What the database does not know yet.
    unsaved: Unsaved,
    removed: bool,
    recent: Recent,
}

#[derive(Debug, Default)]
struct Unsaved {
    /// Anything at all.
    any: bool,
    pieces: Vec<SummedPiece>,
    gone: Vec<u64>,
    /// The creator's attribute.
    layout: Option<Vec<u8>>,
    bytes: u64,
}

impl Object {
    /// A new object, which the database does not know yet.
    pub(super) fn create(id: ObjectId, file: ObjectFile, layout: Vec<u8>) -> Self {
        let now = system_ns();
        let row = ObjectRow { length: 0, fence: 0, sealed: false, created: now, modified: now };
        let unsaved = Unsaved { any: true, layout: Some(layout), ..Unsaved::default() };
        Self {
            id,
            file: Arc::new(file),
            laid_out: Mutex::new(0),
            state: RwLock::new(State {
                row,
                pieces: Vec::new(),
                unsaved,
                removed: false,
                recent: Recent::default(),
            }),
            component: OnceLock::new(),
        }
    }

    /// An object that the database knows.
    pub(super) fn open(id: ObjectId, file: ObjectFile, row: ObjectRow, pieces: Vec<SummedPiece>) -> Self {
        let laid_out = file.bytes();
        Self {
            id,
            file: Arc::new(file),
            laid_out: Mutex::new(laid_out),
            state: RwLock::new(State {
                row,
                pieces,
                unsaved: Unsaved::default(),
                removed: false,
                recent: Recent::default(),
            }),
            component: OnceLock::new(),
        }
    }

    pub(super) fn row(&self) -> ObjectRow {
        self.state.read().row
    }

    /// Whether the database knows all of it.
    pub(super) fn is_saved(&self) -> bool {
        !self.state.read().unsaved.any
    }

    /// Bytes that were acknowledged and are not durable.
    pub(super) fn dirty_bytes(&self) -> u64 {
        self.state.read().unsaved.bytes
    }

    /// The creator's attribute, if the database does not have it yet.
    pub(super) fn unsaved_layout(&self) -> Option<Vec<u8>> {
        self.state.read().unsaved.layout.clone()
    }

    /// The bytes from `from` to `to`, if they were appended lately and are in memory.
    pub(super) fn recent(&self, from: u64, to: u64) -> Option<Bytes> {
        let state = self.state.read();
        if state.removed || to > state.row.length { None } else { state.recent.get(from, to) }
    }

    /// Forgets what was appended at `at`; it is read from the file from now on.
    pub(super) fn forget(&self, at: u64) {
        self.state.write().recent.forget(at);
    }

    /// Whether a range can be read without the disk.
    pub(super) fn is_in_memory(&self, range: &Range<u64>) -> bool {
        self.file.is_in_memory(range)
    }

    /// Has the kernel read a range into memory.
    pub(super) fn read_ahead(&self, range: &Range<u64>) {
        self.file.read_ahead(range);
    }

    /// Reads `from..to`, verified.
    pub(super) fn read(&self, from: u64, to: u64) -> Answer<Bytes> {
        let state = self.state.read();
        if state.removed {
            return Err(self.missing());
        }
        let length = state.row.length;
        if from > to || to > length {
            let detail = format!("object {} has {length} bytes; {from} to {to} were asked for", self.id);
            return Err(Problem::new(Word::Range, detail).with_number(length));
        }
        self.read_verified(&state.pieces, from, to)
    }

    /// Reads whole pieces and verifies them, and cuts out `from..to`.
    fn read_verified(&self, pieces: &[SummedPiece], from: u64, to: u64) -> Answer<Bytes> {
        let first = pieces.partition_point(|piece| piece.end() <= from);
        let behind = pieces.partition_point(|piece| piece.from < to);
        let Some(pieces) = pieces.get(first..behind).filter(|pieces| !pieces.is_empty() && from < to) else {
            return Ok(Bytes::new());
        };
        let (start, end) = (pieces[0].from, pieces[pieces.len() - 1].end());
        let read = self.file.read(start, small(end - start));
        let content = read.map_err(|error| Problem::failed(&format!("read object {}", self.id), error))?;
        // The file is shorter than what was stored in it, or the disk can't read it: others have what restores it.
        if content.len() < small(end - start) {
            return Err(self.damaged(start + content.len() as u64));
        }
        let mut rest = content.as_slice();
        for piece in pieces {
            let (bytes, behind) = rest.split_at(piece.bytes as usize);
            if checksum(bytes) != piece.sum {
                return Err(self.damaged(piece.from));
            }
            rest = behind;
        }
        Ok(Bytes::from(content).slice(small(from - start)..small(to - start)))
    }

    /// The pieces whose bytes do not match their checksums.
    pub(super) fn damaged_pieces(&self) -> Answer<Vec<Range<u64>>> {
        let pieces = self.state.read().pieces.clone();
        let mut damaged = Vec::new();
        for piece in pieces {
            match self.read(piece.from, piece.end()) {
                Ok(_) => {}
                Err(problem) if problem.word == Word::Damaged => damaged.push(piece.from..piece.end()),
                Err(problem) => return Err(problem),
            }
        }
        Ok(damaged)
    }

    /// Writes a damaged piece again, durably, if `content` has its checksum; returns whether it has.
    pub(super) fn mend(&self, at: u64, content: &[u8]) -> Answer<bool> {
        let _alone = self.laid_out.lock();
        // Readers wait: they must not see half of it.
        let state = self.state.write();
        let piece =
            state.pieces.iter().find(|piece| piece.from == at && piece.bytes as usize == content.len());
        if state.removed || piece.is_none_or(|piece| piece.sum != checksum(content)) {
            return Ok(false);
        }
        let written = self.file.write(content, at).and_then(|()| self.file.sync_content());
        written.map_err(|error| self.write_failed(error))?;
        Ok(true)
    }

    /// Appends `content` at `at`, which must be the length; acknowledged as it is in memory. `fence` is that of the
    /// capability. A repetition of what was appended before is fine. Returns by how much the object grew.
    pub(super) fn append(&self, at: u64, content: &Bytes, fence: u32) -> Answer<u64> {
        let mut laid_out = self.change(fence)?;
        let length = self.row().length;
        let end = at + content.len() as u64;
        // Perhaps the answer to this very request was lost.
        if length >= end && length > at && self.read(at, end)? == content {
            return Ok(0);
        }
        if length != at {
            return Err(self.wrong_length(at, length));
        }
        self.lay_out(&mut laid_out, end)?;
        self.file.append(content, at).map_err(|error| self.write_failed(error))?;
        let pieces = summed(at, content);
        let mut state = self.state.write();
        state.recent.add(at, content.clone());
        state.pieces.extend(&pieces);
        state.unsaved.pieces.extend(pieces);
        state.unsaved.bytes += content.len() as u64;
        state.unsaved.any = true;
        state.row.length = end;
        state.row.modified = system_ns();
        Ok(content.len() as u64)
    }

    /// Writes `content` at `at`, over what is there; the object grows if needed. Returns by how much.
    pub(super) fn write(
        &self,
        commits: &Commits,
        at: u64,
        content: &[u8],
        fence: u32,
    ) -> Answer<(Ticket, u64)> {
        let mut laid_out = self.change(fence)?;
        let length = self.row().length;
        if at > length {
            return Err(self.wrong_length(at, length));
        }
        let (from, whole) = self.with_margins(at, content)?;
        let over = self.row().length.min(from + whole.len() as u64) > from;
        self.lay_out(&mut laid_out, from + whole.len() as u64)?;
        if over {
            // First where a crash can't hurt it: older bytes, acknowledged long ago, share its checksums.
            let redo = Change::Redo { id: self.id, at: from, content: whole.clone() };
            let saved = self.save(&mut self.state.write(), commits)?;
            commits.wait(saved)?;
            commits.now(vec![redo])?;
        }
        let ticket = self.put(commits, from, &whole, over)?;
        Ok((ticket, self.row().length - length))
    }

    /// What a crash may have left half written.
    pub(super) fn redo(&self, commits: &Commits, at: u64, content: &[u8]) -> Answer<()> {
        let _alone = self.laid_out.lock();
        let ticket = self.put(commits, at, content, true)?;
        Ok(commits.wait(ticket)?)
    }

    /// Puts `content`, which covers whole pieces, and its checksums in the place of older ones.
    fn put(&self, commits: &Commits, at: u64, content: &[u8], redone: bool) -> Answer<Ticket> {
        // Readers wait: they must not see new bytes under old checksums.
        let mut state = self.state.write();
        state.recent.clear();
        self.file.write(content, at).map_err(|error| self.write_failed(error))?;
        let end = at + content.len() as u64;
        let first = state.pieces.partition_point(|piece| piece.end() <= at);
        let behind = state.pieces.partition_point(|piece| piece.from < end);
        let new = summed(at, content);
        let gone: Vec<_> =
            state.pieces.splice(first..behind, new.iter().copied()).map(|piece| piece.from).collect();
        state.unsaved.pieces.retain(|piece| !gone.contains(&piece.from));
        state.unsaved.gone.extend(gone);
        state.unsaved.pieces.extend(new);
        state.row.length = state.row.length.max(end);
        let ticket = self.save(&mut state, commits)?;
        if !redone {
            return Ok(ticket);
        }
        let done = Change::Redone { id: self.id, at };
        Ok(commits.enqueue(vec![Pending { change: done, file: None }]))
    }

    /// `content` with what is before and behind it in the pieces that it touches.
    fn with_margins(&self, at: u64, content: &[u8]) -> Answer<(u64, Vec<u8>)> {
        let state = self.state.read();
        let end = at + content.len() as u64;
        let before = state.pieces.iter().find(|piece| piece.from < at && piece.end() > at);
        let behind = state.pieces.iter().find(|piece| piece.from < end && piece.end() > end);
        let from = before.map_or(at, |piece| piece.from);
        let to = behind.map_or(end, |piece| piece.end());
        let mut whole = self.read_verified(&state.pieces, from, at)?.to_vec();
        whole.extend_from_slice(content);
        whole.extend_from_slice(&self.read_verified(&state.pieces, end, to)?);
        Ok((from, whole))
    }

    /// Shortens the object to `bytes`. Returns by how much.
    pub(super) fn truncate(&self, commits: &Commits, bytes: u64, fence: u32) -> Answer<(Ticket, u64)> {
        let _alone = self.change(fence)?;
        self.shorten(commits, bytes, false)
    }

    /// Shortens the object to `bytes` and seals it. A second time is fine. Returns by how much.
    pub(super) fn seal(&self, commits: &Commits, bytes: u64, fence: u32) -> Answer<(Ticket, u64)> {
        let _alone = self.laid_out.lock();
        let row = self.row();
        if row.sealed {
            let same = row.length == bytes;
            return if same {
                Ok((self.save(&mut self.state.write(), commits)?, 0))
            } else {
                Err(self.fenced())
            };
        }
        if fence < row.fence {
            return Err(self.fenced());
        }
        self.shorten(commits, bytes, true)
    }

    /// Seals the object at `bytes`, or where it ends before, unless it is sealed.
    pub(super) fn seal_at_most(&self, commits: &Commits, bytes: u64) -> Answer<(Ticket, u64)> {
        let _alone = self.laid_out.lock();
        let row = self.row();
        let bytes = if row.sealed { row.length } else { bytes.min(row.length) };
        self.shorten(commits, bytes, true)
    }

    /// Gives back what was laid out and is not used, of an object that is sealed.
    pub(super) fn trim(&self) {
        let mut laid_out = self.laid_out.lock();
        let length = self.row().length;
        // It only takes room if that fails.
        if self.file.trim(length).is_ok() {
            *laid_out = length;
        }
    }

    fn shorten(&self, commits: &Commits, bytes: u64, seal: bool) -> Answer<(Ticket, u64)> {
        let mut state = self.state.write();
        let cut_bytes = state.row.length.saturating_sub(bytes);
        if bytes > state.row.length {
            return Err(self.wrong_length(bytes, state.row.length));
        }
        let first = state.pieces.partition_point(|piece| piece.end() <= bytes);
        if let Some(cut) = state.pieces.get(first).copied() {
            let kept = self.read_verified(&state.pieces, cut.from.min(bytes), bytes)?;
            let gone: Vec<_> = state.pieces.drain(first..).map(|piece| piece.from).collect();
            state.unsaved.pieces.retain(|piece| !gone.contains(&piece.from));
            state.unsaved.gone.extend(gone);
            if !kept.is_empty() {
                let kept = summed(cut.from, &kept);
                state.pieces.extend(&kept);
                state.unsaved.pieces.extend(kept);
            }
        }
        if cut_bytes > 0 {
            state.recent.clear();
        }
        state.row.length = bytes;
        state.row.sealed |= seal;
        Ok((self.save(&mut state, commits)?, cut_bytes))
    }

    /// Raises the fence, and makes all durable that was acknowledged before.
    pub(super) fn fence(&self, commits: &Commits, fence: u32) -> Answer<Ticket> {
        let _alone = self.laid_out.lock();
        let mut state = self.state.write();
        state.row.fence = state.row.fence.max(fence);
        self.save(&mut state, commits)
    }

    /// Makes all durable that was acknowledged.
    pub(super) fn flush(&self, commits: &Commits) -> Answer<Ticket> {
        let _alone = self.laid_out.lock();
        self.save(&mut self.state.write(), commits)
    }

    /// Marks the object as removed: commands that wait for it find it missing.
    pub(super) fn remove(&self, commits: &Commits) -> Answer<Ticket> {
        let _alone = self.laid_out.lock();
        let mut state = self.state.write();
        if std::mem::replace(&mut state.removed, true) {
            return Err(self.missing());
        }
        state.unsaved = Unsaved::default();
        state.recent.clear();
        Ok(commits.enqueue(vec![Pending { change: Change::Remove { id: self.id }, file: None }]))
    }

    /// Enqueues what the database does not know. Its order is that of the changes, since the caller holds the state.
    fn save(&self, state: &mut State, commits: &Commits) -> Answer<Ticket> {
        if state.removed {
            return Err(self.missing());
        }
        let unsaved = std::mem::take(&mut state.unsaved);
        state.row.modified = system_ns();
        let row = state.row;
        let (id, file) = (self.id, Some(Arc::clone(&self.file)));
        let change = Change::Object { id, row, gone: unsaved.gone, pieces: unsaved.pieces };
        let mut changes = vec![Pending { change, file }];
        if let Some(layout) = unsaved.layout.filter(|layout| !layout.is_empty()) {
            let (page, number) = LAYOUT_ATTRIBUTE;
            let change = Change::Attribute { id, page, number, value: Some(layout) };
            changes.push(Pending { change, file: None });
        }
        Ok(commits.enqueue(changes))
    }

    /// Waits for other changes, and refuses one that is fenced off.
    fn change(&self, fence: u32) -> Result<MutexGuard<'_, u64>, Problem> {
        let alone = self.laid_out.lock();
        let state = self.state.read();
        if state.removed {
            return Err(self.missing());
        }
        if state.row.sealed || fence < state.row.fence {
            return Err(self.fenced());
        }
        Ok(alone)
    }

    fn lay_out(&self, laid_out: &mut u64, end: u64) -> Answer<()> {
        self.file.lay_out(laid_out, end).map_err(|error| self.write_failed(error))
    }

    fn write_failed(&self, error: std::io::Error) -> Problem {
        Error::from_io(format!("write object {}", self.id), error).into()
    }

    fn missing(&self) -> Problem {
        missing(self.id)
    }

    fn damaged(&self, at: u64) -> Problem {
        let detail = format!("object {} is damaged at byte {at}: read it from the other components", self.id);
        Problem::new(Word::Damaged, detail)
    }

    fn fenced(&self) -> Problem {
        let detail = format!("object {} is sealed, or its writer has lost it", self.id);
        Problem::new(Word::Fenced, detail)
    }

    fn wrong_length(&self, at: u64, length: u64) -> Problem {
        let detail = format!("object {} has {length} bytes, not {at}", self.id);
        Problem::new(Word::Length, detail).with_number(length)
    }
}

pub(super) fn missing(id: ObjectId) -> Problem {
    Problem::new(Word::Missing, format!("there is no object {id}"))
}

/// Checksums of `content`, which lies at `at`: one for each unit or less.
fn summed(at: u64, content: &[u8]) -> Vec<SummedPiece> {
    let mut from = at;
    content
        .chunks(UNIT_BYTES as usize)
        .map(|unit| {
            let bytes = u32::try_from(unit.len()).expect("a unit fits");
            let piece = SummedPiece { from, bytes, sum: checksum(unit) };
            from = piece.end();
            piece
        })
        .collect()
}

/// A length that requests bound.
fn small(bytes: u64) -> usize {
    usize::try_from(bytes).expect("this system has 64 bits")
}
