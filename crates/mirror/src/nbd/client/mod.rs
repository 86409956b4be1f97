//! The other side of NBD: disks that another program serves, as a source or a target. QEMU's `qemu-nbd` and `nbdkit`
//! serve formats that diskcast does not read itself.

mod connection;
mod uri;

use std::fmt;

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

/// A disk that an NBD server exports.
pub struct NbdDisk {
    address: ExportAddress,
    name: String,
    terms: Terms,
    pool: Mutex<Pool>,
    freed: Condvar,
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
    pub fn open(address: &ExportAddress) -> Result<Self> {
        let first = Connection::open(address)?;
        let (terms, name) = (first.terms, address.to_string());
        if !terms.size_bytes.is_multiple_of(u64::from(terms.unit_bytes.max(512))) {
            let text = format!("`{name}` has {} bytes, no multiple of its sectors", terms.size_bytes);
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        // More connections see the same data only if the server says so.
        let more = if terms.can(flag::CAN_MULTI_CONN) { CONNECTIONS_MAX - 1 } else { 0 };
        let pool = Mutex::new(Pool { idle: vec![first], left: more });
        Ok(Self {
            address: address.clone(),
            name,
            terms,
            pool,
            freed: Condvar::new(),
            known: Mutex::default(),
        })
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
        let sector = self.terms.unit_bytes.max(512);
        Geometry {
            size_bytes: self.terms.size_bytes,
            logical_sector_bytes: sector,
            physical_sector_bytes: sector,
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
        let mut at = offset;
        for part in buf.chunks(self.payload_bytes()) {
            self.with(|connection| connection.write(at, part))?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        if self.terms.can(flag::SEND_WRITE_ZEROES) {
            return self.ranges(offset, len, Connection::zero);
        }
        let zeros = vec![0; self.payload_bytes().min(1 << 20)];
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            let part = usize::try_from((end - at).min(zeros.len() as u64)).expect("at most its length");
            self.write_all_at(&zeros[..part], at)?;
            at += part as u64;
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        if !self.terms.can(flag::SEND_TRIM) {
            let text = format!("`{}` has no way to discard", self.name);
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        self.ranges(offset, len, Connection::trim)
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
