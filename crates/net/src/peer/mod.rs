//! Receivers that serve each other: sockets and threads around the machines of `proto::peer`. Source:
//! `formats/peer.md`.
//!
//! ```text
//! join     becomes a member, if the server has swarms
//! node     a member of a swarm: reports what it holds, answers requests that a switch passed on
//! spool    the encoded objects that it holds: in memory first, then in a file
//! upload   serves them to others
//! pull     gets objects from others, and from the server what nobody has
//! transfer one connection to a member that sends
//! redirect the server's redirector
//! channel  a transfer's connection: handshake, encryption, records
//! pace     limits what is sent
//! ```

mod channel;
mod join;
mod node;
mod pace;
mod pull;
mod redirect;
mod spool;
#[cfg(test)]
mod tests;
mod transfer;
mod upload;
mod want;

pub use join::join;
pub use node::{Node, PeerOptions, PeerTraffic};
pub use proto::peer::{RedirectorCounters, SwarmView, VERSION};
pub use pull::Pulled;
pub use redirect::RedirectorServer;
pub use spool::{Spool, SpoolLimits};
pub use want::{Demand, News, Taker, Want};
