//! Swarms: the request of a member, and the grant that answers it.

use std::fmt;

use base::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use super::sessions::Key;

/// The body of `POST /api/v1/swarms`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwarmRequest {
    /// The version, as `image@version`.
    pub reference: String,
    /// Digest of the version's manifest, 64 hexadecimal digits, so that both sides mean the same version.
    pub manifest: String,
    /// The version of the peer protocol that the member speaks.
    pub peer: u8,
}

/// The answer to a [`SwarmRequest`]: everything that a member needs (`formats/peer.md`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwarmGrant {
    /// The version of the peer protocol that the server speaks.
    pub peer: u8,
    /// The swarm.
    pub swarm: Name,
    /// The member.
    pub member: Name,
    /// Key of this member's packets.
    pub member_key: Key,
    /// Key of offers.
    pub offer_key: Key,
    /// Key that opens transfers.
    pub transfer_key: TransferKey,
    /// How many joined before it.
    pub rank: u32,
    /// UDP port of the redirector, at the server's address.
    pub port: u16,
    /// Number of objects of the version.
    pub objects: u32,
    /// Shortest time between two reports, in milliseconds.
    pub report_ms: u64,
    /// What the other members hold together: runs of objects, `(first, count)`.
    pub held: Vec<(u32, u32)>,
    /// Whether others are there, joined just now, or are known to come.
    #[serde(default)]
    pub others: bool,
    /// Where this member is, if the server knows its network: equal for members at one switch. 0 if not.
    #[serde(default)]
    pub place: u32,
}

/// The name of a swarm or a member; 16 hexadecimal digits as text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(pub u64);

/// A key of 256 bits; 64 hexadecimal digits as text. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TransferKey(pub [u8; 32]);

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for TransferKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TransferKey(..)")
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        base::hex::encode(&name.0.to_be_bytes())
    }
}

impl TryFrom<String> for Name {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        let invalid = || Error::new(ErrorKind::Invalid, "expected a name of 16 hexadecimal digits");
        base::hex::decode(&text).map(|bytes| Self(u64::from_be_bytes(bytes))).ok_or_else(invalid)
    }
}

impl From<TransferKey> for String {
    fn from(key: TransferKey) -> Self {
        base::hex::encode(&key.0)
    }
}

impl TryFrom<String> for TransferKey {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        let invalid = || Error::new(ErrorKind::Invalid, "expected a key of 64 hexadecimal digits");
        base::hex::decode(&text).map(Self).ok_or_else(invalid)
    }
}
