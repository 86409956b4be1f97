//! A piece that is being fetched.

use base::Result;
use base::{Error, ErrorKind};

use crate::wire::{BLOCK_BYTES, Block};

/// The progress of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// So many peers are asked for it.
    Asked(u8),
    /// It is here.
    Here,
}

/// At most so many peers are asked for the same block.
const ASKED_MAX: u8 = 2;

/// A piece of which some blocks are here, or asked for.
pub(super) struct Open {
    piece: u32,
    bytes: Vec<u8>,
    blocks: Vec<State>,
    /// How many blocks are not here.
    left: usize,
    /// The peers that sent blocks of it, by their keys.
    pub(super) from: Vec<u64>,
}

impl Open {
    /// Begins piece `piece` of `len` bytes.
    pub(super) fn new(piece: u32, len: u32) -> Self {
        let count = len.div_ceil(BLOCK_BYTES) as usize;
        let blocks = vec![State::Asked(0); count];
        Self { piece, bytes: vec![0; len as usize], blocks, left: count, from: Vec::new() }
    }

    fn block(&self, index: usize) -> Block {
        let begin = u32::try_from(index).expect("a piece has few blocks") * BLOCK_BYTES;
        let len = u32::try_from(self.bytes.len()).expect("a piece has 32 bits") - begin;
        Block { piece: self.piece, begin, len: len.min(BLOCK_BYTES) }
    }

    /// Asks one more peer for a block: for one that nobody is asked for, or with `again` for one that another peer is
    /// asked for and `is_new` to this one. `None` if there is none.
    pub(super) fn ask(&mut self, again: bool, is_new: impl Fn(Block) -> bool) -> Option<Block> {
        let wanted = |state: State| match state {
            State::Asked(0) => true,
            State::Asked(count) => again && count < ASKED_MAX,
            State::Here => false,
        };
        let index = (0..self.blocks.len()).find(|&at| wanted(self.blocks[at]) && is_new(self.block(at)))?;
        if let State::Asked(count) = &mut self.blocks[index] {
            *count += 1;
        }
        Some(self.block(index))
    }

    /// One peer less is asked for `block`.
    pub(super) fn release(&mut self, block: Block) {
        if let Some(State::Asked(count)) = self.blocks.get_mut((block.begin / BLOCK_BYTES) as usize) {
            *count = count.saturating_sub(1);
        }
    }

    /// Takes the bytes of `block` from peer `from`. Says how many other peers are asked for it; `None` if it was here.
    pub(super) fn take(&mut self, block: Block, bytes: &[u8], from: u64) -> Option<u8> {
        let state = self.blocks.get_mut((block.begin / BLOCK_BYTES) as usize)?;
        let State::Asked(asked) = *state else { return None };
        *state = State::Here;
        self.left -= 1;
        self.bytes[block.begin as usize..][..bytes.len()].copy_from_slice(bytes);
        if !self.from.contains(&from) {
            self.from.push(from);
        }
        Some(asked)
    }

    /// The piece, if all its blocks are here; it is then to be verified.
    pub(super) fn whole(&mut self) -> Option<Vec<u8>> {
        (self.left == 0 && !self.bytes.is_empty()).then(|| std::mem::take(&mut self.bytes))
    }

    /// Whether all blocks are here.
    #[cfg(test)]
    pub(super) fn is_whole(&self) -> bool {
        self.left == 0
    }
}

/// `Malformed`, for a peer that breaks the protocol.
pub(super) fn violation<T>(what: &str) -> Result<T> {
    Err(Error::new(ErrorKind::Malformed, format!("a peer {what}")))
}
