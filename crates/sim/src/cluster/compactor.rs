//! A simulated compactor: a client that moves what is in use of a segment to another one, by the rules of
//! `proto::cluster`.

use std::collections::{BTreeMap, BTreeSet};

use proto::cluster::{DeviceId, ItemId, Piece, Run, RunId, Verdict, Width, judge};

use super::client::{Asked, Item, PATIENCE};
use super::world::{Answer, CLIENTS, DATA, Entry, PARITY, Party, Request, Value, World, slot};

/// The client that compacts.
pub(super) const COMPACTOR: usize = CLIENTS;

/// A segment that is being compacted.
#[derive(Debug)]
pub(super) struct Compaction {
    pub(super) segment: u64,
    /// Names that may lie there; the last one is looked at.
    names: Vec<u32>,
    phase: Phase,
    /// The new entry of the name that is looked at.
    new: Option<Entry>,
    held: BTreeMap<DeviceId, Option<Entry>>,
    epoch: u64,
    waiting: BTreeSet<u64>,
    /// Where a copy was stored, and under which number the segment was opened.
    copy: Option<(Value, u64)>,
    /// Runs with copies of the name: their segment is not finished before the name is settled.
    pub(super) runs: Vec<RunId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The holders are to be asked.
    Look,
    Asking,
    Storing,
    Replacing,
    Reporting,
}

/// The entry as the machines know it.
fn real(entry: &Entry) -> proto::cluster::Entry {
    let width = Width::new(DATA, PARITY).expect("a width");
    let piece = |value: Value| Piece {
        segment: value.segment,
        run: value.run,
        width,
        offset: 0,
        length: 1,
        sum: value.token,
    };
    proto::cluster::Entry {
        stamp: entry.stamp,
        moves: entry.moves,
        bytes: entry.value.map(|_| 1),
        pieces: entry.value.map(piece).into_iter().collect(),
    }
}

impl World {
    /// The compactor is given a segment, if it has none.
    pub(super) fn compact(&mut self, segment: u64) {
        let names: Vec<u32> = self.directories.get(&segment).into_iter().flatten().copied().collect();
        let compactor = &mut self.clients[COMPACTOR];
        if compactor.compaction.is_none() {
            compactor.compaction = Some(Compaction {
                segment,
                names,
                phase: Phase::Look,
                new: None,
                held: BTreeMap::new(),
                epoch: 0,
                waiting: BTreeSet::new(),
                copy: None,
                runs: Vec::new(),
            });
        }
    }

    /// Goes on with what the compactor does.
    pub(super) fn compaction_tick(&mut self) {
        let Some(compaction) = &mut self.clients[COMPACTOR].compaction else { return };
        if compaction.phase != Phase::Look {
            return;
        }
        match compaction.names.last() {
            Some(&name) => self.ask_holders(name),
            None => self.report(),
        }
    }

    fn compaction(&mut self) -> Option<&mut Compaction> {
        self.clients[COMPACTOR].compaction.as_mut()
    }

    fn ask_holders(&mut self, name: u32) {
        let compactor = &self.clients[COMPACTOR];
        let (map, expires) = (compactor.map.clone(), compactor.expires);
        if !map.is_index_whole() {
            return;
        }
        let epoch = map.epoch;
        let mut asked = Vec::new();
        for holder in map.holders(slot(name)) {
            let request = Request::Find { name, epoch, expires };
            let to = Party::Device(holder.device.0);
            asked.push((self.ask(Party::Client(COMPACTOR), to, request, PATIENCE), holder.device));
        }
        self.wait_for_holders(Phase::Asking, epoch, asked);
    }

    fn wait_for_holders(&mut self, phase: Phase, epoch: u64, asked: Vec<(u64, DeviceId)>) {
        let compactor = &mut self.clients[COMPACTOR];
        let Some(compaction) = &mut compactor.compaction else { return };
        compaction.phase = phase;
        compaction.epoch = epoch;
        compaction.waiting = asked.iter().map(|(id, _)| *id).collect();
        if phase == Phase::Asking {
            compaction.held.clear();
        }
        let asked = asked.into_iter().map(|(id, device)| (id, Asked::Holder { device }));
        compactor.asked.extend(asked);
    }

    /// A holder answered what it has, or did not.
    pub(super) fn holder_told(&mut self, id: u64, device: DeviceId, answer: Option<Answer>) {
        let Some(compaction) = self.compaction() else { return };
        if !compaction.waiting.remove(&id) {
            return;
        }
        let Some(Answer::Found(entry)) = answer else {
            // All is looked at again, under another map.
            self.look_again();
            return;
        };
        match compaction.phase {
            Phase::Asking => {
                compaction.held.insert(device, entry);
                if compaction.waiting.is_empty() {
                    self.judge_name();
                }
            }
            Phase::Replacing if entry != compaction.new => self.look_again(),
            Phase::Replacing if compaction.waiting.is_empty() => self.name_settled(),
            _ => {}
        }
    }

    fn look_again(&mut self) {
        let compactor = &mut self.clients[COMPACTOR];
        if let Some(compaction) = &mut compactor.compaction {
            compaction.phase = Phase::Look;
            compaction.waiting.clear();
            compactor.renewed = 0;
        }
    }

    fn judge_name(&mut self) {
        let now = self.now;
        let Some(compaction) = self.compaction() else { return };
        let segment = compaction.segment;
        let held: Vec<_> = compaction.held.values().map(|held| held.as_ref().map(real)).collect();
        let Verdict::Replace(entry) = judge(segment, &held) else {
            self.name_settled();
            return;
        };
        let name = *compaction.names.last().expect("it is looked at");
        let token = entry.pieces.first().map(|piece| piece.sum);
        let value = entry.pieces.first().map(|piece| Value {
            segment: piece.segment,
            run: piece.run,
            token: piece.sum,
        });
        compaction.new = Some(Entry { name, stamp: entry.stamp, moves: entry.moves, value });
        if !entry.lies_in(segment) {
            compaction.copy = None;
            self.replace();
            return;
        }
        compaction.phase = Phase::Storing;
        let bytes = 1 + (now % 1000);
        let compactor = &mut self.clients[COMPACTOR];
        let item = compactor.next_item();
        compactor.items.insert(item, Item { name, token: token.unwrap_or(0), stamp: entry.stamp });
        compactor.writer.submit(item, bytes, 8);
        self.obey(COMPACTOR);
    }

    /// A run with a copy is complete.
    pub(super) fn copy_stored(&mut self, run: RunId, segment: u64, place: Run, items: &[ItemId]) {
        let compactor = &mut self.clients[COMPACTOR];
        let opened_as = compactor.opened_as(segment);
        let token = compactor.items.get(&items[0]).map_or(0, |item| item.token);
        let Some(compaction) = &mut compactor.compaction else {
            compactor.doubted.insert(segment);
            return compactor.writer.inserted(run);
        };
        compaction.runs.push(run);
        if compaction.phase == Phase::Storing {
            let value = Value { segment, run: place, token };
            compaction.copy = Some((value, opened_as));
            if let Some(new) = &mut compaction.new {
                new.value = Some(value);
            }
            self.replace();
        }
    }

    fn replace(&mut self) {
        let compactor = &mut self.clients[COMPACTOR];
        let (incarnation, expires) = (compactor.incarnation, compactor.expires);
        let Some(compaction) = &mut compactor.compaction else { return };
        if compaction.copy.is_some_and(|(_, opened_as)| opened_as != incarnation) {
            // The lease ended since the copy was stored.
            compactor.give_up_compaction();
            return self.obey(COMPACTOR);
        }
        let (held, epoch) = (compaction.held.clone(), compaction.epoch);
        let new = compaction.new.expect("it was judged");
        let mut asked = Vec::new();
        for (device, old) in held {
            let request = Request::Replace { old, new, epoch, expires };
            let to = Party::Device(device.0);
            asked.push((self.ask(Party::Client(COMPACTOR), to, request, PATIENCE), device));
        }
        self.wait_for_holders(Phase::Replacing, epoch, asked);
    }

    fn name_settled(&mut self) {
        let compactor = &mut self.clients[COMPACTOR];
        let Some(compaction) = &mut compactor.compaction else { return };
        compaction.names.pop();
        compaction.phase = Phase::Look;
        (compaction.new, compaction.copy) = (None, None);
        for run in std::mem::take(&mut compaction.runs) {
            compactor.writer.inserted(run);
        }
        self.obey(COMPACTOR);
    }

    fn report(&mut self) {
        let compactor = &mut self.clients[COMPACTOR];
        let incarnation = compactor.incarnation;
        let Some(compaction) = &mut compactor.compaction else { return };
        compaction.phase = Phase::Reporting;
        let segment = compaction.segment;
        let request = Request::Emptied { segment, client: COMPACTOR, incarnation };
        let id = self.ask(Party::Client(COMPACTOR), Party::Metadata, request, PATIENCE);
        self.clients[COMPACTOR].asked.insert(id, Asked::Emptied);
    }

    pub(super) fn emptied_told(&mut self, answer: Option<&Answer>) {
        match answer {
            // Whether it was done is not known.
            None => self.look_again(),
            Some(_) => self.clients[COMPACTOR].compaction = None,
        }
    }
}
