//! A simulated network of switches in a tree, for simulations in which ports and shared links decide: [`Topology`] says
//! what is connected, and two simulators run on it. Both carry events of the caller, in one order of time: an event is
//! delivered at a place when its packet or transfer arrives there, or at a time that the caller names.
//!
//! ```text
//! Topology    hosts and switches; rate, delay and queue of each direction of each link
//!    |-- Packets  packet by packet; a port drops what its queue cannot hold, so that incast shows
//!    `-- Flows    transfer by transfer, for thousands of hosts; nothing is dropped
//! ```
//!
//! Nothing here knows what is transferred, and nothing is random: equal calls give equal runs.

mod flows;
mod groups;
mod packets;
mod topology;

pub use flows::Flows;
pub use groups::{Group, Target};
pub use packets::Packets;
pub use topology::{Line, Place, Port, Topology, Traffic};
