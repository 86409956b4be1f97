//! Receivers of one image that may serve each other, over a [`fabric`](crate::fabric) of switches, transfer by
//! transfer. A [`Policy`] decides who sends which chunk to whom; the network, the machines and the counting are the
//! same for all policies, so that they can be compared.
//!
//! ```text
//! Setting   topology, starts, image, machine
//!    `-- World     takes the events in order of time
//!          |-- Stage     network, receivers, counters: what a policy sees and acts on
//!          `-- Policy    told of starts, messages, chunks, timers and ends
//!                |-- Frisbee    multicast on request, as published in 2003 and 2020
//!                |-- Multicast  multicast of what somebody lacks, in order, as diskcast does
//!                |-- Swp2p      unicast, redirected at the switch (seed 004); without redirection: plain unicast
//!                |-- Redirected the machines of `proto::peer`, redirected by the server or by switches, with or
//!                |              without the multicast
//!                `-- Torrent    the swarms of `torrent`, all connected to all
//! ```
//!
//! A policy that is driven by machines without I/O holds one of them for each place. It passes on what it is told, then
//! sends what the machine wants to send (`tell`, `send`), and asks to be woken at the machine's next timeout (`wake`).
//! `tests/peers.rs` has a small policy of its own.
//!
//! Assumptions: messages take the delay of their path and have no length; a switch and the server handle those
//! addressed to them one after the other. The server reads an image at any rate. A machine that has written the whole
//! image leaves at once, and what it has still queued at its port is sent.

mod bits;
mod frisbee;
mod kinds;
mod mix;
mod multicast;
mod outcome;
mod policy;
mod redirected;
mod setting;
mod stage;
mod sweep;
mod swp2p;
mod torrent;
mod world;

pub use frisbee::Frisbee;
pub use kinds::{Kind, hall};
pub use mix::{Mix, MixOutcome};
pub use multicast::Multicast;
pub use outcome::{Outcome, Tally, Took};
pub use policy::Policy;
pub use redirected::{Redirected, Way};
pub use setting::{Machine, Setting};
pub use stage::Stage;
pub use sweep::{DELAYS_S, Skew, Sweep};
pub use swp2p::Swp2p;
