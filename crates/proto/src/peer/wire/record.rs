//! The records of a transfer: what follows the handshake, in both directions, before it is encrypted. Source:
//! `formats/peer.md`, section 4.

use base::limits::OBJECT_BYTES_MAX;
use base::wire::Reader;

use super::packet::Reject;
use crate::peer::availability::Part;

/// Bytes of a record, without the object that may follow it.
pub const RECORD_BYTES: usize = 12;

mod kind {
    pub(super) const GET: u32 = 1;
    pub(super) const OBJECT: u32 = 2;
    pub(super) const LACKS: u32 = 3;
    pub(super) const BUSY: u32 = 4;
}

/// A record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// From the asker: send these objects.
    Get(Part),
    /// From the holder: the bytes of an object follow.
    Object {
        /// Its number.
        object: u32,
        /// How many bytes follow, at most [`OBJECT_BYTES_MAX`].
        bytes: u32,
    },
    /// From the holder: it does not have these.
    Lacks(Part),
    /// From the holder: it serves enough others; it closes the connection.
    Busy,
}

impl Record {
    /// The bytes of the record.
    #[must_use]
    pub fn encode(self) -> [u8; RECORD_BYTES] {
        let [kind, first, second] = match self {
            Self::Get(part) => [kind::GET, part.batch, part.mask],
            Self::Object { object, bytes } => [kind::OBJECT, object, bytes],
            Self::Lacks(part) => [kind::LACKS, part.batch, part.mask],
            Self::Busy => [kind::BUSY, 0, 0],
        };
        let mut bytes = [0; RECORD_BYTES];
        for (into, word) in bytes.chunks_mut(4).zip([kind, first, second]) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads a record.
    ///
    /// # Errors
    /// [`Reject`] for what is none.
    pub fn parse(bytes: &[u8; RECORD_BYTES]) -> Result<Self, Reject> {
        let mut from = Reader::new(bytes);
        let (kind, first, second) = (from.u32()?, from.u32()?, from.u32()?);
        let part = Part { batch: first, mask: second };
        let bounded = part.mask != 0 && part.batch < u32::MAX / crate::peer::BATCH_OBJECTS;
        match kind {
            kind::GET if bounded => Ok(Self::Get(part)),
            kind::LACKS if bounded => Ok(Self::Lacks(part)),
            kind::OBJECT if second <= OBJECT_BYTES_MAX => Ok(Self::Object { object: first, bytes: second }),
            kind::BUSY => Ok(Self::Busy),
            kind::GET | kind::LACKS | kind::OBJECT => Err(Reject::Bounds),
            _ => Err(Reject::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_bounds_hold() {
        let part = Part { batch: 3, mask: 9 };
        for record in
            [Record::Get(part), Record::Lacks(part), Record::Busy, Record::Object { object: 5, bytes: 6 }]
        {
            assert_eq!(Record::parse(&record.encode()), Ok(record));
        }
        let huge = Record::Object { object: 0, bytes: OBJECT_BYTES_MAX + 1 };
        assert_eq!(Record::parse(&huge.encode()), Err(Reject::Bounds));
        assert_eq!(Record::parse(&Record::Get(Part { batch: 0, mask: 0 }).encode()), Err(Reject::Bounds));
        assert_eq!(Record::parse(&[9; RECORD_BYTES]), Err(Reject::Unknown));
    }
}
