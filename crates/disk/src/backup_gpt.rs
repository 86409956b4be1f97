//! Moves the backup of a GUID partition table (UEFI specification 2.10, section 5.3) to the last sectors of a disk that
//! is larger than the one for which the table was made, as `sgdisk -e` does.

use base::limits::SECTOR_BYTES;
use base::{Error, ErrorKind, Extent, Result};
use crc::{CRC_32_ISO_HDLC, Crc};

use crate::{ReadAt, WriteAt, text};

const CRC32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
/// Length of a header's fixed fields, in bytes.
const HEADER_BYTES: usize = 92;
/// Largest size of all entries of a table that is accepted, in bytes. In practice they have 16 KiB.
const ENTRIES_BYTES_MAX: u64 = 1 << 20;
/// Offset of the first of the four slots of a boot record, and the length of each slot, in bytes.
const SLOTS: (usize, usize) = (446, 16);

/// Offsets of a header's fields in bytes.
mod field {
    pub(super) const HEADER_LEN: usize = 12;
    pub(super) const HEADER_CRC: usize = 16;
    pub(super) const MY_LBA: usize = 24;
    pub(super) const ALTERNATE_LBA: usize = 32;
    pub(super) const LAST_USABLE_LBA: usize = 48;
    pub(super) const DISK_ID: usize = 56;
    pub(super) const ENTRIES_LBA: usize = 72;
    pub(super) const ENTRY_COUNT: usize = 80;
    pub(super) const ENTRY_BYTES: usize = 84;
    pub(super) const ENTRIES_CRC: usize = 88;
}

/// The bytes of a block that holds a header with a correct checksum.
#[derive(Clone)]
struct Header(Vec<u8>);

impl Header {
    /// The header at block `at` of `disk` and its entries; `None` unless both are valid.
    fn read(disk: &dyn ReadAt, block_bytes: u64, at: u64) -> Result<Option<(Self, Vec<u8>)>> {
        let Some(block) = read_blocks(disk, block_bytes, at, block_bytes)? else { return Ok(None) };
        let header = Self(block);
        if header.0[..8] != *b"EFI PART" || header.crc() != Some(header.u32(field::HEADER_CRC)) {
            return Ok(None);
        }
        let (count, size) = (header.u32(field::ENTRY_COUNT), header.u32(field::ENTRY_BYTES));
        let len = u64::from(count) * u64::from(size);
        if header.u64(field::MY_LBA) != at || len == 0 || len > ENTRIES_BYTES_MAX {
            return Ok(None);
        }
        let entries = read_blocks(disk, block_bytes, header.u64(field::ENTRIES_LBA), len)?;
        let crc = header.u32(field::ENTRIES_CRC);
        Ok(entries.filter(|entries| CRC32.checksum(entries) == crc).map(|entries| (header, entries)))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    /// The correct checksum of the header; `None` if its length field is out of range.
    fn crc(&self) -> Option<u32> {
        let len = usize::try_from(self.u32(field::HEADER_LEN)).ok()?;
        let mut covered = self.0.get(..len).filter(|_| len >= HEADER_BYTES)?.to_vec();
        covered[field::HEADER_CRC..field::HEADER_CRC + 4].fill(0);
        Some(CRC32.checksum(&covered))
    }

    /// The bytes of this header with `changes` (offset, value of 64 bits) and a new checksum.
    fn with(&self, changes: &[(usize, u64)]) -> Vec<u8> {
        let mut changed = self.clone();
        for &(at, value) in changes {
            changed.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let crc = changed.crc().expect("its length is that of a sound header");
        changed.0[field::HEADER_CRC..field::HEADER_CRC + 4].copy_from_slice(&crc.to_le_bytes());
        changed.0
    }
}

/// Reads `len` bytes from block `at`; `None` if the disk ends before.
fn read_blocks(disk: &dyn ReadAt, block_bytes: u64, at: u64, len: u64) -> Result<Option<Vec<u8>>> {
    let end = at.checked_mul(block_bytes).and_then(|offset| offset.checked_add(len));
    if end.is_none_or(|end| end > disk.geometry().size_bytes) {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(len).expect("a table, whose size was checked")];
    disk.read_exact_at(&mut bytes, at * block_bytes).map(|()| Some(bytes))
}

/// The sectors of the backup table at the end of `disk`, from its entries to its header. A block is a logical
/// sector. `None` unless the last block has the header of a valid table with the GUID `disk_id`. `Io` if the disk
/// fails.
pub fn find_at_end(disk: &dyn ReadAt, block_bytes: u32, disk_id: &str) -> Result<Option<Extent>> {
    let block_bytes = u64::from(block_bytes);
    let Some(last) = (disk.geometry().size_bytes / block_bytes).checked_sub(1) else { return Ok(None) };
    let Some((header, _)) = Header::read(disk, block_bytes, last)? else { return Ok(None) };
    let id = header.0[field::DISK_ID..field::DISK_ID + 16].try_into().expect("16 bytes");
    let start = header.u64(field::ENTRIES_LBA);
    let ours = text::guid(id) == disk_id && start < last;
    let scale = block_bytes / SECTOR_BYTES;
    Ok(ours.then(|| Extent::between(start * scale, (last + 1) * scale)))
}

/// The size in bytes of the disk for which the GPT of `disk` was made: where its backup ends. `None` unless it has a
/// valid primary table. `Io` if the disk fails.
pub(crate) fn made_bytes(disk: &dyn ReadAt, block_bytes: u32) -> Result<Option<u64>> {
    let block_bytes = u64::from(block_bytes);
    let primary = Header::read(disk, block_bytes, 1)?;
    Ok(primary
        .and_then(|(header, _)| header.u64(field::ALTERNATE_LBA).checked_add(1)?.checked_mul(block_bytes)))
}

/// The least size in bytes of the disk by its partition table: the end of its backup GPT, or of its last partition.
/// `None` if it has no table. `Io` if the disk fails.
pub fn length_by_table(disk: &dyn ReadAt) -> Result<Option<u64>> {
    let by_gpt = made_bytes(disk, disk.geometry().logical_sector_bytes)?;
    let ends = crate::stale::partitions(disk)?
        .into_iter()
        .map(|(_, extent)| extent.offset_bytes() + extent.len_bytes());
    Ok(by_gpt.max(ends.max()))
}

/// The writes that move a backup table.
pub struct Move {
    /// The backup, as byte offset and bytes: first the entries, then the header.
    backup: Vec<(u64, Vec<u8>)>,
    /// The first two blocks of the disk: boot record and primary header.
    front: Vec<u8>,
    /// The sectors of the new backup.
    sectors: Extent,
}

impl Move {
    /// The sectors that the move writes: those of boot record and primary header, and those of the new backup.
    #[must_use]
    pub fn sectors(&self) -> [Extent; 2] {
        [Extent::new(0, self.front.len() as u64 / SECTOR_BYTES), self.sectors]
    }

    /// Whether `disk` holds what the move writes. `Io` if the disk fails.
    pub fn is_on(&self, disk: &dyn ReadAt) -> Result<bool> {
        for (offset, bytes) in self.writes() {
            let mut found = vec![0; bytes.len()];
            disk.read_exact_at(&mut found, offset)?;
            if found != bytes {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// All writes: the backup first.
    fn writes(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let backup = self.backup.iter().map(|(offset, bytes)| (*offset, &bytes[..]));
        backup.chain([(0, &self.front[..])])
    }
}

/// Moves the backup table of a disk that was `made_bytes` long, with logical sectors (blocks) of `block_bytes`, to
/// the end of `target`. First it writes and syncs the new backup, then the primary header and the protective boot
/// record. So the primary always points to a valid backup, unless the target is so little longer that the new backup
/// overwrites the old one. Otherwise the old backup stays on the disk, and nothing points to it.
///
/// Returns the sectors of the new backup. Returns `None`, and writes nothing, unless primary and backup are valid and
/// agree, the boot record announces the GPT, and the target is longer. `Io` if the target fails, or if the bytes that
/// are read back differ from those written.
pub fn move_to_end(target: &dyn WriteAt, block_bytes: u32, made_bytes: u64) -> Result<Option<Extent>> {
    let Some(plan) = plan_move(target, block_bytes, made_bytes, target.geometry().size_bytes)? else {
        return Ok(None);
    };
    for (offset, bytes) in &plan.backup {
        target.write_all_at(bytes, *offset)?;
    }
    target.sync()?;
    target.write_all_at(&plan.front, 0)?;
    target.sync()?;
    for (offset, bytes) in plan.writes() {
        let mut found = vec![0; bytes.len()];
        target.read_back_at(&mut found, offset)?;
        if found != bytes {
            let text = format!("`{}` does not hold the GPT that was written at {offset}", target.name());
            return Err(Error::new(ErrorKind::Io, text));
        }
    }
    Ok(Some(plan.sectors))
}

/// What [`move_to_end`] writes if a target of `size_bytes` holds what `disk` does; `None` if the table stays where it
/// is. `Io` if the disk fails.
pub fn plan_move(
    disk: &dyn ReadAt,
    block_bytes: u32,
    made_bytes: u64,
    size_bytes: u64,
) -> Result<Option<Move>> {
    let block_bytes = u64::from(block_bytes);
    let ends = (made_bytes / block_bytes, size_bytes / block_bytes);
    if ends.0 < 2 || ends.1 <= ends.0 {
        return Ok(None);
    }
    let (made_last, last) = (ends.0 - 1, ends.1 - 1);
    let Some((primary, entries)) = Header::read(disk, block_bytes, 1)? else { return Ok(None) };
    let Some((backup, copies)) = Header::read(disk, block_bytes, made_last)? else { return Ok(None) };
    let agree = primary.u64(field::ALTERNATE_LBA) == made_last && entries == copies;
    let Some(record) = read_blocks(disk, block_bytes, 0, block_bytes)?.filter(|_| agree) else {
        return Ok(None);
    };
    let Some(record) = announced(record, made_last, last) else { return Ok(None) };
    let entries_at = last - (entries.len() as u64).div_ceil(block_bytes);
    let usable = (field::LAST_USABLE_LBA, entries_at - 1);
    let front = [record, primary.with(&[(field::ALTERNATE_LBA, last), usable])].concat();
    let header = backup.with(&[
        (field::MY_LBA, last),
        (field::ALTERNATE_LBA, 1),
        (field::ENTRIES_LBA, entries_at),
        usable,
    ]);
    let mut padded = entries;
    padded.resize(padded.len().next_multiple_of(usize::try_from(block_bytes).expect("a block")), 0);
    let scale = block_bytes / SECTOR_BYTES;
    Ok(Some(Move {
        backup: vec![(entries_at * block_bytes, padded), (last * block_bytes, header)],
        front,
        sectors: Extent::between(entries_at * scale, (last + 1) * scale),
    }))
}

/// The protective boot record for a disk whose last block is `last`. A GPT entry that covered the old disk, up to block
/// `made_last`, now covers the new one; other entries stay. `None` if no entry announces a GPT.
fn announced(mut record: Vec<u8>, made_last: u64, last: u64) -> Option<Vec<u8>> {
    let (first, len) = SLOTS;
    let starts: Vec<usize> = (first..510).step_by(len).filter(|&at| record[at + 4] == 0xEE).collect();
    if record[510..512] != [0x55, 0xAA] || starts.is_empty() {
        return None;
    }
    // The length field has 32 bits; UEFI wants all ones for a larger disk.
    let field = |value: u64| u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes();
    for at in starts {
        let count = at + 12..at + 16;
        if record[at + 8..at + 12] == 1u32.to_le_bytes() && record[count.clone()] == field(made_last) {
            record[count].copy_from_slice(&field(last));
        }
    }
    Some(record)
}
