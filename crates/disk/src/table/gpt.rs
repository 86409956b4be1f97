//! Reads the GUID partition table and its backup (UEFI specification 2.10, section 5.3).

use base::Result;
use base::limits::PARTITIONS_MAX;
use base::wire::{Reader, Truncated};
use crc::{CRC_32_ISO_HDLC, Crc};

use super::mbr::BootRecord;
use super::{Blocks, Entry, Table};
use crate::TableKind;
use crate::text::guid;

const CRC32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
/// Length of a header's fixed fields, in bytes.
const HEADER_BYTES: usize = 92;
/// Offset of the header's own checksum.
const CRC_OFFSET: usize = 16;
/// Largest size of an entry that is accepted, in bytes. In practice entries have 128.
const ENTRY_BYTES_MAX: u32 = 4096;

/// A header whose checksum is correct. Places are in blocks.
struct Header {
    /// The block of this header.
    at: u64,
    /// The block of the other copy.
    alternate: u64,
    disk_id: [u8; 16],
    entries_at: u64,
    entry_count: u32,
    entry_bytes: u32,
    entries_crc: u32,
}

impl Header {
    /// The header in `sector`, which was read from block `at`; `None` if it is damaged or belongs to another block.
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
        // The checksum covers its own field as zeros.
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

    /// Whether number and size of the entries are within limits, so that memory for them may be taken.
    fn is_bounded(&self) -> bool {
        self.entry_count as usize <= PARTITIONS_MAX
            && (128..=ENTRY_BYTES_MAX).contains(&self.entry_bytes)
            && self.entry_bytes.is_multiple_of(128)
    }

    /// Length of all entries in bytes.
    fn entries_len(&self) -> usize {
        self.entry_count as usize * self.entry_bytes as usize
    }
}

/// A copy of the table: a header with its entries.
struct Replica {
    header: Header,
    entries: Vec<u8>,
}

impl Replica {
    /// The copy whose header is at block `at`; `None` if header or entries are damaged.
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

    fn layout(&self) -> Vec<Place> {
        layout(&self.entries, self.header.entry_bytes)
    }
}

/// Reads the GPT of a disk whose boot record, `record`, has an entry of the GPT type. `Io` if the disk fails.
pub(super) fn read(blocks: &Blocks, record: &BootRecord) -> Result<Table> {
    let mut table = Table::new(TableKind::Gpt);
    let last = blocks.count.saturating_sub(1);
    // The usual size, 16 KiB of entries in blocks of 512 bytes: boot record, header and entries, and the backup.
    table.own.push(blocks.extent(0, 34));
    table.own.push(blocks.extent(last.saturating_sub(32), 33));
    // `Table::is_own` compares where extents start, so both headers get extents of their own, even if damaged.
    table.own.extend([1, last].map(|at| blocks.extent(at, 1)));
    let primary = Replica::read(blocks, 1)?;
    // If the disk has grown, or the image was copied to a larger disk, the backup is not in the last block, but where
    // the primary says.
    let alternate = primary.as_ref().map_or(last, |primary| primary.header.alternate);
    let places = if alternate == last { vec![last] } else { vec![alternate, last] };
    let mut backups = Vec::new();
    for at in places.into_iter().filter(|&at| at != 1) {
        backups.extend(Replica::read(blocks, at)?);
    }
    for copy in primary.iter().chain(&backups) {
        let blocks_len = (copy.entries.len() as u64).div_ceil(blocks.bytes);
        table.own.push(blocks.extent(copy.header.at, 1));
        table.own.push(blocks.extent(copy.header.entries_at, blocks_len));
    }
    let Some(copy) = primary.as_ref().or(backups.first()) else {
        table.distrust = Some("both copies of the GPT are damaged".to_owned());
        return Ok(table);
    };
    fill(&mut table, blocks, copy);
    table.distrust = disagreement(&table, blocks, record, copy, &backups, primary.is_some())?;
    let differs = backups.iter().any(|backup| backup.entries != copy.entries);
    let warning = match (&primary, &backups[..]) {
        (Some(_), []) => Some("the backup of the GPT is missing or damaged"),
        (None, _) => Some("the primary GPT is damaged; its backup is used"),
        (Some(_), _) => differs.then_some("the GPT and its backup differ; the primary counts"),
    };
    table.warnings.extend(warning.map(str::to_owned));
    Ok(table)
}

/// How the copies of the table and the boot record contradict each other about the partitions; `None` if they agree.
/// `copy` is the copy in use: the primary if `has_primary`, otherwise a backup.
fn disagreement(
    table: &Table,
    blocks: &Blocks,
    record: &BootRecord,
    copy: &Replica,
    backups: &[Replica],
    has_primary: bool,
) -> Result<Option<String>> {
    let layout = copy.layout();
    let why = if !record.announces_gpt() {
        "the entry of the boot record that announces a GPT does not begin with the second block of the disk"
    } else if record.extents(blocks).any(|extent| table.entries.iter().all(|entry| entry.extent != extent)) {
        "the boot record has a partition that the GPT lacks"
    } else if backups.iter().any(|backup| backup.layout() != layout) {
        "the GPT and its backup disagree about the partitions"
    } else if !has_primary && layout_at(blocks, 2, &copy.header)? != Some(layout) {
        // A write of the primary that was interrupted may have left entries that are newer than the backup.
        "the primary GPT is damaged, and what is left of it disagrees with its backup"
    } else {
        return Ok(None);
    };
    Ok(Some(why.to_owned()))
}

/// The place of a partition: its number, first block and last block (inclusive).
type Place = (u64, u64, u64);

/// The layout of the entries from block `at` on, without a check of their checksum. Number and size of the entries are
/// those in `header`.
fn layout_at(blocks: &Blocks, at: u64, header: &Header) -> Result<Option<Vec<Place>>> {
    let len = header.entries_len();
    let entries = blocks.read(at, (len as u64).div_ceil(blocks.bytes))?;
    Ok(entries.map(|entries| layout(&entries[..len], header.entry_bytes)))
}

/// The places of all partitions in `entries`.
fn layout(entries: &[u8], entry_bytes: u32) -> Vec<Place> {
    let raw = entries.chunks_exact(entry_bytes as usize).map(RawEntry::parse);
    let used = (1..).zip(raw.filter_map(std::result::Result::ok));
    used.filter(|(_, raw)| raw.kind != [0; 16]).map(|(number, raw)| (number, raw.first, raw.last)).collect()
}

/// Adds the partitions of `copy` to `table`, and the GUID of the disk.
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
            table.warnings.push(format!(
                "partition {number} ends before it begins or lies beyond the end of the disk, and is left out"
            ));
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

/// An entry as stored in the table. Its bounds are in blocks; the last block is part of the partition.
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
