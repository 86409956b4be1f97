//! Drivers of multicast sessions: connect the state machines of `proto::multicast` with sockets, threads, buffers and
//! a clock.

mod admitted;
mod authentic;
mod beside;
pub mod budget;
mod buffers;
pub mod bundle;
mod consumer;
mod driver;
mod foreign;
mod link;
pub mod order;
mod outage;
mod outgoing;
mod own_link;
mod readahead;
pub mod receiver;
mod sent_rate;
pub mod server;
mod session;
mod shares;
mod terms;
mod trial;

use base::Digest;

/// If others have less than this part of the objects, a new receiver gets all from the session.
pub(crate) const ELSEWHERE_LEAST: u64 = 32;

use crate::api::Key;
pub(crate) use consumer::SCATTERED_BYTES_MAX;

/// Bytes of Ethernet (with its checksum), IP and UDP headers around a packet, which count towards the rate.
fn overhead_bytes(ipv4: bool) -> u16 {
    18 + 8 + if ipv4 { 20 } else { 40 }
}

/// The key of one receiver. It cannot be computed from the receiver's number without the session's secret.
fn receiver_key(secret: &[u8; 32], receiver: u32) -> Key {
    let material = [b"diskcast receiver key".as_slice(), secret, &receiver.to_le_bytes()].concat();
    Key(*Digest::of(&material).0.first_chunk().expect("a digest is longer than a key"))
}

impl From<Key> for proto::multicast::Key {
    fn from(key: Key) -> Self {
        Self(key.0)
    }
}

#[cfg(test)]
mod tests;
