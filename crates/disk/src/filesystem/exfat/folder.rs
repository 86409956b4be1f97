//! Parses folders: sequences of entries of 32 bytes (sections 6 and 7 of the specification).

use super::super::{Why, require};

const ENTRY_BYTES: usize = 32;
/// The bit of an entry's type that says that it is in use.
const IN_USE: u8 = 0x80;

const BITMAP: u8 = 0x81;
const UPCASE: u8 = 0x82;
const LABEL: u8 = 0x83;
const FILE: u8 = 0x85;
const GUID: u8 = 0xA0;
const STREAM: u8 = 0xC0;
const NAME: u8 = 0xC1;
const VENDOR: u8 = 0xE0;
const VENDOR_CLUSTERS: u8 = 0xE1;

/// Clusters that an entry has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Clusters {
    pub(super) first: u64,
    pub(super) bytes: u64,
    /// They follow each other, and the table says nothing of them.
    pub(super) contiguous: bool,
    pub(super) is_folder: bool,
}

/// What only the root folder has.
#[derive(Debug, Default)]
pub(super) struct Root {
    pub(super) bitmap: Option<Clusters>,
    pub(super) upcase: Option<Clusters>,
    pub(super) label: Option<String>,
    /// Those of its files and folders.
    pub(super) clusters: Vec<Clusters>,
}

/// Parses the root folder.
pub(super) fn parse_root(bytes: &[u8]) -> Result<Root, Why> {
    let mut root = Root::default();
    for set in Sets(bytes) {
        let entry = first_entry(set);
        match entry[0] {
            BITMAP => {
                require(root.bitmap.is_none() && entry[1] & 1 == 0, || "it has two bitmaps".to_owned())?;
                root.bitmap = Some(clusters(entry, false, false));
            }
            UPCASE => {
                require(root.upcase.is_none(), || "it has two tables of letters".to_owned())?;
                root.upcase = Some(clusters(entry, false, false));
            }
            LABEL => root.label = label(entry),
            GUID => {}
            _ => root.clusters.extend(of_file(set)?),
        }
    }
    Ok(root)
}

/// The clusters of the files and folders in a folder.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<Clusters>, Why> {
    let mut clusters = Vec::new();
    for set in Sets(bytes) {
        clusters.extend(of_file(set)?);
    }
    Ok(clusters)
}

/// The sets of entries in use: a first entry with those that belong to it.
struct Sets<'a>(&'a [u8]);

impl<'a> Iterator for Sets<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            // An entry of type 0 is behind the last.
            let entry = self.0.get(..ENTRY_BYTES).filter(|entry| entry[0] != 0)?;
            let more = if entry[0] == FILE { usize::from(entry[1]) } else { 0 };
            let (set, rest) = self.0.split_at((ENTRY_BYTES * (1 + more)).min(self.0.len()));
            // The entries of a deleted file are deleted each by itself.
            self.0 = rest;
            if entry[0] & IN_USE != 0 {
                return Some(set);
            }
        }
    }
}

fn first_entry(set: &[u8]) -> &[u8; ENTRY_BYTES] {
    set.first_chunk().expect("a set has an entry")
}

fn of_file(set: &[u8]) -> Result<Vec<Clusters>, Why> {
    let file = first_entry(set);
    require(file[0] == FILE, || format!("it has a folder entry of the unknown type {:#04x}", file[0]))?;
    let count = usize::from(file[1]);
    let is_whole = count >= 2 && set.len() == ENTRY_BYTES * (1 + count);
    require(is_whole, || "the entries of a file are not complete".to_owned())?;
    let counted = set.iter().enumerate().filter(|(at, _)| !matches!(at, 2 | 3));
    let sum = counted.fold(0u16, |sum, (_, &byte)| sum.rotate_right(1).wrapping_add(byte.into()));
    require(file[2..4] == sum.to_le_bytes(), || "the checksum of a file's entries is wrong".to_owned())?;
    let is_folder = file[4] & 0x10 != 0;
    let mut found = Vec::new();
    for (index, entry) in set.as_chunks::<ENTRY_BYTES>().0.iter().skip(1).enumerate() {
        let is_known = match entry[0] {
            STREAM => index == 0,
            NAME | VENDOR | VENDOR_CLUSTERS => index > 0,
            _ => false,
        };
        require(is_known, || format!("a file has an entry of the unknown type {:#04x}", entry[0]))?;
        // A name has no clusters: its fields are letters.
        if entry[0] == NAME || entry[1] & 1 == 0 {
            continue;
        }
        let clusters = clusters(entry, entry[1] & 2 != 0, is_folder && entry[0] == STREAM);
        if clusters.bytes > 0 {
            found.push(clusters);
        }
    }
    Ok(found)
}

fn clusters(entry: &[u8; ENTRY_BYTES], contiguous: bool, is_folder: bool) -> Clusters {
    let first = u32::from_le_bytes(*entry[20..].first_chunk().expect("an entry")).into();
    let bytes = u64::from_le_bytes(*entry[24..].first_chunk().expect("an entry"));
    Clusters { first, bytes, contiguous, is_folder }
}

fn label(entry: &[u8; ENTRY_BYTES]) -> Option<String> {
    let letters = usize::from(entry[1].min(11));
    let units = entry[2..2 + 2 * letters].as_chunks().0.iter().map(|&pair| u16::from_le_bytes(pair));
    let text: String = char::decode_utf16(units).map(|letter| letter.unwrap_or('\u{FFFD}')).collect();
    (!text.is_empty()).then_some(text)
}
