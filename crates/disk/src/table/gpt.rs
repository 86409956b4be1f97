//! The GUID partition table and its backup (UEFI specification 2.10, section 5.3).

use base::limits::PARTITIONS_MAX;
use base::wire::{Reader, Truncated};
use crc::{CRC_32_ISO_HDLC, Crc};

use super::{Blocks, Entry, Table};
use crate::{Result, TableKind};

const CRC32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
/// Length of a header's fixed fields, in bytes.
const HEADER_BYTES: usize = 92;
/// Where the header's own checksum stands.
const CRC_OFFSET: usize = 16;
/// Largest entry, in bytes. Everybody uses 128.
const ENTRY_BYTES_MAX: u32 = 4096;

/// A header whose checksum is right.
struct Header {
    at: u64,
    alternate: u64,
    disk_id: [u8; 16],
    entries_at: u64,
    entry_count: u32,
    entry_bytes: u32,
    entries_crc: u32,
}

impl Header {
    /// The header that stands at block `at`.
    fn parse(sector: &[u8], at: u64) -> Option<Self> {
        let mut reader = Reader::new(sector);
        if reader.array::<8>().ok()? != *b"EFI PART" {
            return None;
        }
        let _revision = reader.u32().ok()?;
        let len = usize::try_from(reader.u32().ok()?).ok()?;
        let crc = reader.u32().ok()?;
        let covered = sector.get(..len).filter(|covered| covered.len() >= HEADER_BYTES)?;
        let mut digest = CRC32.digest();
        digest.update(&covered[..CRC_OFFSET]);
        digest.update(&[0; 4]);
        digest.update(&covered[CRC_OFFSET + 4..]);
        if digest.finalize() != crc {
            return None;
        }
        Self::fields(&mut reader).ok().filter(|header| header.at == at && header.is_bounded())
    }

    fn fields(reader: &mut Reader) -> std::result::Result<Self, Truncated> {
        reader.u32()?;
        let (at, alternate) = (reader.u64()?, reader.u64()?);
        let (_first_usable, _last_usable) = (reader.u64()?, reader.u64()?);
        Ok(Self {
            at,
            alternate,
            disk_id: reader.array()?,
            entries_at: reader.u64()?,
            entry_count: reader.u32()?,
            entry_bytes: reader.u32()?,
            entries_crc: reader.u32()?,
        })
    }

    fn is_bounded(&self) -> bool {
        self.entry_count as usize <= PARTITIONS_MAX
            && (128..=ENTRY_BYTES_MAX).contains(&self.entry_bytes)
            && self.entry_bytes.is_multiple_of(128)
    }

    fn entries_len(&self) -> usize {
        self.entry_count as usize * self.entry_bytes as usize
    }
}

/// A header with the entries that it describes.
struct Replica {
    header: Header,
    entries: Vec<u8>,
}

impl Replica {
    /// The copy whose header stands at block `at`, if it is all right.
    fn read(blocks: &Blocks, at: u64) -> Result<Option<Self>> {
        let Some(header) = blocks.read(at, 1)?.and_then(|sector| Header::parse(&sector, at)) else {
            return Ok(None);
        };
        let len = header.entries_len();
        let Some(mut entries) = blocks.read(header.entries_at, (len as u64).div_ceil(blocks.bytes))? else {
            return Ok(None);
        };
        entries.truncate(len);
        let sound = CRC32.checksum(&entries) == header.entries_crc;
        Ok(sound.then_some(Self { header, entries }))
    }
}

/// Whether a sound primary table stands where it should.
pub(super) fn has_primary(blocks: &Blocks) -> Result<bool> {
    Replica::read(blocks, 1).map(|copy| copy.is_some())
}

/// The table of a disk whose boot record announces a GPT.
pub(super) fn read(blocks: &Blocks) -> Result<Table> {
    let mut table = Table::new(TableKind::Gpt);
    let last = blocks.count.saturating_sub(1);
    let primary = Replica::read(blocks, 1)?;
    let mut backup = Replica::read(blocks, last)?;
    if let (None, Some(primary)) = (&backup, &primary) {
        // The disk may have grown, or the image been copied to a larger one.
        backup = Replica::read(blocks, primary.header.alternate)?;
    }
    match (&primary, &backup) {
        (Some(primary), Some(backup)) if primary.entries != backup.entries => {
            table.warnings.push("the GPT and its backup differ; the primary counts".to_owned());
        }
        (Some(_), None) => table.warnings.push("the backup of the GPT is missing or damaged".to_owned()),
        (None, Some(_)) => table.warnings.push("the primary GPT is damaged; its backup is used".to_owned()),
        _ => {}
    }
    table.own.push(blocks.extent(0, 34));
    table.own.push(blocks.extent(last.saturating_sub(32), 33));
    for copy in [&primary, &backup].into_iter().flatten() {
        let blocks_len = (copy.entries.len() as u64).div_ceil(blocks.bytes);
        table.own.push(blocks.extent(copy.header.at, 1));
        table.own.push(blocks.extent(copy.header.entries_at, blocks_len));
    }
    match primary.or(backup) {
        Some(copy) => fill(&mut table, blocks, &copy),
        None => table.distrust = Some("both copies of the GPT are damaged".to_owned()),
    }
    Ok(table)
}

fn fill(table: &mut Table, blocks: &Blocks, copy: &Replica) {
    table.disk_id = Some(guid(copy.header.disk_id));
    let size = copy.header.entry_bytes as usize;
    for (number, bytes) in (1..).zip(copy.entries.chunks_exact(size)) {
        let Ok(raw) = RawEntry::parse(bytes) else { continue };
        if raw.kind == [0; 16] {
            continue;
        }
        let count = raw.last.saturating_sub(raw.first).saturating_add(1);
        let extent = blocks.extent(raw.first, count);
        if raw.last < raw.first || extent.is_empty() {
            table.warnings.push(format!("partition {number} has impossible bounds and is left out"));
            continue;
        }
        table.entries.push(Entry {
            number,
            extent,
            type_id: guid(raw.kind),
            name: Some(raw.name).filter(|name| !name.is_empty()),
            uuid: Some(guid(raw.id)),
            cut: blocks.cuts(raw.first, count),
        });
    }
}

/// An entry as it stands in the table; bounds in blocks, the last included.
struct RawEntry {
    kind: [u8; 16],
    id: [u8; 16],
    first: u64,
    last: u64,
    name: String,
}

impl RawEntry {
    fn parse(bytes: &[u8]) -> std::result::Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let (kind, id) = (reader.array()?, reader.array()?);
        let (first, last, _attributes) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let units = (0..36).map(|_| reader.u16()).collect::<std::result::Result<Vec<_>, _>>()?;
        let text = units.iter().copied().take_while(|&unit| unit != 0);
        let name = char::decode_utf16(text).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
        Ok(Self { kind, id, first, last, name })
    }
}

/// A GUID as text: its first three fields are little endian.
fn guid(b: [u8; 16]) -> String {
    let swapped = [
        b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15],
    ];
    crate::text::uuid(&swapped)
}
