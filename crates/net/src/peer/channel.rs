//! The connection of a transfer: handshake, encryption and records. Source: `formats/peer.md`, section 4.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use proto::peer::{RECORD_BYTES, Record, SwarmId};
use snow::{Builder, StatelessTransportState};
use socket2::{Domain, Socket, Type};

use crate::client::SEGMENT_BYTES;
use crate::pace::Pace;
use crate::tcp;

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// What the asker sends first, before the swarm.
const MAGIC: [u8; 5] = *b"DCPT\x01";
const PREFACE_BYTES: usize = MAGIC.len() + 8;
/// Longest message of Noise, and its authentication tag.
const MESSAGE_BYTES_MAX: usize = 65535;
const TAG_BYTES: usize = 16;
const PLAIN_BYTES_MAX: usize = MESSAGE_BYTES_MAX - TAG_BYTES;
/// Receive buffer of an asker. Small, so that senders that start together do not overflow the port of the switch.
const RECEIVE_BUFFER_BYTES: usize = 128 << 10;
/// Longest time for a connection and its handshake.
pub(super) const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(2);
/// Time after which a silent connection fails. The seeker gives up its member earlier.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The sending half.
pub(super) struct Sender {
    stream: TcpStream,
    noise: Arc<StatelessTransportState>,
    nonce: u64,
    plain: Vec<u8>,
    sealed: Vec<u8>,
    pace: Option<Arc<Pace>>,
}

/// The receiving half.
pub(super) struct Receiver {
    stream: TcpStream,
    noise: Arc<StatelessTransportState>,
    nonce: u64,
    sealed: Vec<u8>,
    plain: Vec<u8>,
    /// Bytes of `plain` that were read.
    read: usize,
}

/// Connects to a member and proves to know the key of the swarm.
pub(super) fn connect(
    address: SocketAddr,
    swarm: SwarmId,
    key: &[u8; 32],
    is_narrow: bool,
) -> io::Result<(Sender, Receiver)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if is_narrow {
        socket.set_tcp_mss(SEGMENT_BYTES)?;
    }
    // Before the handshake of TCP, which announces the size of the window.
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.connect_timeout(&address.into(), HANDSHAKE_TIME_MAX)?;
    let stream: TcpStream = socket.into();
    prepare(&stream)?;
    let mut preface = [0; PREFACE_BYTES];
    preface[..MAGIC.len()].copy_from_slice(&MAGIC);
    preface[MAGIC.len()..].copy_from_slice(&swarm.0.to_le_bytes());
    let mut noise = builder(key, &preface)?.build_initiator().map_err(broken)?;
    let mut message = [0; 256];
    let length = noise.write_message(&[], &mut message).map_err(broken)?;
    (&stream).write_all(&[&preface[..], &prefixed(&message[..length])].concat())?;
    let mut answer = Vec::new();
    noise.read_message(read_message(&stream, &mut answer)?, &mut message).map_err(broken)?;
    split(stream, noise)
}

/// Answers a connection. `key_of` returns the key of a swarm that this machine serves.
pub(super) fn accept(
    stream: TcpStream,
    key_of: impl FnOnce(SwarmId) -> Option<[u8; 32]>,
) -> io::Result<(Sender, Receiver)> {
    prepare(&stream)?;
    let mut preface = [0; PREFACE_BYTES];
    (&stream).read_exact(&mut preface)?;
    let (magic, swarm) = preface.split_first_chunk().expect("it is longer");
    let swarm = SwarmId(u64::from_le_bytes(swarm.try_into().expect("eight bytes")));
    let key = (*magic == MAGIC).then(|| key_of(swarm)).flatten();
    let key =
        key.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a transfer of this swarm"))?;
    let mut noise = builder(&key, &preface)?.build_responder().map_err(broken)?;
    let mut message = [0; 256];
    let mut first = Vec::new();
    noise.read_message(read_message(&stream, &mut first)?, &mut message).map_err(broken)?;
    let length = noise.write_message(&[], &mut message).map_err(broken)?;
    (&stream).write_all(&prefixed(&message[..length]))?;
    split(stream, noise)
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    tcp::retransmit_soon(stream);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HANDSHAKE_TIME_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))
}

fn builder<'a>(key: &'a [u8; 32], preface: &'a [u8]) -> io::Result<Builder<'a>> {
    let pattern = PATTERN.parse().map_err(broken)?;
    Builder::new(pattern).prologue(preface).and_then(|builder| builder.psk(0, key)).map_err(broken)
}

fn split(stream: TcpStream, noise: snow::HandshakeState) -> io::Result<(Sender, Receiver)> {
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    let noise = noise.into_stateless_transport_mode().map_err(broken)?;
    let (plain, sealed) = (Vec::with_capacity(PLAIN_BYTES_MAX), vec![0; 2 + MESSAGE_BYTES_MAX]);
    let (noise, theirs) = (Arc::new(noise), stream.try_clone()?);
    let sender = Sender { stream: theirs, noise: Arc::clone(&noise), nonce: 0, plain, sealed, pace: None };
    let (sealed, plain) = (Vec::with_capacity(MESSAGE_BYTES_MAX), Vec::with_capacity(MESSAGE_BYTES_MAX));
    Ok((sender, Receiver { stream, noise, nonce: 0, sealed, plain, read: 0 }))
}

impl Sender {
    /// Appends a record and the bytes that follow it. They are sent by [`Self::flush`], or when there are enough.
    pub(super) fn put(&mut self, record: Record, mut bytes: &[u8]) -> io::Result<()> {
        if self.plain.len() + RECORD_BYTES > PLAIN_BYTES_MAX {
            self.flush()?;
        }
        self.plain.extend_from_slice(&record.encode());
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PLAIN_BYTES_MAX - self.plain.len()));
            self.plain.extend_from_slice(now);
            bytes = later;
            if self.plain.len() == PLAIN_BYTES_MAX {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Sends what was appended.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.plain.is_empty() {
            return Ok(());
        }
        let length =
            self.noise.write_message(self.nonce, &self.plain, &mut self.sealed[2..]).map_err(broken)?;
        self.nonce += 1;
        self.plain.clear();
        let length = u16::try_from(length).expect("a message of Noise fits");
        self.sealed[..2].copy_from_slice(&length.to_be_bytes());
        if let Some(pace) = &self.pace {
            pace.wait(length.into());
        }
        self.stream.write_all(&self.sealed[..2 + usize::from(length)])
    }

    /// Sends no faster than that from now on.
    pub(super) fn keep(&mut self, pace: Option<Arc<Pace>>) {
        self.pace = pace;
    }

    /// The connection, to close it from elsewhere.
    pub(super) fn stream(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }
}

impl Receiver {
    /// Waits for a record for `patience` longer than silence is allowed otherwise.
    pub(super) fn be_patient(&self, patience: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(patience))
    }

    /// The next record. An error of kind `UnexpectedEof` if the other side has closed the connection.
    pub(super) fn record(&mut self) -> io::Result<Record> {
        let mut bytes = [0; RECORD_BYTES];
        self.fill(&mut bytes)?;
        let invalid = |_| io::Error::new(io::ErrorKind::InvalidData, "not a record of a transfer");
        Record::parse(&bytes).map_err(invalid)
    }

    /// The bytes that follow a record.
    pub(super) fn fill(&mut self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            if self.read == self.plain.len() {
                self.message()?;
            }
            let count = into.len().min(self.plain.len() - self.read);
            let (now, later) = into.split_at_mut(count);
            now.copy_from_slice(&self.plain[self.read..self.read + count]);
            (self.read, into) = (self.read + count, later);
        }
        Ok(())
    }

    fn message(&mut self) -> io::Result<()> {
        read_message(&self.stream, &mut self.sealed)?;
        self.plain.resize(MESSAGE_BYTES_MAX, 0);
        let length = self.noise.read_message(self.nonce, &self.sealed, &mut self.plain).map_err(broken)?;
        self.nonce += 1;
        self.plain.truncate(length);
        self.read = 0;
        Ok(())
    }
}

fn prefixed(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).expect("a message of the handshake is short");
    [&length.to_be_bytes(), message].concat()
}

/// Reads a message with its length into `into`, and returns it.
fn read_message<'a>(mut stream: &TcpStream, into: &'a mut Vec<u8>) -> io::Result<&'a [u8]> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    into.resize(u16::from_be_bytes(length).into(), 0);
    stream.read_exact(into)?;
    Ok(into)
}

fn broken(error: snow::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
