//! Machines and binary forms of the cluster: devices that keep objects, clients that stripe over them, and the map that
//! both follow. formats/cluster.md.
//!
//! The ideas are those of Panasas (seed 002): network-attached object devices, parity computed by the client,
//! capabilities that a device checks without asking anybody.

mod balance;
mod batch;
mod capability;
mod choice;
mod compaction;
mod directory;
mod entry;
mod garbage;
mod insertion;
mod map;
mod object;
mod placement;
mod readahead;
mod run_cache;
mod runs;
mod writer;

pub use balance::{Movable, Move, balance};
pub use batch::{BatchItem, decode_batch, encode_batch};
pub use capability::{Capability, DeviceKey, Flaw, Request, rights};
pub use choice::choose_devices;
pub use compaction::{Verdict, compacts_from, judge, may_free};
pub use directory::{
    DIRECTORY_HEADER_BYTES, Item, decode_directory, directory_bytes, directory_lengths, encode_directory,
};
pub use entry::{Entry, NAME_BYTES_MAX, PIECES_MAX, Piece, Version};
pub use garbage::{COMPONENT_BYTES, Sealed, worth_compacting};
pub use insertion::{Insertion, Step};
pub use map::{Device, Holder, Map, SLOTS, State, slot_of, teachers};
pub use object::{DeviceId, ObjectId};
pub use placement::{place_slots, skip_epochs, start_over};
pub use readahead::ReadAhead;
pub use run_cache::{Reading, RunCache, RunKey};
pub use runs::{ALIGN_BYTES, PART_BYTES_MAX, PIECE_BYTES_MAX, Run, Span, UNIT_BYTES, Width};
pub use writer::{Command, ItemId, RunId, SegmentRight, Writer, WriterSetting};

use highway::{HighwayHash, HighwayHasher, Key};

/// The checksum of stored bytes: HighwayHash-64 with a fixed key. It finds damage; it does not stop an attacker.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u64 {
    const KEY: [u64; 4] =
        [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908, 0x1716_1514_1312_1110, 0x1f1e_1d1c_1b1a_1918];
    HighwayHasher::new(Key(KEY)).hash64(bytes)
}
