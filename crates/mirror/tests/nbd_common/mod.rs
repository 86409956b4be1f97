//! Helpers for tests of the NBD front end: a server of rigged disks, and a client of its own that can misbehave.
#![allow(dead_code, reason = "each test takes what it needs")]
#![allow(clippy::unwrap_used, reason = "only tests use this")]

pub(crate) mod tools;

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use disk::Geometry;
use mirror::nbd::{Event, Export, ExportTable, Server};
use mirror::{Durability, RawDisk, Served, Space, StatusRun};
use parking_lot::{Condvar, Mutex};
use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A raw disk that can be read-only, have larger sectors, fail, and block requests.
pub(crate) struct Rigged {
    pub disk: RawDisk,
    pub sector_bytes: u32,
    pub read_only: bool,
    /// The requests that `held` selects wait while this is closed.
    pub gate: Gate,
    /// Arguments: whether the request is a write, and its offset. The default selects reads that begin at offset 0.
    pub held: fn(bool, u64) -> bool,
    /// Reads that reach past this offset fail.
    pub broken_from: u64,
    /// Whether reads may be answered at once.
    pub near: AtomicBool,
    pub reads: AtomicUsize,
    pub writes: AtomicUsize,
    pub flushes: AtomicUsize,
}

/// A gate at which requests wait while it is closed.
#[derive(Default)]
pub(crate) struct Gate {
    closed: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn set_closed(&self, closed: bool) {
        *self.closed.lock() = closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        self.changed.wait_while(&mut self.closed.lock(), |closed| *closed);
    }
}

impl Rigged {
    pub(crate) fn new(path: &Path, size_bytes: u64) -> Self {
        Self {
            disk: RawDisk::open(path, Some(size_bytes)).unwrap(),
            sector_bytes: 512,
            read_only: false,
            gate: Gate::default(),
            held: |write, offset| !write && offset == 0,
            broken_from: u64::MAX,
            near: AtomicBool::new(true),
            reads: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
            flushes: AtomicUsize::new(0),
        }
    }
}

impl Served for Rigged {
    fn geometry(&self) -> Geometry {
        let size_bytes = self.disk.geometry().size_bytes;
        Geometry {
            size_bytes,
            logical_sector_bytes: self.sector_bytes,
            physical_sector_bytes: self.sector_bytes,
        }
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        if (self.held)(false, offset) {
            self.gate.pass();
        }
        if offset + into.len() as u64 > self.broken_from {
            return Err(Error::new(ErrorKind::Unreachable, "chunk 7 is nowhere to be had"));
        }
        self.disk.read(offset, into)
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Result<bool> {
        let near = self.near.load(Ordering::SeqCst) && self.broken_from == u64::MAX;
        if near { self.disk.read_now(offset, into) } else { Ok(false) }
    }

    fn write(&self, offset: u64, bytes: &[u8], durability: Durability) -> Result<()> {
        if (self.held)(true, offset) {
            self.gate.pass();
        }
        self.disk.write(offset, bytes, durability)?;
        self.writes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.disk.flush()
    }

    fn discard(&self, offset: u64, bytes: u64, durability: Durability) -> Result<()> {
        self.disk.discard(offset, bytes, durability)
    }

    fn write_zeroes(&self, offset: u64, bytes: u64, space: Space, durability: Durability) -> Result<()> {
        self.disk.write_zeroes(offset, bytes, space, durability)
    }

    fn zeroes_fast(&self) -> bool {
        self.disk.zeroes_fast()
    }

    fn status(&self, offset: u64, bytes: u64, runs_max: usize) -> Result<Vec<StatusRun>> {
        self.disk.status(offset, bytes, runs_max)
    }

    fn close(&self) -> Result<()> {
        self.disk.close()
    }
}

/// A server on a Unix socket in a folder of its own.
pub(crate) struct House {
    pub folder: TempDir,
    pub table: Arc<ExportTable>,
    pub server: Server,
    pub events: mpsc::Receiver<Event>,
}

impl House {
    pub(crate) fn new(clients_max: usize) -> Self {
        let (folder, table) = (tempfile::tempdir().unwrap(), Arc::new(ExportTable::default()));
        let (teller, events) = mpsc::channel();
        let log = Arc::new(move |event: &Event| drop(teller.send(event.clone())));
        let server = Server::new(Arc::clone(&table) as _, clients_max, log);
        let house = Self { folder, table, server, events };
        house.server.listen_unix(UnixListener::bind(house.socket()).unwrap()).unwrap();
        house
    }

    /// A server with one disk.
    pub(crate) fn of(disk: impl FnOnce(&Path) -> Rigged) -> (Self, Arc<Rigged>) {
        let house = Self::new(64);
        let disk = Arc::new(disk(&house.path("disk.raw")));
        house.offer("disk", &disk);
        (house, disk)
    }

    pub(crate) fn offer(&self, name: &str, disk: &Arc<Rigged>) {
        let export = Export { disk: Arc::clone(disk) as _, description: format!("test disk {name}") };
        self.table.insert(name, export).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    pub(crate) fn uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.socket().display())
    }

    pub(crate) fn client(&self, name: &str, structured: bool) -> Client {
        Client::connect(&self.socket(), name, structured)
    }

    /// Waits for an event that satisfies `fits`.
    pub(crate) fn event(&self, fits: impl Fn(&Event) -> bool) -> Event {
        loop {
            let event = self.events.recv_timeout(PATIENCE).expect("the event comes");
            if fits(&event) {
                return event;
            }
        }
    }
}

pub(crate) fn counted(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}

pub(crate) fn option(number: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&b"IHAVEOPT"[..], &number.to_be_bytes(), &length, body].concat()
}

/// A reply, put together from its chunks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub words: String,
    pub data: Vec<u8>,
}

/// A client that sends whatever a test wants.
pub(crate) struct Client {
    pub stream: UnixStream,
    structured: bool,
    /// Offset and length of the reads in flight: simple replies do not contain them.
    asked: std::collections::BTreeMap<u64, (u64, usize)>,
    cookie: u64,
}

impl Client {
    /// A client that has received the greeting and sent its flags.
    pub(crate) fn greet(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&[0, 0, 0, 3]).unwrap();
        Self { stream, structured: false, asked: std::collections::BTreeMap::new(), cookie: 0 }
    }

    pub(crate) fn connect(socket: &Path, name: &str, structured: bool) -> Self {
        let mut client = Self::greet(socket);
        if structured {
            client.stream.write_all(&option(8, &[])).unwrap();
            assert_eq!(client.answer().0, 1);
            let query = [counted(name), 1u32.to_be_bytes().to_vec(), counted("base:allocation")].concat();
            client.stream.write_all(&option(10, &query)).unwrap();
            assert_eq!((client.answer().0, client.answer().0), (4, 1));
        }
        client.structured = structured;
        client.stream.write_all(&option(7, &[counted(name), vec![0, 0]].concat())).unwrap();
        loop {
            match client.answer() {
                (3, _) => {}
                (1, _) => return client,
                (kind, body) => panic!("answer {kind:#x}: {}", String::from_utf8_lossy(&body)),
            }
        }
    }

    /// Kind and body of the next answer to an option.
    pub(crate) fn answer(&mut self) -> (u32, Vec<u8>) {
        let mut head = [0; 20];
        self.stream.read_exact(&mut head).unwrap();
        let mut body = vec![0; u32::from_be_bytes(head[16..].try_into().unwrap()) as usize];
        self.stream.read_exact(&mut body).unwrap();
        (u32::from_be_bytes(head[12..16].try_into().unwrap()), body)
    }

    /// Sends a request, and returns its cookie.
    pub(crate) fn ask(&mut self, kind: u16, flags: u16, offset: u64, bytes: u32, payload: &[u8]) -> u64 {
        let head = self.request(kind, flags, offset, bytes);
        self.stream.write_all(&[&head, payload].concat()).unwrap();
        self.cookie
    }

    /// The bytes of a request, which the caller must send.
    pub(crate) fn request(&mut self, kind: u16, flags: u16, offset: u64, bytes: u32) -> Vec<u8> {
        self.cookie += 1;
        if kind == 0 {
            self.asked.insert(self.cookie, (offset, bytes as usize));
        }
        let fields = [
            &0x2560_9513u32.to_be_bytes()[..],
            &flags.to_be_bytes(),
            &kind.to_be_bytes(),
            &self.cookie.to_be_bytes(),
            &offset.to_be_bytes(),
            &bytes.to_be_bytes(),
        ];
        fields.concat()
    }

    /// Receives the next reply. Chunks of different replies must not be mixed here.
    pub(crate) fn reply(&mut self) -> Reply {
        let mut magic = [0; 4];
        self.stream.read_exact(&mut magic).unwrap();
        if u32::from_be_bytes(magic) == 0x6744_6698 { self.simple() } else { self.chunks() }
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn simple(&mut self) -> Reply {
        let (error, cookie) = (u32::from_be_bytes(self.take()), u64::from_be_bytes(self.take()));
        let bytes = self.asked.remove(&cookie).map_or(0, |(_, bytes)| bytes);
        assert!(bytes == 0 || !self.structured, "a read gets a structured reply");
        let mut data = vec![0; if error == 0 { bytes } else { 0 }];
        self.stream.read_exact(&mut data).unwrap();
        Reply { cookie, error, words: String::new(), data }
    }

    fn chunks(&mut self) -> Reply {
        let mut reply = Reply { cookie: 0, error: 0, words: String::new(), data: Vec::new() };
        loop {
            let (flags, kind) = (u16::from_be_bytes(self.take()), u16::from_be_bytes(self.take()));
            let (cookie, length) = (u64::from_be_bytes(self.take()), u32::from_be_bytes(self.take()));
            assert!(reply.cookie == 0 || reply.cookie == cookie, "chunks of two replies are mixed");
            reply.cookie = cookie;
            let mut body = vec![0; length as usize];
            self.stream.read_exact(&mut body).unwrap();
            self.take_chunk(kind, &body, &mut reply);
            if flags & 1 != 0 {
                self.asked.remove(&cookie);
                return reply;
            }
            assert_eq!(u32::from_be_bytes(self.take()), 0x668e_33ef);
        }
    }

    fn take_chunk(&self, kind: u16, body: &[u8], reply: &mut Reply) {
        let at = || u64::from_be_bytes(body[..8].try_into().unwrap());
        let expected = || self.asked[&reply.cookie].0 + reply.data.len() as u64;
        match kind {
            1 => {
                assert_eq!(at(), expected());
                reply.data.extend(&body[8..]);
            }
            2 => {
                assert_eq!(at(), expected());
                let zeros = u32::from_be_bytes(body[8..].try_into().unwrap());
                reply.data.resize(reply.data.len() + zeros as usize, 0);
            }
            5 => reply.data.extend(body),
            0x8001 => {
                reply.error = u32::from_be_bytes(body[..4].try_into().unwrap());
                reply.words = String::from_utf8(body[6..].to_vec()).unwrap();
            }
            other => panic!("a chunk of kind {other:#x}"),
        }
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn call(&mut self, kind: u16, flags: u16, offset: u64, bytes: u32, payload: &[u8]) -> Reply {
        let cookie = self.ask(kind, flags, offset, bytes, payload);
        let reply = self.reply();
        assert_eq!(reply.cookie, cookie);
        reply
    }

    /// Whether the server has closed the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 64]), Ok(0) | Err(_))
    }
}
