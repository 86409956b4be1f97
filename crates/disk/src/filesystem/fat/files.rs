//! The files of a FAT, with their places: to read them, and to change bytes of them where they are. No kernel driver
//! and no other program is needed.
//!
//! Source: Microsoft, "FAT: General Overview of On-Disk Format" 1.03, "FAT Directory Structure" and the chapters on
//! long names.

use std::cell::RefCell;
use std::collections::HashSet;

use base::{Error, ErrorKind, Result};

use super::super::little_endian::{u16_at, u32_at};
use super::{Boot, FIRST_CLUSTER, Width};
use crate::volume::Volume;

const ENTRY_BYTES: usize = 32;
/// The longest folder.
const FOLDER_BYTES_MAX: u64 = 65_536 * ENTRY_BYTES as u64;
/// So much of the table is read at once.
const WINDOW_BYTES: u64 = 4 << 10;

/// Attributes of an entry.
const LABEL: u8 = 0x08;
const FOLDER: u8 = 0x10;
const LONG_NAME: u8 = 0x0F;

/// A regular file.
#[derive(Debug, Clone)]
pub(crate) struct FatFile {
    /// Its path from the root folder, with slashes between names.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    first: u32,
}

/// The files of a FAT.
pub(crate) struct FatFiles<'a> {
    volume: Volume<'a>,
    boot: Boot,
    window: RefCell<Window>,
}

/// The part of the table that was read last, and its offset in the volume.
#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Malformed, format!("the FAT is damaged: {what}"))
}

impl<'a> FatFiles<'a> {
    /// Those of the FAT in `volume`. `Malformed` if it holds none.
    pub(crate) fn of(volume: Volume<'a>) -> Result<Self> {
        let boot = Boot::read(&volume)?.filter(|boot| boot.clusters() > 0);
        Ok(Self { boot: boot.ok_or_else(|| damaged("its boot sector"))?, volume, window: RefCell::default() })
    }

    /// All files, in all folders. `Malformed` if the folders are damaged.
    pub(crate) fn all(&self) -> Result<Vec<FatFile>> {
        let mut files = Vec::new();
        let mut seen = HashSet::new();
        let mut folders = vec![(String::new(), self.root()?)];
        while let Some((path, entries)) = folders.pop() {
            for entry in Entry::all(&entries) {
                let path = if path.is_empty() { entry.name } else { format!("{path}/{}", entry.name) };
                if !entry.is_folder {
                    files.push(FatFile { path, bytes: entry.bytes, first: entry.first });
                } else if !seen.insert(entry.first) {
                    return Err(damaged(&format!("folder `{path}` lies at two places")));
                } else if entry.first >= 2 {
                    folders.push((path, self.folder(entry.first)?));
                }
            }
        }
        files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(files)
    }

    /// The content of a file. `Malformed` if its clusters end early.
    pub(crate) fn read(&self, file: &FatFile) -> Result<Vec<u8>> {
        self.content(&self.pieces(file)?)
    }

    /// Where the bytes of a file lie in the volume: offset and length of each piece, in their order. `Malformed` if its
    /// clusters end early.
    pub(crate) fn pieces(&self, file: &FatFile) -> Result<Vec<(u64, u64)>> {
        if file.bytes == 0 { Ok(Vec::new()) } else { self.chain(file.first, Some(file.bytes)) }
    }

    fn cluster_bytes(&self) -> u64 {
        self.boot.cluster_sectors * self.boot.sector_bytes
    }

    /// The offset of a cluster.
    fn place(&self, cluster: u32) -> Result<u64> {
        let index = u64::from(cluster).checked_sub(FIRST_CLUSTER).filter(|at| *at < self.boot.clusters());
        let index = index.ok_or_else(|| damaged("a chain leaves the filesystem"))?;
        Ok(self.boot.head_sectors() * self.boot.sector_bytes + index * self.cluster_bytes())
    }

    /// What follows a cluster in its chain.
    fn next(&self, cluster: u32) -> Result<u32> {
        let table = self.boot.reserved_sectors * self.boot.sector_bytes;
        let number = u64::from(cluster);
        let at = match self.boot.width {
            Width::Fat12 => number + number / 2,
            Width::Fat16 => number * 2,
            Width::Fat32 => number * 4,
        };
        let mut bytes = [0; 4];
        let len = if self.boot.width == Width::Fat32 { 4 } else { 2 };
        self.of_table(table + at, &mut bytes[..len])?;
        let entry = u32::from_le_bytes(bytes);
        let is_odd = self.boot.width == Width::Fat12 && number % 2 == 1;
        Ok((if is_odd { entry >> 4 } else { entry }) & self.boot.width.mask())
    }

    /// Bytes of the table at `at`, which all lie in it.
    fn of_table(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let (end, mut window) = (at + into.len() as u64, self.window.borrow_mut());
        if at < window.start || end > window.start + window.bytes.len() as u64 {
            let table_end = (self.boot.reserved_sectors + self.boot.table_sectors) * self.boot.sector_bytes;
            let start = at - at % WINDOW_BYTES;
            // An entry of FAT12 may lie at the border of two.
            let len = table_end.saturating_sub(start).min(WINDOW_BYTES).max(end - start);
            let mut bytes = vec![0; usize::try_from(len).expect("at most a window")];
            self.volume.read(&mut bytes, start)?;
            *window = Window { start, bytes };
        }
        let from = usize::try_from(at - window.start).expect("at most a window");
        into.copy_from_slice(&window.bytes[from..from + into.len()]);
        Ok(())
    }

    /// The root folder.
    fn root(&self) -> Result<Vec<u8>> {
        if self.boot.width == Width::Fat32 {
            let mut sector = [0; 512];
            self.volume.read(&mut sector, 0)?;
            return self.folder(u32_at(&sector, 44));
        }
        let start = (self.boot.reserved_sectors + self.boot.tables * self.boot.table_sectors)
            * self.boot.sector_bytes;
        let entries = usize::try_from(self.boot.root_entries).expect("a number of 16 bits");
        let mut bytes = vec![0; entries * ENTRY_BYTES];
        self.volume.read(&mut bytes, start)?;
        Ok(bytes)
    }

    /// The content of a folder but the root of FAT12 and FAT16.
    fn folder(&self, first: u32) -> Result<Vec<u8>> {
        self.content(&self.chain(first, None)?)
    }

    fn content(&self, pieces: &[(u64, u64)]) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        for &(offset, len) in pieces {
            let at = content.len();
            content.resize(at + usize::try_from(len).expect("at most 4 GiB"), 0);
            self.volume.read(&mut content[at..], offset)?;
        }
        Ok(content)
    }

    /// Where a chain lies in the volume, offset and length of each piece: `bytes` of it, at least one, or of a folder
    /// all.
    fn chain(&self, first: u32, bytes: Option<u64>) -> Result<Vec<(u64, u64)>> {
        let (mut pieces, mut cluster, mut sum) = (Vec::<(u64, u64)>::new(), first, 0);
        loop {
            let wanted = bytes.map_or(u64::MAX, |bytes| bytes - sum);
            let (offset, len) = (self.place(cluster)?, wanted.min(self.cluster_bytes()));
            match pieces.last_mut() {
                Some((start, before)) if *start + *before == offset => *before += len,
                _ => pieces.push((offset, len)),
            }
            sum += len;
            if bytes == Some(sum) {
                return Ok(pieces);
            }
            cluster = self.next(cluster)?;
            // The last eight values of an entry mean that the chain ends.
            if cluster >= self.boot.width.mask() - 7 {
                return if bytes.is_none() { Ok(pieces) } else { Err(damaged("a file ends early")) };
            }
            if bytes.is_none() && sum > FOLDER_BYTES_MAX {
                return Err(damaged("a folder does not end"));
            }
        }
    }
}

/// An entry of a folder.
struct Entry {
    name: String,
    is_folder: bool,
    first: u32,
    bytes: u64,
}

impl Entry {
    /// The entries of a folder but its label and those for itself and the folder above.
    fn all(folder: &[u8]) -> Vec<Self> {
        let mut entries = Vec::new();
        // The parts of a long name stand before its entry, the last one first.
        let mut long: Vec<u16> = Vec::new();
        let mut sum = 0;
        for entry in folder.chunks_exact(ENTRY_BYTES).take_while(|entry| entry[0] != 0) {
            let attributes = entry[11];
            if entry[0] == 0xE5 {
                long.clear();
            } else if attributes & 0x3F == LONG_NAME {
                if entry[0] & 0x40 != 0 {
                    long.clear();
                }
                sum = entry[13];
                let part = [&entry[1..11], &entry[14..26], &entry[28..32]].concat();
                long.splice(0..0, part.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])));
            } else {
                let is_its = !long.is_empty() && sum == checksum(&entry[..11]);
                let name = if is_its { long_name(&long) } else { short_name(entry) };
                long.clear();
                if attributes & LABEL == 0 && entry[0] != b'.' {
                    let first = u32::from(u16_at(entry, 20)) << 16 | u32::from(u16_at(entry, 26));
                    let bytes = u64::from(u32_at(entry, 28));
                    entries.push(Self { name, is_folder: attributes & FOLDER != 0, first, bytes });
                }
            }
        }
        entries
    }
}

fn long_name(units: &[u16]) -> String {
    let end = units.iter().position(|unit| *unit == 0).unwrap_or(units.len());
    String::from_utf16_lossy(&units[..end])
}

fn short_name(entry: &[u8]) -> String {
    let part = |bytes: &[u8], is_lower: bool| {
        let text = String::from_utf8_lossy(bytes).trim_end().to_owned();
        if is_lower { text.to_ascii_lowercase() } else { text }
    };
    // Windows marks names that are lower case in all of a part.
    let (base, end) = (part(&entry[..8], entry[12] & 8 != 0), part(&entry[8..11], entry[12] & 16 != 0));
    if end.is_empty() { base } else { format!("{base}.{end}") }
}

/// By which a long name is known to be of a short one.
fn checksum(name: &[u8]) -> u8 {
    name.iter().fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte))
}
