//! Receiver-driven multicast of *objects of N blocks*, as specified in `formats/multicast.md`.
//!
//! One [`Server`] sends each object that any receiver is missing once, to all receivers, in an order that the server
//! chooses. Each [`Receiver`] uses the running stream from its present position, reports by unicast what it is
//! missing, and stays silent while the server's [`Status`] announces what it is missing.
//! Both are state machines without sockets and clocks. A driver
//!
//! 1. opens each datagram ([`open_downstream`] or, of many, [`open_train`]; [`open_upstream`]) and hands the packet to
//!    `handle_input`;
//! 2. then drains `poll_event` and `poll_transmit` until both are empty;
//! 3. sleeps until `poll_timeout` or the next datagram, and calls `handle_timeout`.
//!
//! The machines handle indices and lengths only; payload stays in the driver's buffers.

mod bits;
mod clock;
mod rate;
mod receiver;
mod repair;
mod server;
mod stats;
mod wire;

pub use bits::ObjectSet;
pub use rate::{OwnShare, RateConfig};
pub use receiver::{Disposition, Half, Receiver, ReceiverConfig, ReceiverEvent, Slot, Strain};
pub use server::{Gathering, MachineId, Run, Server, ServerConfig, ServerEvent, Transmit};
pub use stats::{ReceiverStatistics, Resent, SessionStatistics};
pub use wire::header::{
    BLOCK_HEADER_BYTES, BlockHeader, ObjectRange, ReceiverId, Reject, Shape, VERSION, block_bytes_for,
    packet_bytes,
};
pub use wire::open::{open_downstream, open_train, open_upstream, peek_receiver};
pub use wire::report::{
    Cause, Lacking, NeedBlocks, NeedRange, NeedSymbols, ReceiverCounters, Report, Upstream,
};
pub use wire::status::{Downstream, Echo, Status};
pub use wire::{
    Key, PayloadCipher, SIGNATURE_BYTES, TAG_BYTES, control_signature, seal, seal_train, sign_control, tag,
};
