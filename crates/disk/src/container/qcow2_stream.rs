//! A compressed QCOW2, written from its first byte to its last: version 3, deflate clusters. Source: QEMU's
//! `docs/interop/qcow2.rst`.
//!
//! The compressed clusters follow each other without gaps; then come the tables, and last, when all that is durable,
//! the header. Until then the file is no QCOW2.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result, is_zero};
use flate2::{Compress, Compression, FlushCompress, Status};
use sha2::{Digest as _, Sha256};

use crate::file::{claim, io_error};
use crate::{ReadAt as _, open_source};

use super::open_virtual_disk;
use super::qcow2_header::{CLUSTER_BITS, Qcow2Header};

const CLUSTER: usize = 1 << CLUSTER_BITS;
/// Entries of a table of the second level.
const L2_ENTRIES: usize = CLUSTER / 8;
const COPIED: u64 = Qcow2Header::COPIED;
const COMPRESSED: u64 = 1 << 62;
/// Where the number of further sectors begins in the entry of a compressed cluster.
const SECTORS_SHIFT: u32 = 62 - (CLUSTER_BITS - 8);
/// QEMU's readers have a window of 4 KiB.
const WINDOW_BITS: u8 = 12;
const LEVEL: u32 = 6;
/// Clusters that one thread compresses at a time.
const PART_CLUSTERS: usize = 16;

/// A compressed QCOW2 file that takes the bytes of a disk in their order.
pub struct Qcow2Stream {
    file: File,
    path: PathBuf,
    size_bytes: u64,
    threads: usize,
    /// Bytes of the disk that wait until there is work for all threads.
    pending: Vec<u8>,
    /// The tables of the second level, without those that would be empty.
    tables: Vec<Option<Box<[u64]>>>,
    /// How many references each cluster of the file has.
    counts: Vec<u16>,
    /// Where the next cluster goes in the file.
    end: u64,
    taken: u64,
    hasher: Sha256,
}

impl Qcow2Stream {
    /// Makes the file at `path` for a disk of `size_bytes`; what it held is lost. `threads` compress. `Refused` if
    /// another program writes to it; `Io`.
    pub fn create(path: &Path, size_bytes: u64, threads: usize) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|e| io_error("open", path, e))?;
        claim(&file, path)?;
        file.set_len(0).map_err(|e| io_error("empty", path, e))?;
        let clusters = usize::try_from(size_bytes.div_ceil(CLUSTER as u64)).expect("64 bits");
        Ok(Self {
            file,
            path: path.to_owned(),
            size_bytes,
            threads: threads.max(1),
            pending: Vec::new(),
            tables: vec![None; clusters.div_ceil(L2_ENTRIES)],
            counts: vec![1],
            end: CLUSTER as u64,
            taken: 0,
            hasher: Sha256::new(),
        })
    }

    /// Writes what is left, the tables and the header, and makes the file durable. `Invalid` if it has not got all
    /// bytes of the disk; `Io`.
    pub fn finish(mut self) -> Result<Qcow2Written> {
        if self.taken + self.pending.len() as u64 != self.size_bytes {
            let text = format!("`{}` has not got all bytes of its disk", self.path.display());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let name = self.path.display().to_string();
        let failed = |error| Error::from_io(format!("write `{name}`"), error);
        // The last cluster is a whole one.
        self.pending.resize(self.pending.len().next_multiple_of(CLUSTER), 0);
        self.write_pending().map_err(failed)?;
        let header = self.write_tables().map_err(failed)?;
        self.file.sync_all().map_err(failed)?;
        self.file.write_all_at(&header, 0).map_err(failed)?;
        self.file.sync_all().map_err(failed)?;
        Ok(Qcow2Written { path: self.path, tables: self.tables, digest: self.hasher.finalize().into() })
    }

    /// Compresses and writes all whole clusters that are pending.
    fn write_pending(&mut self) -> io::Result<()> {
        let whole = self.pending.len() / CLUSTER * CLUSTER;
        let rest = self.pending.split_off(whole);
        let pending = std::mem::replace(&mut self.pending, rest);
        let parts: Vec<&[u8]> = pending.chunks(PART_CLUSTERS * CLUSTER).collect();
        for some in parts.chunks(self.threads) {
            let packed: Vec<Vec<Packed>> = std::thread::scope(|scope| {
                let threads: Vec<_> = some.iter().map(|part| scope.spawn(|| pack(part))).collect();
                threads.into_iter().map(|thread| thread.join().expect("compression does not panic")).collect()
            });
            for (plain, packed) in
                some.iter().flat_map(|part| part.chunks(CLUSTER)).zip(packed.into_iter().flatten())
            {
                self.write_cluster(plain, &packed)?;
                self.taken += CLUSTER as u64;
            }
        }
        Ok(())
    }

    /// Writes the next cluster of the disk.
    fn write_cluster(&mut self, plain: &[u8], packed: &Packed) -> io::Result<()> {
        let (bytes, entry) = match packed {
            Packed::Zeros => return Ok(()),
            Packed::Less(bytes) => {
                let last = self.end + bytes.len() as u64 - 1;
                let sectors = last / 512 - self.end / 512;
                (&bytes[..], COMPRESSED | sectors << SECTORS_SHIFT | self.end)
            }
            Packed::NotLess => {
                self.end = self.end.next_multiple_of(CLUSTER as u64);
                (plain, COPIED | self.end)
            }
        };
        let index = index(self.taken / CLUSTER as u64);
        let table = &mut self.tables[index / L2_ENTRIES];
        table.get_or_insert_with(|| vec![0; L2_ENTRIES].into())[index % L2_ENTRIES] = entry;
        self.hasher.update(plain);
        self.file.write_all_at(bytes, self.end)?;
        let end = self.end + bytes.len() as u64;
        self.count(self.end / CLUSTER as u64..end.div_ceil(CLUSTER as u64));
        self.end = end;
        Ok(())
    }

    /// Adds a reference to each of these clusters of the file.
    fn count(&mut self, clusters: Range<u64>) {
        let end = index(clusters.end);
        if self.counts.len() < end {
            self.counts.resize(end, 0);
        }
        // At most as many compressed clusters as bytes share one: 16 bits are enough, as a cluster has some bytes.
        self.counts[index(clusters.start)..end].iter_mut().for_each(|count| *count += 1);
    }

    /// Writes a table behind everything else, and returns where.
    fn append(&mut self, table: &[u8]) -> io::Result<u64> {
        let offset = self.end.next_multiple_of(CLUSTER as u64);
        self.file.write_all_at(table, offset)?;
        self.end = (offset + table.len() as u64).next_multiple_of(CLUSTER as u64);
        self.count(offset / CLUSTER as u64..self.end / CLUSTER as u64);
        Ok(offset)
    }

    /// Writes the tables and the reference counts, and returns the header.
    fn write_tables(&mut self) -> io::Result<Vec<u8>> {
        let mut level1 = Vec::new();
        for index in 0..self.tables.len() {
            let bytes = self.tables[index].as_ref().map(|table| big_endian(table));
            let entry = bytes.map(|bytes| self.append(&bytes)).transpose()?;
            level1.push(entry.map_or(0, |offset| COPIED | offset));
        }
        let level1_offset = self.append(&big_endian(&level1))?;
        let used = self.end / CLUSTER as u64;
        let (blocks, counts_clusters) = Qcow2Header::counts_of(used);
        let (first, table) = (self.end, self.end + blocks * CLUSTER as u64);
        self.count(used..used + blocks + counts_clusters);
        let counts: Vec<u8> = self.counts.iter().flat_map(|count| count.to_be_bytes()).collect();
        self.file.write_all_at(&counts, first)?;
        let offsets: Vec<u64> = (0..blocks).map(|block| first + block * CLUSTER as u64).collect();
        self.file.write_all_at(&big_endian(&offsets), table)?;
        self.file.set_len(table + counts_clusters * CLUSTER as u64)?;
        let header = Qcow2Header {
            size_bytes: self.size_bytes,
            level1_entries: level1.len() as u64,
            level1_offset,
            counts_offset: table,
            counts_clusters,
        };
        Ok(header.encode())
    }
}

impl io::Write for Qcow2Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= self.threads * PART_CLUSTERS * CLUSTER {
            self.write_pending()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("64 bits")
}

fn big_endian(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// A cluster, compressed.
enum Packed {
    /// It needs no place.
    Zeros,
    Less(Vec<u8>),
    /// It takes as much place as before.
    NotLess,
}

/// Compresses clusters one by one.
fn pack(part: &[u8]) -> Vec<Packed> {
    let mut deflate = Compress::new_with_window_bits(Compression::new(LEVEL), false, WINDOW_BITS);
    let mut buffer = vec![0; CLUSTER];
    let one = |plain: &[u8]| {
        if is_zero(plain) {
            return Packed::Zeros;
        }
        deflate.reset();
        match deflate.compress(plain, &mut buffer, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => {
                let len = usize::try_from(deflate.total_out()).expect("at most a cluster");
                if len < CLUSTER { Packed::Less(buffer[..len].to_vec()) } else { Packed::NotLess }
            }
            _ => Packed::NotLess,
        }
    };
    part.chunks(CLUSTER).map(one).collect()
}

/// A compressed QCOW2 that is complete.
pub struct Qcow2Written {
    path: PathBuf,
    tables: Vec<Option<Box<[u64]>>>,
    digest: [u8; 32],
}

impl Qcow2Written {
    /// Reads it back by the reader of QCOW2, and compares all that was written. `Verification` if it differs.
    pub fn verify(&self) -> Result<()> {
        let source = open_source(&self.path)?;
        let disk = open_virtual_disk(&source, true, false)?;
        let size = disk.geometry().size_bytes;
        let (mut cluster, mut hasher) = (vec![0; CLUSTER], Sha256::new());
        let entries =
            self.tables.iter().enumerate().filter_map(|(index, table)| Some((index, table.as_ref()?)));
        let used = entries.flat_map(|(table, entries)| {
            let used = entries.iter().enumerate().filter(|(_, entry)| **entry != 0);
            used.map(move |(index, _)| (table * L2_ENTRIES + index) as u64 * CLUSTER as u64)
        });
        for offset in used {
            let len = usize::try_from((size - offset).min(CLUSTER as u64)).expect("a cluster");
            cluster[len..].fill(0);
            disk.read_exact_at(&mut cluster[..len], offset)?;
            hasher.update(&cluster);
        }
        if hasher.finalize()[..] == self.digest {
            return Ok(());
        }
        let text = format!("`{}` differs from what was written to it", self.path.display());
        Err(Error::new(ErrorKind::Verification, text))
    }
}
