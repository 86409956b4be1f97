//! The packets of the server besides BLOCK: STATUS, which announces what is pending so that receivers stay silent,
//! and BYE. Source: `formats/multicast.md`, section 4.

use base::Duration;
use base::wire::Reader;

use super::header::{
    BlockHeader, FLAG_SIGNED, ObjectRange, Prefix, ReceiverId, Reject, SEQUENCE_MAX, Shape, kind, read_u48,
    write_u48,
};
use super::signature::SIGNATURE_BYTES;

/// Most ranges in one STATUS.
pub(in crate::multicast) const STATUS_RANGES_MAX: usize = 40;
/// Most objects with pending symbols in one STATUS.
pub(in crate::multicast) const STATUS_REPAIRS_MAX: usize = 40;
/// Unit of [`Status::queue`], in microseconds.
pub(in crate::multicast) const QUEUE_STEP_US: u32 = 250;
/// Longest report interval that a receiver accepts.
const REPORT_INTERVAL_MAX_US: u32 = 60_000_000;

/// A time in a queue as [`Status::queue`] has it; `None` if it is too long for that.
pub(in crate::multicast) fn queue_steps(time: Duration) -> Option<u8> {
    u8::try_from(time.as_micros() / u128::from(QUEUE_STEP_US)).ok().filter(|steps| *steps < u8::MAX)
}

/// A checked packet of the server. Its payload is borrowed from the datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Downstream<'a> {
    /// One block of an object.
    Block(BlockHeader, &'a [u8]),
    /// What the server has sent and what it will send.
    Status(Status),
    /// The session ends; fetch the rest by unicast or join again.
    Bye,
}

/// Identifies the last report that the server received, so that its sender can measure the round-trip time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echo {
    /// The receiver that sent it.
    pub receiver: ReceiverId,
    /// The timestamp in it.
    pub timestamp_us: u32,
    /// Time since the server received it, in microseconds.
    pub age_us: u32,
}

/// What the server has sent and what is pending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Number of BLOCKs sent so far: all BLOCKs below this sequence have been sent.
    pub sequence: u64,
    /// Server's clock in microseconds, modulo 2^32.
    pub timestamp_us: u32,
    /// Objects are sent in ascending order from here, and wrap from the last one to `heads`.
    pub cursor: u64,
    /// Nothing is left to send: a receiver that misses something should request it now.
    pub idle: bool,
    /// How long packets to the median receiver waited in queues lately, in steps of [`QUEUE_STEP_US`]; `None` if
    /// unknown, or 255 or more. A receiver whose packets wait longer is behind a port that others do not share.
    pub queue: Option<u8>,
    /// Number of receivers.
    pub receivers: u32,
    /// The mean time between two reports of a receiver.
    pub report_interval: Duration,
    /// Lets one receiver measure its round-trip time.
    pub echo: Option<Echo>,
    /// Objects that will be sent in full, in the order of sending, as many as there is room for.
    pub pending: Vec<ObjectRange>,
    /// Objects of which symbols will be sent, and how many (255: 255 or more).
    pub repairs: Vec<(u64, u8)>,
}

impl Status {
    /// The bytes of the packet, without its tag.
    #[must_use]
    pub fn encode(&self, shape: &Shape) -> Vec<u8> {
        let mut packet = Vec::with_capacity(80 + self.pending.len() * 10);
        Prefix { kind: kind::STATUS, flags: 0 }.encode(shape, &mut packet);
        packet.extend_from_slice(&self.sequence.to_le_bytes());
        packet.extend_from_slice(&self.timestamp_us.to_le_bytes());
        write_u48(self.cursor, &mut packet);
        let bits = [self.idle, self.echo.is_some()];
        packet.push((0..).zip(bits).map(|(at, bit)| u8::from(bit) << at).sum());
        packet.push(u8::try_from(self.pending.len()).expect("at most STATUS_RANGES_MAX"));
        packet.push(u8::try_from(self.repairs.len()).expect("at most STATUS_REPAIRS_MAX"));
        packet.push(self.queue.map_or(0, |steps| steps.saturating_add(1)));
        packet.extend_from_slice(&self.receivers.to_le_bytes());
        let interval_us = u32::try_from(self.report_interval.as_micros()).unwrap_or(u32::MAX);
        packet.extend_from_slice(&interval_us.min(REPORT_INTERVAL_MAX_US).to_le_bytes());
        let echo = self.echo.unwrap_or(Echo { receiver: ReceiverId(0), timestamp_us: 0, age_us: 0 });
        for field in [echo.receiver.0, echo.timestamp_us, echo.age_us] {
            packet.extend_from_slice(&field.to_le_bytes());
        }
        self.pending.iter().for_each(|range| range.encode(&mut packet));
        for &(object, symbols) in &self.repairs {
            write_u48(object, &mut packet);
            packet.push(symbols);
        }
        packet
    }

    fn parse(shape: &Shape, sequence: u64, timestamp_us: u32, mut body: Reader<'_>) -> Result<Self, Reject> {
        let (cursor, bits, count) = (read_u48(&mut body)?, body.u8()?, usize::from(body.u8()?));
        let repairs_count = usize::from(body.u8()?);
        let queue = body.u8()?.checked_sub(1);
        let (receivers, interval_us) = (body.u32()?, body.u32()?);
        let echo = Echo { receiver: ReceiverId(body.u32()?), timestamp_us: body.u32()?, age_us: body.u32()? };
        let bounded = count <= STATUS_RANGES_MAX
            && repairs_count <= STATUS_REPAIRS_MAX
            && interval_us <= REPORT_INTERVAL_MAX_US;
        if !bounded || cursor > shape.objects || sequence >= SEQUENCE_MAX {
            return Err(Reject::Bounds);
        }
        let pending = (0..count).map(|_| ObjectRange::parse(shape, &mut body)).collect::<Result<_, _>>()?;
        let repairs = (0..repairs_count).map(|_| parse_repair(shape, &mut body)).collect::<Result<_, _>>()?;
        if body.remaining() != 0 {
            return Err(Reject::Length);
        }
        Ok(Self {
            sequence,
            timestamp_us,
            cursor,
            idle: bits & 1 != 0,
            queue,
            receivers,
            report_interval: Duration::from_micros(interval_us.into()),
            echo: (bits & 2 != 0).then_some(echo),
            pending,
            repairs,
        })
    }
}

fn parse_repair(shape: &Shape, body: &mut Reader<'_>) -> Result<(u64, u8), Reject> {
    let (object, symbols) = (read_u48(body)?, body.u8()?);
    if object < shape.objects { Ok((object, symbols)) } else { Err(Reject::Bounds) }
}

/// The bytes of the BYE packet, without its tag.
pub(in crate::multicast) fn encode_bye(shape: &Shape, sequence: u64, timestamp_us: u32) -> Vec<u8> {
    let mut packet = Vec::with_capacity(40);
    Prefix { kind: kind::BYE, flags: 0 }.encode(shape, &mut packet);
    packet.extend_from_slice(&sequence.to_le_bytes());
    packet.extend_from_slice(&timestamp_us.to_le_bytes());
    packet
}

impl<'a> Downstream<'a> {
    pub(in crate::multicast) fn parse(
        shape: &Shape,
        prefix: Prefix,
        mut body: Reader<'a>,
    ) -> Result<Self, Reject> {
        if prefix.kind != kind::BLOCK && prefix.flags & FLAG_SIGNED != 0 {
            let rest = body.rest();
            body = Reader::new(rest.split_last_chunk::<SIGNATURE_BYTES>().ok_or(Reject::Length)?.0);
        }
        let (sequence, timestamp_us) = (body.u64()?, body.u32()?);
        match prefix.kind {
            kind::BLOCK => BlockHeader::parse(shape, prefix, sequence, timestamp_us, body)
                .map(|(header, payload)| Self::Block(header, payload)),
            kind::STATUS => Status::parse(shape, sequence, timestamp_us, body).map(Self::Status),
            kind::BYE if body.remaining() == 0 => Ok(Self::Bye),
            kind::BYE => Err(Reject::Length),
            _ => Err(Reject::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_is_too_long_to_tell_is_not_told() {
        let steps = |us: u64| queue_steps(Duration::from_micros(us));
        assert_eq!([steps(0), steps(8_200), steps(63_749)], [Some(0), Some(32), Some(254)]);
        assert_eq!([steps(63_750), steps(335_000)], [None, None]);
    }
}
