//! The clock, the queue of events and the network of a simulated cluster, and its faults.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use base::Chance;
use proto::cluster::{DeviceId, Map, Run, Version};

use super::ClusterOutcome;
use super::client::Client;
use super::device::Device;
use super::metadata::Metadata;
use crate::Violation;

/// Milliseconds of virtual time.
pub(super) type Time = u64;

pub(super) const DEVICES: u32 = 8;
pub(super) const DATA: u8 = 3;
pub(super) const PARITY: u8 = 2;
pub(super) const CLIENTS: usize = 2;
/// Slots that names of the simulation fall into: few, so that each sees much.
pub(super) const SLOTS: usize = 4;
/// The lease of devices; clients have three times as long.
pub(super) const LEASE: Time = 3000;
/// How long capabilities last: longer than the lease of a client.
pub(super) const LIFETIME: Time = 14_000;
/// How long the faults go on.
const TROUBLE: Time = 60_000;
/// Longest time that everything may take to settle after them.
const CALM: Time = 120_000;

/// Who sends or receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Party {
    Client(usize),
    Device(u32),
    Metadata,
}

/// Where a content lies, and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) segment: u64,
    pub(super) run: Run,
    pub(super) token: u64,
}

/// An entry of the index: its name, its stamp, and the value, or none for a tombstone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: u32,
    pub(super) stamp: u64,
    pub(super) moves: u32,
    pub(super) value: Option<Value>,
}

impl Entry {
    /// Which of two entries is newer.
    pub(super) fn version(&self) -> Version {
        Version { stamp: self.stamp, moves: self.moves }
    }
}

/// What is asked.
#[derive(Debug, Clone)]
pub(super) enum Request {
    Append { segment: u64, at: u64, parts: Vec<(Run, u64)>, fence: u32, epoch: u64, expires: Time },
    Insert { entries: Vec<Entry>, epoch: u64, expires: Time },
    Find { name: u32, epoch: u64, expires: Time },
    Replace { old: Option<Entry>, new: Entry, epoch: u64, expires: Time },
    Copy { slots: Vec<usize>, epoch: u64 },
    Fence { segment: u64, fence: u32 },
    Seal { segment: u64, length: u64 },
    Heartbeat { device: u32, ready: Vec<(usize, u64)>, sent: Time },
    Join { client: usize, incarnation: u64 },
    Renew { client: usize, incarnation: u64 },
    Open { client: usize, incarnation: u64, avoid: Vec<DeviceId> },
    Sealed { segment: u64, length: u64, client: usize, incarnation: u64 },
    Emptied { segment: u64, client: usize, incarnation: u64 },
    Free { segment: u64 },
}

/// What is answered.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Done,
    /// It was not done.
    Refused,
    /// The sender's map is old, or the device's.
    Epoch,
    /// An entry with a larger stamp is there.
    Stale(u64),
    Found(Option<Entry>),
    Copied(Vec<Entry>),
    Length(u64),
    Pulse {
        map: Map,
        sent: Time,
    },
    Renewed {
        map: Map,
        expires: Time,
        incarnation: u64,
    },
    /// The lease of the client with this number has ended.
    Gone(u64),
    Segment {
        opened_as: u64,
        segment: u64,
        devices: Vec<DeviceId>,
        data: u8,
    },
}

/// What happens.
#[derive(Debug, Clone)]
pub(super) enum Event {
    Ask {
        id: u64,
        from: Party,
        to: Party,
        request: Request,
    },
    Reply {
        id: u64,
        to: Party,
        answer: Answer,
    },
    /// The sender of a request waits no longer.
    Timeout {
        id: u64,
        from: Party,
    },
    /// A device makes durable what it has; `life` tells the start that it belongs to.
    Commit {
        device: u32,
        life: u64,
    },
    /// Somebody reads what it found before.
    Read {
        name: u32,
        value: Value,
    },
    /// A part does what is due.
    Tick(Party),
    Fault,
}

/// All parts.
pub(super) struct World {
    pub(super) seed: u64,
    pub(super) chance: Chance,
    pub(super) now: Time,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    events: std::collections::HashMap<u64, Event>,
    next_event: u64,
    next_request: u64,
    pub(super) devices: Vec<Device>,
    pub(super) metadata: Metadata,
    /// The clients, and behind them the compactor.
    pub(super) clients: Vec<Client>,
    /// The names that lie in each segment.
    pub(super) directories: BTreeMap<u64, BTreeSet<u32>>,
    pub(super) troubled: bool,
    erased: u32,
    pub(super) violations: Vec<Violation>,
    trace: u64,
    steps: u64,
    pub(super) stored: u64,
    pub(super) taken: u64,
    pub(super) freed: u64,
    pub(super) next_token: u64,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut chance = Chance::from_seed(seed);
        let metadata = Metadata::new(&mut chance);
        let map = metadata.map.clone();
        let mut world = Self {
            seed,
            now: 0,
            queue: BinaryHeap::new(),
            events: std::collections::HashMap::new(),
            next_event: 0,
            next_request: 0,
            devices: (1..=DEVICES).map(|number| Device::new(number, map.clone())).collect(),
            metadata,
            directories: BTreeMap::new(),
            clients: (0..=CLIENTS).map(|number| Client::new(number, map.clone())).collect(),
            troubled: true,
            erased: 0,
            violations: Vec::new(),
            trace: 0,
            steps: 0,
            stored: 0,
            taken: 0,
            freed: 0,
            next_token: 0,
            chance,
        };
        for device in 1..=DEVICES {
            world.at(0, Event::Tick(Party::Device(device)));
        }
        for client in 0..=CLIENTS {
            world.at(10, Event::Tick(Party::Client(client)));
        }
        world.at(LEASE / 4, Event::Tick(Party::Metadata));
        world.at(500, Event::Fault);
        world
    }

    pub(super) fn at(&mut self, time: Time, event: Event) {
        self.next_event += 1;
        self.events.insert(self.next_event, event);
        self.queue.push(Reverse((time, self.next_event)));
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.chance.below(bound)
    }

    /// Sends a request; returns its number. `patience`: when the sender gives up.
    pub(super) fn ask(&mut self, from: Party, to: Party, request: Request, patience: Time) -> u64 {
        self.next_request += 1;
        let id = self.next_request;
        self.at(self.now + patience, Event::Timeout { id, from });
        for _ in 0..self.copies() {
            let delay = self.delay();
            self.at(self.now + delay, Event::Ask { id, from, to, request: request.clone() });
        }
        id
    }

    pub(super) fn reply(&mut self, id: u64, to: Party, answer: Answer) {
        for _ in 0..self.copies() {
            let delay = self.delay();
            self.at(self.now + delay, Event::Reply { id, to, answer: answer.clone() });
        }
    }

    /// How often a message arrives.
    fn copies(&mut self) -> u64 {
        match (self.troubled, self.below(100)) {
            (true, 0..2) => 0,
            (true, 2..4) => 2,
            _ => 1,
        }
    }

    fn delay(&mut self) -> Time {
        match (self.troubled, self.below(50)) {
            // Some take very long.
            (true, 0) => 200 + self.below(4000),
            _ => 1 + self.below(20),
        }
    }

    pub(super) fn violate(&mut self, rule: &'static str, what: String) {
        if self.violations.len() < 5 {
            self.violations.push(Violation { rule, what: format!("after {} ms: {what}", self.now) });
        }
    }

    /// The time of trouble.
    pub(super) fn play(&mut self) {
        while self.now < TROUBLE {
            self.step();
        }
    }

    /// Everything that was not erased comes back, the network is calm, and all settles.
    pub(super) fn settle(&mut self) {
        self.troubled = false;
        for number in 1..=DEVICES {
            if !self.devices[number as usize - 1].erased {
                self.start(number);
            }
        }
        self.metadata.away_until = 0;
        self.clients.iter_mut().for_each(Client::stop_making);
        let end = self.now + CALM;
        while self.now < end && !self.is_settled() {
            self.step();
        }
        if !self.is_settled() {
            self.violate(
                "it settles",
                "parts still copy, or contents wait, long after the last fault".to_owned(),
            );
        }
    }

    fn is_settled(&self) -> bool {
        let holders = self.metadata.map.slots[..SLOTS].iter();
        let ready = |holders: &Vec<proto::cluster::Holder>| {
            let taking = holders.iter().filter(|holder| holder.takes_entries());
            taking.clone().count() > usize::from(PARITY) && taking.clone().all(|holder| holder.is_ready())
        };
        let current = |device: &Device| device.erased || device.live.map.epoch == self.metadata.map.epoch;
        holders.clone().all(ready)
            && self.clients.iter().all(Client::is_idle)
            && self.devices.iter().all(current)
    }

    fn step(&mut self) {
        let Some(Reverse((time, number))) = self.queue.pop() else {
            self.now += 1000;
            return;
        };
        let event = self.events.remove(&number).expect("each event happens once");
        self.now = time;
        self.steps += 1;
        self.trace = self.trace.rotate_left(5) ^ time.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number;
        match event {
            Event::Ask { id, from, to: Party::Device(device), request } => {
                self.device_asked(device, id, from, request)
            }
            Event::Ask { id, from, to: Party::Metadata, request } => self.metadata_asked(id, from, request),
            Event::Ask { .. } => {}
            Event::Reply { id, to: Party::Device(device), answer } => self.device_told(device, id, answer),
            Event::Reply { id, to: Party::Client(client), answer } => {
                self.client_told(client, id, Some(answer))
            }
            Event::Reply { id, to: Party::Metadata, answer } => self.metadata_told(id, Some(answer)),
            Event::Timeout { id, from: Party::Client(client) } => self.client_told(client, id, None),
            Event::Timeout { id, from: Party::Metadata } => self.metadata_told(id, None),
            Event::Timeout { id, from: Party::Device(device) } => self.device_gives_up(device, id),
            Event::Commit { device, life } => self.commit(device, life),
            Event::Read { name, value } => self.read(name, value),
            Event::Tick(Party::Device(device)) => self.device_tick(device),
            Event::Tick(Party::Client(client)) => self.client_tick(client),
            Event::Tick(Party::Metadata) => self.metadata_tick(),
            Event::Fault => self.fault(),
        }
    }

    /// Something fails, or comes back.
    fn fault(&mut self) {
        if !self.troubled {
            return;
        }
        let device = u32::try_from(self.below(DEVICES.into())).expect("small") + 1;
        match self.below(12) {
            0..4 => self.crash(device),
            4..8 => self.start(device),
            8 if self.erased < u32::from(PARITY) && self.below(3) == 0 => {
                self.erased += u32::from(!self.devices[device as usize - 1].erased);
                self.erase(device);
            }
            9 => self.metadata_restarts(),
            10 => {
                let client = self.below(CLIENTS as u64 + 1) as usize;
                self.client_pauses(client);
            }
            _ => {
                let client = self.below(CLIENTS as u64 + 1) as usize;
                self.client_dies(client);
            }
        }
        // Now and then long enough for the index to be whole again.
        let pause = match self.below(8) {
            0 => 3000 + self.below(9000),
            _ => 200 + self.below(2500),
        };
        self.at(self.now + pause, Event::Fault);
    }

    /// Whoever found this may read it until its capability expires.
    pub(super) fn will_be_read(&mut self, entry: Option<Entry>) {
        let Some(Entry { name, value: Some(value), .. }) = entry else { return };
        let later = self.now + self.below(LIFETIME);
        self.at(later, Event::Read { name, value });
    }

    fn read(&mut self, name: u32, value: Value) {
        if !self.metadata.segments.contains_key(&value.segment) {
            let what = format!("name {name} was found in segment {}, which is gone", value.segment);
            self.violate("what was found can be read", what);
        }
    }

    pub(super) fn outcome(self) -> ClusterOutcome {
        ClusterOutcome {
            violations: self.violations,
            trace: self.trace,
            steps: self.steps,
            stored: self.stored,
            taken: self.taken,
            freed: self.freed,
            epochs: self.metadata.map.epoch,
        }
    }
}

/// The slot of a name of the simulation.
pub(super) fn slot(name: u32) -> usize {
    name as usize % SLOTS
}
