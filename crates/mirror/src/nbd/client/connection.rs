//! One connection to an NBD server: the handshake, then one request after the other.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use base::wire::Reader;
use base::{Error, ErrorKind, Result};

use super::uri::{ExportAddress, ServerAddress};
use crate::nbd::context::Context;
use crate::nbd::request::REQUEST_BYTES;
use crate::nbd::wire::{
    CHUNK_MAGIC, GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC,
    allocation, answer, chunk, command, handshake, info, option, take_u16, take_u32, take_u64,
};

/// How long a server may take for a reply, and for taking a request.
const PATIENCE: Duration = Duration::from_secs(120);
/// Maximum length in bytes of a reply in the handshake, and of an error's text.
const ANSWER_BYTES_MAX: u32 = 64 << 10;
/// Maximum number of replies to one option.
const ANSWERS_MAX: usize = 1000;
/// Maximum length in bytes of a chunk with block status: more runs than any server sends.
const STATUS_BYTES_MAX: u32 = 16 << 20;
/// Maximum number of chunks of one reply, empty ones included.
const CHUNKS_MAX: usize = 1 << 20;
/// The longest request by default, by the protocol.
const PAYLOAD_BYTES_DEFAULT: u32 = 32 << 20;

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// What an export can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) size_bytes: u64,
    /// Requests begin and end at multiples of this.
    pub(super) unit_bytes: u32,
    /// The longest request.
    pub(super) payload_bytes: u32,
    /// Transmission flags.
    pub(super) flags: u16,
    /// Whether the server tells which parts are zeros.
    pub(super) has_status: bool,
}

impl Terms {
    pub(super) fn can(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

pub(super) struct Connection {
    stream: Box<dyn Stream>,
    name: String,
    pub(super) terms: Terms,
    structured: bool,
    /// The number by which the server names `base:allocation`.
    context: Option<u32>,
    cookie: u64,
}

/// What is read into.
enum Into<'a> {
    Nothing,
    /// The bytes from this offset of the disk.
    Bytes(u64, &'a mut [u8]),
    /// Runs: length in bytes, whether they are zeros.
    Status(&'a mut Vec<(u32, bool)>),
}

impl Connection {
    /// Connects to the server and chooses the export. `Unreachable`, `NotFound` if the server has no such export,
    /// `Refused`, `Malformed` if it does not speak NBD.
    pub(super) fn open(address: &ExportAddress) -> Result<Self> {
        let name = address.to_string();
        let unreachable = |e| Error::from_source(ErrorKind::Unreachable, format!("connect to `{name}`"), e);
        let stream: Box<dyn Stream> = match &address.server {
            ServerAddress::Tcp(host, port) => {
                let host = host.trim_matches(['[', ']']);
                let stream = TcpStream::connect((host, *port)).map_err(unreachable)?;
                let ready = stream
                    .set_nodelay(true)
                    .and_then(|()| stream.set_read_timeout(Some(PATIENCE)))
                    .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
                ready.map_err(unreachable)?;
                Box::new(stream)
            }
            ServerAddress::Unix(path) => {
                let stream = UnixStream::connect(path).map_err(unreachable)?;
                let ready = stream
                    .set_read_timeout(Some(PATIENCE))
                    .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
                ready.map_err(unreachable)?;
                Box::new(stream)
            }
        };
        let terms = Terms {
            size_bytes: 0,
            unit_bytes: 1,
            payload_bytes: PAYLOAD_BYTES_DEFAULT,
            flags: 0,
            has_status: false,
        };
        let mut connection = Self { stream, name, terms, structured: false, context: None, cookie: 0 };
        connection.greet()?;
        connection.structured = connection.ask(option::STRUCTURED_REPLY, &[], |_, _| Ok(()))?.is_ok();
        if connection.structured {
            connection.choose_context(&address.export)?;
        }
        connection.go(&address.export)?;
        Ok(connection)
    }

    fn greet(&mut self) -> Result<()> {
        let mut greeting = [0; 18];
        self.receive(&mut greeting)?;
        let reader = &mut Reader::new(&greeting);
        let magics = (take_u64(reader), take_u64(reader));
        let flags = take_u16(reader).unwrap_or_default();
        if magics != (Ok(GREETING_MAGIC), Ok(OPTION_MAGIC)) || flags & handshake::FIXED_NEWSTYLE == 0 {
            return Err(self.malformed("the server does not speak NBD as it is today"));
        }
        let ours = u32::from(handshake::FIXED_NEWSTYLE | (flags & handshake::NO_ZEROES));
        self.send(&ours.to_be_bytes())
    }

    fn choose_context(&mut self, export: &str) -> Result<()> {
        let query = Context::Allocation.name();
        let mut body = counted(export);
        body.extend(1u32.to_be_bytes());
        body.extend(counted(query));
        let mut context = None;
        let done = self.ask(option::SET_META_CONTEXT, &body, |kind, bytes| {
            if kind == answer::META_CONTEXT
                && bytes.len() == 4 + query.len()
                && bytes.ends_with(query.as_bytes())
            {
                context = bytes.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
            }
            Ok(())
        })?;
        self.context = context.filter(|_| done.is_ok());
        self.terms.has_status = self.context.is_some();
        Ok(())
    }

    fn go(&mut self, export: &str) -> Result<()> {
        let mut body = counted(export);
        body.extend(1u16.to_be_bytes());
        body.extend(info::BLOCK_SIZE.to_be_bytes());
        let (mut terms, mut sized) = (self.terms, false);
        let done = self.ask(option::GO, &body, |kind, bytes| {
            let reader = &mut Reader::new(bytes);
            if kind != answer::INFO {
                return Ok(());
            }
            match take_u16(reader)? {
                info::EXPORT => {
                    (terms.size_bytes, terms.flags) = (take_u64(reader)?, take_u16(reader)?);
                    sized = true;
                }
                info::BLOCK_SIZE => {
                    terms.unit_bytes = take_u32(reader)?;
                    let _preferred = take_u32(reader)?;
                    terms.payload_bytes = take_u32(reader)?.min(PAYLOAD_BYTES_DEFAULT);
                }
                _ => {}
            }
            Ok(())
        })?;
        done.map_err(|(kind, words)| {
            let found = if kind == answer::ERR_UNKNOWN { ErrorKind::NotFound } else { ErrorKind::Refused };
            let words =
                if words.is_empty() { format!("it answers with the number {kind:#x}") } else { words };
            Error::new(found, format!("`{}`: the server refuses the export: {words}", self.name))
        })?;
        let unit = terms.unit_bytes;
        if !sized || !unit.is_power_of_two() || unit > 64 << 10 || terms.payload_bytes < unit {
            return Err(self.malformed("the server tells no size, or impossible sizes of blocks"));
        }
        self.terms = terms;
        Ok(())
    }

    /// Sends an option, and hands the server's answers to `take` until it acknowledges or refuses; the refusal's number
    /// and words are then in the result.
    fn ask(
        &mut self,
        asked: u32,
        body: &[u8],
        mut take: impl FnMut(u32, &[u8]) -> std::result::Result<(), base::wire::Truncated>,
    ) -> Result<std::result::Result<(), (u32, String)>> {
        let length = u32::try_from(body.len()).expect("options are short");
        let head =
            [&OPTION_MAGIC.to_be_bytes()[..], &asked.to_be_bytes(), &length.to_be_bytes(), body].concat();
        self.send(&head)?;
        for _ in 0..ANSWERS_MAX {
            let mut head = [0; 20];
            self.receive(&mut head)?;
            let reader = &mut Reader::new(&head);
            let magic = take_u64(reader).unwrap_or_default();
            let (about, kind) = (take_u32(reader).unwrap_or_default(), take_u32(reader).unwrap_or_default());
            let length = take_u32(reader).unwrap_or_default();
            if magic != OPTION_REPLY_MAGIC || about != asked || length > ANSWER_BYTES_MAX {
                return Err(self.malformed("the server's answer to an option is not valid"));
            }
            let mut bytes = vec![0; length as usize];
            self.receive(&mut bytes)?;
            if kind == answer::ACK {
                return Ok(Ok(()));
            }
            if kind & (1 << 31) != 0 {
                return Ok(Err((kind, String::from_utf8_lossy(&bytes).into_owned())));
            }
            let taken = take(kind, &bytes);
            taken.map_err(|_| self.malformed("the server's answer to an option is too short"))?;
        }
        Err(self.malformed("the server does not end its answers to an option"))
    }

    /// Reads `bytes` from `offset`.
    pub(super) fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let length = u32::try_from(bytes.len()).expect("the caller keeps to the longest request");
        self.request(command::READ, offset, length, &[])?;
        self.reply(Into::Bytes(offset, bytes))
    }

    /// Writes `bytes` at `offset`.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let length = u32::try_from(bytes.len()).expect("the caller keeps to the longest request");
        self.request(command::WRITE, offset, length, bytes)?;
        self.reply(Into::Nothing)
    }

    /// Makes a range zeros.
    pub(super) fn zero(&mut self, offset: u64, length: u32) -> Result<()> {
        self.request(command::WRITE_ZEROES, offset, length, &[])?;
        self.reply(Into::Nothing)
    }

    /// Discards a range.
    pub(super) fn trim(&mut self, offset: u64, length: u32) -> Result<()> {
        self.request(command::TRIM, offset, length, &[])?;
        self.reply(Into::Nothing)
    }

    /// Makes what was written durable.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.request(command::FLUSH, 0, 0, &[])?;
        self.reply(Into::Nothing)
    }

    /// What the server knows of a range: lengths in bytes, and whether the bytes are zeros.
    pub(super) fn status(&mut self, offset: u64, length: u32) -> Result<Vec<(u32, bool)>> {
        let mut runs = Vec::new();
        self.request(command::BLOCK_STATUS, offset, length, &[])?;
        self.reply(Into::Status(&mut runs))?;
        Ok(runs)
    }

    fn request(&mut self, kind: u16, offset: u64, length: u32, payload: &[u8]) -> Result<()> {
        self.cookie += 1;
        let mut head = [0; REQUEST_BYTES];
        head[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        head[6..8].copy_from_slice(&kind.to_be_bytes());
        head[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        head[16..24].copy_from_slice(&offset.to_be_bytes());
        head[24..].copy_from_slice(&length.to_be_bytes());
        self.send(&head)?;
        self.send(payload)
    }

    fn reply(&mut self, mut into: Into<'_>) -> Result<()> {
        let wanted = match &into {
            Into::Bytes(_, bytes) => bytes.len(),
            _ => 0,
        };
        let mut filled = 0;
        let mut failure = None;
        for _ in 0..CHUNKS_MAX {
            let mut magic = [0; 4];
            self.receive(&mut magic)?;
            match u32::from_be_bytes(magic) {
                SIMPLE_REPLY_MAGIC => return self.simple_reply(into),
                CHUNK_MAGIC if self.structured => {}
                _ => return Err(self.malformed("the server sends something that is not a reply")),
            }
            let mut head = [0; 16];
            self.receive(&mut head)?;
            let reader = &mut Reader::new(&head);
            let (flags, kind) = (take_u16(reader).unwrap_or_default(), take_u16(reader).unwrap_or_default());
            let cookie = take_u64(reader).unwrap_or_default();
            let length = take_u32(reader).unwrap_or_default();
            if cookie != self.cookie {
                return Err(self.malformed("the server replies to something that was not asked"));
            }
            match self.chunk(kind, length, &mut into)? {
                Ok(bytes) => filled += bytes,
                Err(error) => failure = Some(error),
            }
            if flags & chunk::DONE != 0 {
                return match failure {
                    Some(error) => Err(error),
                    // A server must not send a byte twice, so this many bytes are all of them.
                    None if filled == wanted => Ok(()),
                    None => Err(self.malformed("the server's reply leaves out bytes")),
                };
            }
        }
        Err(self.malformed("the server does not end its reply"))
    }

    fn simple_reply(&mut self, into: Into<'_>) -> Result<()> {
        let mut rest = [0; 12];
        self.receive(&mut rest)?;
        let reader = &mut Reader::new(&rest);
        let code = take_u32(reader).unwrap_or_default();
        if take_u64(reader) != Ok(self.cookie) {
            return Err(self.malformed("the server replies to something that was not asked"));
        }
        match (code, into) {
            (0, Into::Bytes(_, bytes)) => self.receive(bytes),
            (0, Into::Nothing) => Ok(()),
            (0, Into::Status(_)) => Err(self.malformed("the server's reply has no block status")),
            (code, _) => Err(self.failed(code, "")),
        }
    }

    /// Takes one chunk; returns the number of bytes that it filled, or the error that it reports.
    fn chunk(&mut self, kind: u16, length: u32, into: &mut Into<'_>) -> Result<Result<usize>> {
        match (kind, into) {
            (chunk::OFFSET_DATA, Into::Bytes(start, bytes)) if length >= 8 => {
                let offset = self.offset()?;
                let part = part(*start, bytes, offset, length - 8);
                let part =
                    part.ok_or_else(|| self.malformed("the server sends bytes that were not asked for"))?;
                self.receive(part)?;
                Ok(Ok(part.len()))
            }
            (chunk::OFFSET_HOLE, Into::Bytes(start, bytes)) if length == 12 => {
                let offset = self.offset()?;
                let mut hole = [0; 4];
                self.receive(&mut hole)?;
                let part = part(*start, bytes, offset, u32::from_be_bytes(hole));
                let part =
                    part.ok_or_else(|| self.malformed("the server sends bytes that were not asked for"))?;
                part.fill(0);
                Ok(Ok(part.len()))
            }
            (chunk::BLOCK_STATUS, Into::Status(runs)) if (4..=STATUS_BYTES_MAX).contains(&length) => {
                let mut bytes = vec![0; length as usize];
                self.receive(&mut bytes)?;
                let reader = &mut Reader::new(&bytes);
                if take_u32(reader).ok() != self.context {
                    return Ok(Ok(0));
                }
                while let (Ok(bytes), Ok(flags)) = (take_u32(reader), take_u32(reader)) {
                    runs.push((bytes, flags & allocation::ZERO != 0));
                }
                Ok(Ok(0))
            }
            // Chunks without content end a reply.
            (0, _) if length == 0 => Ok(Ok(0)),
            (kind, _) if kind & (1 << 15) != 0 && (6..=ANSWER_BYTES_MAX).contains(&length) => {
                let mut bytes = vec![0; length as usize];
                self.receive(&mut bytes)?;
                let reader = &mut Reader::new(&bytes);
                let (code, words) =
                    (take_u32(reader).unwrap_or_default(), take_u16(reader).unwrap_or_default());
                let words = reader.bytes(words.into()).unwrap_or_default();
                Ok(Err(self.failed(code, &String::from_utf8_lossy(words))))
            }
            _ => Err(self.malformed("the server sends a kind of reply that was not asked for")),
        }
    }

    fn offset(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.receive(&mut bytes)?;
        Ok(u64::from_be_bytes(bytes))
    }

    /// The error that a server reports by its number, which is that of Linux.
    fn failed(&self, code: u32, words: &str) -> Error {
        let words = if words.is_empty() { String::new() } else { format!(" ({words})") };
        let system = std::io::Error::from_raw_os_error(i32::try_from(code).unwrap_or(i32::MAX));
        Error::from_io(format!("`{}`: the server reports an error{words}", self.name), system)
    }

    fn malformed(&self, what: &str) -> Error {
        Error::new(ErrorKind::Malformed, format!("`{}`: {what}", self.name))
    }

    fn lost(&self, error: std::io::Error) -> Error {
        Error::from_source(
            ErrorKind::Unreachable,
            format!("`{}`: the connection to the server is lost", self.name),
            error,
        )
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).map_err(|error| self.lost(error))
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.stream.read_exact(bytes).map_err(|error| self.lost(error))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Polite, no more: a server notices a closed connection as well.
        let _ = self.request(command::DISC, 0, 0, &[]);
    }
}

/// The part of `bytes`, which begin at `start` of the disk, that has `length` bytes from `offset`.
fn part(start: u64, bytes: &mut [u8], offset: u64, length: u32) -> Option<&mut [u8]> {
    let from = usize::try_from(offset.checked_sub(start)?).ok()?;
    bytes.get_mut(from..from.checked_add(length as usize)?)
}

fn counted(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).expect("names are short");
    [&length.to_be_bytes()[..], text.as_bytes()].concat()
}
