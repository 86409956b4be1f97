//! One run: clients and devices at the ends of a network, and what they send each other.

use std::collections::BTreeSet;

use base::{Duration, Instant};
use proto::cluster::{Command, DeviceId, ItemId, RunId, SegmentRight, UNIT_BYTES};

use super::client::{AppendId, Client, FetchId, Formed};
use super::device::{Did, Disk};
use super::layout::{Catalog, Content, Part, parts};
use super::{Striped, StripedOutcome, Wiring, Work};
use crate::fabric::{Flows, Line, Place, Target, Topology};

/// Time of a device to take a command, as in `cloud`.
const SERVE: Duration = Duration::from_micros(300);
/// Time until something is durable that was written.
const FLUSH: Duration = Duration::from_millis(5);
/// Time of the metadata service to open a segment.
const OPEN: Duration = Duration::from_millis(10);
/// Bytes of a command and of an answer without content: headers, a capability, an entry.
const WORD_BYTES: u64 = 512;
/// Delay of a link: 0.2 ms there and back through one switch.
const DELAY: Duration = Duration::from_micros(50);
/// Payload of a full frame, and its size on the wire: TCP over IPv4 with the gap between frames.
const PAYLOAD_BYTES: u64 = 1448;
const FRAME_BYTES: u64 = 1538;
/// Devices of a shelf, and links that they share; a shelf's switch has as many to the other switches.
const SHELF: u32 = 10;
const TRUNK: u64 = 4;

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
    fetches: Vec<Fetch>,
    appends: Vec<Append>,
}

impl<'a> World<'a> {
    pub(super) fn new(setting: &'a Striped) -> Self {
        let mut catalog = Catalog::new(setting.devices, setting.width, setting.seed);
        let contents = |client| -> Vec<Content> {
            let name = |number| format!("client-{client}/{number}");
            (0..setting.contents)
                .map(|number| Content { name: name(number), bytes: setting.content_bytes })
                .collect()
        };
        let clients: Vec<_> = (0..setting.clients).map(|client| Client::new(contents(client))).collect();
        if setting.work == Work::Read {
            clients.iter().for_each(|client| catalog.fill(&client.contents));
        }
        let (topology, device_places, client_places) = wire(setting);
        let disk = || Disk::new(setting.disk_bytes_per_second);
        Self {
            setting,
            catalog,
            flows: Flows::new(topology),
            clients,
            client_places,
            disks: device_places.iter().map(|_| disk()).collect(),
            device_places,
            fetches: Vec::new(),
            appends: Vec::new(),
        }
    }

    pub(super) fn run(mut self) -> StripedOutcome {
        for client in 0..self.clients.len() {
            self.flows.schedule(Instant::ZERO, self.client_places[client], Event::Start { client });
        }
        while let Some((_, event)) = self.flows.advance() {
            self.happen(event);
        }
        let ended = self.clients.iter().map(|client| client.ended.expect("nothing fails"));
        let contents = self.clients.iter().flat_map(|client| &client.contents);
        StripedOutcome {
            ended: ended.map(|ended| ended.since(Instant::ZERO)).collect(),
            content_bytes: contents.map(|content| content.bytes).sum(),
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
            Event::Found { client, content } => self.fetch(client, content),
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
                self.clients[client].writers[writer].appended(segment, component);
                self.obey(client, writer);
            }
            Event::Kept { client, writer, run } => self.kept(client, writer, run),
        }
    }

    /// A client begins with as many contents as it may.
    fn go_on(&mut self, client: usize) {
        while let Some(content) = self.clients[client].begin(self.setting.at_once) {
            let Content { name, bytes } = self.clients[client].contents[content].clone();
            match self.setting.work {
                Work::Read => {
                    let holder = self.catalog.holder(&name);
                    self.tell(client, holder, Errand::Find { client, content });
                }
                Work::Write => {
                    let writers = &mut self.clients[client].writers;
                    let writer = content % writers.len();
                    writers[writer].submit(ItemId(content as u64), bytes, name.len());
                    self.obey(client, writer);
                }
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
    fn fetch(&mut self, client: usize, content: usize) {
        let Content { name, bytes } = &self.clients[client].contents[content];
        let piece = self.catalog.piece(name);
        let from = u64::from(piece.offset);
        let parts = parts(&piece, from..from + bytes);
        let missing = parts.iter().map(|(_, range)| range.end - range.start).sum();
        self.clients[client].turns.want(self.fetches.len(), parts.len());
        self.fetches.push(Fetch { client, segment: piece.segment, parts, missing });
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
        let Fetch { client, parts, missing, .. } = &mut self.fetches[fetch];
        *missing -= bytes;
        if *missing > 0 {
            return;
        }
        let (client, components) = (*client, parts.len());
        self.clients[client].turns.end(components);
        self.clients[client].finish(self.flows.now());
        self.take_turns(client);
        self.go_on(client);
    }

    fn opened(&mut self, client: usize, writer: usize, right: SegmentRight) {
        self.clients[client].writers[writer].opened(right);
        self.obey(client, writer);
    }

    /// Does what a writer wants.
    fn obey(&mut self, client: usize, writer: usize) {
        while let Some(command) = self.clients[client].writers[writer].poll_command() {
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
        state.writers[writer].inserted(run);
        formed.items.iter().for_each(|_| state.finish(self.flows.now()));
        self.obey(client, writer);
        self.go_on(client);
    }
}

/// Devices are numbered from 1.
fn index(device: DeviceId) -> usize {
    device.0 as usize - 1
}

/// Bytes with the headers of their frames.
fn on_wire(bytes: u64) -> u64 {
    bytes + bytes.div_ceil(PAYLOAD_BYTES) * (FRAME_BYTES - PAYLOAD_BYTES)
}

/// The network, with the places of devices and clients.
fn wire(setting: &Striped) -> (Topology, Vec<Place>, Vec<Place>) {
    let line = |links| Line::new(setting.link_bits_per_second * links, DELAY, 0);
    let mut topology = Topology::new();
    let (mut shelves, mut switches) = (Vec::new(), Vec::new());
    for _ in 0..setting.devices.div_ceil(SHELF) {
        let (switch, shelf) = match setting.wiring {
            Wiring::Switch => (Topology::top(), Topology::top()),
            Wiring::Shelves => {
                let switch = topology.add_switch(Topology::top(), line(TRUNK), line(TRUNK));
                (switch, topology.add_switch(switch, line(TRUNK), line(TRUNK)))
            }
        };
        switches.push(switch);
        shelves.push(shelf);
    }
    let devices = (0..setting.devices)
        .map(|device| topology.add_host(shelves[(device / SHELF) as usize], line(1), line(1)))
        .collect();
    let clients = (0..setting.clients)
        .map(|client| topology.add_host(switches[client as usize % switches.len()], line(1), line(1)))
        .collect();
    (topology, devices, clients)
}
