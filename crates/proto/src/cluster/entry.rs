//! What the index knows of a name: where its content lies. formats/cluster.md, section 3.

use base::wire::{Reader, Truncated};

use super::{Run, Width};

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 1024;
/// Most pieces of one content of 16 MiB each: 128 GiB.
pub const PIECES_MAX: usize = 8192;
/// Length of the content of a name that was deleted.
const TOMBSTONE: u64 = u64::MAX;

/// Bytes of an entry before its pieces.
pub(super) const ENTRY_HEADER_BYTES: usize = 22;
/// Bytes of one piece.
pub(super) const PIECE_ENTRY_BYTES: usize = 40;

/// Which of two entries of a name is newer: the larger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// That of the content, or of the deletion.
    pub stamp: u64,
    /// How often the same content was moved to other segments.
    pub moves: u32,
}

/// Where the content of a name lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Larger wins: nanoseconds since 1970, made unique by its maker.
    pub stamp: u64,
    /// How often the content was moved since it was stored. Of entries with the same stamp, more moves win.
    pub moves: u32,
    /// The length of the content; `None` if the name was deleted.
    pub bytes: Option<u64>,
    /// The parts of the content, in order.
    pub pieces: Vec<Piece>,
}

/// A part of a content, in one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The segment.
    pub segment: u64,
    /// The run in it.
    pub run: Run,
    /// The width of the segment.
    pub width: Width,
    /// Where the piece begins in the content of the run.
    pub offset: u32,
    /// Its length.
    pub length: u32,
    /// Its checksum.
    pub sum: u64,
}

/// Bytes that are no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoEntry;

impl From<Truncated> for NoEntry {
    fn from(_: Truncated) -> Self {
        Self
    }
}

impl Entry {
    /// The entry that says that a name was deleted.
    #[must_use]
    pub fn tombstone(stamp: u64) -> Self {
        Self { stamp, moves: 0, bytes: None, pieces: Vec::new() }
    }

    /// Which version of its name it is.
    #[must_use]
    pub fn version(&self) -> Version {
        Version { stamp: self.stamp, moves: self.moves }
    }

    /// The bytes that the index keeps.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ENTRY_HEADER_BYTES + PIECE_ENTRY_BYTES * self.pieces.len());
        bytes.extend(self.stamp.to_le_bytes());
        bytes.extend(self.moves.to_le_bytes());
        bytes.extend(self.bytes.unwrap_or(TOMBSTONE).to_le_bytes());
        bytes.extend(u16::try_from(self.pieces.len()).expect("PIECES_MAX fits").to_le_bytes());
        for piece in &self.pieces {
            bytes.extend(piece.segment.to_le_bytes());
            bytes.extend(piece.run.at.to_le_bytes());
            bytes.extend(piece.run.bytes.to_le_bytes());
            bytes.extend(piece.offset.to_le_bytes());
            bytes.extend(piece.length.to_le_bytes());
            bytes.extend([piece.width.data, piece.width.parity, 0, 0]);
            bytes.extend(piece.sum.to_le_bytes());
        }
        bytes
    }

    /// The entry in `bytes`.
    ///
    /// # Errors
    /// [`NoEntry`] if lengths, widths or places are impossible.
    pub fn decode(bytes: &[u8]) -> Result<Self, NoEntry> {
        let mut reader = Reader::new(bytes);
        let Version { stamp, moves } = Version::read(&mut reader)?;
        let length = reader.u64()?;
        let count = usize::from(reader.u16()?);
        if count > PIECES_MAX || reader.remaining() != PIECE_ENTRY_BYTES * count {
            return Err(NoEntry);
        }
        let pieces: Vec<_> = (0..count).map(|_| Piece::read(&mut reader)).collect::<Result<_, _>>()?;
        if length == TOMBSTONE {
            return if pieces.is_empty() {
                Ok(Self { moves, ..Self::tombstone(stamp) })
            } else {
                Err(NoEntry)
            };
        }
        if pieces.iter().map(|piece| u64::from(piece.length)).sum::<u64>() != length {
            return Err(NoEntry);
        }
        Ok(Self { stamp, moves, bytes: Some(length), pieces })
    }

    /// The version of the entry in `bytes`, without reading the rest.
    #[must_use]
    pub fn version_of(bytes: &[u8]) -> Option<Version> {
        Version::read(&mut Reader::new(bytes)).ok()
    }
}

impl Version {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Truncated> {
        Ok(Self { stamp: reader.u64()?, moves: reader.u32()? })
    }
}

impl Piece {
    fn read(reader: &mut Reader<'_>) -> Result<Self, NoEntry> {
        let segment = reader.u64()?;
        let run = Run { at: reader.u64()?, bytes: reader.u32()? };
        let (offset, length) = (reader.u32()?, reader.u32()?);
        let width = Width::new(reader.u8()?, reader.u8()?).ok_or(NoEntry)?;
        reader.u16()?;
        let sum = reader.u64()?;
        let ends_inside = u64::from(offset) + u64::from(length) <= run.content_bytes(width);
        if !run.is_valid() || !ends_inside {
            return Err(NoEntry);
        }
        Ok(Self { segment, run, width, offset, length, sum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(length: u32) -> Piece {
        let width = Width::new(8, 2).expect("a width");
        Piece { segment: 7, run: Run { at: 4096, bytes: 8192 }, width, offset: 24, length, sum: 99 }
    }

    #[test]
    fn survives_its_bytes() {
        let entry = Entry { stamp: 5, moves: 3, bytes: Some(300), pieces: vec![piece(100), piece(200)] };
        let deleted = Entry { moves: 1, ..Entry::tombstone(6) };
        for entry in [entry, deleted, Entry { stamp: 1, moves: 0, bytes: Some(0), pieces: Vec::new() }] {
            assert_eq!(Entry::decode(&entry.encode()), Ok(entry.clone()));
            assert_eq!(Entry::version_of(&entry.encode()), Some(entry.version()));
        }
    }

    #[test]
    fn impossible_entries_are_refused() {
        let wrong_length =
            Entry { stamp: 5, moves: 0, bytes: Some(301), pieces: vec![piece(100), piece(200)] };
        let deleted_with_content = Entry { stamp: 5, moves: 0, bytes: None, pieces: vec![piece(1)] };
        let beyond_its_run = Entry { stamp: 5, moves: 0, bytes: Some(1 << 17), pieces: vec![piece(1 << 17)] };
        for entry in [wrong_length, deleted_with_content, beyond_its_run] {
            assert_eq!(Entry::decode(&entry.encode()), Err(NoEntry), "{entry:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(entry) = Entry::decode(&bytes) {
                prop_assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
            }
        }
    }
}
