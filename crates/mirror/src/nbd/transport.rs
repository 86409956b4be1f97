//! The byte stream of a connection: a Unix or TCP socket, plain or with TLS. One thread receives and many threads
//! send.

use std::io::{self, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use net::clock::Clock;
use parking_lot::{Mutex, MutexGuard};
use rustls::{ServerConfig, ServerConnection};

/// Maximum number of bytes of ciphertext that are received at once: enough for four TLS records.
const CIPHERTEXT_BYTES: usize = 64 << 10;
/// TCP keepalive: a silent peer is probed after this time.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
/// TCP keepalive: the interval of the probes.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
/// TCP keepalive: after this many probes without an answer the connection is broken.
const KEEPALIVE_TRIES: u32 = 6;

/// Maximum time for the TLS close message to a client.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(1);

/// A socket to a client.
#[derive(Debug)]
pub enum Socket {
    /// A client on this machine.
    Unix(UnixStream),
    /// A client that may be on another machine.
    Tcp(TcpStream),
}

impl Socket {
    /// Sets socket options: replies are sent without delay, and a peer that vanished is noticed.
    pub fn prepare(&self) -> io::Result<()> {
        let Self::Tcp(stream) = self else { return Ok(()) };
        stream.set_nodelay(true)?;
        let keepalive =
            socket2::TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY);
        socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_TRIES))
    }

    fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout))
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(timeout).and_then(|()| stream.set_write_timeout(timeout))
            }
        }
    }

    fn shutdown(&self, how: Shutdown) {
        // This fails if the peer has gone.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(how),
            Self::Tcp(stream) => stream.shutdown(how),
        };
    }
}

impl Read for &Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&*stream).read(into),
            Socket::Tcp(stream) => (&*stream).read(into),
        }
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&*stream).read_vectored(into),
            Socket::Tcp(stream) => (&*stream).read_vectored(into),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Unix(stream) => (&*stream).write(bytes),
            Socket::Tcp(stream) => (&*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Transport {
    socket: Socket,
    tls: OnceLock<Tls>,
    /// The right to send: bytes that are sent under one lock stay together. The memory is a buffer for ciphertext.
    turn: Mutex<Vec<u8>>,
}

impl Transport {
    /// A transport over a socket for which [`Socket::prepare`] was called.
    #[must_use]
    pub(super) fn new(socket: Socket) -> Self {
        Self { socket, tls: OnceLock::new(), turn: Mutex::default() }
    }

    /// Receives the available bytes, at least one; 0 at the end. Only one thread at a time.
    pub(super) fn receive(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        loop {
            let received = match (self.tls.get(), &mut *into) {
                (Some(tls), [first, ..]) => self.receive_private(tls, first),
                _ => (&self.socket).read_vectored(into),
            };
            match received {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                received => return received,
            }
        }
    }

    /// Takes the right to send; other threads wait until it is dropped.
    pub(super) fn turn(&self) -> Turn<'_> {
        Turn { transport: self, sealed: self.turn.lock() }
    }

    /// Starts TLS, with this machine as the server.
    pub(super) fn start_tls(&self, config: &Arc<ServerConfig>, deadline: &Deadline) -> io::Result<()> {
        let connection = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        let tls = Tls { connection: Mutex::new(connection), ciphertext: Mutex::default() };
        tls.connection.lock().complete_io(&mut Duplex { socket: &self.socket, deadline })?;
        self.tls.set(tls).expect("TLS begins once");
        Ok(())
    }

    /// Sets the timeouts of the socket so that no call waits longer than `deadline`; forever without one. `TimedOut`
    /// if the deadline has passed.
    pub(super) fn hurry(&self, deadline: Option<&Deadline>) -> io::Result<()> {
        self.socket.set_timeouts(deadline.map(Deadline::left).transpose()?)
    }

    /// Makes the receiving thread find the end of the stream. Sending still works.
    pub(super) fn stop_receiving(&self) {
        self.socket.shutdown(Shutdown::Read);
    }

    /// Closes the connection for the peer and for all threads that use it.
    pub(super) fn cut(&self) {
        self.socket.shutdown(Shutdown::Both);
    }

    fn receive_private(&self, tls: &Tls, into: &mut [u8]) -> io::Result<usize> {
        let mut ciphertext = tls.ciphertext.lock();
        loop {
            let mut connection = tls.connection.lock();
            match connection.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
            if ciphertext.feed(&mut connection)? {
                let answers = connection.wants_write();
                drop(connection);
                if answers {
                    self.turn().send(&[])?;
                }
                continue;
            }
            drop(connection);
            if ciphertext.receive(&self.socket)? == 0 {
                return Ok(0);
            }
        }
    }
}

/// The right to send.
pub(super) struct Turn<'a> {
    transport: &'a Transport,
    sealed: MutexGuard<'a, Vec<u8>>,
}

impl Turn<'_> {
    /// Sends all of `bytes`.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut socket = &self.transport.socket;
        match self.transport.tls.get() {
            None => socket.write_all(bytes),
            Some(tls) => tls.send(bytes, socket, &mut self.sealed),
        }
    }

    /// Ends the connection. With TLS, the peer gets a close message if it still receives.
    pub(super) fn finish(&mut self) {
        if let Some(tls) = self.transport.tls.get() {
            tls.connection.lock().send_close_notify();
            // This fails if the peer has gone or receives nothing.
            let _ =
                self.transport.hurry(Some(&Deadline::after(FAREWELL_TIME_MAX))).and_then(|()| self.send(&[]));
        }
        self.transport.cut();
    }
}

/// The TLS state of a connection. The lock of `connection` is never held while a socket waits, so sending and
/// receiving overlap.
#[derive(Debug)]
struct Tls {
    connection: Mutex<ServerConnection>,
    /// Used by the receiving thread.
    ciphertext: Mutex<Ciphertext>,
}

impl Tls {
    fn send(&self, mut bytes: &[u8], mut socket: &Socket, sealed: &mut Vec<u8>) -> io::Result<()> {
        loop {
            sealed.clear();
            {
                let mut connection = self.connection.lock();
                let taken = connection.writer().write(bytes)?;
                bytes = &bytes[taken..];
                while connection.wants_write() {
                    connection.write_tls(sealed)?;
                }
            }
            socket.write_all(sealed)?;
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }
}

/// Ciphertext that was received and not decrypted yet.
#[derive(Debug, Default)]
struct Ciphertext {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Ciphertext {
    fn receive(&mut self, mut socket: &Socket) -> io::Result<usize> {
        self.bytes.resize(CIPHERTEXT_BYTES, 0);
        (self.start, self.end) = (0, socket.read(&mut self.bytes)?);
        Ok(self.end)
    }

    /// Gives some ciphertext to the TLS connection; false if there is none.
    fn feed(&mut self, connection: &mut ServerConnection) -> io::Result<bool> {
        if self.start == self.end {
            return Ok(false);
        }
        self.start += connection.read_tls(&mut &self.bytes[self.start..self.end])?;
        connection.process_new_packets().map_err(io::Error::other)?;
        Ok(true)
    }
}

/// The time by which a handshake must be over.
#[derive(Debug)]
pub(super) struct Deadline(Clock, Duration);

impl Deadline {
    /// The deadline is `limit` from now.
    #[must_use]
    pub(super) fn after(limit: Duration) -> Self {
        Self(Clock::start(), limit)
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.1.checked_sub(self.0.elapsed()).filter(|left| !left.is_zero());
        left.ok_or_else(|| io::ErrorKind::TimedOut.into())
    }
}

/// Reads and writes with timeouts, for the handshake of rustls, which needs both on one object.
struct Duplex<'a> {
    socket: &'a Socket,
    deadline: &'a Deadline,
}

impl Read for Duplex<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_timeouts(Some(self.deadline.left()?))?;
        self.socket.read(into)
    }
}

impl Write for Duplex<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
