//! A repository's objects on many machines: devices that keep them, clients that stripe over devices and compute
//! parity, and the metadata service that says which devices there are. formats/cluster.md; the ideas are those of
//! Panasas (seed 002).
//!
//! What is decided when stands in `proto::cluster`; here are disks, sockets and clocks. `device` and `metadata` offer
//! routes that `daemon` serves; `client` implements `object_store` for `store`.

pub mod client;
pub mod device;
pub mod metadata;
pub mod wire;

mod authority;
mod buffers;
mod clock;
mod database;
mod http;
mod problem;
mod recall;
mod slots;
mod token;

pub use authority::Authority;
pub use database::Opening;
pub use proto::cluster::{State, Width};
pub use token::ClusterToken;
