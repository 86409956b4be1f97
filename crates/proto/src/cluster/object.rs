//! Names of devices and of objects on them. formats/cluster.md, section 1.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The number of a device in its cluster, from 1; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeviceId(pub u32);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of an object on a device: 96 bits, of which 32 name its group. Seed 002, section 2.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// The group; 0 holds the root alone.
    pub group: u32,
    /// The number in the group; 0 is the group itself.
    pub number: u64,
}

impl ObjectId {
    /// The device itself.
    pub const ROOT: Self = Self { group: 0, number: 0 };

    /// The object that stands for a group.
    #[must_use]
    pub fn of_group(group: u32) -> Self {
        Self { group, number: 0 }
    }

    /// Whether it holds a user's bytes: neither the root nor a group.
    #[must_use]
    pub fn holds_data(self) -> bool {
        self.group != 0 && self.number != 0
    }

    /// Its 12 bytes, big-endian, so that they sort like the ids.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&self.group.to_be_bytes());
        bytes[4..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// The id with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 12]) -> Self {
        let (group, number) = bytes.split_at(4);
        Self {
            group: u32::from_be_bytes(group.try_into().expect("4 of 12 bytes")),
            number: u64::from_be_bytes(number.try_into().expect("8 of 12 bytes")),
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}.{:016x}", self.group, self.number)
    }
}

/// A text that names no object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoObjectId;

impl fmt::Display for NoObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object is named by 8 and 16 hexadecimal digits: 0000000a.0000000000000001")
    }
}

impl std::error::Error for NoObjectId {}

impl FromStr for ObjectId {
    type Err = NoObjectId;

    fn from_str(text: &str) -> Result<Self, NoObjectId> {
        let (group, number) = text.split_once('.').ok_or(NoObjectId)?;
        let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if group.len() != 8 || number.len() != 16 || !is_hex(group) || !is_hex(number) {
            return Err(NoObjectId);
        }
        Ok(Self {
            group: u32::from_str_radix(group, 16).map_err(|_| NoObjectId)?,
            number: u64::from_str_radix(number, 16).map_err(|_| NoObjectId)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_give_the_same_id_back() {
        let id = ObjectId { group: 0xab, number: 0x1234_5678_9abc_def0 };
        assert_eq!(id.to_string(), "000000ab.123456789abcdef0");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(ObjectId::from_bytes(id.to_bytes()), id);
        for wrong in ["", "ab.1", "000000AB.123456789abcdef0", "000000ab.+23456789abcdef0", "000000ab1"] {
            assert_eq!(wrong.parse::<ObjectId>(), Err(NoObjectId), "{wrong}");
        }
    }

    #[test]
    fn bytes_sort_like_ids() {
        let ids =
            [(0, 0), (1, 0), (1, 1), (1, 256), (2, 0)].map(|(group, number)| ObjectId { group, number });
        assert!(ids.is_sorted() && ids.map(ObjectId::to_bytes).is_sorted());
    }
}
