//! The reader of a replay: repeats recorded reads, with the recorded number in flight, from a file or an NBD server
//! (newstyle, `EXPORT_NAME`, simple replies), and measures the latency of each.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use crate::Result;
use crate::trace::Event;

const MAGIC: &[u8; 16] = b"NBDMAGICIHAVEOPT";
/// Fixed newstyle, no zeros.
const CLIENT_FLAGS: u32 = 3;
const EXPORT_NAME: u32 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The type of a write request; that of a read is 0.
const WRITE: u32 = 1;
/// A flag of a write, in the 16 bits above the type.
const FORCE_UNIT_ACCESS: u32 = 1 << 16;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// Bytes of size and flags at the end of the handshake.
const EXPORT_BYTES: usize = 10;
/// Larger than any request of a guest.
const READ_BYTES_MAX: usize = 32 << 20;

/// The result of a replay.
#[derive(Debug, Clone, Default)]
pub(crate) struct Replayed {
    /// Latencies of the reads in milliseconds, ascending.
    pub latencies_ms: Vec<f64>,
}

impl Replayed {
    fn new(mut latencies_ms: Vec<f64>) -> Self {
        latencies_ms.sort_by(f64::total_cmp);
        Self { latencies_ms }
    }

    /// The latency in milliseconds that `percent` of all reads did not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let last = self.latencies_ms.len().saturating_sub(1);
        self.latencies_ms.get(last * percent / 100).copied().unwrap_or(f64::NAN)
    }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Replays the reads from a local file, one after the other.
pub(crate) fn of_file(path: &Path, reads: &[Event]) -> Result<Replayed> {
    let file = File::open(path)?;
    let mut buffer = vec![0; READ_BYTES_MAX];
    let mut latencies = Vec::with_capacity(reads.len());
    for read in reads {
        let since = Instant::now();
        file.read_exact_at(&mut buffer[..usize::try_from(read.bytes)?], read.offset)?;
        latencies.push(millis(since));
    }
    Ok(Replayed::new(latencies))
}

/// A client of an NBD server on a Unix socket.
pub(crate) struct Nbd {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// Start times of the reads in flight, by handle, which is the index of the read.
    in_flight: HashMap<u64, Instant>,
}

impl Nbd {
    /// Connects to the export `name`.
    pub(crate) fn connect(socket: &Path, name: &str) -> Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        if &greeting[..16] != MAGIC {
            return Err("this is not a newstyle NBD server".into());
        }
        let mut hello = CLIENT_FLAGS.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT");
        hello.extend(EXPORT_NAME.to_be_bytes());
        hello.extend(u32::try_from(name.len())?.to_be_bytes());
        hello.extend(name.as_bytes());
        stream.write_all(&hello)?;
        let mut export = [0; EXPORT_BYTES];
        stream.read_exact(&mut export)?;
        Ok(Self { stream, buffer: vec![0; READ_BYTES_MAX], in_flight: HashMap::new() })
    }

    /// Replays `reads`: each is sent when fewer are in flight than in the recording. `see` gets each read with its
    /// bytes.
    pub(crate) fn replay(
        &mut self,
        reads: &[Event],
        mut see: impl FnMut(&Event, &[u8]) -> Result<()>,
    ) -> Result<Replayed> {
        let mut latencies = Vec::with_capacity(reads.len());
        for (handle, read) in (0u64..).zip(reads) {
            while self.in_flight.len() >= read.in_flight.max(1) {
                latencies.push(self.answer(reads, &mut see)?);
            }
            self.ask(handle, read)?;
        }
        while !self.in_flight.is_empty() {
            latencies.push(self.answer(reads, &mut see)?);
        }
        Ok(Replayed::new(latencies))
    }

    /// Writes `bytes` at `offset`, durably if `is_durable`, and waits for the acknowledgement. No read may be in
    /// flight.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8], is_durable: bool) -> Result<()> {
        let command = WRITE | if is_durable { FORCE_UNIT_ACCESS } else { 0 };
        self.stream.write_all(&[&request(command, 0, offset, bytes.len() as u64)?[..], bytes].concat())?;
        self.head().map(drop)
    }

    fn ask(&mut self, handle: u64, read: &Event) -> Result<()> {
        self.in_flight.insert(handle, Instant::now());
        Ok(self.stream.write_all(&request(0, handle, read.offset, read.bytes)?)?)
    }

    /// Receives the head of an answer and returns its handle; an error if the request failed.
    fn head(&mut self) -> Result<u64> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
        if word(0) != REPLY_MAGIC || word(4) != 0 {
            return Err(format!("a request failed: magic {:x}, error {}", word(0), word(4)).into());
        }
        Ok(u64::from_be_bytes(head[8..].try_into().expect("eight bytes")))
    }

    /// Receives one answer, and returns its latency in milliseconds.
    fn answer(&mut self, reads: &[Event], see: &mut impl FnMut(&Event, &[u8]) -> Result<()>) -> Result<f64> {
        let handle = self.head()?;
        let since = self.in_flight.remove(&handle).ok_or("an answer that nobody asked for")?;
        let read = &reads[usize::try_from(handle)?];
        let bytes = &mut self.buffer[..usize::try_from(read.bytes)?];
        self.stream.read_exact(bytes)?;
        let latency = millis(since);
        see(read, bytes)?;
        Ok(latency)
    }
}

/// The 28 bytes of a request: flags and type together, then handle, offset and length.
fn request(command: u32, handle: u64, offset: u64, bytes: u64) -> Result<[u8; 28]> {
    let mut request = [0; 28];
    request[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    request[4..8].copy_from_slice(&command.to_be_bytes());
    request[8..16].copy_from_slice(&handle.to_be_bytes());
    request[16..24].copy_from_slice(&offset.to_be_bytes());
    request[24..].copy_from_slice(&u32::try_from(bytes)?.to_be_bytes());
    Ok(request)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;

    use mirror::nbd::{Export, ExportTable, Server};
    use mirror::{Durability, RawDisk, Served as _};

    use super::*;
    use crate::trace::Kind;

    #[test]
    fn reads_are_replayed_with_as_many_in_flight() {
        let folder = tempfile::tempdir().unwrap();
        let disk = RawDisk::open(&folder.path().join("disk"), Some(1 << 20)).unwrap();
        for sector in 0..2048u64 {
            disk.write(sector * 512, &[sector.to_le_bytes()[0]; 512], Durability::Cached).unwrap();
        }
        let table = Arc::new(ExportTable::default());
        table.insert("disk", Export { disk: Arc::new(disk), description: String::new() }).unwrap();
        let server = Server::new(table, 4, Arc::new(|_| {}));
        let socket = folder.path().join("socket");
        server.listen_unix(UnixListener::bind(&socket).unwrap()).unwrap();
        let read =
            |sector: u64, in_flight| Event { kind: Kind::Read, offset: sector * 512, bytes: 1024, in_flight };
        let reads = [read(3, 1), read(700, 2), read(701, 3), read(9, 1)];
        let (mut seen, mut client) = (vec![], Nbd::connect(&socket, "disk").unwrap());
        client.write(700 * 512, &[188; 512], true).unwrap();
        let replayed = client.replay(&reads, |event, bytes| {
            assert_eq!(u64::from(bytes[0]), event.offset / 512 % 256);
            assert_eq!(u64::from(bytes[1023]), (event.offset / 512 + 1) % 256);
            seen.push(event.offset / 512);
            Ok(())
        });
        assert_eq!(replayed.unwrap().latencies_ms.len(), 4);
        assert!(seen.len() == 4 && seen[3] == 9, "{seen:?}");
        let local = of_file(&folder.path().join("disk"), &reads).unwrap();
        assert_eq!(local.latencies_ms.len(), 4);
    }
}
