//! What all packets share (prefix, tag, bounds), and the BLOCK packet. Source: `formats/multicast.md`, sections 2 and
//! 3.

use base::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, OBJECT_BYTES_MAX};
use base::wire::{Reader, Truncated};

use super::key::TAG_BYTES;
use crate::code::{CODE_BLOCKS_MAX, CODE_ROWS_MAX};

/// Version of the protocol in the first byte of each packet.
pub const VERSION: u8 = 3;
/// Bytes of a BLOCK packet before its payload.
pub const BLOCK_HEADER_BYTES: usize = 40;
/// A reader drops a packet with one of these flags if it does not know the flag.
pub(crate) const CRITICAL_FLAGS: u16 = 0xff00;
/// Flag of BLOCK: a repair (a resend of single blocks, or a symbol), not part of a pass over the whole object.
pub(crate) const FLAG_REPAIR: u16 = 1;
/// Flag of STATUS and BYE: a signature is between the body and the tag.
pub(crate) const FLAG_SIGNED: u16 = 1;
/// A report's sender shares a full link with other traffic.
pub(crate) const FLAG_CROWDED: u16 = 1;
/// Largest [`BlockHeader::coming`], which lies in the seven flags above [`FLAG_REPAIR`].
pub(crate) const COMING_MAX: u8 = 127;

pub(in crate::multicast) const PREFIX_BYTES: usize = 16;

/// Types of packets; receivers send those from 64 on.
pub(in crate::multicast) mod kind {
    pub(crate) const BLOCK: u8 = 1;
    pub(crate) const STATUS: u8 = 2;
    pub(crate) const BYE: u8 = 3;
    pub(crate) const JOIN: u8 = 64;
    pub(crate) const NEED: u8 = 65;
    pub(crate) const LEAVE: u8 = 66;
}

/// The number that the server gives a receiver of a session, together with its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReceiverId(pub u32);

/// A run of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectRange {
    /// First object.
    pub first: u64,
    /// Number of objects, at least 1.
    pub count: u32,
}

impl ObjectRange {
    /// The first object after the run.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.first + self.count as u64
    }

    pub(in crate::multicast) fn encode(self, into: &mut Vec<u8>) {
        write_u48(self.first, into);
        into.extend_from_slice(&self.count.to_le_bytes());
    }

    pub(in crate::multicast) fn parse(shape: &Shape, from: &mut Reader<'_>) -> Result<Self, Reject> {
        let range = Self { first: read_u48(from)?, count: from.u32()? };
        if range.count == 0 || range.end() > shape.objects {
            return Err(Reject::Bounds);
        }
        Ok(range)
    }
}

/// The parameters of a session that both ends know before the first packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Low 64 bits of the random session id.
    pub session: u64,
    /// Number of the server's start; a restarted server has another one.
    pub epoch: u32,
    /// Number of objects, `1..=SESSION_OBJECTS_MAX`; they are numbered from 0.
    pub objects: u64,
    /// The first `heads` objects go before all others (tree nodes).
    pub heads: u64,
    /// Payload of every block but an object's last, in bytes, `BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX`.
    pub block_bytes: u16,
}

impl Shape {
    /// Number of blocks of an object of `object_bytes` bytes (an empty object still has one, empty, block).
    #[must_use]
    pub const fn blocks(&self, object_bytes: u32) -> u32 {
        let blocks = object_bytes.div_ceil(self.block_bytes as u32);
        if blocks == 0 { 1 } else { blocks }
    }

    /// Whether the server sends symbols of an object of `object_bytes` bytes. Other objects are repaired by exact
    /// copies of blocks: a symbol of a single block would be a copy, and objects of very many blocks take too long to
    /// decode.
    #[must_use]
    pub(crate) const fn is_coded(&self, object_bytes: u32) -> bool {
        are_coded(self.blocks(object_bytes))
    }

    /// Length in bytes of an object's blocks if all have full length: the size of a buffer for it.
    #[must_use]
    pub const fn padded_bytes(&self, object_bytes: u32) -> u32 {
        self.blocks(object_bytes) * self.block_bytes as u32
    }

    /// Where block `block` lies inside an object of `object_bytes` bytes: offset and length, in bytes.
    #[must_use]
    pub fn place(&self, object_bytes: u32, block: u16) -> (u32, u16) {
        let offset = u32::from(block) * u32::from(self.block_bytes);
        let left = object_bytes.saturating_sub(offset).min(u32::from(self.block_bytes));
        (offset, u16::try_from(left).expect("at most block_bytes"))
    }
}

/// See [`Shape::is_coded`], for an object of this many blocks.
pub(in crate::multicast) const fn are_coded(blocks: u32) -> bool {
    blocks >= 2 && blocks <= CODE_BLOCKS_MAX
}

/// The largest block in bytes that fits a packet of `mtu` bytes with all headers: a multiple of 16, or `None` if it
/// would be smaller than the smallest block. 1424 for IPv4 over Ethernet.
#[must_use]
pub fn block_bytes_for(mtu: u32, ipv6: bool) -> Option<u16> {
    let room = mtu.checked_sub(packet_bytes(0, ipv6))? & !15;
    let block = u16::try_from(room.min(u32::from(BLOCK_BYTES_MAX))).ok()?;
    (block >= BLOCK_BYTES_MIN).then_some(block)
}

/// Bytes of an IP packet with a block of so many bytes and all headers.
#[must_use]
pub fn packet_bytes(block_bytes: u16, ipv6: bool) -> u32 {
    let headers = if ipv6 { 48 } else { 28 } + BLOCK_HEADER_BYTES + TAG_BYTES;
    u32::from(block_bytes) + u32::try_from(headers).expect("some bytes")
}

/// Why a datagram was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reject {
    /// Too short, or its length differs from what its counts say.
    Length,
    /// Another version of the protocol.
    Version,
    /// Of another session.
    Session,
    /// Of this session, but of another start of the server (not authenticated: only a hint to request a new grant).
    Epoch(u32),
    /// The tag is wrong: the packet is not from a member.
    Tag,
    /// A type or a critical flag that this version does not know.
    Unknown,
    /// A number outside its bounds.
    Bounds,
}

impl From<Truncated> for Reject {
    fn from(_: Truncated) -> Self {
        Self::Length
    }
}

/// Type and flags of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::multicast) struct Prefix {
    pub kind: u8,
    pub flags: u16,
}

impl Prefix {
    /// Appends the 16 bytes that begin each packet.
    pub(in crate::multicast) fn encode(self, shape: &Shape, into: &mut Vec<u8>) {
        into.extend_from_slice(&[VERSION, self.kind]);
        into.extend_from_slice(&self.flags.to_le_bytes());
        into.extend_from_slice(&shape.epoch.to_le_bytes());
        into.extend_from_slice(&shape.session.to_le_bytes());
    }
}

/// The fields of a BLOCK packet before its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// Number of this BLOCK among all that the server sent in this session and epoch, from 0.
    pub sequence: u64,
    /// Server's clock in microseconds, modulo 2^32.
    pub timestamp_us: u32,
    /// Index of the object.
    pub object: u64,
    /// Index of the block inside the object, which has [`Shape::blocks`] of them; from that number on: repair symbol
    /// `block - blocks`.
    pub block: u16,
    /// Length of the whole object in bytes.
    pub object_bytes: u32,
    /// A symbol, or a block that is sent individually. If false, block `b` of the same pass has sequence `sequence -
    /// block + b`.
    pub repair: bool,
    /// In a pass: how many symbols of the object follow it at once. In a symbol: how many more follow this one at
    /// once. At most [`COMING_MAX`], which means that number or more.
    pub coming: u8,
}

impl BlockHeader {
    /// The number of the repair symbol; `None` for a block of the object itself.
    #[must_use]
    pub fn symbol(&self, shape: &Shape) -> Option<u16> {
        let row = u32::from(self.block).checked_sub(shape.blocks(self.object_bytes))?;
        Some(u16::try_from(row).expect("blocks are numbered by 16 bits"))
    }

    /// The 40 bytes before the payload.
    #[must_use]
    pub fn encode(&self, shape: &Shape) -> [u8; BLOCK_HEADER_BYTES] {
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        bytes[0] = VERSION;
        bytes[1] = kind::BLOCK;
        let flags = u16::from(self.coming.min(COMING_MAX)) << 1 | if self.repair { FLAG_REPAIR } else { 0 };
        bytes[2..4].copy_from_slice(&flags.to_le_bytes());
        bytes[4..8].copy_from_slice(&shape.epoch.to_le_bytes());
        bytes[8..16].copy_from_slice(&shape.session.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.timestamp_us.to_le_bytes());
        bytes[28..34].copy_from_slice(&self.object.to_le_bytes()[..6]);
        bytes[34..36].copy_from_slice(&self.block.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.object_bytes.to_le_bytes());
        bytes
    }

    pub(in crate::multicast) fn parse<'a>(
        shape: &Shape,
        prefix: Prefix,
        sequence: u64,
        timestamp_us: u32,
        mut body: Reader<'a>,
    ) -> Result<(Self, &'a [u8]), Reject> {
        let (object, block, object_bytes) = (read_u48(&mut body)?, body.u16()?, body.u32()?);
        if object >= shape.objects || object_bytes > OBJECT_BYTES_MAX || sequence >= SEQUENCE_MAX {
            return Err(Reject::Bounds);
        }
        let repair = prefix.flags & FLAG_REPAIR != 0;
        let coming = u8::try_from(prefix.flags >> 1 & 0x7f).expect("seven bits");
        let header = Self { sequence, timestamp_us, object, block, object_bytes, repair, coming };
        let symbol = header.symbol(shape);
        let bounded = match symbol {
            Some(row) => repair && u32::from(row) < CODE_ROWS_MAX && shape.is_coded(object_bytes),
            // Block 0 of the pass has the sequence `sequence - block`.
            None => u64::from(block) <= sequence,
        };
        if !bounded {
            return Err(Reject::Bounds);
        }
        let payload = if symbol.is_some() { shape.block_bytes } else { shape.place(object_bytes, block).1 };
        if body.remaining() != usize::from(payload) {
            return Err(Reject::Length);
        }
        Ok((header, body.rest()))
    }
}

/// Sequences stay below this, so that sums with them do not overflow.
pub(in crate::multicast) const SEQUENCE_MAX: u64 = 1 << 62;

pub(in crate::multicast) fn read_u48(from: &mut Reader<'_>) -> Result<u64, Truncated> {
    let low = from.u32()?;
    Ok(u64::from(low) | u64::from(from.u16()?) << 32)
}

pub(in crate::multicast) fn write_u48(number: u64, into: &mut Vec<u8>) {
    into.extend_from_slice(&number.to_le_bytes()[..6]);
}
