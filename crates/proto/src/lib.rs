//! All wire protocols as state machines without I/O: time, random numbers and bytes are arguments, and the drivers
//! own sockets and buffers. Nothing here depends on images, threads or clocks.

pub mod checkpoint;
pub mod cluster;
pub mod code;
pub mod deploy;
pub mod multicast;
pub mod peer;
pub mod tftp;
