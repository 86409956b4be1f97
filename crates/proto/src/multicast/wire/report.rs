//! The packets of a receiver to the server, by unicast: JOIN, NEED and LEAVE. Source: `formats/multicast.md`, section
//! 5.

use base::wire::Reader;

use super::header::{
    FLAG_CROWDED, ObjectRange, PREFIX_BYTES, Prefix, ReceiverId, Reject, SEQUENCE_MAX, Shape, kind, read_u48,
    write_u48,
};
use super::key::TAG_BYTES;

/// Most objects in full that one NEED may request.
pub(in crate::multicast) const NEED_OBJECTS_MAX: u64 = 1 << 16;
/// Bytes of a report without lists: prefix, fixed fields and counts, tag.
const FIXED_BYTES: usize = PREFIX_BYTES + 16 + COUNTER_BYTES + 6 + TAG_BYTES;
const COUNTER_BYTES: usize = 52;
/// Bytes of a range of objects in a NEED.
pub(in crate::multicast) const NEED_RANGE_BYTES: usize = 12;
const BLOCKS_BYTES: usize = 12;
const SYMBOLS_BYTES: usize = 10;
/// Most objects in one [`NeedSymbols`].
pub(in crate::multicast) const SYMBOLS_RUN_MAX: usize = 512;

/// Why an object or a block is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Cause {
    /// It was sent before the receiver joined, or never.
    Late = 0,
    /// The receiver's buffer was full.
    BufferFull = 1,
    /// It was lost on the way.
    Lost = 2,
}

impl Cause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Late, Self::BufferFull, Self::Lost];

    fn parse(number: u8) -> Result<Self, Reject> {
        Self::ALL.get(usize::from(number)).copied().ok_or(Reject::Bounds)
    }
}

/// A receiver's counters since it joined. They never decrease, except `queue_us`, which is a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReceiverCounters {
    /// BLOCKs that arrived, needed or not.
    pub blocks_arrived: u64,
    /// Of those, stored for the first time.
    pub blocks_received: u64,
    /// Of those, duplicates.
    pub blocks_duplicate: u64,
    /// BLOCKs lost on the way (gaps in the sequence), needed or not.
    pub blocks_lost: u64,
    /// BLOCKs dropped because the buffer was full.
    pub blocks_refused: u64,
    /// Objects that passed verification.
    pub objects_verified: u64,
    /// Queueing delay of packets in µs: the minimum since the last report, minus the minimum ever, and the shortest
    /// time that one of them waited in the socket.
    pub queue_us: u32,
}

/// The part that all reports share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The sender.
    pub receiver: ReceiverId,
    /// The receiver's clock in microseconds, modulo 2^32; comes back in [`super::Echo`].
    pub timestamp_us: u32,
    /// The receiver misses what it requests although all BLOCKs below this sequence have been sent and had time to
    /// arrive. BLOCKs from this sequence on are in flight: the server does not repeat them for this report.
    pub seen: u64,
    /// Other traffic enters the receiver's full link, and would get nothing although this receiver left the session.
    pub crowded: bool,
    /// Statistics.
    pub counters: ReceiverCounters,
}

/// Objects missing in full, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeedRange {
    /// Which.
    pub objects: ObjectRange,
    /// Why.
    pub cause: Cause,
    /// An application waits for them: they go before the others.
    pub urgent: bool,
}

/// Missing blocks of an object of which some blocks have arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeedBlocks {
    /// Which object.
    pub object: u64,
    /// The block of the lowest bit of `bitmap[0]`; a multiple of 8.
    pub first_block: u16,
    /// One bit per block, lowest bit first; set if the block is missing. Not empty.
    pub bitmap: Vec<u8>,
    /// Why.
    pub cause: Cause,
}

impl NeedBlocks {
    /// The numbers of the missing blocks, ascending.
    pub fn blocks(&self) -> impl Iterator<Item = u32> + '_ {
        let first = u32::from(self.first_block);
        (0u32..).zip(&self.bitmap).flat_map(move |(index, &byte)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| first + index * 8 + bit)
        })
    }
}

/// Number of symbols that each of some consecutive objects needs; any symbols of the object will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeedSymbols {
    /// The object of `counts[0]`.
    pub first: u64,
    /// The number for each object; 255 means 255 or more. Not empty.
    pub counts: Vec<u8>,
    /// Why.
    pub cause: Cause,
}

/// What a NEED requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lacking {
    /// Objects missing in full.
    pub whole: Vec<NeedRange>,
    /// Missing blocks by number, where symbols cannot be used.
    pub blocks: Vec<NeedBlocks>,
    /// Number of symbols needed, for objects of which some blocks have arrived.
    pub symbols: Vec<NeedSymbols>,
}

impl Lacking {
    /// Whether it requests nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.blocks.is_empty() && self.symbols.is_empty()
    }

    /// Length in bytes of a NEED with these lists, including its tag.
    pub(in crate::multicast) fn packet_bytes(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(|need| BLOCKS_BYTES + need.bitmap.len()).sum();
        let symbols: usize = self.symbols.iter().map(|need| SYMBOLS_BYTES + need.counts.len()).sum();
        FIXED_BYTES + self.whole.len() * NEED_RANGE_BYTES + blocks + symbols
    }

    /// Adds that `object` needs `count` symbols. A short gap to the object added before is filled with zeros, which
    /// is shorter than a new list.
    pub(in crate::multicast) fn push_symbols(&mut self, object: u64, count: u32, cause: Cause) {
        let count = u8::try_from(count).unwrap_or(u8::MAX);
        if let Some(last) = self.symbols.last_mut()
            && let Some(gap) = object.checked_sub(last.first + last.counts.len() as u64)
            && gap < SYMBOLS_BYTES as u64
            && last.counts.len() + SYMBOLS_BYTES < SYMBOLS_RUN_MAX
            && last.cause == cause
        {
            last.counts.extend((0..gap).map(|_| 0));
            last.counts.push(count);
        } else {
            self.symbols.push(NeedSymbols { first: object, counts: vec![count], cause });
        }
    }

    /// Removes what the last [`Self::push_symbols`] added.
    pub(in crate::multicast) fn pop_symbols(&mut self) {
        if let Some(last) = self.symbols.last_mut() {
            last.counts.pop();
            while last.counts.last() == Some(&0) {
                last.counts.pop();
            }
            if last.counts.is_empty() {
                self.symbols.pop();
            }
        }
    }

    fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&u16::try_from(self.whole.len()).expect("fits a packet").to_le_bytes());
        into.extend_from_slice(&u16::try_from(self.blocks.len()).expect("fits a packet").to_le_bytes());
        into.extend_from_slice(&u16::try_from(self.symbols.len()).expect("fits a packet").to_le_bytes());
        for need in &self.whole {
            need.objects.encode(into);
            into.extend_from_slice(&[need.cause as u8, u8::from(need.urgent)]);
        }
        for need in &self.blocks {
            write_u48(need.object, into);
            into.extend_from_slice(&need.first_block.to_le_bytes());
            into.extend_from_slice(&u16::try_from(need.bitmap.len()).expect("fits a packet").to_le_bytes());
            into.extend_from_slice(&[need.cause as u8, 0]);
            into.extend_from_slice(&need.bitmap);
        }
        for need in &self.symbols {
            write_u48(need.first, into);
            into.extend_from_slice(&u16::try_from(need.counts.len()).expect("SYMBOLS_RUN_MAX").to_le_bytes());
            into.extend_from_slice(&[need.cause as u8, 0]);
            into.extend_from_slice(&need.counts);
        }
    }

    fn parse(shape: &Shape, body: &mut Reader<'_>) -> Result<Self, Reject> {
        let (whole_count, blocks_count) = (usize::from(body.u16()?), usize::from(body.u16()?));
        let symbols_count = usize::from(body.u16()?);
        let least =
            whole_count * NEED_RANGE_BYTES + blocks_count * BLOCKS_BYTES + symbols_count * SYMBOLS_BYTES;
        if least > body.remaining() {
            return Err(Reject::Length);
        }
        let whole: Vec<NeedRange> =
            (0..whole_count).map(|_| parse_range(shape, body)).collect::<Result<_, _>>()?;
        if whole.iter().map(|need| u64::from(need.objects.count)).sum::<u64>() > NEED_OBJECTS_MAX {
            return Err(Reject::Bounds);
        }
        let blocks = (0..blocks_count).map(|_| parse_blocks(shape, body)).collect::<Result<_, _>>()?;
        let symbols = (0..symbols_count).map(|_| parse_symbols(shape, body)).collect::<Result<_, _>>()?;
        Ok(Self { whole, blocks, symbols })
    }
}

fn parse_symbols(shape: &Shape, body: &mut Reader<'_>) -> Result<NeedSymbols, Reject> {
    let (first, count) = (read_u48(body)?, usize::from(body.u16()?));
    let cause = Cause::parse(body.u8()?)?;
    body.u8()?;
    if count == 0 || count > SYMBOLS_RUN_MAX || first + count as u64 > shape.objects {
        return Err(Reject::Bounds);
    }
    Ok(NeedSymbols { first, counts: body.bytes(count)?.to_vec(), cause })
}

fn parse_range(shape: &Shape, body: &mut Reader<'_>) -> Result<NeedRange, Reject> {
    let objects = ObjectRange::parse(shape, body)?;
    let cause = Cause::parse(body.u8()?)?;
    let urgent = body.u8()? & 1 == 1;
    Ok(NeedRange { objects, cause, urgent })
}

fn parse_blocks(shape: &Shape, body: &mut Reader<'_>) -> Result<NeedBlocks, Reject> {
    let (object, first_block, bytes) = (read_u48(body)?, body.u16()?, usize::from(body.u16()?));
    let cause = Cause::parse(body.u8()?)?;
    body.u8()?;
    // The last block of the bitmap must have a number of 16 bits.
    if object >= shape.objects
        || first_block % 8 != 0
        || bytes == 0
        || usize::from(first_block) / 8 + bytes > 8192
    {
        return Err(Reject::Bounds);
    }
    Ok(NeedBlocks { object, first_block, bitmap: body.bytes(bytes)?.to_vec(), cause })
}

/// A checked packet of a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// The receiver takes part, and requests nothing.
    Join(Report),
    /// The receiver requests this; an empty list only reports its counters. Counts as a JOIN, too.
    Need(Report, Lacking),
    /// The receiver leaves; the report has its last counters.
    Leave(Report),
}

impl Upstream {
    /// The part that all reports share.
    #[must_use]
    pub fn report(&self) -> &Report {
        match self {
            Self::Join(report) | Self::Need(report, _) | Self::Leave(report) => report,
        }
    }

    /// The bytes of the packet, without its tag.
    #[must_use]
    pub fn encode(&self, shape: &Shape) -> Vec<u8> {
        let mut packet = Vec::with_capacity(FIXED_BYTES + 64);
        let (kind, report) = match self {
            Self::Join(report) => (kind::JOIN, report),
            Self::Need(report, _) => (kind::NEED, report),
            Self::Leave(report) => (kind::LEAVE, report),
        };
        let flags = if report.crowded { FLAG_CROWDED } else { 0 };
        Prefix { kind, flags }.encode(shape, &mut packet);
        report.encode(&mut packet);
        match self {
            Self::Need(_, lacking) => lacking.encode(&mut packet),
            Self::Join(_) | Self::Leave(_) => Lacking::default().encode(&mut packet),
        }
        packet
    }

    pub(in crate::multicast) fn parse(
        shape: &Shape,
        prefix: Prefix,
        mut body: Reader<'_>,
    ) -> Result<Self, Reject> {
        let report = Report { crowded: prefix.flags & FLAG_CROWDED != 0, ..Report::parse(&mut body)? };
        let lacking = Lacking::parse(shape, &mut body)?;
        if body.remaining() != 0 {
            return Err(Reject::Length);
        }
        match prefix.kind {
            kind::NEED => Ok(Self::Need(report, lacking)),
            kind::JOIN | kind::LEAVE if !lacking.is_empty() => Err(Reject::Bounds),
            kind::JOIN => Ok(Self::Join(report)),
            kind::LEAVE => Ok(Self::Leave(report)),
            _ => Err(Reject::Unknown),
        }
    }
}

impl Report {
    fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.receiver.0.to_le_bytes());
        into.extend_from_slice(&self.timestamp_us.to_le_bytes());
        let counters = &self.counters;
        for field in [
            self.seen,
            counters.blocks_arrived,
            counters.blocks_received,
            counters.blocks_duplicate,
            counters.blocks_lost,
            counters.blocks_refused,
            counters.objects_verified,
        ] {
            into.extend_from_slice(&field.to_le_bytes());
        }
        into.extend_from_slice(&counters.queue_us.to_le_bytes());
    }

    fn parse(body: &mut Reader<'_>) -> Result<Self, Reject> {
        let (receiver, timestamp_us, seen) = (ReceiverId(body.u32()?), body.u32()?, body.u64()?);
        let counters = ReceiverCounters {
            blocks_arrived: body.u64()?,
            blocks_received: body.u64()?,
            blocks_duplicate: body.u64()?,
            blocks_lost: body.u64()?,
            blocks_refused: body.u64()?,
            objects_verified: body.u64()?,
            queue_us: body.u32()?,
        };
        if seen >= SEQUENCE_MAX {
            return Err(Reject::Bounds);
        }
        Ok(Self { receiver, timestamp_us, seen, crowded: false, counters })
    }
}
