//! The metadata service: says which devices there are, who holds the index, where segments lie, and keeps records. It
//! never sees data. formats/cluster.md, section 7.
//!
//! - `engine` keeps small values under keys, through restarts
//! - `etcd` does so for several instances, of which one leads; `gateway` speaks to etcd, by `access`; `failed` says why
//!   etcd does not answer
//! - `election` which of several instances leads
//! - `cluster` what the cluster is: its secret, its width, its map
//! - `members` devices and clients: joins, heartbeats, leases
//! - `commits` how many commits devices made: an older copy of a device's folder has fewer
//! - `segments` opened, sealed, taken from clients that died
//! - `rebuild` what is rebuilt where
//! - `compaction` what is stored elsewhere, so that its space can be used again
//! - `recall`, `recalled` what devices tell after the state was restored
//! - `records` names that only one client can create
//! - `routes` the commands over HTTP

mod access;
mod clocks;
mod cluster;
mod commits;
mod compaction;
mod election;
pub mod engine;
pub mod etcd;
mod failed;
mod gateway;
mod limits;
mod members;
mod queue;
mod rebuild;
mod recall;
mod recalled;
mod records;
mod rights;
mod routes;
mod segments;
mod standing;

pub use cluster::{ClusterSetting, Metadata};
pub use election::Instance;
