//! What is connected to what: devices and clients at switches, and what bytes take on a link.

use base::Duration;

use super::{Striped, Wiring};
use crate::fabric::{Line, Place, Topology};

/// Delay of a link: 0.2 ms there and back through one switch.
const DELAY: Duration = Duration::from_micros(50);
/// Payload of a full frame, and its size on the wire: TCP over IPv4 with the gap between frames.
const PAYLOAD_BYTES: u64 = 1448;
const FRAME_BYTES: u64 = 1538;
/// Devices of a shelf, and links that they share; a shelf's switch has as many to the other switches.
const SHELF: u32 = 10;
const TRUNK: u64 = 4;

/// Bytes with the headers of their frames.
pub(super) fn on_wire(bytes: u64) -> u64 {
    bytes + bytes.div_ceil(PAYLOAD_BYTES) * (FRAME_BYTES - PAYLOAD_BYTES)
}

/// The network, with the places of devices and clients.
pub(super) fn wire(setting: &Striped) -> (Topology, Vec<Place>, Vec<Place>) {
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
