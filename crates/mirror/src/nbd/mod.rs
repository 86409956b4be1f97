//! NBD, both sides. The front end serves disks to QEMU, the kernel, nbdcopy and other clients, over Unix sockets, TCP
//! and TLS.
//!
//! The protocol is defined in `doc/proto.md` of the NBD project. `formats/nbd.md` says which parts are supported,
//! and what the server does where the protocol leaves a choice.
//!
//! `handshake` and `request` parse messages and know nothing of sockets; `connection` and `serve` do the I/O; `server`
//! accepts and ends clients. A client takes at most [`REQUESTS_MAX`] threads with a MiB of memory each, whatever it
//! sends, and a failing client does not affect others. `client` reads and writes the disks of other servers.

mod batch;
mod client;
mod connection;
mod context;
mod event;
mod exports;
mod handshake;
mod input;
mod places;
mod reply;
mod request;
mod serve;
mod server;
mod tls;
mod transport;
mod wire;

pub use client::{ExportAddress, NbdDisk, ServerAddress};
pub use connection::REQUESTS_MAX;
pub use context::Context;
pub use event::{Event, Log};
pub use exports::{Export, ExportTable, Exports};
pub use handshake::{Negotiation, OPTION_BYTES_MAX, Privacy, Session, Step, greeting};
pub use request::{
    Code, Command, Cookie, PAYLOAD_BYTES_MAX, REQUEST_BYTES, Range, Refusal, Request, Rules, parse,
};
pub use server::Server;
pub use tls::Tls;

#[cfg(test)]
mod tests;
