//! The ports of a switch: the interfaces of a Linux bridge, asked over rtnetlink (a dump of `RTM_GETLINK`).

use std::io;

use base::{Error, ErrorKind, Result};
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use net::mac::Mac;

/// Most bytes of a part of an answer: the kernel fills pages, of 32 KiB at most.
const PART_BYTES: usize = 32 << 10;

/// Which ports an agent looks after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// All ports of the bridge of this name.
    Bridge(String),
    /// Interfaces of these names, which are ports of one bridge.
    Ports(Vec<String>),
}

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its index, from 1.
    pub index: u32,
}

/// A bridge with the ports that an agent looks after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bridge {
    pub(super) port: Port,
    pub(super) mac: Mac,
    /// In the order of their names.
    pub(super) ports: Vec<Port>,
}

struct Link {
    port: Port,
    mac: Option<Mac>,
    bridge: Option<u32>,
}

impl Bridge {
    /// Finds it in the network namespace of this thread. `NotFound` for names that do not exist, or are no ports of one
    /// bridge.
    pub(super) fn find(choice: &Choice) -> Result<Self> {
        let links =
            links().map_err(|error| Error::from_source(ErrorKind::Io, "list network interfaces", error))?;
        let missing = |what: String| Error::new(ErrorKind::NotFound, what);
        let named = |name: &str| {
            let found = links.iter().find(|link| link.port.name == name);
            found.ok_or_else(|| missing(format!("there is no interface `{name}`")))
        };
        let index = match choice {
            Choice::Bridge(name) => named(name)?.port.index,
            Choice::Ports(names) => {
                let bridges = names.iter().map(|name| Ok(named(name)?.bridge)).collect::<Result<Vec<_>>>()?;
                let first = bridges.first().copied().flatten();
                let one = first.filter(|_| bridges.iter().all(|bridge| *bridge == first));
                one.ok_or_else(|| missing(format!("{} are not ports of one bridge", names.join(", "))))?
            }
        };
        let is_chosen = |port: &Port| match choice {
            Choice::Bridge(_) => true,
            Choice::Ports(names) => names.contains(&port.name),
        };
        let below = links.iter().filter(|link| link.bridge == Some(index) && is_chosen(&link.port));
        let mut ports: Vec<Port> = below.map(|link| link.port.clone()).collect();
        ports.sort_by(|a, b| a.name.cmp(&b.name));
        let bridge = links.iter().find(|link| link.port.index == index && link.mac.is_some());
        let bridge =
            bridge.ok_or_else(|| missing("the bridge of these ports is in another namespace".into()))?;
        if ports.is_empty() {
            return Err(missing(format!("`{}` is not a bridge, or has no ports", bridge.port.name)));
        }
        Ok(Self { port: bridge.port.clone(), mac: bridge.mac.unwrap_or_default(), ports })
    }
}

fn links() -> io::Result<Vec<Link>> {
    let socket = Socket::new(NETLINK_ROUTE)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    // The kernel makes each part of its answer when it is read, so there is nothing to wait for.
    socket.set_non_blocking(true)?;
    let message = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let mut packet = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(message));
    packet.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    packet.finalize();
    let mut question = vec![0; packet.buffer_len()];
    packet.serialize(&mut question);
    socket.send(&question, 0)?;
    let (mut links, mut part) = (Vec::new(), vec![0; PART_BYTES]);
    loop {
        let length = socket.recv(&mut &mut part[..], 0)?;
        let mut rest = &part[..length];
        while !rest.is_empty() {
            let packet =
                NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
            match packet.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => links.push(of(&link)),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => return Ok(links),
            }
            rest = rest.get(packet.header.length.next_multiple_of(4) as usize..).unwrap_or_default();
        }
    }
}

fn of(link: &LinkMessage) -> Link {
    let mut found =
        Link { port: Port { name: String::new(), index: link.header.index }, mac: None, bridge: None };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => found.port.name.clone_from(name),
            LinkAttribute::Address(address) => found.mac = address.first_chunk().copied().map(Mac),
            LinkAttribute::Controller(index) => found.bridge = Some(*index),
            _ => {}
        }
    }
    found
}
