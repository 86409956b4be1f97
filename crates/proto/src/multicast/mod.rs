//! Receiver-driven multicast of *objects of N blocks*, specified in `formats/multicast.md`.
//!
//! One [`Server`] sends each object that somebody lacks once, to all, in an order of its own. Each [`Receiver`] takes
//! the running stream from where it is, reports by unicast what it lacks, and stays silent while the server's
//! [`Status`] shows that what it lacks is coming. A driver
//!
//! 1. opens each datagram ([`open_downstream`] or, of many, [`open_train`]; [`open_upstream`]) and hands the packet to `handle_input`;
//! 2. then drains `poll_event` and `poll_transmit` until both are empty;
//! 3. sleeps until `poll_timeout` or the next datagram, and calls `handle_timeout`.
//!
//! Machines handle indices and lengths; payload stays in the driver's buffers.

mod ahead;
mod bits;
mod cache;
mod congestion;
mod delay;
mod gather;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod members;
mod mutant;
mod outliers;
mod packet;
mod rate;
mod receiver;
mod repair;
mod report;
mod schedule;
mod server;
mod slots;
mod stats;
mod status;
mod stream;
mod tag;
mod window;

pub use bits::ObjectSet;
pub use gather::Gathering;
pub use mutant::Mutant;
pub use packet::{
    BLOCK_HEADER_BYTES, BlockHeader, COMING_MAX, Key, Reject, Shape, block_bytes_for, open_downstream,
    open_train, open_upstream, peek_receiver,
};
pub use rate::RateConfig;
pub use receiver::{Disposition, Receiver, ReceiverConfig, ReceiverEvent, Slot};
pub use report::{
    Cause, Lacking, NeedBlocks, NeedRange, NeedSymbols, ReceiverCounters, ReceiverId, Report, Upstream,
};
pub use server::{Run, Server, ServerConfig, ServerEvent, Transmit};
pub use stats::{ReceiverStatistics, Resent, SessionStatistics};
pub use status::{Downstream, Echo, ObjectRange, Status};
pub use tag::{TAG_BYTES, seal, seal_train, tag};
