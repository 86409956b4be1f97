//! The host of the server: its state machine, its memory for objects, and how it restarts.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Duration, Instant};
use proto::code::encode;
use proto::multicast::{
    BlockHeader, Downstream, Gathering, Key, MachineId, RateConfig, ReceiverId, Run, Server, ServerConfig,
    ServerEvent, SessionStatistics, Shape, Transmit, open_downstream, open_upstream, peek_receiver, seal,
};

use crate::receiver_host::Grant;
use crate::scenario::{OVERHEAD_BYTES, Scenario};
use crate::truth::Truth;

/// A receiver without a report for this time counts as gone.
pub(crate) const RECEIVER_TIMEOUT: Duration = Duration::from_secs(12);

/// A packet to the group, parsed once for all receivers.
#[derive(Debug)]
pub(crate) struct Sent {
    pub epoch: u32,
    pub bytes: Vec<u8>,
    pub packet: Packet,
}

/// The parsed content of a packet.
#[derive(Debug)]
pub(crate) enum Packet {
    Block(BlockHeader),
    Control(Downstream<'static>),
}

impl Sent {
    /// Parses a sealed packet; the payload of a block stays in `bytes`.
    pub(crate) fn new(key: &Key, shape: &Shape, bytes: Vec<u8>) -> Self {
        let packet = match open_downstream(key, shape, &bytes).expect("packets of the server can be opened") {
            Downstream::Block(header, _) => Packet::Block(header),
            Downstream::Status(status) => Packet::Control(Downstream::Status(status)),
            Downstream::Bye => Packet::Control(Downstream::Bye),
        };
        Self { epoch: shape.epoch, bytes, packet }
    }

    /// A block's payload.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[proto::multicast::BLOCK_HEADER_BYTES..self.bytes.len() - proto::multicast::TAG_BYTES]
    }
}

/// The group key of an epoch.
pub(crate) fn group_key(epoch: u32) -> Key {
    let mut key = [7; 16];
    key[..4].copy_from_slice(&epoch.to_le_bytes());
    Key(key)
}

/// The key of a receiver.
pub(crate) fn receiver_key(receiver: ReceiverId) -> Key {
    let mut key = [9; 16];
    key[..4].copy_from_slice(&receiver.0.to_le_bytes());
    Key(key)
}

/// The state of the server's host.
#[derive(Debug)]
pub(crate) struct ServerHost {
    /// `None` while it is down.
    pub machine: Option<Server>,
    pub shape: Shape,
    /// The earliest time for which its timer is set.
    pub timer: Option<Instant>,
    pub in_memory: BTreeSet<u64>,
    /// Nobody is in its session, as far as it knows: like the driver in `net`, it begins so.
    pub deserted: bool,
    cache_bytes: u64,
    rate: RateConfig,
    admitted: u32,
}

impl ServerHost {
    pub(crate) fn new(scenario: &Scenario, truth: &Truth) -> Self {
        let mut host = Self {
            machine: None,
            shape: truth.shape,
            timer: None,
            in_memory: BTreeSet::new(),
            deserted: true,
            cache_bytes: scenario.cache_bytes,
            rate: scenario.rate(),
            admitted: 0,
        };
        host.start(Instant::ZERO, truth);
        host
    }

    /// Starts under a new epoch.
    pub(crate) fn start(&mut self, now: Instant, truth: &Truth) {
        self.shape.epoch += 1;
        self.in_memory.clear();
        (self.timer, self.admitted, self.deserted) = (None, 0, true);
        self.machine = Some(Server::new(
            now,
            ServerConfig {
                shape: self.shape,
                object_bytes: Arc::clone(&truth.object_bytes),
                rate: self.rate,
                overhead_bytes: OVERHEAD_BYTES,
                signature_bytes: 0,
                run_blocks_max: 16,
                cache_bytes: self.cache_bytes,
                gathering: Gathering::default(),
                receiver_timeout: RECEIVER_TIMEOUT,
            },
        ));
    }

    /// Admits a receiver, which has asked over the control connection. The server must be up.
    pub(crate) fn admit(&mut self, now: Instant, receiver: ReceiverId) -> Grant {
        self.admitted += 1;
        self.machine.as_mut().expect("a server that grants is up").admit(
            now,
            receiver,
            MachineId(receiver.0),
        );
        Grant { shape: self.shape, receiver, receivers: self.admitted }
    }

    /// Handles a datagram of a receiver.
    pub(crate) fn receive(&mut self, now: Instant, datagram: &[u8]) {
        let Some(machine) = &mut self.machine else { return };
        let key = peek_receiver(datagram).map(receiver_key).unwrap_or(Key([0; 16]));
        match open_upstream(&key, &self.shape, datagram) {
            Ok(packet) => machine.handle_input(now, &packet),
            Err(why) => machine.handle_reject(why),
        }
    }

    /// The sealed packets for what the machine sends now.
    pub(crate) fn packets(&self, transmit: Transmit, truth: &Truth) -> Vec<Sent> {
        let key = group_key(self.shape.epoch);
        let sealed = |mut bytes: Vec<u8>| {
            seal(&key, &mut bytes);
            Sent::new(&key, &self.shape, bytes)
        };
        match transmit {
            Transmit::Control(bytes) => vec![sealed(bytes)],
            Transmit::Blocks(run) => {
                let payloads = self.payloads(run, truth);
                let headers = (0..run.count).map(|index| run.header(index).encode(&self.shape));
                headers
                    .zip(payloads)
                    .map(|(header, payload)| sealed([&header[..], &payload].concat()))
                    .collect()
            }
        }
    }

    /// The payloads of the blocks or symbols of a run.
    fn payloads(&self, run: Run, truth: &Truth) -> Vec<Vec<u8>> {
        let BlockHeader { object, object_bytes, .. } = run.first;
        let content = &truth.objects[object as usize];
        let Some(row) = run.first.symbol(&self.shape) else {
            let places = (0..run.count).map(|index| self.shape.place(object_bytes, run.header(index).block));
            return places.map(|(offset, len)| content[offset as usize..][..len.into()].to_vec()).collect();
        };
        let block_bytes = usize::from(self.shape.block_bytes);
        let mut symbols = vec![0; usize::from(run.count) * block_bytes];
        encode(content, block_bytes, row..row + run.count, &mut symbols);
        symbols.chunks(block_bytes).map(<[u8]>::to_vec).collect()
    }

    /// Handles all events of the machine, and returns the objects to load.
    pub(crate) fn events(&mut self) -> Vec<u64> {
        let mut loads = Vec::new();
        while let Some(event) = self.machine.as_mut().and_then(Server::poll_event) {
            match event {
                ServerEvent::Load(object) => loads.push(object),
                ServerEvent::Evict(object) => _ = self.in_memory.remove(&object),
                ServerEvent::Deserted => self.deserted = true,
                ServerEvent::Joined(_) => self.deserted = false,
                ServerEvent::Left(_) => {}
            }
        }
        loads
    }

    pub(crate) fn statistics(&self, now: Instant) -> Option<SessionStatistics> {
        self.machine.as_ref().map(|machine| machine.statistics(now))
    }
}
