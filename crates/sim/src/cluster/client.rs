//! Simulated clients: they store, overwrite, delete and look up names of their own, by the machines of `proto`, and
//! remember what they were told.

use std::collections::{BTreeMap, BTreeSet};

use proto::cluster::{
    Command, DeviceId, ItemId, Map, Run, RunId, SegmentRight, Step, Width, Writer, WriterSetting,
};

use super::compactor::{COMPACTOR, Compaction};
use super::inserting::Inserting;
use super::world::{Answer, CLIENTS, Entry, Event, LEASE, PARITY, Party, Request, Time, Value, World, slot};

/// Longest wait for an answer.
pub(super) const PATIENCE: Time = 1200;
/// Names of one client.
pub(super) const NAMES: u32 = 12;

/// What may be stored under a name: any of these tokens, or nothing.
pub(super) type Known = BTreeSet<Option<u64>>;

/// What an item is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    pub(super) name: u32,
    pub(super) token: u64,
    pub(super) stamp: u64,
}

/// What a request under way is about.
#[derive(Debug)]
pub(super) enum Asked {
    Join,
    Renew,
    Open,
    Append {
        segment: u64,
        component: u8,
    },
    Insert {
        insertion: u64,
        device: DeviceId,
        epoch: u64,
    },
    Find {
        name: u32,
        known: Known,
    },
    Sealed,
    /// What a holder has of the name that is compacted.
    Holder {
        device: DeviceId,
    },
    Emptied,
}

/// One client.
pub(super) struct Client {
    number: usize,
    /// Its number at the metadata service: another one after its end, and after its lease has ended.
    pub(super) incarnation: u64,
    joined: bool,
    /// When the capabilities that it has expire.
    pub(super) expires: Time,
    pub(super) map: Map,
    pub(super) writer: Writer,
    pub(super) items: BTreeMap<ItemId, Item>,
    pub(super) runs: BTreeMap<RunId, (u64, Run, Vec<ItemId>)>,
    /// The devices of its segments, and the numbers under which these were opened.
    segments: BTreeMap<u64, (Vec<DeviceId>, u64)>,
    /// Segments of which it does not know whether all entries are inserted.
    pub(super) doubted: BTreeSet<u64>,
    pub(super) inserting: BTreeMap<u64, Inserting>,
    pub(super) asked: BTreeMap<u64, Asked>,
    pub(super) compaction: Option<Compaction>,
    pub(super) next: u64,
    pub(super) last_stamp: u64,
    paused_until: Time,
    pub(super) renewed: Time,
    making: bool,
    /// Names with a change under way: others wait.
    pub(super) busy: BTreeSet<u32>,
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
            joined: false,
            expires: 0,
            map,
            writer: Writer::new(setting()),
            items: BTreeMap::new(),
            runs: BTreeMap::new(),
            segments: BTreeMap::new(),
            doubted: BTreeSet::new(),
            inserting: BTreeMap::new(),
            asked: BTreeMap::new(),
            compaction: None,
            next: 0,
            last_stamp: 0,
            paused_until: 0,
            renewed: 0,
            making: number < CLIENTS,
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

    pub(super) fn next_item(&mut self) -> ItemId {
        self.next += 1;
        ItemId(self.next)
    }

    /// The number under which a segment was opened.
    pub(super) fn opened_as(&self, segment: u64) -> u64 {
        self.segments.get(&segment).map_or(0, |(_, opened_as)| *opened_as)
    }

    /// What it stored for the compaction is not known to be used or not: it never says that these segments are sealed,
    /// and does not wait for their entries.
    pub(super) fn give_up_compaction(&mut self) {
        self.doubted.extend(self.segments.keys());
        for run in self.compaction.take().into_iter().flat_map(|compaction| compaction.runs) {
            self.writer.inserted(run);
        }
    }

    /// Its lease ended: it goes on under another number.
    fn lapsed(&mut self) {
        self.incarnation += 1;
        self.joined = false;
        self.renewed = 0;
    }

    /// The names of this client.
    pub(super) fn names(&self) -> impl Iterator<Item = u32> + use<> {
        let first = u32::try_from(self.number).expect("small") * NAMES;
        first..first + NAMES
    }

    pub(super) fn party(&self) -> Party {
        Party::Client(self.number)
    }

    pub(super) fn stamp(&mut self, now: Time) -> u64 {
        // The clocks of clients differ.
        let clock = (now + 700 * self.number as u64) << 10;
        self.last_stamp = clock.max((self.last_stamp | 0x3ff) + 1) | self.number as u64;
        self.last_stamp
    }

    pub(super) fn stored(&mut self, name: u32, token: Option<u64>) {
        self.busy.remove(&name);
        self.known.insert(name, Known::from([token]));
    }
}

impl World {
    pub(super) fn client(&mut self, number: usize) -> &mut Client {
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
        if number == COMPACTOR {
            known.clear();
        }
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
            let (request, asked) = match client.joined {
                true => (Request::Renew { client: number, incarnation }, Asked::Renew),
                false => (Request::Join { client: number, incarnation }, Asked::Join),
            };
            let id = self.ask(party, Party::Metadata, request, PATIENCE);
            self.client(number).asked.insert(id, asked);
        }
        if number == COMPACTOR {
            self.compaction_tick();
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
                let (stamp, item) = (client.stamp(now), client.next_item());
                client.items.insert(item, Item { name, token, stamp });
                client.busy.insert(name);
                client.writer.submit(item, bytes, 8);
            }
            5 => {
                let entry = Entry { name, stamp: client.stamp(now), moves: 0, value: None };
                client.busy.insert(name);
                self.insert_entries(number, vec![entry], None);
            }
            _ => self.look_up(number, name),
        }
    }

    fn look_up(&mut self, number: usize, name: u32) {
        let client = self.client(number);
        let (party, epoch, expires) = (client.party(), client.map.epoch, client.expires);
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
        let id = self.ask(party, Party::Device(device.0), Request::Find { name, epoch, expires }, PATIENCE);
        let client = self.client(number);
        // The name must not change meanwhile, or the answer proves nothing.
        client.busy.insert(name);
        client.asked.insert(id, Asked::Find { name, known });
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
            (Asked::Join | Asked::Renew, Some(Answer::Renewed { map, expires, incarnation }))
                if incarnation == client.incarnation =>
            {
                client.joined = true;
                client.expires = client.expires.max(expires);
                if map.epoch > client.map.epoch {
                    client.map = map;
                }
            }
            (Asked::Join | Asked::Renew, Some(Answer::Gone(incarnation)))
                if incarnation == client.incarnation =>
            {
                client.lapsed();
            }
            (Asked::Holder { device }, answer) => self.holder_told(id, device, answer),
            (Asked::Emptied, answer) => self.emptied_told(answer.as_ref()),
            (Asked::Open, Some(Answer::Segment { segment, devices, data, opened_as })) => {
                let width = Width::new(data, PARITY).expect("it was chosen");
                client.segments.insert(segment, (devices.clone(), opened_as));
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
                    self.will_be_read(entry);
                    let token = entry.and_then(|entry| entry.value).map(|value| value.token);
                    if !known.contains(&token) {
                        let what =
                            format!("seed {seed}: name {name} is {token:?}, but should be one of {known:?}");
                        self.violate("what was acknowledged is found", what);
                    }
                }
            }
            (Asked::Sealed | Asked::Renew | Asked::Join, _) => {}
        }
        self.obey(number);
    }

    /// Does what the writer wants.
    pub(super) fn obey(&mut self, number: usize) {
        while let Some(command) = self.client(number).writer.poll_command() {
            let client = self.client(number);
            let (party, incarnation, epoch) = (client.party(), client.incarnation, client.map.epoch);
            let expires = client.expires;
            match command {
                Command::Open { avoid } => {
                    let request = Request::Open { client: number, incarnation, avoid };
                    let id = self.ask(party, Party::Metadata, request, PATIENCE);
                    self.client(number).asked.insert(id, Asked::Open);
                }
                Command::Form { run, segment, place, items, .. } => {
                    let names: Vec<u32> = items.iter().map(|item| client.items[item].name).collect();
                    client.runs.insert(run, (segment, place, items));
                    self.directories.entry(segment).or_default().extend(names);
                }
                Command::Forget { run } => drop(client.runs.remove(&run)),
                Command::Append { segment, component, device, at, runs } => {
                    // The token of a run is that of its first item: all parts of one run carry the same.
                    let parts =
                        runs.iter().filter_map(|run| client.runs.get(run)).map(|(_, place, items)| {
                            (*place, client.items.get(&items[0]).map_or(0, |item| item.token))
                        });
                    let parts: Vec<(Run, u64)> = parts.collect();
                    let request = Request::Append { segment, at, parts, fence: 0, epoch, expires };
                    let id = self.ask(party, Party::Device(device.0), request, PATIENCE);
                    self.client(number).asked.insert(id, Asked::Append { segment, component });
                }
                Command::Insert { run } => {
                    let (segment, place, items) = &client.runs[&run];
                    if number == COMPACTOR {
                        let (segment, place, items) = (*segment, *place, items.clone());
                        self.copy_stored(run, segment, place, &items);
                        continue;
                    }
                    let opened_as = client.opened_as(*segment);
                    let entry = |item: &ItemId| {
                        let item = client.items[item];
                        let value = Value { segment: *segment, run: *place, token: item.token };
                        Entry { name: item.name, stamp: item.stamp, moves: 0, value: Some(value) }
                    };
                    let entries = items.iter().map(entry).collect();
                    self.insert_entries(number, entries, Some((run, opened_as)));
                }
                Command::Seal { segment, length } => {
                    let (devices, opened_as) = client.segments.remove(&segment).unwrap_or_default();
                    let is_doubted = client.doubted.remove(&segment);
                    for device in devices {
                        self.ask(party, Party::Device(device.0), Request::Seal { segment, length }, PATIENCE);
                    }
                    if is_doubted {
                        continue;
                    }
                    let request = Request::Sealed { segment, length, client: number, incarnation: opened_as };
                    let id = self.ask(party, Party::Metadata, request, PATIENCE);
                    self.client(number).asked.insert(id, Asked::Sealed);
                }
            }
        }
    }
}
