//! Simulates a cluster in virtual time: clients, devices and the metadata service, with messages that are late, lost
//! and repeated, crashes that lose what was not flushed, disks that are erased, and pauses.
//!
//! ```text
//! clients    proto::cluster::{Writer, Insertion}; what they were told is stored
//! metadata   proto::cluster::{Map, place_slots, choose_devices}; leases, fences, seals
//! devices    components and entries as a model; proto::cluster::teachers decides from whom they copy
//! world      clock, queue of events, the network
//! compactor  proto::cluster::judge; moves what is in use of a segment to another one
//! checker    what was acknowledged can be found and read; nobody who was declared down acknowledges anything
//! ```

mod checker;
mod client;
mod compactor;
mod device;
mod inserting;
mod metadata;
mod world;

use crate::Violation;
use world::World;

/// The result of a run.
#[derive(Debug)]
pub struct ClusterOutcome {
    /// The broken rules.
    pub violations: Vec<Violation>,
    /// Equal runs have equal traces.
    pub trace: u64,
    /// Events that were handled.
    pub steps: u64,
    /// Contents that were acknowledged.
    pub stored: u64,
    /// Segments that were taken from clients.
    pub taken: u64,
    /// Segments whose space was freed.
    pub freed: u64,
    /// Changes of the map.
    pub epochs: u64,
}

/// Runs a cluster with faults drawn from `seed`, lets everything come back, and checks what is there.
#[must_use]
pub fn run_cluster(seed: u64) -> ClusterOutcome {
    let mut world = World::new(seed);
    world.play();
    world.settle();
    checker::check_all(&mut world);
    world.outcome()
}
