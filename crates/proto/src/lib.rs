//! Every wire protocol as a sans-IO state machine: time, chance and bytes are arguments, drivers own sockets and
//! buffers. Nothing here knows of images, threads or clocks.

pub mod code;
pub mod multicast;
