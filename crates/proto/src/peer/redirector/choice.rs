//! Whom the redirector names, and what it tells of a swarm.

use std::net::SocketAddr;

use crate::peer::availability::Part;
use crate::peer::wire::packet::{MemberId, Offer, Offered};

/// Where a member is heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contact {
    /// Address and port of its packets.
    pub from: SocketAddr,
    /// The port of the switch through which they come; 0 at the server.
    pub ingress: u32,
}

/// Whom the redirector names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// Nobody else has it.
    Nobody {
        /// Whether others lack it, too.
        others: bool,
    },
    /// Somebody near is about to have it.
    Wait {
        /// When to ask again, in milliseconds.
        milliseconds: u16,
    },
    /// A member.
    Member {
        /// Who.
        member: MemberId,
        /// Where it is heard.
        contact: Contact,
        /// Port of its transfers, by TCP.
        port: u16,
    },
}

/// Who waits for somebody near, or for a slot, asks again after this time, in milliseconds.
const WAIT_MS: u16 = 25;

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The objects that it is about: some of those asked for.
    pub part: Part,
    /// Where to get them.
    pub chosen: Chosen,
}

impl Choice {
    /// The asker is to wait a short time.
    pub(super) fn wait(part: Part) -> Self {
        Self { part, chosen: Chosen::Wait { milliseconds: WAIT_MS } }
    }

    /// The packet that tells it.
    #[must_use]
    pub fn offer(&self) -> Offer {
        let offered = match self.chosen {
            Chosen::Nobody { others } => Offered::Nobody { others },
            Chosen::Wait { milliseconds } => Offered::Wait { milliseconds },
            Chosen::Member { member, contact, port } => {
                Offered::Member { member, address: Some(contact.from.ip()), port }
            }
        };
        Offer { part: self.part, offered }
    }
}

/// A swarm as others see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SwarmView {
    /// Members that were heard lately.
    pub members: u32,
    /// Those of them that hold everything.
    pub whole: u32,
    /// Number of objects of the version.
    pub objects: u32,
}
