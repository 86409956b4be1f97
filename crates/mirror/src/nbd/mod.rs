//! The NBD front end: disks for QEMU, the kernel, nbdcopy and whoever else speaks the protocol, by Unix socket, TCP and
//! TLS.
//!
//! Source: `doc/proto.md` of the NBD project; `formats/nbd.md` says what of it is spoken, and what the server chose
//! where the protocol leaves it free.
//!
//! Bytes become messages in `handshake` and `request`, which know nothing of sockets; `connection` and `serve` move
//! them; `server` lets clients in and out. A client takes at most [`REQUESTS_MAX`] threads with a MiB of memory each,
//! whatever it sends, and its end concerns nobody else.

mod batch;
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
