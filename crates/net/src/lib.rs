//! Bytes in motion: sockets, and drivers around the sans-IO machines of `proto`.
//!
//! The machines decide what travels when; here are the threads, buffers and system calls that carry it out, the
//! types of the HTTP API with its client, and the orchestration of a fetch over all transports.

pub mod api;
pub mod client;
pub mod clock;
pub mod fetch;
mod hex;
pub mod interface;
pub mod multicast;
pub mod pieces;
pub mod profile;
pub mod tcp;
#[cfg(test)]
mod testbed;
pub mod token;
pub mod udp;
pub mod waker;
