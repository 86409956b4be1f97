//! Parses records of the master file table: their attributes, and the runs of clusters in which those lie.

use base::wire::{Reader, Truncated};

use super::super::{Why, require};

/// After this many bytes of a record, two bytes are kept elsewhere (its fixups).
const STRIDE_BYTES: usize = 512;
/// The lower bits of a reference: the number of a record. The upper ones count how often it was used.
pub(super) const NUMBER_BITS: u64 = 0xFFFF_FFFF_FFFF;

/// Types of attributes.
pub(super) const LIST: u32 = 0x20;
pub(super) const FILE_NAME: u32 = 0x30;
pub(super) const VOLUME_NAME: u32 = 0x60;
pub(super) const VOLUME_INFORMATION: u32 = 0x70;
pub(super) const DATA: u32 = 0x80;
const END: u32 = 0xFFFF_FFFF;

/// A run of clusters: the number of the first (`None`: they are zeros, and take no place), and how many.
pub(super) type Run = (Option<u64>, u64);

/// A record in use.
pub(super) struct Record<'a> {
    bytes: &'a [u8],
    /// Where the attributes begin and end.
    attributes: (usize, usize),
    /// The number of the record to which this one belongs, if it is not a first one.
    pub(super) base: Option<u64>,
}

/// An attribute of a file.
pub(super) struct Attribute<'a> {
    pub(super) kind: u32,
    /// Its name, in UTF-16; empty if it has none.
    pub(super) name: &'a [u8],
    pub(super) value: Value<'a>,
}

/// Where the value of an attribute is.
pub(super) enum Value<'a> {
    /// In the record.
    Here(&'a [u8]),
    /// In clusters, from the file's cluster `first` on.
    Elsewhere { first: u64, initialized: u64, runs: Vec<Run> },
}

/// Puts the bytes back that the fixups keep. False if they do not agree: the record was not written in full.
pub(super) fn fix(bytes: &mut [u8]) -> bool {
    let mut reader = Reader::new(bytes);
    let fields = (|| {
        reader.bytes(4)?;
        Ok::<_, Truncated>((usize::from(reader.u16()?), usize::from(reader.u16()?)))
    })();
    let Ok((at, count)) = fields else { return false };
    let strides = bytes.len() / STRIDE_BYTES;
    if count != strides + 1 || at + 2 * count > STRIDE_BYTES - 2 {
        return false;
    }
    let kept = bytes[at..at + 2 * count].to_vec();
    let (number, originals) = kept.split_at(2);
    for (stride, original) in bytes.chunks_exact_mut(STRIDE_BYTES).zip(originals.chunks_exact(2)) {
        let end = &mut stride[STRIDE_BYTES - 2..];
        if end != number {
            return false;
        }
        end.copy_from_slice(original);
    }
    true
}

impl<'a> Record<'a> {
    /// Parses the record in `bytes`, whose fixups it puts back; `None` if it is not in use.
    pub(super) fn parse(bytes: &'a mut [u8], number: u64) -> Result<Option<Self>, Why> {
        let damaged = || format!("file record {number} is damaged");
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        require(bytes.starts_with(b"FILE") && fix(bytes), damaged)?;
        let mut reader = Reader::new(bytes);
        reader.bytes(20)?;
        let (first, flags) = (usize::from(reader.u16()?), reader.u16()?);
        let used = usize::try_from(reader.u32()?).unwrap_or(usize::MAX);
        reader.u32()?;
        let base = reader.u64()? & NUMBER_BITS;
        if flags & 1 == 0 {
            return Ok(None);
        }
        require(first >= 42 && first.is_multiple_of(8) && first <= used && used <= bytes.len(), damaged)?;
        Ok(Some(Self { bytes, attributes: (first, used), base: (base != 0).then_some(base) }))
    }

    /// Its attributes.
    pub(super) fn attributes(&self) -> Result<Vec<Attribute<'a>>, Why> {
        let (mut at, end) = self.attributes;
        let mut found = Vec::new();
        loop {
            let mut reader = Reader::new(&self.bytes[at..end]);
            let kind = reader.u32()?;
            if kind == END {
                return Ok(found);
            }
            let len = usize::try_from(reader.u32()?).unwrap_or(usize::MAX);
            let fits = len >= 24 && len.is_multiple_of(8) && len <= end - at;
            require(fits, || "an attribute of a file passes the end of its record".to_owned())?;
            found.push(Attribute::parse(kind, &self.bytes[at..at + len])?);
            at += len;
        }
    }
}

impl<'a> Attribute<'a> {
    fn parse(kind: u32, bytes: &'a [u8]) -> Result<Self, Why> {
        let mut reader = Reader::new(bytes);
        reader.bytes(8)?;
        let (elsewhere, name_len, name_at) = (reader.u8()? != 0, reader.u8()?, reader.u16()?);
        reader.bytes(4)?;
        let name = bytes.get(usize::from(name_at)..).and_then(|rest| rest.get(..2 * usize::from(name_len)));
        let name = if name_len == 0 { &[][..] } else { name.ok_or(Truncated)? };
        let value = if elsewhere {
            let (first, last) = (reader.u64()?, reader.u64()?);
            let runs_at = usize::from(reader.u16()?);
            reader.bytes(22)?;
            let initialized = reader.u64()?;
            let runs = parse_runs(bytes.get(runs_at..).unwrap_or_default())?;
            let clusters = runs.iter().try_fold(0u64, |sum, (_, count)| sum.checked_add(*count));
            let agrees =
                clusters.is_some_and(|clusters| last.wrapping_sub(first).wrapping_add(1) == clusters);
            require(agrees, || "the clusters of a file are not as many as it says".to_owned())?;
            Value::Elsewhere { first, initialized, runs }
        } else {
            let (len, at) =
                (usize::try_from(reader.u32()?).unwrap_or(usize::MAX), usize::from(reader.u16()?));
            let value = bytes.get(at..).and_then(|rest| rest.get(..len)).ok_or(Truncated)?;
            Value::Here(value)
        };
        Ok(Self { kind, name, value })
    }
}

/// Parses a list of runs: for each a byte that tells the lengths of two numbers, then the count of clusters, then the
/// distance of the first one from that of the run before.
fn parse_runs(bytes: &[u8]) -> Result<Vec<Run>, Why> {
    let wrong = || Why::Whole("the list of a file's clusters is damaged".to_owned());
    let (mut rest, mut last) = (bytes, 0i64);
    let mut runs = Vec::new();
    loop {
        let (&head, behind) = rest.split_first().ok_or_else(wrong)?;
        if head == 0 {
            return Ok(runs);
        }
        let lengths = (usize::from(head & 0xF), usize::from(head >> 4));
        let (count, behind) = behind.split_at_checked(lengths.0).ok_or_else(wrong)?;
        let (distance, behind) = behind.split_at_checked(lengths.1).ok_or_else(wrong)?;
        let count = u64::try_from(signed(count).ok_or_else(wrong)?).map_err(|_| wrong())?;
        require(count > 0, || "a run of a file has no clusters".to_owned())?;
        let first = match distance {
            [] => None,
            _ => {
                last = signed(distance).and_then(|distance| last.checked_add(distance)).ok_or_else(wrong)?;
                Some(u64::try_from(last).map_err(|_| wrong())?)
            }
        };
        runs.push((first, count));
        rest = behind;
    }
}

/// A signed number in little endian of 1 to 8 bytes.
fn signed(bytes: &[u8]) -> Option<i64> {
    let negative = bytes.last()? & 0x80 != 0;
    let mut wide = [if negative { 0xFF } else { 0 }; 8];
    wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(wide))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_count_from_each_other() {
        let runs = |bytes: &[u8]| parse_runs(bytes).ok();
        // The example of the Linux NTFS documentation: 0x38 clusters from 0x342573 on, and two more runs.
        let list = [0x32, 0x38, 0x00, 0x73, 0x25, 0x34, 0x21, 0x10, 0x00, 0xFF, 0x01, 0x05, 0];
        assert_eq!(runs(&[0x31, 0x38, 0x73, 0x25, 0x34, 0x00]), Some(vec![(Some(0x34_2573), 0x38)]));
        assert_eq!(
            runs(&list),
            Some(vec![(Some(0x34_2573), 0x38), (Some(0x34_2573 - 0x100), 0x10), (None, 5)])
        );
        assert_eq!(runs(&[0x11, 1]), None, "cut");
        assert_eq!(runs(&[0x11, 1, 0x80, 0]), None, "before the volume");
        assert_eq!(runs(&[0x11, 0, 1, 0]), None, "empty");
        assert_eq!(runs(&[0x19, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]), None, "nine bytes");
    }

    #[test]
    fn fixups_go_back_or_do_not_agree() {
        let mut record = vec![0; 1024];
        record[4..8].copy_from_slice(&[48, 0, 3, 0]);
        record[48..54].copy_from_slice(&[7, 0, 1, 2, 3, 4]);
        (record[510], record[1022]) = (7, 7);
        let mut torn = record.clone();
        assert!(fix(&mut record));
        assert_eq!((&record[510..512], &record[1022..]), (&[1, 2][..], &[3, 4][..]));
        torn[1022] = 6;
        assert!(!fix(&mut torn));
    }
}
