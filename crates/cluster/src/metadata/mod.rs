//! The metadata service: says which devices there are, who holds the index, where segments lie, and keeps records. It
//! never sees data. formats/cluster.md, section 7.
//!
//! - `engine` keeps small values under keys, through restarts
//! - `etcd` does so for several instances, of which one leads; `gateway` speaks to etcd
//! - `cluster` what the cluster is: its secret, its width, its map
//! - `members` devices and clients: joins, heartbeats, leases
//! - `segments` opened, sealed, taken from clients that died
//! - `rebuild` what is rebuilt where
//! - `compaction` what is stored elsewhere, so that its space can be used again
//! - `records` names that only one client can create
//! - `routes` the commands over HTTP

mod cluster;
mod compaction;
pub mod engine;
pub mod etcd;
mod gateway;
mod members;
mod queue;
mod rebuild;
mod records;
mod routes;
mod segments;

pub use cluster::{ClusterSetting, Metadata};
