//! The key and the length of packet tags.

/// A 128-bit key of tags: the group's for packets of the server, a receiver's own for its packets.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Bytes of the tag that ends each packet.
pub const TAG_BYTES: usize = 8;
/// Number of packets whose tags are computed at once.
pub(in crate::multicast) const AT_ONCE: usize = 4;

/// A packet's tag.
pub(in crate::multicast) type Tag = [u8; TAG_BYTES];
