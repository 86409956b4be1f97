//! Multicast sessions: what a receiver asks for, and what it is granted.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use base::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

/// The body of `POST /api/v1/sessions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRequest {
    /// `image@version`: the version whose manifest the client holds.
    pub reference: String,
    /// Digest of that manifest, 64 hexadecimal digits: both sides speak of the same bytes. Empty for an attached disk,
    /// which knows its root.
    pub manifest: String,
    /// What the receiver calls itself in statistics, at most 64 bytes.
    pub receiver: String,
    /// Which addresses it can use, best first; empty for any.
    #[serde(default)]
    pub families: Vec<Family>,
    /// Largest IP packet that its interface takes, in bytes; a session's blocks are never larger.
    pub mtu: u32,
    /// Whether it is for a disk that is used meanwhile: those have sessions of their own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attached: bool,
}

/// A family of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The answer to a [`SessionRequest`]: all that a receiver needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionGrant {
    /// The session.
    pub session: SessionId,
    /// Which start of the server this is.
    pub epoch: u32,
    /// Multicast group and port of blocks and status.
    pub group: SocketAddr,
    /// The address that the server sends from, for source-specific joins.
    pub source: IpAddr,
    /// Where reports go, by unicast.
    pub report: SocketAddr,
    /// The number of this receiver.
    pub receiver: u32,
    /// Key of what the server sends to all.
    pub group_key: Key,
    /// Key of what this receiver and the server send each other.
    pub receiver_key: Key,
    /// Payload of a block, in bytes.
    pub block_bytes: u16,
    /// Objects of the session: tree nodes, each alone, then bundles of consecutive stored chunks.
    pub objects: u64,
    /// How many of them are tree nodes.
    pub heads: u64,
    /// Stored objects in them: tree nodes, then chunks, as the catalogue numbers them.
    pub stored_objects: u64,
    /// Chunks are packed while a bundle has at most so many blocks.
    pub bundle_blocks: u16,
    /// Receivers admitted so far, this one included.
    pub receivers: u32,
    /// In a session for attached disks: runs of chunks of the disk, index and count, which go first, in this order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Vec<(u64, u32)>>,
}

/// A session's random 128-bit name; 32 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(pub u128);

/// A 128-bit key; 32 hexadecimal digits as text. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(pub [u8; 16]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        crate::hex::encode(&key.0)
    }
}

impl TryFrom<String> for Key {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        let invalid = || Error::new(ErrorKind::Invalid, "expected a key of 32 hexadecimal digits");
        crate::hex::decode(&text).map(Self).ok_or_else(invalid)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({self})")
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.to_string()
    }
}

impl FromStr for SessionId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || Error::new(ErrorKind::Invalid, "expected a session of 32 hexadecimal digits");
        crate::hex::decode(text).map(|bytes| Self(u128::from_be_bytes(bytes))).ok_or_else(invalid)
    }
}

impl TryFrom<String> for SessionId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}
