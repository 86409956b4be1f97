//! Receivers that serve each other. A *redirector* (the server, or an agent on a switch) knows who holds which objects
//! and names a holder to who asks; the objects then travel from holder to asker by TCP. Source: `formats/peer.md`;
//! seed 004 (SWP2P).
//!
//! ```text
//! wire/         REPORT, LEAVE, REQUEST, OFFER (UDP), and the records of a transfer (TCP)
//! availability  which objects somebody holds
//! kept          which objects of a session a receiver keeps for others
//! redirector    the server's part: who holds what, and who is asked next
//! seeker        the asker's part: what is missing, who was named, what to do if he fails
//! ```
//!
//! Objects are numbered as in the catalogue of the version: tree nodes, then chunks. They are asked for in batches:
//! batch `b` is the objects `32 b .. 32 b + 32`, and a mask says which of them.

mod availability;
mod keepers;
mod redirector;
mod seeker;
mod wire;

pub use availability::{Availability, BATCH_OBJECTS, Part, batch_of};
pub use keepers::is_kept;
pub use redirector::{Choice, Chosen, Contact, Redirector, RedirectorConfig, RedirectorCounters, SwarmView};
pub use seeker::{Action, Hearing, Seeker, SeekerConfig, SeekerCounters, Source};
pub use wire::packet::{
    AVOIDED_MAX, MemberId, Offer, Offered, PACKET_BYTES_MAX, Packet, Peek, Reject, Report, Request, SwarmId,
    VERSION, Window, open, peek, seal_packet,
};
pub use wire::record::{RECORD_BYTES, Record};
