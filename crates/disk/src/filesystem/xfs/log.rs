//! Tells from the journal whether the filesystem was unmounted cleanly: its last record then says so.

use super::super::{Why, require};
use super::Superblock;
use super::fields::{u32_at, u64_at};
use crate::volume::Volume;

/// Unit of the journal, in bytes.
const BASIC_BYTES: u64 = 512;
const BASIC: usize = 512;
/// Blocks that one read takes.
const PIECE_BLOCKS: u64 = 2048;
const RECORD: u32 = 0xFEED_BABE;
/// A header tells the first words of this many bytes of its record; larger records have more headers.
const HEADER_COVERS: u64 = 32 << 10;
/// The flag of the operation that is the last when the filesystem is unmounted.
const UNMOUNT: u8 = 0x20;

/// The header of a record.
struct Header {
    /// Cycle and block of the record: a later one is larger.
    place: u64,
    operations: u32,
    headers: u64,
    bytes: u64,
}

impl Header {
    /// The header in `block`, the `number`th of the journal.
    fn parse(block: &[u8], number: u64) -> Option<Self> {
        let place = u64_at(block, 16);
        if u32_at(block, 0) != RECORD
            || place & 0xFFFF_FFFF != number
            || place >> 32 != u32_at(block, 4).into()
        {
            return None;
        }
        let room = u64::from(u32_at(block, 320));
        let headers = if u32_at(block, 8) & 2 != 0 { room.div_ceil(HEADER_COVERS).max(1) } else { 1 };
        Some(Self { place, operations: u32_at(block, 40), headers, bytes: u32_at(block, 12).into() })
    }
}

/// Checks that nothing in the journal waits to be done.
pub(super) fn check(volume: &Volume, superblock: &Superblock) -> Result<(), Why> {
    let start = start(superblock)?;
    let blocks = superblock.log_blocks * (superblock.block_bytes / BASIC_BYTES);
    let last = last(volume, start, blocks)?;
    let last = last.ok_or_else(|| Why::Whole("its journal has no records".to_owned()))?;
    let unclean = || "it was not unmounted cleanly: its journal is not empty".to_owned();
    let cycle = last.place >> 32;
    let data = (last.place & 0xFFFF_FFFF) + last.headers;
    let behind = data + last.bytes.div_ceil(BASIC_BYTES);
    require(last.operations == 1 && behind <= blocks, unclean)?;
    let mut block = [0; BASIC];
    volume.read(&mut block, start + data * BASIC_BYTES)?;
    require(block[9] & UNMOUNT != 0, unclean)?;
    // What follows is of the cycle before.
    if behind < blocks {
        volume.read(&mut block, start + behind * BASIC_BYTES)?;
        let word = if u32_at(&block, 0) == RECORD { u32_at(&block, 4) } else { u32_at(&block, 0) };
        require(u64::from(word) != cycle, unclean)?;
    }
    Ok(())
}

/// Where the journal begins, in bytes.
fn start(superblock: &Superblock) -> Result<u64, Why> {
    let group = superblock.log_start >> superblock.group_log;
    let block = superblock.log_start & ((1 << superblock.group_log) - 1);
    let fits = group < superblock.groups
        && superblock.log_blocks > 0
        && block + superblock.log_blocks <= superblock.blocks_of(group);
    require(fits, || "its journal lies beyond its end".to_owned())?;
    Ok(superblock.offset(group, block))
}

/// The last record of the journal that begins at byte `start` and has `blocks` blocks.
fn last(volume: &Volume, start: u64, blocks: u64) -> Result<Option<Header>, Why> {
    let mut last: Option<Header> = None;
    let mut piece = Vec::new();
    let mut number = 0;
    while number < blocks {
        let count = PIECE_BLOCKS.min(blocks - number);
        piece.resize(usize::try_from(count * BASIC_BYTES).expect("1 MiB"), 0);
        volume.read(&mut piece, start + number * BASIC_BYTES)?;
        for block in piece.chunks_exact(BASIC) {
            let later = |header: &Header| last.as_ref().is_none_or(|last| last.place < header.place);
            if let Some(header) = Header::parse(block, number).filter(later) {
                last = Some(header);
            }
            number += 1;
        }
    }
    Ok(last)
}
