//! The signature of control packets: it proves that the server sent them, also to members, who all know the group's
//! key. The driver makes and verifies it; here is only its place. Source: `formats/multicast.md`, section 4.

use super::header::{FLAG_SIGNED, PREFIX_BYTES, kind};
use super::key::TAG_BYTES;

/// Bytes of a signature (ed25519, RFC 8032).
pub const SIGNATURE_BYTES: usize = 64;

/// Appends to a control packet, which has no tag yet, its signature; `sign` signs the bytes that it gets.
pub fn sign_control(packet: &mut Vec<u8>, sign: impl FnOnce(&[u8]) -> [u8; SIGNATURE_BYTES]) {
    debug_assert!(packet.len() >= PREFIX_BYTES, "a packet has a prefix");
    packet[2] |= FLAG_SIGNED.to_le_bytes()[0];
    let signature = sign(packet);
    packet.extend_from_slice(&signature);
}

/// The signed bytes of a control packet, and its signature (not verified). `None` for other packets, and for control
/// packets without a signature.
#[must_use]
pub fn control_signature(datagram: &[u8]) -> Option<(&[u8], &[u8; SIGNATURE_BYTES])> {
    let packet = datagram.get(..datagram.len().checked_sub(TAG_BYTES)?)?;
    let (message, signature) = packet.split_last_chunk::<SIGNATURE_BYTES>()?;
    let prefix = message.get(..PREFIX_BYTES)?;
    let is_control = matches!(prefix[1], kind::STATUS | kind::BYE);
    let is_signed = u16::from_le_bytes([prefix[2], prefix[3]]) & FLAG_SIGNED != 0;
    (is_control && is_signed).then_some((message, signature))
}
