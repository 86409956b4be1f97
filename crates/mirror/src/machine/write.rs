//! Writes and zeroing: frozen sectors are copied to the side file first; then record and data are written in the
//! order that `formats/mirror.md` requires.

use base::RunSet;

use crate::machine::operations::{Write, WritePhase};
use crate::machine::state::Core;
use crate::machine::types::{Done, Failure, Io, OpId, Record, Sectors, Step, Zeros, overlaps};

/// Maximum number of runs in one record. A write with more runs appends several records.
const RECORD_RUNS_MAX: usize = 1024;

impl Core {
    /// A write copies frozen sectors out, records sectors ahead, writes the data, and records the rest; see
    /// [`WritePhase`].
    pub(in crate::machine) fn step_write(&mut self, id: OpId, write: &mut Write) -> Step {
        loop {
            match write.phase {
                WritePhase::Enter if self.broken => return Step::Over(Err(Failure::Local)),
                WritePhase::Enter if self.is_blocked(&write.range) => return self.wait_blocked(id),
                WritePhase::Enter => {
                    self.writing.push((id, write.range.clone()));
                    let frozen = self.held.frozen.within(write.range.clone());
                    write.parts = frozen.flat_map(|run| self.copied.gaps(run).collect::<Vec<_>>()).collect();
                    write.phase = WritePhase::Copy;
                }
                WritePhase::Copy => match write.parts.last() {
                    Some(run) => return Step::Do(Io::CopyOut(run.clone())),
                    None => write.phase = WritePhase::Ahead,
                },
                WritePhase::Ahead => {
                    // A record is limited in size, so this may take several rounds.
                    write.recording = self.recorded_ahead(write);
                    if write.recording.is_empty() {
                        write.phase = WritePhase::Data;
                    } else {
                        return Step::Do(Io::Append(Record::Dirty(write.recording.clone())));
                    }
                }
                WritePhase::Data => {
                    debug_assert!(
                        self.held.frozen.within(write.range.clone()).all(|run| self.copied.contains(&run)),
                        "frozen sectors are copied out before they are overwritten"
                    );
                    let range = write.range.clone();
                    return Step::Do(match write.zeros {
                        None => Io::Write(range),
                        Some(space) => Io::Zero { range, keep: space == Zeros::Allocated },
                    });
                }
                WritePhase::Behind => {
                    // A write to sectors that are dirty by now, or a discard of freed ones, needs no record here.
                    let known = if write.frees() { &self.held.freed } else { &self.held.dirty };
                    if !known.contains(&write.range) {
                        write.recording = vec![write.range.clone()];
                        let runs = write.recording.clone();
                        let record = if write.frees() { Record::Freed(runs) } else { Record::Dirty(runs) };
                        return Step::Do(Io::Append(record));
                    }
                    self.written(id, write);
                    if !write.durable {
                        return Step::Over(Ok(()));
                    }
                    write.flush = Some(self.rounds.flush());
                    write.phase = WritePhase::Flush;
                }
                WritePhase::Clear => {
                    if let Some(range) = write.parts.last().cloned() {
                        return Step::Do(Io::Zero { range, keep: false });
                    }
                    self.leave(id);
                    return Step::Over(Err(write.failure.unwrap_or(Failure::Local)));
                }
                WritePhase::Flush => {
                    let flush = write.flush.as_mut().expect("a durable write ends with a flush");
                    return self.step_flush(id, flush);
                }
            }
        }
    }

    pub(in crate::machine) fn done_write(&mut self, id: OpId, write: &mut Write, done: &Done) {
        if write.phase == WritePhase::Flush {
            let flush = write.flush.as_mut().expect("a durable write ends with a flush");
            return self.done_flush(id, flush, done);
        }
        if let Done::Failed(failure) = done {
            // If the journal fails, or a sector cannot be cleared, nothing can be guaranteed any more.
            self.broken |= write.phase != WritePhase::Data && write.phase != WritePhase::Copy;
            write.failure = Some(*failure);
            let is_clearing = write.phase == WritePhase::Clear;
            // The data may be partly written: clear it where no record makes it valid.
            let missing = self.held.missing(&self.cut, &write.range);
            write.parts = if is_clearing { Vec::new() } else { missing.iter().collect() };
            write.phase = WritePhase::Clear;
            return;
        }
        match write.phase {
            WritePhase::Copy => {
                let run = write.parts.pop().expect("it was being copied");
                self.counters.copied_sectors += run.end - run.start;
                self.copied.insert(run);
            }
            WritePhase::Ahead => write.recording.drain(..).for_each(|run| self.held.write(run)),
            WritePhase::Data => write.phase = WritePhase::Behind,
            WritePhase::Behind => {
                write.recording.clear();
                self.book_write(write);
            }
            WritePhase::Clear => drop(write.parts.pop()),
            WritePhase::Enter | WritePhase::Flush => {}
        }
    }

    /// The parts of a write that are recorded before the data is written: local sectors that are not dirty, and
    /// freed ones.
    fn recorded_ahead(&self, write: &Write) -> Vec<Sectors> {
        let range = &write.range;
        let mut parts = RunSet::new();
        if !write.frees() {
            self.held.freed.within(range.clone()).for_each(|run| parts.insert(run));
        }
        if !self.held.dirty.contains(range) {
            let missing = self.held.missing(&self.cut, range);
            let here = missing.gaps(range.clone());
            here.flat_map(|run| self.held.dirty.gaps(run).collect::<Vec<_>>())
                .for_each(|run| parts.insert(run));
        }
        parts.iter().take(RECORD_RUNS_MAX).collect()
    }

    /// Whether another operation must end before sectors of `range` may change.
    fn is_blocked(&self, range: &Sectors) -> bool {
        let meets = |busy: &[(OpId, Sectors)]| busy.iter().any(|(_, other)| overlaps(other, range));
        self.exclusive.holds_writes()
            || meets(&self.writing)
            || meets(&self.locked)
            || meets(&self.frozen_reading)
    }

    fn book_write(&mut self, write: &Write) {
        match write.frees() {
            true => self.held.free(write.range.clone()),
            false => self.held.write(write.range.clone()),
        }
    }

    fn written(&mut self, id: OpId, write: &Write) {
        self.book_write(write);
        self.held.kept.remove(write.range.clone());
        self.rounds.wrote();
        self.leave(id);
    }

    fn leave(&mut self, id: OpId) {
        self.writing.retain(|(writing, _)| *writing != id);
        self.unblock();
    }
}
