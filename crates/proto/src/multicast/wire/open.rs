//! Opens a datagram: checks what all packets share before anything else is parsed. Source: `formats/multicast.md`,
//! section 2.

use base::wire::Reader;

use super::header::{CRITICAL_FLAGS, PREFIX_BYTES, Prefix, ReceiverId, Reject, Shape, VERSION};
use super::key::{AT_ONCE, Key, TAG_BYTES, Tag};
use super::report::Upstream;
use super::status::Downstream;
use super::tag::{tag, tags};

/// Checks and parses a datagram that a receiver got from the group.
///
/// # Errors
/// Returns why the datagram must be dropped.
pub fn open_downstream<'a>(key: &Key, shape: &Shape, datagram: &'a [u8]) -> Result<Downstream<'a>, Reject> {
    let (prefix, body) = open(shape, datagram, |packet| tag(key, packet))?;
    Downstream::parse(shape, prefix, body)
}

/// Checks and parses a train: datagrams of the group directly one after the other, each of `packet_bytes` bytes; the
/// last may be shorter. Does the same as [`open_downstream`] for each, but faster.
///
/// # Panics
/// If `packet_bytes` is 0.
pub fn open_train<'a>(
    key: &'a Key,
    shape: &'a Shape,
    train: &'a [u8],
    packet_bytes: usize,
) -> impl Iterator<Item = Result<Downstream<'a>, Reject>> {
    train.chunks(AT_ONCE * packet_bytes).flat_map(move |packets| {
        let right = tags(key, packets, packet_bytes);
        packets.chunks(packet_bytes).zip(right).map(|(datagram, right)| {
            let (prefix, body) = open(shape, datagram, |_| right)?;
            Downstream::parse(shape, prefix, body)
        })
    })
}

/// Checks and parses a datagram of the receiver that [`peek_receiver`] named, under that receiver's key.
///
/// # Errors
/// Returns why the datagram must be dropped.
pub fn open_upstream(key: &Key, shape: &Shape, datagram: &[u8]) -> Result<Upstream, Reject> {
    let (prefix, body) = open(shape, datagram, |packet| tag(key, packet))?;
    Upstream::parse(shape, prefix, body)
}

/// Which receiver a datagram claims to be from (not verified), so that the server can look up the key; `None` if it
/// is too short.
#[must_use]
pub fn peek_receiver(datagram: &[u8]) -> Option<ReceiverId> {
    let field = datagram.get(PREFIX_BYTES..PREFIX_BYTES + 4)?;
    Some(ReceiverId(u32::from_le_bytes(field.try_into().expect("four bytes"))))
}

/// Checks what all packets share; `tag` computes the tag that the bytes before it should have.
fn open<'a>(
    shape: &Shape,
    datagram: &'a [u8],
    tag: impl FnOnce(&[u8]) -> Tag,
) -> Result<(Prefix, Reader<'a>), Reject> {
    let (packet, found) = datagram.split_last_chunk::<TAG_BYTES>().ok_or(Reject::Length)?;
    let mut body = Reader::new(packet);
    let (version, kind, flags, epoch, session) =
        (body.u8()?, body.u8()?, body.u16()?, body.u32()?, body.u64()?);
    if version != VERSION {
        return Err(Reject::Version);
    }
    if session != shape.session {
        return Err(Reject::Session);
    }
    if epoch != shape.epoch {
        return Err(Reject::Epoch(epoch));
    }
    if tag(packet) != *found {
        return Err(Reject::Tag);
    }
    if flags & CRITICAL_FLAGS != 0 {
        return Err(Reject::Unknown);
    }
    Ok((Prefix { kind, flags }, body))
}
