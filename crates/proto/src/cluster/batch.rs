//! Batches of names and entries in requests to the index. formats/cluster.md, section 6.

use base::wire::{Reader, Truncated};

use super::entry::{ENTRY_HEADER_BYTES, NAME_BYTES_MAX, PIECE_ENTRY_BYTES, PIECES_MAX};

/// Most names in one batch.
const ITEMS_MAX: usize = 65_536;

/// One name in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchItem {
    /// The group that the name belongs to.
    pub group: u32,
    /// The name.
    pub name: String,
    /// Its entry, encoded; empty in a question, and in the answer for a name that was never there.
    pub entry: Vec<u8>,
}

/// The bytes of a batch.
#[must_use]
pub fn encode_batch(items: &[BatchItem]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(
        4 + items.iter().map(|item| 10 + item.name.len() + item.entry.len()).sum::<usize>(),
    );
    bytes.extend(u32::try_from(items.len()).expect("ITEMS_MAX fits").to_le_bytes());
    for item in items {
        bytes.extend(item.group.to_le_bytes());
        bytes.extend(u16::try_from(item.name.len()).expect("NAME_BYTES_MAX fits").to_le_bytes());
        bytes.extend(item.name.as_bytes());
        bytes.extend(u32::try_from(item.entry.len()).expect("PIECES_MAX fits").to_le_bytes());
        bytes.extend(&item.entry);
    }
    bytes
}

/// The items of a batch. `None` if `bytes` are none.
#[must_use]
pub fn decode_batch(bytes: &[u8]) -> Option<Vec<BatchItem>> {
    let mut reader = Reader::new(bytes);
    let count = reader.u32().ok()? as usize;
    if count > ITEMS_MAX || count > bytes.len() / 10 {
        return None;
    }
    let items: Result<Vec<_>, _> = (0..count).map(|_| BatchItem::read(&mut reader)).collect();
    items.ok().filter(|_| reader.remaining() == 0)
}

impl BatchItem {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Truncated> {
        let group = reader.u32()?;
        let name_bytes = usize::from(reader.u16()?);
        let name = std::str::from_utf8(reader.bytes(name_bytes)?).ok();
        let name = name.filter(|_| (1..=NAME_BYTES_MAX).contains(&name_bytes)).ok_or(Truncated)?.to_owned();
        let entry_bytes = reader.u32()? as usize;
        if entry_bytes > ENTRY_HEADER_BYTES + PIECE_ENTRY_BYTES * PIECES_MAX {
            return Err(Truncated);
        }
        Ok(Self { group, name, entry: reader.bytes(entry_bytes)?.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn survives_its_bytes() {
        let item =
            |name: &str, entry: &[u8]| BatchItem { group: 3, name: name.to_owned(), entry: entry.to_vec() };
        let items = vec![item("a", &[1, 2]), item("b/c", &[])];
        assert_eq!(decode_batch(&encode_batch(&items)), Some(items.clone()));
        assert_eq!(decode_batch(&encode_batch(&[])), Some(Vec::new()));
        let mut longer = encode_batch(&items);
        longer.push(0);
        assert_eq!(decode_batch(&longer), None);
        assert_eq!(decode_batch(&encode_batch(&[item("", &[])])), None, "a name has a byte at least");
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_batch(&bytes);
        }
    }
}
