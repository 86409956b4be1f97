//! Transport: sockets, and drivers of the state machines of `proto`.
//!
//! The state machines decide what is sent when. This crate has the threads, buffers and system calls that do it, the
//! types of the HTTP API with its client, and the fetch of an image over all transports.

pub mod api;
pub mod client;
pub mod clock;
pub mod deploy;
pub mod fetch;
pub mod interface;
pub mod mac;
pub mod machine_key;
pub mod multicast;
mod neighbour;
pub mod netboot;
pub mod pace;
pub mod packet_socket;
pub mod patch;
pub mod peer;
pub mod pieces;
pub mod probe;
pub mod profile;
pub mod recent;
mod send_queue;
pub mod tcp;
#[cfg(test)]
mod testbed;
pub mod token;
pub mod udp;
pub mod waker;
