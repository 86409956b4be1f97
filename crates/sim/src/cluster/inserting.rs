//! How simulated clients insert entries, by the machine of `proto::cluster`.

use proto::cluster::{Insertion, RunId, Step};

use super::client::{Asked, Known, PATIENCE};
use super::world::{Entry, Party, Request, World, slot};

/// Entries on their way to their holders.
#[derive(Debug)]
pub(super) struct Inserting {
    pub(super) machine: Insertion,
    pub(super) entries: Vec<Entry>,
    /// The run whose entries they are, and the number under which its segment was opened; a deletion has none.
    run: Option<(RunId, u64)>,
    waits: bool,
}

impl World {
    pub(super) fn insert_entries(&mut self, number: usize, entries: Vec<Entry>, run: Option<(RunId, u64)>) {
        let client = self.client(number);
        client.next += 1;
        let insertion = client.next;
        let machine = Insertion::new(entries.iter().map(|entry| slot(entry.name)).collect());
        client.inserting.insert(insertion, Inserting { machine, entries, run, waits: false });
        self.go_on(number, insertion);
    }

    /// Asks the holders that have yet to acknowledge, if none is being asked.
    pub(super) fn go_on(&mut self, number: usize, insertion: u64) {
        let client = self.client(number);
        let under_way = client
            .asked
            .values()
            .any(|asked| matches!(asked, Asked::Insert { insertion: other, .. } if *other == insertion));
        let (party, epoch, expires) = (client.party(), client.map.epoch, client.expires);
        let own = client.incarnation;
        let Some(inserting) = client.inserting.get_mut(&insertion).filter(|_| !under_way) else { return };
        if inserting.run.is_some_and(|(_, opened_as)| opened_as != own) {
            // The segment may have been taken, and what lies there been given up.
            self.insertion_failed(number, insertion);
            return;
        }
        inserting.waits = false;
        let entries = inserting.entries.clone();
        match inserting.machine.start(&client.map) {
            Step::Send(requests) => {
                for (device, chosen) in requests {
                    let entries = chosen.iter().map(|&at| entries[at]).collect();
                    let id = self.ask(
                        party,
                        Party::Device(device.0),
                        Request::Insert { entries, epoch, expires },
                        PATIENCE,
                    );
                    self.client(number).asked.insert(id, Asked::Insert { insertion, device, epoch });
                }
            }
            Step::Done => self.inserted(number, insertion),
            Step::Wait | Step::NeedMap => {}
        }
    }

    /// Whether the entries are inserted, or will be, is not known.
    fn insertion_failed(&mut self, number: usize, insertion: u64) {
        let client = self.client(number);
        let Some(failed) = client.inserting.remove(&insertion) else { return };
        for entry in &failed.entries {
            let known = client.known.entry(entry.name).or_insert_with(|| Known::from([None]));
            known.insert(entry.value.map(|value| value.token));
            client.busy.remove(&entry.name);
        }
        if let Some((run, _)) = failed.run {
            let (segment, _, items) = client.runs.remove(&run).expect("its entries were to be inserted");
            client.doubted.insert(segment);
            client.items.retain(|item, _| !items.contains(item));
            client.writer.inserted(run);
        }
        self.obey(number);
    }

    pub(super) fn inserted(&mut self, number: usize, insertion: u64) {
        let client = self.client(number);
        let Some(done) = client.inserting.remove(&insertion) else { return };
        let count = done.entries.len() as u64;
        for entry in &done.entries {
            client.stored(entry.name, entry.value.map(|value| value.token));
        }
        if let Some((run, _)) = done.run {
            let (_, _, items) = client.runs.remove(&run).expect("its entries were inserted");
            client.items.retain(|item, _| !items.contains(item));
            client.writer.inserted(run);
        }
        self.stored += count;
        self.obey(number);
    }

    /// Another's clock is ahead: the entries get larger stamps.
    pub(super) fn stamp_anew(&mut self, number: usize, insertion: u64, newer: u64) {
        let now = self.now;
        let client = self.client(number);
        client.last_stamp = client.last_stamp.max(newer);
        let Some(mut inserting) = client.inserting.remove(&insertion) else { return };
        for entry in &mut inserting.entries {
            entry.stamp = client.stamp(now);
        }
        self.insert_entries(number, inserting.entries, inserting.run);
    }
}
