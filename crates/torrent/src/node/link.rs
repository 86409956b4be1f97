//! What is to be sent to one peer.

use std::collections::VecDeque;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::wire::{Block, Message};

/// Most blocks that a peer may have asked for and not received: more than clients ask for.
const WAITING_MAX: usize = 2048;
/// Most bytes of messages that wait: a peer that reads nothing is left. A set of the most pieces has 128 KiB.
const MESSAGES_BYTES_MAX: usize = 1 << 20;

/// A connection to a peer, as those see it that send to it.
pub(super) struct Link {
    /// The peer's name.
    pub(super) peer: [u8; 20],
    /// Whether this side opened it.
    pub(super) is_outgoing: bool,
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Default)]
struct Queue {
    messages: BytesMut,
    blocks: VecDeque<Block>,
    is_closed: bool,
}

/// What is sent next.
pub(super) enum Next {
    /// These bytes.
    Messages(BytesMut),
    /// These blocks.
    Blocks(Vec<Block>),
    /// Nothing: the connection ends.
    End,
}

impl Link {
    pub(super) fn new(peer: [u8; 20], is_outgoing: bool) -> Self {
        Self { peer, is_outgoing, queue: Mutex::default(), changed: Notify::new() }
    }

    /// Sends a message.
    pub(super) fn send(&self, message: &Message) {
        self.change(|queue| {
            message.encode(&mut queue.messages);
            queue.is_closed |= queue.messages.len() > MESSAGES_BYTES_MAX;
        });
    }

    /// Sends a block.
    pub(super) fn serve(&self, block: Block) {
        self.change(|queue| {
            queue.blocks.push_back(block);
            queue.is_closed |= queue.blocks.len() > WAITING_MAX;
        });
    }

    /// Does not send `block`, if it waits.
    pub(super) fn unserve(&self, block: Block) {
        self.queue.lock().blocks.retain(|waiting| *waiting != block);
    }

    /// Sends none of the blocks that wait.
    pub(super) fn unserve_all(&self) {
        self.queue.lock().blocks.clear();
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        self.change(|queue| queue.is_closed = true);
    }

    fn change(&self, change: impl FnOnce(&mut Queue)) {
        change(&mut self.queue.lock());
        self.changed.notify_one();
    }

    /// Waits for what is to be sent; messages go first, then at most `most` blocks.
    pub(super) async fn next(&self, most: usize) -> Next {
        loop {
            {
                let mut queue = self.queue.lock();
                if queue.is_closed {
                    return Next::End;
                }
                if !queue.messages.is_empty() {
                    return Next::Messages(queue.messages.split());
                }
                if !queue.blocks.is_empty() {
                    let count = most.min(queue.blocks.len());
                    return Next::Blocks(queue.blocks.drain(..count).collect());
                }
            }
            self.changed.notified().await;
        }
    }
}
