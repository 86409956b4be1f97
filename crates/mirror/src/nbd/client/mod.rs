//! The other side of NBD: disks that another program serves, as a source or a target. QEMU's `qemu-nbd` and `nbdkit`
//! serve formats that diskcast does not read itself.

mod connection;
mod uri;

use std::fmt;
use std::ops::Range;

use base::{Error, ErrorKind, Result};
use disk::{Geometry, ReadAt, WriteAt};
use parking_lot::{Condvar, Mutex};

pub use uri::{ExportAddress, ServerAddress};

use crate::nbd::wire::flag;
use connection::{Connection, Terms};

/// Maximum number of connections to one server: readers that work at the same time take one each.
const CONNECTIONS_MAX: usize = 4;
/// The longest range whose block status is asked for at once.
const STATUS_BYTES: u64 = 1 << 30;
/// Zeros and discards are asked for in ranges of this size.
const RANGE_BYTES: u64 = 1 << 30;
/// What is written as zeros at once where a server has no request for them; longer than any block.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// A disk that an NBD server exports.
pub struct NbdDisk {
    address: ExportAddress,
    name: String,
    terms: Terms,
    sector_bytes: u32,
    pool: Mutex<Pool>,
    freed: Condvar,
    /// Held while a block that is written in part is read and written.
    merging: Mutex<()>,
    /// The last answer about block status: from where, then lengths and whether they are zeros.
    known: Mutex<(u64, Vec<(u32, bool)>)>,
}

struct Pool {
    idle: Vec<Connection>,
    /// Connections that are in use, or may still be opened.
    left: usize,
}

impl fmt::Debug for NbdDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NbdDisk")
            .field("name", &self.name)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}

impl NbdDisk {
    /// Connects to the server and opens the export. `Unreachable`; `NotFound` if the server has no such export;
    /// `Refused`; `Malformed` if it does not speak NBD; `Unsupported` if its size is no multiple of 512 bytes.
    ///
    /// The server's smallest block is a limit for requests, which are rounded to it here. It tells nothing about
    /// sectors (proto.md, "Block size constraints"), which have 512 bytes unless more is known of the disk.
    pub fn open(address: &ExportAddress) -> Result<Self> {
        let first = Connection::open(address)?;
        let (terms, name) = (first.terms, address.to_string());
        if !terms.size_bytes.is_multiple_of(u64::from(terms.unit_bytes.max(512))) {
            let text = format!("`{name}` has {} bytes, not a multiple of its blocks", terms.size_bytes);
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        // More connections see the same data only if the server says so.
        let more = if terms.can(flag::CAN_MULTI_CONN) { CONNECTIONS_MAX - 1 } else { 0 };
        let pool = Mutex::new(Pool { idle: vec![first], left: more });
        Ok(Self {
            address: address.clone(),
            name,
            terms,
            sector_bytes: 512,
            pool,
            freed: Condvar::new(),
            merging: Mutex::default(),
            known: Mutex::default(),
        })
    }

    /// The disk with sectors of another size than 512 bytes: as a target, of those that its new content has.
    #[must_use]
    pub fn with_sectors(self, sector_bytes: u32) -> Self {
        Self { sector_bytes, ..self }
    }

    /// The disk with the sectors that its partition table says, as of a disk in a file.
    #[must_use]
    pub fn with_sectors_by_table(self) -> Self {
        let sector_bytes = disk::sector_bytes_by_table(&self);
        self.with_sectors(sector_bytes)
    }

    /// Whether the server allows no writes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.terms.can(flag::READ_ONLY)
    }

    /// Runs `work` with a connection that nobody else uses meanwhile. A connection that failed is not used again.
    fn with<T>(&self, work: impl FnOnce(&mut Connection) -> Result<T>) -> Result<T> {
        let mut connection = match self.take() {
            Some(connection) => connection,
            None => self.again().inspect_err(|_| self.give_back(None))?,
        };
        let done = work(&mut connection);
        let is_broken = done
            .as_ref()
            .is_err_and(|error| matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Malformed));
        self.give_back((!is_broken).then_some(connection));
        done
    }

    /// An idle connection; `None` if another one may be opened. Waits until one or the other is so.
    fn take(&self) -> Option<Connection> {
        let mut pool = self.pool.lock();
        loop {
            if let Some(connection) = pool.idle.pop() {
                return Some(connection);
            }
            if pool.left > 0 {
                pool.left -= 1;
                return None;
            }
            self.freed.wait(&mut pool);
        }
    }

    fn again(&self) -> Result<Connection> {
        let connection = Connection::open(&self.address)?;
        if connection.terms == self.terms {
            return Ok(connection);
        }
        Err(Error::new(ErrorKind::Unreachable, format!("`{}` is another disk now", self.name)))
    }

    fn give_back(&self, connection: Option<Connection>) {
        let mut pool = self.pool.lock();
        match connection {
            Some(connection) => pool.idle.push(connection),
            None => pool.left += 1,
        }
        self.freed.notify_one();
    }

    fn payload_bytes(&self) -> usize {
        let unit = self.terms.unit_bytes;
        (self.terms.payload_bytes / unit * unit) as usize
    }

    /// Runs `work` for each part of a range.
    fn ranges(
        &self,
        offset: u64,
        len: u64,
        work: impl Fn(&mut Connection, u64, u32) -> Result<()>,
    ) -> Result<()> {
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            let part = (end - at).min(RANGE_BYTES);
            self.with(|connection| work(connection, at, u32::try_from(part).expect("at most RANGE_BYTES")))?;
            at += part;
        }
        Ok(())
    }

    /// The whole blocks of the server in a range of bytes; empty, and inside the range, if it holds none.
    fn blocks(&self, offset: u64, len: u64) -> Range<u64> {
        let (unit, end) = (u64::from(self.terms.unit_bytes), offset.saturating_add(len));
        let start = offset.next_multiple_of(unit).min(end);
        start..(end / unit * unit).max(start)
    }

    /// Writes less than a block of the server, which keeps what else is in it.
    fn merge(&self, bytes: &[u8], offset: u64) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let unit = self.terms.unit_bytes as usize;
        let skip = usize::try_from(offset % unit as u64).expect("less than a unit");
        let (mut block, start) = (vec![0; unit], offset - skip as u64);
        let _alone = self.merging.lock();
        self.read_exact_at(&mut block, start)?;
        block[skip..][..bytes.len()].copy_from_slice(bytes);
        self.with(|connection| connection.write(start, &block))
    }

    /// The bytes from `offset` on that are known to be zeros.
    fn zeros_at(&self, offset: u64) -> Result<u64> {
        let run = |known: &(u64, Vec<(u32, bool)>)| {
            let mut start = known.0;
            for (bytes, zero) in &known.1 {
                let end = start + u64::from(*bytes);
                if (start..end).contains(&offset) {
                    return Some(if *zero { end - offset } else { 0 });
                }
                start = end;
            }
            None
        };
        if let Some(found) = run(&self.known.lock()) {
            return Ok(found);
        }
        let unit = u64::from(self.terms.unit_bytes);
        let start = offset / unit * unit;
        let length = (self.terms.size_bytes - start).min(STATUS_BYTES);
        let length = u32::try_from(length).expect("at most STATUS_BYTES");
        let runs = self.with(|connection| connection.status(start, length))?;
        let mut known = self.known.lock();
        *known = (start, runs);
        Ok(run(&known).unwrap_or(0))
    }
}

impl ReadAt for NbdDisk {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.terms.size_bytes,
            logical_sector_bytes: self.sector_bytes,
            physical_sector_bytes: self.sector_bytes,
        }
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let unit = u64::from(self.terms.unit_bytes);
        let end = offset.checked_add(buf.len() as u64).filter(|&end| end <= self.terms.size_bytes);
        let Some(end) = end else {
            let text = format!("read {} bytes at offset {offset} of `{}`", buf.len(), self.name);
            return Err(Error::from_io(text, std::io::ErrorKind::UnexpectedEof));
        };
        if !(offset | end).is_multiple_of(unit) {
            let (start, behind) = (offset / unit * unit, end.next_multiple_of(unit));
            let mut whole = vec![0; usize::try_from(behind - start).expect("as long as memory")];
            self.read_exact_at(&mut whole, start)?;
            let skip = usize::try_from(offset - start).expect("less than a unit");
            buf.copy_from_slice(&whole[skip..skip + buf.len()]);
            return Ok(());
        }
        let mut at = offset;
        for part in buf.chunks_mut(self.payload_bytes()) {
            self.with(|connection| connection.read(at, part))?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn next_data(&self, offset: u64) -> u64 {
        let (size, mut at) = (self.terms.size_bytes, offset);
        while self.terms.has_status && at < size {
            match self.zeros_at(at) {
                Ok(zeros) if zeros > 0 => at += zeros,
                // An error shows when the bytes are read.
                _ => break,
            }
        }
        at.clamp(offset, size.max(offset))
    }
}

impl WriteAt for NbdDisk {
    fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let blocks = self.blocks(offset, buf.len() as u64);
        let split = |at: u64| usize::try_from(at - offset).expect("inside the buffer");
        let (head, tail) = (split(blocks.start), split(blocks.end));
        self.merge(&buf[..head], offset)?;
        let mut at = blocks.start;
        for part in buf[head..tail].chunks(self.payload_bytes()) {
            self.with(|connection| connection.write(at, part))?;
            at += part.len() as u64;
        }
        self.merge(&buf[tail..], blocks.end)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        let (blocks, end) = (self.blocks(offset, len), offset.saturating_add(len));
        let zeros =
            |bytes: u64| &ZEROS[..usize::try_from(bytes).map_or(ZEROS.len(), |len| len.min(ZEROS.len()))];
        self.merge(zeros(blocks.start - offset), offset)?;
        self.merge(zeros(end - blocks.end), blocks.end)?;
        if self.terms.can(flag::SEND_WRITE_ZEROES) {
            return self.ranges(blocks.start, blocks.end - blocks.start, Connection::zero);
        }
        let mut at = blocks.start;
        while at < blocks.end {
            let part = zeros(blocks.end - at);
            self.write_all_at(part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        if !self.terms.can(flag::SEND_TRIM) {
            let text = format!("`{}` has no way to discard", self.name);
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let blocks = self.blocks(offset, len);
        self.ranges(blocks.start, blocks.end - blocks.start, Connection::trim)
    }

    fn sync(&self) -> Result<()> {
        if !self.terms.can(flag::SEND_FLUSH) {
            return Ok(());
        }
        self.with(Connection::flush)
    }

    fn read_back_at(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        // The server may answer from its cache.
        self.read_exact_at(buf, offset).map(|()| false)
    }
}
