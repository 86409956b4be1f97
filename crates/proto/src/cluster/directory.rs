//! The directory at the beginning of a run: which names have content in it. With it every index can be rebuilt from the
//! segments. formats/cluster.md, section 2.

use base::wire::{Reader, Truncated};

use super::entry::NAME_BYTES_MAX;
use super::{ALIGN_BYTES, checksum};

const MAGIC: [u8; 4] = *b"DCRN";
/// Bytes before the items; a reader takes the length of the whole from them.
pub const DIRECTORY_HEADER_BYTES: usize = 24;
const ITEM_BYTES: usize = 42;

/// What a run holds of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// As in the entry.
    pub stamp: u64,
    /// The length of the whole content of the name.
    pub whole: u64,
    /// Where this piece begins in that content.
    pub from: u64,
    /// Where it begins in the content of the run.
    pub offset: u32,
    /// Its length.
    pub length: u32,
    /// Its checksum.
    pub sum: u64,
    /// The name.
    pub name: String,
}

/// The length of a directory of items with names of these lengths.
pub fn directory_bytes(names: impl Iterator<Item = usize>) -> usize {
    DIRECTORY_HEADER_BYTES + names.map(|name| ITEM_BYTES + name).sum::<usize>()
}

/// The directory of a run whose parts have `part_bytes` bytes.
#[must_use]
pub fn encode_directory(items: &[Item], part_bytes: u32) -> Vec<u8> {
    let length = directory_bytes(items.iter().map(|item| item.name.len()));
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(MAGIC);
    bytes.extend(u32::try_from(length).expect("a run is bounded").to_le_bytes());
    bytes.extend(part_bytes.to_le_bytes());
    bytes.extend(u32::try_from(items.len()).expect("a run is bounded").to_le_bytes());
    bytes.extend([0; 8]);
    for item in items {
        bytes.extend(item.stamp.to_le_bytes());
        bytes.extend(item.whole.to_le_bytes());
        bytes.extend(item.from.to_le_bytes());
        bytes.extend(item.offset.to_le_bytes());
        bytes.extend(item.length.to_le_bytes());
        bytes.extend(item.sum.to_le_bytes());
        bytes.extend(u16::try_from(item.name.len()).expect("NAME_BYTES_MAX fits").to_le_bytes());
        bytes.extend(item.name.as_bytes());
    }
    let sum = checksum(&bytes);
    bytes[16..24].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The lengths of a directory and of the parts of its run, from the first [`DIRECTORY_HEADER_BYTES`] of the run. `None`
/// if no run begins like that; the items are not verified.
#[must_use]
pub fn directory_lengths(header: &[u8]) -> Option<(u32, u32)> {
    let mut reader = Reader::new(header);
    if reader.array::<4>() != Ok(MAGIC) {
        return None;
    }
    let (directory, part_bytes) = (reader.u32().ok()?, reader.u32().ok()?);
    (part_bytes > 0 && part_bytes.is_multiple_of(ALIGN_BYTES)).then_some((directory, part_bytes))
}

/// The items of the directory with which `content` begins, and the length of the run's parts. `None` if there is no
/// whole and valid directory.
#[must_use]
pub fn decode_directory(content: &[u8]) -> Option<(Vec<Item>, u32)> {
    let mut reader = Reader::new(content);
    if reader.array::<4>() != Ok(MAGIC) {
        return None;
    }
    let length = reader.u32().ok()? as usize;
    let part_bytes = reader.u32().ok()?;
    let count = reader.u32().ok()? as usize;
    let sum = reader.u64().ok()?;
    if length < DIRECTORY_HEADER_BYTES || count > length / ITEM_BYTES {
        return None;
    }
    let mut sealed = content.get(..length)?.to_vec();
    sealed[16..24].fill(0);
    if checksum(&sealed) != sum {
        return None;
    }
    let mut reader = Reader::new(&sealed[DIRECTORY_HEADER_BYTES..]);
    let items: Result<Vec<_>, _> = (0..count).map(|_| Item::read(&mut reader)).collect();
    let items = items.ok()?;
    (reader.remaining() == 0).then_some((items, part_bytes))
}

impl Item {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Truncated> {
        let (stamp, whole, from) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (offset, length, sum) = (reader.u32()?, reader.u32()?, reader.u64()?);
        let name_bytes = usize::from(reader.u16()?);
        let name = reader.bytes(name_bytes)?;
        let name = std::str::from_utf8(name).ok().filter(|_| name_bytes <= NAME_BYTES_MAX);
        let name = name.ok_or(Truncated)?.to_owned();
        Ok(Self { stamp, whole, from, offset, length, sum, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn item(name: &str) -> Item {
        Item { stamp: 1, whole: 70, from: 0, offset: 500, length: 70, sum: 9, name: name.to_owned() }
    }

    #[test]
    fn survives_its_bytes_whatever_follows() {
        let items = vec![item("chunks/ab/abcd"), item("ü")];
        let mut content = encode_directory(&items, 8192);
        assert_eq!(content.len(), directory_bytes(items.iter().map(|item| item.name.len())));
        content.extend([7; 100]);
        assert_eq!(decode_directory(&content), Some((items, 8192)));
        let directory = u32::try_from(content.len() - 100).unwrap();
        assert_eq!(directory_lengths(&content[..DIRECTORY_HEADER_BYTES]), Some((directory, 8192)));
    }

    #[test]
    fn no_run_begins_otherwise() {
        let whole = encode_directory(&[item("a")], 4096);
        assert_eq!(directory_lengths(&whole[..11]), None, "it ends too early");
        assert_eq!(directory_lengths(&[0; DIRECTORY_HEADER_BYTES]), None);
        for part_bytes in [0u32, 1, 4095, 4097] {
            let mut wrong = whole.clone();
            wrong[8..12].copy_from_slice(&part_bytes.to_le_bytes());
            assert_eq!(directory_lengths(&wrong), None, "{part_bytes}");
        }
    }

    #[test]
    fn a_changed_bit_is_found() {
        let whole = encode_directory(&[item("a"), item("b")], 4096);
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_directory(&damaged), None, "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (directory_lengths(&bytes), decode_directory(&bytes));
            if bytes.len() > 4 {
                bytes[..4].copy_from_slice(&MAGIC);
            }
            let _ = decode_directory(&bytes);
        }
    }
}
