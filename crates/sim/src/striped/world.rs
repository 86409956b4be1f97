//! One run: clients and devices at the ends of a network, and what they send each other.

use std::collections::BTreeSet;
use std::ops::Range;

use base::{Duration, Instant};
use proto::cluster::{
    Command, DIRECTORY_HEADER_BYTES, DeviceId, ItemId, Piece, Reading, RunId, RunKey, SegmentRight,
    UNIT_BYTES,
};

use super::client::{AppendId, Client, Coming, FetchId, Formed};
use super::device::{Did, Disk};
use super::layout::{Catalog, Content, Part, parts};
use super::wiring::{on_wire, wire};
use super::{Striped, StripedOutcome, Work};
use crate::fabric::{Flows, Place, Target};

/// Time of a device to take a command, as in `cloud`.
const SERVE: Duration = Duration::from_micros(300);
/// Time until something is durable that was written.
const FLUSH: Duration = Duration::from_millis(5);
/// Time of the metadata service to open a segment.
const OPEN: Duration = Duration::from_millis(10);
/// Bytes of a command and of an answer without content: headers, a capability, an entry.
const WORD_BYTES: u64 = 512;

/// What a device is told to do.
#[derive(Debug, Clone, Copy)]
enum Errand {
    /// To tell the entry of a content.
    Find { client: usize, content: usize },
    /// To send a part of a component.
    Send { fetch: FetchId, part: usize },
    /// To keep the entries of a run.
    Keep { client: usize, writer: usize, run: RunId },
    /// To make an append durable, all of which is written.
    Flush { append: AppendId },
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Start {
        client: usize,
    },
    /// A command is at a device.
    Command {
        device: usize,
        errand: Errand,
    },
    /// The device has taken it.
    Serve {
        device: usize,
        errand: Errand,
    },
    DiskDone {
        device: usize,
    },
    /// Bytes of an append are at its device.
    Bytes {
        append: AppendId,
        bytes: u64,
    },
    Found {
        client: usize,
        content: usize,
    },
    /// Bytes of a part are at the client.
    Sent {
        fetch: FetchId,
        bytes: u64,
    },
    Opened {
        client: usize,
        writer: usize,
    },
    LinkFree {
        client: usize,
    },
    Durable {
        append: AppendId,
    },
    Kept {
        client: usize,
        writer: usize,
        run: RunId,
    },
}

struct Fetch {
    client: usize,
    segment: u64,
    parts: Vec<Part>,
    missing: u64,
    of: What,
}

/// What is fetched.
#[derive(Debug, Clone, Copy)]
enum What {
    Content,
    /// The whole run of a piece, to be kept.
    Run(Piece),
    /// The beginning of this run, which tells its length.
    Head(Piece),
}

struct Append {
    client: usize,
    writer: usize,
    segment: u64,
    component: u8,
    device: usize,
    /// Bytes that are not written.
    left: u64,
}

/// The state of a run.
pub(super) struct World<'a> {
    setting: &'a Striped,
    catalog: Catalog,
    flows: Flows<Event>,
    clients: Vec<Client>,
    client_places: Vec<Place>,
    disks: Vec<Disk<FetchId, AppendId>>,
    device_places: Vec<Place>,
    /// Bytes of components that each device has sent.
    sent: Vec<u64>,
    fetches: Vec<Fetch>,
    appends: Vec<Append>,
    /// Clients that have not done their work.
    busy: usize,
}

impl<'a> World<'a> {
    pub(super) fn new(setting: &'a Striped) -> Self {
        let mut catalog = Catalog::new(setting.devices, setting.width, setting.seed);
        let visit = setting.component_bytes;
        let contents: Vec<_> = (0..setting.clients).map(|client| contents(setting, client)).collect();
        match &setting.work {
            Work::Read => contents.iter().for_each(|contents| catalog.fill(contents, visit)),
            Work::Write => {}
            Work::Boot(image) => catalog.fill(&image.contents, visit),
        }
        let clients: Vec<_> = contents.into_iter().map(|contents| Client::new(contents, visit)).collect();
        let (topology, device_places, client_places) = wire(setting);
        let disk = || Disk::new(setting.disk_bytes_per_second);
        Self {
            setting,
            catalog,
            flows: Flows::new(topology),
            busy: clients.len(),
            clients,
            client_places,
            disks: device_places.iter().map(|_| disk()).collect(),
            sent: vec![0; device_places.len()],
            device_places,
            fetches: Vec::new(),
            appends: Vec::new(),
        }
    }

    pub(super) fn run(mut self) -> StripedOutcome {
        for client in 0..self.clients.len() {
            self.flows.schedule(Instant::ZERO, self.client_places[client], Event::Start { client });
        }
        while self.busy > 0 {
            let (_, event) = self.flows.advance().expect("nothing waits for ever");
            self.happen(event);
        }
        let ended = self.clients.iter().map(|client| client.ended.expect("nothing fails"));
        let contents = self.clients.iter().flat_map(|client| &client.contents);
        StripedOutcome {
            ended: ended.map(|ended| ended.since(Instant::ZERO)).collect(),
            content_bytes: contents.map(|content| content.bytes).sum(),
            sent_bytes: self.sent.iter().sum(),
            most_sent_bytes: self.sent.iter().copied().max().unwrap_or(0),
        }
    }

    fn happen(&mut self, event: Event) {
        let now = self.flows.now();
        match event {
            Event::Start { client } => self.go_on(client),
            Event::Command { device, errand } => {
                let takes = if matches!(errand, Errand::Keep { .. }) { SERVE + FLUSH } else { SERVE };
                let serve = Event::Serve { device, errand };
                self.flows.schedule(now + takes, self.device_places[device], serve);
            }
            Event::Serve { device, errand } => self.serve(device, errand),
            Event::DiskDone { device } => {
                let did = self.disks[device].done();
                self.did(device, did);
                self.turn_disk(device);
            }
            Event::Bytes { append, bytes } => {
                let device = self.appends[append].device;
                self.disks[device].write(append, bytes);
                self.turn_disk(device);
            }
            Event::Found { client, content } => {
                self.read(client, content);
                self.go_on(client);
            }
            Event::Sent { fetch, bytes } => self.sent(fetch, bytes),
            Event::Opened { client, writer } => {
                let right = self.catalog.open(&[]);
                self.opened(client, writer, right);
            }
            Event::LinkFree { client } => {
                self.clients[client].is_sending = false;
                self.fill_link(client);
            }
            Event::Durable { append } => {
                let Append { client, writer, segment, component, .. } = self.appends[append];
                self.clients[client].writers.all[writer].appended(segment, component);
                self.obey(client, writer);
            }
            Event::Kept { client, writer, run } => self.kept(client, writer, run),
        }
    }

    /// A client begins with as many contents as it may.
    fn go_on(&mut self, client: usize) {
        while let Some(content) = self.clients[client].begin(self.setting.at_once) {
            let state = &mut self.clients[client];
            if matches!(self.setting.work, Work::Write) {
                let writer = state.writers.submit(ItemId(content as u64), &state.contents[content]);
                self.obey(client, writer);
                continue;
            }
            let name = &state.contents[content].name;
            let piece = self.catalog.piece(name);
            // The directories of runs that are kept tell what is in them.
            if state.here.contains(&(piece.segment, piece.run.at)) {
                self.read(client, content);
            } else {
                let holder = self.catalog.holder(name);
                self.tell(client, holder, Errand::Find { client, content });
            }
        }
    }

    /// A client sends a command to a device.
    fn tell(&mut self, client: usize, device: DeviceId, errand: Errand) {
        let device = index(device);
        let to = Target::One(self.device_places[device]);
        let command = Event::Command { device, errand };
        self.flows.send(self.client_places[client], to, on_wire(WORD_BYTES), command);
    }

    /// A device sends to a client.
    fn answer(&mut self, device: usize, client: usize, bytes: u64, event: Event) {
        let to = Target::One(self.client_places[client]);
        self.flows.send(self.device_places[device], to, on_wire(bytes), event);
    }

    fn serve(&mut self, device: usize, errand: Errand) {
        match errand {
            Errand::Find { client, content } => {
                self.answer(device, client, WORD_BYTES, Event::Found { client, content });
            }
            Errand::Send { fetch, part } => {
                let Fetch { segment, parts, .. } = &self.fetches[fetch];
                self.disks[device].read(fetch, *segment, parts[part].1.clone());
                self.turn_disk(device);
            }
            Errand::Keep { client, writer, run } => {
                self.answer(device, client, WORD_BYTES, Event::Kept { client, writer, run });
            }
            Errand::Flush { append } => {
                let client = self.appends[append].client;
                self.answer(device, client, WORD_BYTES, Event::Durable { append });
            }
        }
    }

    fn turn_disk(&mut self, device: usize) {
        let mut did = Vec::new();
        if let Some(busy) = self.disks[device].begin(&mut did) {
            let done = Event::DiskDone { device };
            self.flows.schedule(self.flows.now() + busy, self.device_places[device], done);
        }
        did.into_iter().for_each(|did| self.did(device, did));
    }

    fn did(&mut self, device: usize, did: Did<FetchId, AppendId>) {
        match did {
            Did::Read(fetch, bytes) => {
                self.sent[device] += bytes;
                self.answer(device, self.fetches[fetch].client, bytes, Event::Sent { fetch, bytes });
            }
            Did::Wrote(append, bytes) => {
                let left = &mut self.appends[append].left;
                *left -= bytes;
                if *left == 0 {
                    let flush = Event::Serve { device, errand: Errand::Flush { append } };
                    self.flows.schedule(self.flows.now() + FLUSH, self.device_places[device], flush);
                }
            }
        }
    }

    /// A client knows where a content lies.
    fn read(&mut self, client: usize, content: usize) {
        let state = &mut self.clients[client];
        let Content { name, bytes } = &state.contents[content];
        let piece = self.catalog.piece(name);
        let (from, key) = (u64::from(piece.offset), (piece.segment, piece.run.at));
        match state.kept.read(&piece) {
            Reading::Alone => {
                let range = from..from + bytes;
                self.fetch(client, &piece, range, What::Content);
            }
            Reading::Kept { ahead } => match state.coming.get_mut(&key) {
                Some(coming) => {
                    *coming = Coming { contents: coming.contents + 1, ahead: coming.ahead || ahead };
                }
                None => {
                    self.finish(client);
                    self.fetch_ahead(client, &piece, ahead);
                }
            },
            Reading::Whole { dropped, ahead } => {
                self.fetch_run(client, &piece, &dropped, Coming { contents: 1, ahead });
            }
        }
    }

    /// Fetches a run whole.
    fn fetch_run(&mut self, client: usize, piece: &Piece, dropped: &[RunKey], coming: Coming) {
        let state = &mut self.clients[client];
        dropped.iter().for_each(|old| {
            state.here.remove(old);
        });
        state.coming.insert((piece.segment, piece.run.at), coming);
        self.fetch(client, piece, 0..piece.run.content_bytes(piece.width), What::Run(*piece));
    }

    fn fetch(&mut self, client: usize, piece: &Piece, range: Range<u64>, of: What) {
        let parts = parts(piece, range);
        let missing = parts.iter().map(|(_, range)| range.end - range.start).sum();
        self.clients[client].turns.want(self.fetches.len(), parts.len());
        self.fetches.push(Fetch { client, segment: piece.segment, parts, missing, of });
        self.take_turns(client);
    }

    fn take_turns(&mut self, client: usize) {
        while let Some(fetch) = self.clients[client].turns.next() {
            for part in 0..self.fetches[fetch].parts.len() {
                let Fetch { segment, parts, .. } = &self.fetches[fetch];
                let device = self.catalog.device(*segment, parts[part].0);
                self.tell(client, device, Errand::Send { fetch, part });
            }
        }
    }

    fn sent(&mut self, fetch: FetchId, bytes: u64) {
        let Fetch { client, parts, missing, of, .. } = &mut self.fetches[fetch];
        *missing -= bytes;
        if *missing > 0 {
            return;
        }
        let (client, components, of) = (*client, parts.len(), *of);
        let state = &mut self.clients[client];
        state.turns.end(components);
        match of {
            What::Content => self.finish(client),
            What::Run(piece) => self.run_is_here(client, &piece),
            What::Head(next) => {
                if let Some(dropped) = state.kept.fetch_ahead(next.segment, next.run, next.width) {
                    self.fetch_run(client, &next, &dropped, Coming { contents: 0, ahead: false });
                }
            }
        }
        self.take_turns(client);
        self.go_on(client);
    }

    /// A run came whole.
    fn run_is_here(&mut self, client: usize, piece: &Piece) {
        let (state, key) = (&mut self.clients[client], (piece.segment, piece.run.at));
        let coming = state.coming.remove(&key).expect("it was being fetched");
        if state.kept.has(key) {
            state.here.insert(key);
        }
        (0..coming.contents).for_each(|_| self.finish(client));
        self.fetch_ahead(client, piece, coming.ahead);
    }

    /// Fetches the run behind one that was read, if that is wanted.
    fn fetch_ahead(&mut self, client: usize, piece: &Piece, is_wanted: bool) {
        let has = |next: &Piece| self.clients[client].kept.has((next.segment, next.run.at));
        let next = self.catalog.next_run(piece).filter(|next| is_wanted && !has(next));
        if let Some(next) = next {
            self.fetch(client, &next, 0..DIRECTORY_HEADER_BYTES as u64, What::Head(next));
        }
    }

    /// A client has read or stored a content.
    fn finish(&mut self, client: usize) {
        self.clients[client].finish(self.flows.now());
        self.busy -= usize::from(self.clients[client].ended.is_some());
    }

    fn opened(&mut self, client: usize, writer: usize, right: SegmentRight) {
        self.clients[client].writers.all[writer].opened(right);
        self.obey(client, writer);
    }

    /// Does what a writer wants.
    fn obey(&mut self, client: usize, writer: usize) {
        while let Some(command) = self.clients[client].writers.all[writer].poll_command() {
            match command {
                Command::Open { .. } => {
                    let opened = Event::Opened { client, writer };
                    self.flows.schedule(self.flows.now() + OPEN, self.client_places[client], opened);
                }
                Command::Form { run, segment, place, width, items } => {
                    let formed = Formed { segment, place, width, items, holders: 0 };
                    self.clients[client].runs.insert((writer, run), formed);
                }
                Command::Append { segment, component, device, runs, .. } => {
                    let runs = runs.iter().map(|run| &self.clients[client].runs[&(writer, *run)]);
                    let left = runs.map(|run| u64::from(run.place.bytes)).sum();
                    self.clients[client].sends.push_back((self.appends.len(), left));
                    let device = index(device);
                    self.appends.push(Append { client, writer, segment, component, device, left });
                }
                Command::Insert { run } => self.insert(client, writer, run),
                Command::Forget { .. } => unreachable!("nothing fails"),
                Command::Seal { .. } => {}
            }
        }
        self.fill_link(client);
    }

    /// Sends the next unit of an append.
    fn fill_link(&mut self, client: usize) {
        let state = &mut self.clients[client];
        if state.is_sending {
            return;
        }
        let Some((append, left)) = state.sends.pop_front() else { return };
        let bytes = left.min(u64::from(UNIT_BYTES));
        if left > bytes {
            state.sends.push_back((append, left - bytes));
        }
        state.is_sending = true;
        let (from, to) = (self.client_places[client], self.device_places[self.appends[append].device]);
        let event = Event::Bytes { append, bytes };
        let free_at = self.flows.send(from, Target::One(to), on_wire(bytes), event);
        self.flows.schedule(free_at, from, Event::LinkFree { client });
    }

    /// A run is durable on all components: its entries go to their holders.
    fn insert(&mut self, client: usize, writer: usize, run: RunId) {
        let Client { runs, contents, .. } = &mut self.clients[client];
        let formed = runs.get_mut(&(writer, run)).expect("it was formed");
        let contents: Vec<_> = formed.items.iter().map(|item| contents[item.0 as usize].clone()).collect();
        self.catalog.insert(formed.segment, formed.place, formed.width, &contents);
        let holders: BTreeSet<_> =
            contents.iter().flat_map(|content| self.catalog.holders(&content.name)).collect();
        formed.holders = holders.len();
        holders
            .into_iter()
            .for_each(|holder| self.tell(client, holder, Errand::Keep { client, writer, run }));
    }

    /// A holder has the entries of a run.
    fn kept(&mut self, client: usize, writer: usize, run: RunId) {
        let state = &mut self.clients[client];
        let formed = state.runs.get_mut(&(writer, run)).expect("it waits for this");
        formed.holders -= 1;
        if formed.holders > 0 {
            return;
        }
        let formed = state.runs.remove(&(writer, run)).expect("it was there");
        state.writers.all[writer].inserted(run);
        formed.items.iter().for_each(|_| self.finish(client));
        self.obey(client, writer);
        self.go_on(client);
    }
}

/// What a client reads or writes.
fn contents(setting: &Striped, client: u32) -> Vec<Content> {
    let content =
        |number| Content { name: format!("client-{client}/{number}"), bytes: setting.content_bytes };
    match &setting.work {
        Work::Boot(image) => image.boot.iter().map(|&content| image.contents[content].clone()).collect(),
        Work::Read | Work::Write => (0..setting.contents).map(content).collect(),
    }
}

/// Devices are numbered from 1.
fn index(device: DeviceId) -> usize {
    device.0 as usize - 1
}
