//! A swarm of receivers that serve each other, packet by packet and under faults: the machines of `proto::peer`, sealed
//! packets that are lost, doubled and reordered, members that die, leave, stall and lie, and hostile members. Equal
//! seeds give equal runs. The [`checker`] uses no state of the machines.
//!
//! ```text
//! scenario (from a seed) -> world: clock and queue of events
//!                             |-- redirector at the server, and perhaps an agent on a switch before it
//!                             |-- member    a Seeker, connections, what it holds
//!                             |-- hostile   reports, requests and offers that are not true
//!                             `-- checker   watches everything
//! ```
//!
//! The server always has everything and is never away: that is the promise under test.

mod checker;
mod hostile;
mod member;
mod scenario;
mod transfers;
mod world;

pub use scenario::SwarmScenario;
pub use world::{SwarmOutcome, run};
