//! Capabilities: what their bearer may do to which object of one device, checked there without asking anybody.
//! formats/cluster.md, section 5; seed 002, section 1.

use std::fmt;
use std::ops::Range;

use base::wire::Reader;

use super::{DeviceId, ObjectId};

/// Bytes of a capability.
const BYTES: usize = 76;
/// Bytes that the tag covers.
const SEALED_BYTES: usize = 60;
const CONTEXT: &str = "diskcast 2026 cluster device key v1";

/// Rights, as bits.
pub mod rights {
    /// Read the bytes of objects.
    pub const READ: u32 = 1;
    /// Write anywhere, and truncate.
    pub const WRITE: u32 = 2;
    /// Append, flush and seal.
    pub const APPEND: u32 = 4;
    /// Create objects.
    pub const CREATE: u32 = 8;
    /// Remove objects.
    pub const REMOVE: u32 = 16;
    /// Read attributes.
    pub const READ_ATTRIBUTES: u32 = 32;
    /// Set and remove attributes.
    pub const WRITE_ATTRIBUTES: u32 = 64;
    /// List objects, and names in the index.
    pub const LIST: u32 = 128;
    /// Read entries of the index.
    pub const READ_INDEX: u32 = 256;
    /// Insert entries.
    pub const WRITE_INDEX: u32 = 512;
    /// Fence and seal objects of others.
    pub const MANAGE: u32 = 1024;
    /// All of them.
    pub const ALL: u32 = 2047;
}

/// What its bearer may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// The device that it is for.
    pub device: DeviceId,
    /// The key epoch of that device.
    pub key_epoch: u32,
    /// The group; `None` is every group.
    pub group: Option<u32>,
    /// The object of the group; `None` is every object, and the group itself.
    pub number: Option<u64>,
    /// The bytes of the object.
    pub range: Range<u64>,
    /// What may be done, as bits of [`rights`].
    pub rights: u32,
    /// When it ends, in seconds since 1970.
    pub expires: u64,
    /// Objects with a greater fence refuse appends and writes by it.
    pub fence: u32,
    /// The number of the client.
    pub holder: u64,
}

/// The key that makes and checks the capabilities of one device.
#[derive(Clone)]
pub struct DeviceKey([u8; 32]);

impl fmt::Debug for DeviceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeviceKey(secret)")
    }
}

impl DeviceKey {
    /// The key of `device` in its `key_epoch`, from the metadata service's secret.
    #[must_use]
    pub fn derive(secret: &[u8; 32], device: DeviceId, key_epoch: u32) -> Self {
        let mut material = [0; 40];
        material[..32].copy_from_slice(secret);
        material[32..36].copy_from_slice(&device.0.to_le_bytes());
        material[36..].copy_from_slice(&key_epoch.to_le_bytes());
        Self(blake3::derive_key(CONTEXT, &material))
    }

    /// A key that was sent.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes, to be sent to the device.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    fn tag(&self, sealed: &[u8]) -> [u8; 16] {
        let hash = blake3::keyed_hash(&self.0, sealed);
        *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
    }
}

/// What a request wants to do.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The right that it needs, any one of these bits.
    pub right: u32,
    /// On which object.
    pub object: ObjectId,
    /// On which bytes; empty where it is about no bytes.
    pub from: u64,
    /// The end of these bytes.
    pub to: u64,
}

/// Why a device refuses a capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Malformed or forged, of another device, or of another key epoch.
    Unknown,
    /// It ended at this second since 1970.
    Expired(u64),
    /// It does not allow this command, object or range.
    Narrower,
}

impl Capability {
    /// Its bytes, with the tag.
    #[must_use]
    pub fn seal(&self, key: &DeviceKey) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend(self.device.0.to_le_bytes());
        bytes.extend(self.key_epoch.to_le_bytes());
        bytes.extend(self.group.unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(self.number.unwrap_or(u64::MAX).to_le_bytes());
        bytes.extend(self.range.start.to_le_bytes());
        bytes.extend(self.range.end.to_le_bytes());
        bytes.extend(self.rights.to_le_bytes());
        bytes.extend(self.expires.to_le_bytes());
        bytes.extend(self.fence.to_le_bytes());
        bytes.extend(self.holder.to_le_bytes());
        debug_assert_eq!(bytes.len(), SEALED_BYTES);
        bytes.extend(key.tag(&bytes));
        bytes
    }

    /// The capability in `bytes`, if `key` sealed it for `device` in `key_epoch`.
    ///
    /// # Errors
    /// [`Flaw::Unknown`].
    pub fn unseal(bytes: &[u8], key: &DeviceKey, device: DeviceId, key_epoch: u32) -> Result<Self, Flaw> {
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| Flaw::Unknown)?;
        let (sealed, tag) = bytes.split_at(SEALED_BYTES);
        // Compared without an early end, so that the time tells nothing about the right tag.
        let differs = key.tag(sealed).iter().zip(tag).fold(0, |sum, (own, sent)| sum | (own ^ sent));
        if differs != 0 {
            return Err(Flaw::Unknown);
        }
        let capability = Self::read(sealed).ok_or(Flaw::Unknown)?;
        if capability.device != device || capability.key_epoch != key_epoch {
            return Err(Flaw::Unknown);
        }
        Ok(capability)
    }

    fn read(sealed: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(sealed);
        let every = |number: u64, all: u64| (number != all).then_some(number);
        Some(Self {
            device: DeviceId(reader.u32().ok()?),
            key_epoch: reader.u32().ok()?,
            group: reader.u32().ok().map(|group| (group != u32::MAX).then_some(group))?,
            number: every(reader.u64().ok()?, u64::MAX),
            range: reader.u64().ok()?..reader.u64().ok()?,
            rights: reader.u32().ok()?,
            expires: reader.u64().ok()?,
            fence: reader.u32().ok()?,
            holder: reader.u64().ok()?,
        })
    }

    /// Whether it allows `request` at `now`, in seconds since 1970.
    ///
    /// # Errors
    /// [`Flaw::Expired`] and [`Flaw::Narrower`].
    pub fn allows(&self, request: &Request, now: u64) -> Result<(), Flaw> {
        if now >= self.expires {
            return Err(Flaw::Expired(self.expires));
        }
        let object = request.object;
        let of_group = self.group.is_none_or(|group| group == object.group);
        let of_object = self.number.is_none_or(|number| number == object.number);
        let in_range =
            request.from >= request.to || (request.from >= self.range.start && request.to <= self.range.end);
        if self.rights & request.right == 0 || !of_group || !of_object || !in_range {
            return Err(Flaw::Narrower);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceId = DeviceId(3);

    fn key() -> DeviceKey {
        DeviceKey::derive(&[7; 32], DEVICE, 1)
    }

    fn capability() -> Capability {
        Capability {
            device: DEVICE,
            key_epoch: 1,
            group: Some(5),
            number: Some(9),
            range: 100..200,
            rights: rights::READ | rights::APPEND,
            expires: 1000,
            fence: 2,
            holder: 77,
        }
    }

    #[test]
    fn survives_its_bytes() {
        for capability in [capability(), Capability { group: None, number: None, ..capability() }] {
            assert_eq!(Capability::unseal(&capability.seal(&key()), &key(), DEVICE, 1), Ok(capability));
        }
    }

    #[test]
    fn a_changed_bit_makes_it_unknown() {
        let sealed = capability().seal(&key());
        for bit in 0..sealed.len() * 8 {
            let mut forged = sealed.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Capability::unseal(&forged, &key(), DEVICE, 1), Err(Flaw::Unknown), "bit {bit}");
        }
        assert_eq!(Capability::unseal(&sealed[1..], &key(), DEVICE, 1), Err(Flaw::Unknown));
        assert_eq!(Capability::unseal(&[], &key(), DEVICE, 1), Err(Flaw::Unknown));
    }

    #[test]
    fn another_device_or_key_epoch_knows_it_not() {
        let other = DeviceKey::derive(&[7; 32], DeviceId(4), 1);
        let sealed = capability().seal(&key());
        assert_eq!(Capability::unseal(&sealed, &other, DeviceId(4), 1), Err(Flaw::Unknown));
        assert_eq!(Capability::unseal(&sealed, &key(), DeviceId(4), 1), Err(Flaw::Unknown));
        assert_eq!(Capability::unseal(&sealed, &key(), DEVICE, 2), Err(Flaw::Unknown));
    }

    #[test]
    fn allows_what_it_names_and_nothing_else() {
        let object = ObjectId { group: 5, number: 9 };
        let good = Request { right: rights::READ, object, from: 100, to: 200 };
        assert_eq!(capability().allows(&good, 999), Ok(()));
        assert_eq!(capability().allows(&good, 1000), Err(Flaw::Expired(1000)));
        let narrower = [
            Request { right: rights::WRITE, ..good },
            Request { object: ObjectId { group: 6, number: 9 }, ..good },
            Request { object: ObjectId { group: 5, number: 8 }, ..good },
            Request { from: 99, ..good },
            Request { to: 201, ..good },
        ];
        for request in narrower {
            assert_eq!(capability().allows(&request, 0), Err(Flaw::Narrower), "{request:?}");
        }
    }
}
