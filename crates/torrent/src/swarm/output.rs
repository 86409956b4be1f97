//! What a swarm asks of its driver.

use crate::wire::{Block, Message};

/// A peer's key, which the driver chooses; never used twice.
pub(crate) type Key = u64;

/// What the driver is to do.
#[derive(Debug)]
pub enum Output {
    /// Send this to a peer.
    Send(Key, Message),
    /// Send a block to a peer.
    Serve(Key, Block),
    /// Do not send this block any more.
    Unserve(Key, Block),
    /// Send none of the blocks any more that the peer asked for.
    UnserveAll(Key),
    /// Verify and keep a piece, then say so by [`Swarm::verified`].
    Verify(u32, Vec<u8>),
    /// End the connection to a peer. `true`: connect to it no more.
    Close(Key, bool),
    /// Every piece is here.
    Complete,
}
