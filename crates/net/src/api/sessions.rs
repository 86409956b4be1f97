//! Multicast sessions: the request of a receiver, and the grant that answers it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use base::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

/// The body of `POST /api/v1/sessions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRequest {
    /// The version to receive, as `image@version`.
    pub reference: String,
    /// Digest of the version's manifest, 64 hexadecimal digits, so that both sides mean the same version. Empty for
    /// an attached disk, which knows its root.
    pub manifest: String,
    /// Name of the receiver in statistics; the server keeps the first 16 characters.
    pub receiver: String,
    /// The address families that the receiver can use, best first; empty for any.
    #[serde(default)]
    pub families: Vec<Family>,
    /// Largest IP packet of its interface, in bytes. A session's packets must fit.
    pub mtu: u32,
    /// The version of the multicast protocol that the receiver speaks.
    #[serde(default = "version_before")]
    pub multicast: u8,
    /// Whether the disk is in use during the transfer: such receivers have separate sessions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attached: bool,
    /// Whether the receiver can get objects from other machines (`formats/peer.md`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub peers: bool,
}

/// The version of the multicast protocol that this program speaks.
pub const MULTICAST_VERSION: u8 = proto::multicast::VERSION;

/// The version of the multicast protocol of programs that do not name it.
const fn version_before() -> u8 {
    2
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

/// The answer to a [`SessionRequest`]: everything that a receiver needs to join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionGrant {
    /// The version of the multicast protocol that the server speaks.
    #[serde(default = "version_before")]
    pub multicast: u8,
    /// The session.
    pub session: SessionId,
    /// Number of the server's start.
    pub epoch: u32,
    /// Multicast group and port of the server's packets.
    pub group: SocketAddr,
    /// The address from which the server sends, for source-specific joins.
    pub source: IpAddr,
    /// The address for the receiver's reports, by unicast.
    pub report: SocketAddr,
    /// The number of this receiver.
    pub receiver: u32,
    /// Key of the server's packets.
    pub group_key: Key,
    /// Key of this receiver's packets.
    pub receiver_key: Key,
    /// Key under which the payload of blocks is encrypted; absent if it is not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_key: Option<Key>,
    /// The key that the server's STATUS and BYE packets are signed with (ed25519): members have the group's key, but
    /// not this one's secret part.
    #[serde(default)]
    pub server_key: PublicKey,
    /// Payload of a block, in bytes.
    pub block_bytes: u16,
    /// Number of the session's objects: tree nodes, each alone, then bundles of consecutive stored chunks.
    pub objects: u64,
    /// Number of tree nodes among them.
    pub heads: u64,
    /// Number of stored objects in them: tree nodes, then chunks, in the order of the catalogue.
    pub stored_objects: u64,
    /// Most blocks of a bundle of several chunks.
    pub bundle_blocks: u16,
    /// Number of receivers admitted so far, this one included.
    pub receivers: u32,
    /// In a session for attached disks: runs of chunks of the disk, `(index, count)`, that are sent first, in this
    /// order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Vec<(u64, u32)>>,
    /// For a receiver that can get objects from others: runs of stored objects, `(first, count)`, that it should get
    /// from them. They went out already, or others hold them, and nobody waits for them here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<(u64, u64)>,
}

/// A session's random 128-bit name; 32 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(pub u128);

/// A 128-bit key; 32 hexadecimal digits as text. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(pub [u8; 16]);

/// A public key of 256 bits; 64 hexadecimal digits as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey(pub [u8; 32]);

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        base::hex::encode(&key.0)
    }
}

impl TryFrom<String> for PublicKey {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        let invalid = || Error::new(ErrorKind::Invalid, "expected a public key of 64 hexadecimal digits");
        base::hex::decode(&text).map(Self).ok_or_else(invalid)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        base::hex::encode(&key.0)
    }
}

impl TryFrom<String> for Key {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        let invalid = || Error::new(ErrorKind::Invalid, "expected a key of 32 hexadecimal digits");
        base::hex::decode(&text).map(Self).ok_or_else(invalid)
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
        base::hex::decode(text).map(|bytes| Self(u128::from_be_bytes(bytes))).ok_or_else(invalid)
    }
}

impl TryFrom<String> for SessionId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}
