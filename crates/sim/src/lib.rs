//! The simulator. It runs the state machines of `proto` in virtual time, with simulated networks and disks, and with
//! faults drawn from a seed. Equal seeds give equal runs. [`checkers`] are independent of the machines and check the
//! rules that must always hold. [`fabric`] and [`peers`] are models, so far without machines: switches and shared
//! links, and receivers of an image that serve each other. [`striped`] has the layout of a cluster on such a network.
//!
//! ```text
//! scenario (from a seed) -> world: clock and queue of events
//!                             |-- server host    Server machine, object memory
//!                             |-- network        delay, loss, duplication, reordering, queues, partitions
//!                             |-- receiver hosts Receiver machine, buffers, disk
//!                             `-- checkers       watch everything, trust nothing
//! ```

#![expect(
    clippy::cast_possible_truncation,
    reason = "simulated images and times are small; it runs on 64 bits"
)]

mod beside;
mod checkers;
pub mod checkpoint;
pub mod cloud;
mod cluster;
pub mod deploy;
pub mod fabric;
mod holding;
pub mod mirror;
mod network;
pub mod peers;
mod prune;
mod queue;
mod receiver_host;
mod room;
mod scenario;
mod search;
mod server_host;
pub mod striped;
pub mod swarm;
mod trace;
mod truth;
mod world;

pub use checkers::Violation;
pub use cluster::{ClusterOutcome, run_cluster};
pub use network::Link;
pub use prune::{PruneOutcome, run_prunes};
pub use room::{Room, RoomOutcome};
pub use scenario::{Ailment, Event, Fault, Host, Scenario};
pub use search::{Broken, Family, Trial, until_broken};
pub use world::{Outcome, run};
