//! Bytes of the peer protocol. Source: `formats/peer.md`, sections 2 and 4.

pub(super) mod packet;
pub(super) mod record;
mod window;
