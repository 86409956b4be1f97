//! diskcast's own way: receivers fetch from each other what a redirector names, driven by the machines that are shipped
//! (`proto::peer`): a [`Seeker`](proto::peer::Seeker) at each receiver and a [`Redirector`] at the server and, if asked
//! for, at each switch. What the drivers of `net` do around the machines is repeated here, with their numbers.
//!
//! - A receiver joins at the server, which tells it what the members hold together. It reports what it holds, at first
//!   after the interval of the grant, and at least every 2 s.
//! - `Server`: it asks for everything that it lacks. `Switch`: the same, but its switch reads reports on their way, and
//!   passes requests on to members that it chooses; the rest goes on to the server.
//! - `Hybrid`: it joins the running multicast, too, unless the members hold everything. It waits there for what was not
//!   sent yet or is about to be sent, and then asks for the rest.
//! - A member serves at most 16 connections. A connection stays open until one side closes it.
//! - A member that leaves says so, takes no new connections, and sends what it is asked for over those it has for one
//!   second more.
//!
//! Simplified: connections open at once, and the senders of one port take turns chunk by chunk.

mod driver;
mod member;
mod server;
mod uploads;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use base::Duration;
use proto::peer::{
    Availability, Chosen, Contact, MemberId, Offer, Offered, Part, Redirector, RedirectorConfig, Report,
    Request, SwarmId,
};

use super::multicast::Multicast;
use super::{Policy, Setting, Stage};
use crate::fabric::Place;
use member::Member;
use server::Server;

const SWARM: SwarmId = SwarmId(1);
/// Port of transfers and packets.
const PORT: u16 = 7700;
/// A member that leaves sends what it is asked for during this time.
const LINGER: Duration = Duration::from_secs(1);

/// What wakes a place.
mod token {
    /// The multicast's next chunk.
    pub(super) const CAST: u64 = 0;
    /// The next chunk of the server's unicast, or of a member's uploads.
    pub(super) const UPLOAD: u64 = 1;
    /// The seeker's next timeout.
    pub(super) const SEEKER: u64 = 2;
    /// The next report.
    pub(super) const REPORT: u64 = 3;
    /// A member that left has sent what was asked for.
    pub(super) const LEFT: u64 = 4;
}

/// Who redirects requests, and whether there is a multicast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The server redirects.
    Server,
    /// The switches redirect what they can, and the server the rest.
    Switch,
    /// The server redirects, and multicasts.
    Hybrid,
}

/// The state of the server, the switches and all receivers.
#[derive(Debug)]
pub struct Redirected {
    way: Way,
    server: Server,
    /// The redirectors of switches, by place.
    switches: Vec<Option<Redirector>>,
    members: Vec<Member>,
}

/// A message between two places.
#[derive(Debug, Clone)]
pub enum Message {
    /// A receiver joins at the server.
    Join,
    /// It may.
    Granted(Grant),
    /// A chunk of the multicast was lost.
    Lost(u32),
    /// A member reports.
    Report(MemberId, Rc<Report>),
    /// A member leaves.
    Leave(MemberId),
    /// A member asks who holds something; how often it was passed on.
    Request(MemberId, u32, Request, u8),
    /// The answer to a request of this number.
    Offer(u32, Offer),
    /// Asks for objects over a connection of this number.
    Get(u64, Part),
    /// Ends a connection.
    Closed(u64),
    /// Ends one to a holder that serves as many as it can.
    Busy(u64),
    /// The holder lacks these.
    Lacks(Part),
    /// Asks the server for an object.
    Fetch(u32),
}

/// What the server grants to a receiver that joins.
#[derive(Debug, Clone)]
pub struct Grant {
    rank: u32,
    members: u32,
    /// It takes part in the multicast, and these come from others.
    elsewhere: Option<Rc<Availability>>,
}

impl Redirected {
    /// Receivers that have not started.
    #[must_use]
    pub fn new(setting: &Setting, way: Way) -> Self {
        let config = RedirectorConfig { authentic: false, ..RedirectorConfig::default() };
        let redirector =
            |place: u32| setting.topology.is_switch(Place(place)).then(|| Redirector::new(config));
        let places = setting.topology.places() as u32;
        let switches = match way {
            Way::Switch => (0..places).map(redirector).collect(),
            Way::Server | Way::Hybrid => Vec::new(),
        };
        let cast = (way == Way::Hybrid).then(|| Multicast::new(setting));
        let members = setting.receivers.iter().map(|_| Member::new(setting)).collect();
        Self { way, server: Server::new(cast), switches, members }
    }

    fn member(&mut self, stage: &Stage<Message>, at: Place) -> &mut Member {
        &mut self.members[stage.number(at).expect("a receiver")]
    }

    /// What a packet towards the server meets on its way: a switch with an agent, or nothing.
    fn towards_server(&self, stage: &Stage<Message>, at: Place) -> Place {
        match self.way {
            Way::Switch => stage.switch(at),
            Way::Server | Way::Hybrid => stage.setting().server,
        }
    }

    /// An agent on a switch reads a packet, and passes it on.
    fn at_switch(&mut self, stage: &mut Stage<Message>, at: Place, from: Place, message: Message) {
        let (now, server) = (stage.now(), stage.setting().server);
        let contact = Contact { from: address(from), ingress: from.0 };
        let redirector = self.switches[at.0 as usize].as_mut().expect("only agents are told");
        redirector.handle_timeout(now);
        match &message {
            Message::Report(member, report) => {
                redirector.handle_report(now, SWARM, *member, contact, report);
            }
            Message::Leave(member) => redirector.handle_leave(SWARM, *member, contact),
            Message::Request(member, number, request, 0) if !request.direct => {
                let choice = redirector.handle_request(now, SWARM, *member, request);
                let to = match choice.map(|choice| choice.chosen) {
                    Some(Chosen::Member { member, .. }) => Some(place(member)),
                    Some(Chosen::Wait { .. }) => Some(server),
                    Some(Chosen::Nobody { .. }) | None => None,
                };
                if let Some(to) = to {
                    return stage.tell(at, to, Message::Request(*member, *number, *request, 1));
                }
            }
            _ => {}
        }
        stage.tell(at, server, message);
    }
}

impl Policy for Redirected {
    type Message = Message;

    fn started(&mut self, stage: &mut Stage<Message>, at: Place) {
        let server = stage.setting().server;
        stage.tell(at, server, Message::Join);
    }

    fn told(&mut self, stage: &mut Stage<Message>, at: Place, from: Place, message: Message) {
        if at == stage.setting().server {
            self.server.told(stage, from, message);
        } else if stage.number(at).is_none() {
            self.at_switch(stage, at, from, message);
        } else {
            self.member_told(stage, at, from, message);
        }
    }

    fn arrived(&mut self, stage: &mut Stage<Message>, at: Place, from: Place, chunk: u32, fresh: bool) {
        self.member_got(stage, at, from, chunk, fresh);
    }

    fn missed(&mut self, stage: &mut Stage<Message>, at: Place, _: Place, chunk: u32) {
        let server = stage.setting().server;
        stage.tell(at, server, Message::Lost(chunk));
    }

    fn freed(&mut self, stage: &mut Stage<Message>, at: Place) {
        self.drive(stage, at);
    }

    fn woken(&mut self, stage: &mut Stage<Message>, at: Place, woken: u64) {
        match woken {
            token::CAST => self.server.cast(stage),
            token::UPLOAD if at == stage.setting().server => self.server.send_next(stage),
            token::UPLOAD => self.member(stage, at).uploads.send_next(stage, at),
            token::SEEKER => self.seeker_due(stage, at),
            token::LEFT => self.member(stage, at).uploads.close(stage, at),
            _ => self.report_due(stage, at),
        }
    }

    fn ended(&mut self, stage: &mut Stage<Message>, at: Place) {
        let to = self.towards_server(stage, at);
        stage.tell(at, to, Message::Leave(name(at)));
        stage.wake(at, stage.now() + LINGER, token::LEFT);
    }

    fn unheard(&mut self, stage: &mut Stage<Message>, at: Place, from: Place, message: Message) {
        if let Message::Get(connection, part) = message {
            let Member { uploads, held, .. } = self.member(stage, at);
            match uploads.has(from, connection) {
                true => uploads.get(stage, at, (from, connection), part, held),
                false => stage.tell(at, from, Message::Closed(connection)),
            }
        }
    }
}

/// The name of the member at a place.
fn name(at: Place) -> MemberId {
    MemberId(u64::from(at.0))
}

/// The place of a member.
fn place(member: MemberId) -> Place {
    Place(member.0 as u32)
}

fn address(at: Place) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + at.0)), PORT)
}

/// The answer of a member to a request that a switch passed on to it.
fn own_offer(at: Place, part: Part, held: &Availability) -> Offer {
    match part.mask & held.mask(part.batch) {
        0 => Offer { part, offered: Offered::Nobody { others: false } },
        mask => {
            let member = name(at);
            Offer {
                part: Part { mask, ..part },
                offered: Offered::Member { member, address: None, port: PORT },
            }
        }
    }
}
