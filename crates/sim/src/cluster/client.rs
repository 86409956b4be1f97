//! Simulated clients: they store, overwrite, delete and look up names of their own, by the machines of `proto`, and
//! remember what they were told.

use std::collections::{BTreeMap, BTreeSet};

use proto::cluster::{
    Command, DeviceId, Insertion, ItemId, Map, Run, RunId, SegmentRight, Step, Width, Writer, WriterSetting,
};

use super::world::{Answer, Entry, Event, LEASE, PARITY, Party, Request, Time, Value, World, slot};

/// Longest wait for an answer.
const PATIENCE: Time = 1200;
/// Names of one client.
pub(super) const NAMES: u32 = 12;

/// What may be stored under a name: any of these tokens, or nothing.
pub(super) type Known = BTreeSet<Option<u64>>;

/// What an item is.
#[derive(Debug, Clone, Copy)]
struct Item {
    name: u32,
    token: u64,
    stamp: u64,
}

/// Entries on their way to their holders.
#[derive(Debug)]
struct Inserting {
    machine: Insertion,
    entries: Vec<Entry>,
    /// The run whose entries they are; a deletion has none.
    run: Option<RunId>,
    waits: bool,
}

/// What a request under way is about.
#[derive(Debug)]
enum Asked {
    Renew,
    Open,
    Append { segment: u64, component: u8 },
    Insert { insertion: u64, device: DeviceId, epoch: u64 },
    Find { name: u32, known: Known },
    Sealed,
}

/// One client.
pub(super) struct Client {
    number: usize,
    incarnation: u64,
    map: Map,
    writer: Writer,
    items: BTreeMap<ItemId, Item>,
    runs: BTreeMap<RunId, (u64, Run, Vec<ItemId>)>,
    segments: BTreeMap<u64, Vec<DeviceId>>,
    inserting: BTreeMap<u64, Inserting>,
    asked: BTreeMap<u64, Asked>,
    next: u64,
    last_stamp: u64,
    paused_until: Time,
    renewed: Time,
    making: bool,
    /// Names with a change under way: others wait.
    busy: BTreeSet<u32>,
    pub(super) known: BTreeMap<u32, Known>,
}

fn setting() -> WriterSetting {
    WriterSetting { run_bytes: 200_000, short_runs_max: 2, runs_max: 4, component_bytes: 1 << 20 }
}

impl Client {
    pub(super) fn new(number: usize, map: Map) -> Self {
        Self {
            number,
            incarnation: 1,
            map,
            writer: Writer::new(setting()),
            items: BTreeMap::new(),
            runs: BTreeMap::new(),
            segments: BTreeMap::new(),
            inserting: BTreeMap::new(),
            asked: BTreeMap::new(),
            next: 0,
            last_stamp: 0,
            paused_until: 0,
            renewed: 0,
            making: true,
            busy: BTreeSet::new(),
            known: BTreeMap::new(),
        }
    }

    /// It changes nothing more.
    pub(super) fn stop_making(&mut self) {
        self.making = false;
        self.paused_until = 0;
    }

    pub(super) fn is_idle(&self) -> bool {
        self.writer.is_idle() && self.inserting.is_empty() && self.busy.is_empty()
    }

    /// The names of this client.
    pub(super) fn names(&self) -> impl Iterator<Item = u32> + use<> {
        let first = u32::try_from(self.number).expect("small") * NAMES;
        first..first + NAMES
    }

    fn party(&self) -> Party {
        Party::Client(self.number)
    }

    fn stamp(&mut self, now: Time) -> u64 {
        // The clocks of clients differ.
        let clock = (now + 700 * self.number as u64) << 10;
        self.last_stamp = clock.max((self.last_stamp | 0x3ff) + 1) | self.number as u64;
        self.last_stamp
    }

    fn stored(&mut self, name: u32, token: Option<u64>) {
        self.busy.remove(&name);
        self.known.insert(name, Known::from([token]));
    }
}

impl World {
    fn client(&mut self, number: usize) -> &mut Client {
        &mut self.clients[number]
    }

    pub(super) fn client_pauses(&mut self, number: usize) {
        let pause = self.below(20_000);
        let now = self.now;
        self.client(number).paused_until = now + pause;
    }

    /// The program ends; another one goes on with the same names, and knows nothing else.
    pub(super) fn client_dies(&mut self, number: usize) {
        let map = self.metadata.map.clone();
        let client = self.client(number);
        let mut known = std::mem::take(&mut client.known);
        for inserting in client.inserting.values() {
            for entry in &inserting.entries {
                known
                    .entry(entry.name)
                    .or_insert_with(|| Known::from([None]))
                    .insert(entry.value.map(|value| value.token));
            }
        }
        for item in client.items.values() {
            known.entry(item.name).or_insert_with(|| Known::from([None])).insert(Some(item.token));
        }
        let (incarnation, last_stamp) = (client.incarnation + 1, client.last_stamp);
        *client = Client { incarnation, known, last_stamp, ..Client::new(number, map) };
    }

    pub(super) fn client_tick(&mut self, number: usize) {
        let next = self.now + 20 + self.below(150);
        let (now, calm) = (self.now, !self.troubled);
        self.at(next, Event::Tick(Party::Client(number)));
        let client = self.client(number);
        if now < client.paused_until {
            return;
        }
        let (party, incarnation) = (client.party(), client.incarnation);
        if now >= client.renewed + LEASE / 2 || (calm && client.map.epoch == 0) {
            client.renewed = now;
            let id =
                self.ask(party, Party::Metadata, Request::Renew { client: number, incarnation }, PATIENCE);
            self.client(number).asked.insert(id, Asked::Renew);
        }
        if self.client(number).making {
            self.act(number);
        }
        let waiting: Vec<u64> = self.client(number).inserting.keys().copied().collect();
        waiting.into_iter().for_each(|insertion| self.go_on(number, insertion));
        self.client(number).writer.retry();
        self.obey(number);
    }

    /// Stores, deletes or looks up a name.
    fn act(&mut self, number: usize) {
        let name = u32::try_from(number).expect("small") * NAMES
            + u32::try_from(self.below(NAMES.into())).expect("small");
        let (now, what, bytes) = (self.now, self.below(10), 1 + self.below(150_000));
        self.next_token += 1;
        let token = self.next_token;
        let client = self.client(number);
        if client.busy.contains(&name) {
            return;
        }
        match what {
            0..5 => {
                let stamp = client.stamp(now);
                client.next += 1;
                let item = ItemId(client.next);
                client.items.insert(item, Item { name, token, stamp });
                client.busy.insert(name);
                client.writer.submit(item, bytes, 8);
            }
            5 => {
                let entry = Entry { name, stamp: client.stamp(now), value: None };
                client.busy.insert(name);
                self.insert_entries(number, vec![entry], None);
            }
            _ => self.look_up(number, name),
        }
    }

    fn look_up(&mut self, number: usize, name: u32) {
        let client = self.client(number);
        let (party, epoch) = (client.party(), client.map.epoch);
        let ready: Vec<DeviceId> = client
            .map
            .holders(slot(name))
            .iter()
            .filter(|holder| holder.is_ready())
            .map(|holder| holder.device)
            .collect();
        let known = client.known.get(&name).cloned().unwrap_or_else(|| Known::from([None]));
        if ready.is_empty() {
            return;
        }
        let device = ready[self.below(ready.len() as u64) as usize];
        let id = self.ask(party, Party::Device(device.0), Request::Find { name, epoch }, PATIENCE);
        let client = self.client(number);
        // The name must not change meanwhile, or the answer proves nothing.
        client.busy.insert(name);
        client.asked.insert(id, Asked::Find { name, known });
    }

    fn insert_entries(&mut self, number: usize, entries: Vec<Entry>, run: Option<RunId>) {
        let client = self.client(number);
        client.next += 1;
        let insertion = client.next;
        let machine = Insertion::new(entries.iter().map(|entry| slot(entry.name)).collect());
        client.inserting.insert(insertion, Inserting { machine, entries, run, waits: false });
        self.go_on(number, insertion);
    }

    /// Asks the holders that have yet to acknowledge, if none is being asked.
    fn go_on(&mut self, number: usize, insertion: u64) {
        let client = self.client(number);
        let under_way = client
            .asked
            .values()
            .any(|asked| matches!(asked, Asked::Insert { insertion: other, .. } if *other == insertion));
        let (party, epoch) = (client.party(), client.map.epoch);
        let Some(inserting) = client.inserting.get_mut(&insertion).filter(|_| !under_way) else { return };
        inserting.waits = false;
        let entries = inserting.entries.clone();
        match inserting.machine.start(&client.map) {
            Step::Send(requests) => {
                for (device, chosen) in requests {
                    let entries = chosen.iter().map(|&at| entries[at]).collect();
                    let id = self.ask(
                        party,
                        Party::Device(device.0),
                        Request::Insert { entries, epoch },
                        PATIENCE,
                    );
                    self.client(number).asked.insert(id, Asked::Insert { insertion, device, epoch });
                }
            }
            Step::Done => self.inserted(number, insertion),
            Step::Wait | Step::NeedMap => {}
        }
    }

    fn inserted(&mut self, number: usize, insertion: u64) {
        let client = self.client(number);
        let Some(done) = client.inserting.remove(&insertion) else { return };
        let count = done.entries.len() as u64;
        for entry in &done.entries {
            client.stored(entry.name, entry.value.map(|value| value.token));
        }
        if let Some(run) = done.run {
            let (_, _, items) = client.runs.remove(&run).expect("its entries were inserted");
            client.items.retain(|item, _| !items.contains(item));
            client.writer.inserted(run);
        }
        self.stored += count;
        self.obey(number);
    }

    pub(super) fn client_told(&mut self, number: usize, id: u64, answer: Option<Answer>) {
        let (now, seed) = (self.now, self.seed);
        let client = self.client(number);
        if now < client.paused_until {
            // It is read when the program goes on.
            let later = client.paused_until + 1;
            let to = client.party();
            match answer {
                Some(answer) => self.at(later, Event::Reply { id, to, answer }),
                None => self.at(later, Event::Timeout { id, from: to }),
            }
            return;
        }
        let Some(asked) = client.asked.remove(&id) else { return };
        match (asked, answer) {
            (Asked::Renew, Some(Answer::Renewed(map))) => {
                if map.epoch > client.map.epoch {
                    client.map = map;
                }
            }
            (Asked::Open, Some(Answer::Segment { segment, devices, data })) => {
                let width = Width::new(data, PARITY).expect("it was chosen");
                client.segments.insert(segment, devices.clone());
                client.writer.opened(SegmentRight { segment, width, devices });
            }
            (Asked::Open, _) => client.writer.open_failed(),
            (Asked::Append { segment, component }, Some(Answer::Done)) => {
                client.writer.appended(segment, component)
            }
            (Asked::Append { segment, component }, answer) => {
                if matches!(answer, Some(Answer::Epoch)) {
                    client.renewed = 0;
                }
                client.writer.append_failed(segment, component);
            }
            (Asked::Insert { insertion, device, epoch }, Some(Answer::Done)) => {
                let inserting = client.inserting.get_mut(&insertion);
                let step = inserting.map(|inserting| inserting.machine.acknowledged(device, epoch));
                if step == Some(Step::Done) {
                    self.inserted(number, insertion);
                }
            }
            (Asked::Insert { insertion, .. }, Some(Answer::Stale(newer))) => {
                self.stamp_anew(number, insertion, newer)
            }
            (Asked::Insert { .. }, _) => client.renewed = 0,
            (Asked::Find { name, known }, answer) => {
                client.busy.remove(&name);
                if let Some(Answer::Found(entry)) = answer {
                    let token = entry.and_then(|entry| entry.value).map(|value| value.token);
                    if !known.contains(&token) {
                        let what =
                            format!("seed {seed}: name {name} is {token:?}, but should be one of {known:?}");
                        self.violate("what was acknowledged is found", what);
                    }
                }
            }
            (Asked::Sealed | Asked::Renew, _) => {}
        }
        self.obey(number);
    }

    /// Another's clock is ahead: the entries get larger stamps.
    fn stamp_anew(&mut self, number: usize, insertion: u64, newer: u64) {
        let now = self.now;
        let client = self.client(number);
        client.last_stamp = client.last_stamp.max(newer);
        let Some(mut inserting) = client.inserting.remove(&insertion) else { return };
        for entry in &mut inserting.entries {
            entry.stamp = client.stamp(now);
        }
        self.insert_entries(number, inserting.entries, inserting.run);
    }

    /// Does what the writer wants.
    fn obey(&mut self, number: usize) {
        while let Some(command) = self.client(number).writer.poll_command() {
            let client = self.client(number);
            let (party, incarnation, epoch) = (client.party(), client.incarnation, client.map.epoch);
            match command {
                Command::Open { avoid } => {
                    let request = Request::Open { client: number, incarnation, avoid };
                    let id = self.ask(party, Party::Metadata, request, PATIENCE);
                    self.client(number).asked.insert(id, Asked::Open);
                }
                Command::Form { run, segment, place, items, .. } => {
                    client.runs.insert(run, (segment, place, items));
                }
                Command::Forget { run } => drop(client.runs.remove(&run)),
                Command::Append { segment, component, device, at, runs } => {
                    // The token of a run is that of its first item: all parts of one run carry the same.
                    let parts =
                        runs.iter().filter_map(|run| client.runs.get(run)).map(|(_, place, items)| {
                            (*place, client.items.get(&items[0]).map_or(0, |item| item.token))
                        });
                    let parts: Vec<(Run, u64)> = parts.collect();
                    let request = Request::Append { segment, at, parts, fence: 0, epoch };
                    let id = self.ask(party, Party::Device(device.0), request, PATIENCE);
                    self.client(number).asked.insert(id, Asked::Append { segment, component });
                }
                Command::Insert { run } => {
                    let (segment, place, items) = &client.runs[&run];
                    let entry = |item: &ItemId| {
                        let item = client.items[item];
                        let value = Value { segment: *segment, run: *place, token: item.token };
                        Entry { name: item.name, stamp: item.stamp, value: Some(value) }
                    };
                    let entries = items.iter().map(entry).collect();
                    self.insert_entries(number, entries, Some(run));
                }
                Command::Seal { segment, length } => {
                    let devices = client.segments.remove(&segment).unwrap_or_default();
                    for device in devices {
                        self.ask(party, Party::Device(device.0), Request::Seal { segment, length }, PATIENCE);
                    }
                    let request = Request::Sealed { segment, length };
                    let id = self.ask(party, Party::Metadata, request, PATIENCE);
                    self.client(number).asked.insert(id, Asked::Sealed);
                }
            }
        }
    }
}
