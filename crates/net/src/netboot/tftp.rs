//! The server's side of TFTP on sockets: one thread for all transfers.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use base::{Error, Instant, Result};
use bytes::Bytes;
use proto::tftp::{ErrorCode, Outcome, Output, Request, Transfer, error_packet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::files::BootFiles;
use crate::clock::{Clock, Stop};

/// Most transfers at once: a class room of machines that all boot.
const TRANSFERS_MAX: usize = 512;
/// Most transfers of one address: firmware opens one after the other.
const TRANSFERS_OF_ONE_MAX: usize = 4;
/// Longest packet that a client sends.
const PACKET_BYTES_MAX: usize = 1024;
/// How long the thread sleeps at most, so that it notices when it should stop.
const SLEEP_MAX: Duration = Duration::from_millis(200);

/// What happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileEvent {
    /// A client begins to read a file of so many bytes.
    Begins(Ipv4Addr, String, u64),
    /// It has read it, or does not want it any more: firmware that asks for the length alone ends so.
    Ends(Ipv4Addr, String),
    /// It does not answer any more.
    Silent(Ipv4Addr, String),
    /// There is no such file.
    Missing(Ipv4Addr, String),
}

struct Client {
    socket: UdpSocket,
    transfer: Transfer,
    content: Bytes,
    name: String,
}

/// Serves `files` to whoever asks at `socket`.
pub(super) struct TftpServer {
    socket: UdpSocket,
    /// Makes the socket of one transfer.
    connect: Box<dyn Fn() -> Result<UdpSocket> + Send>,
    files: Arc<dyn BootFiles>,
    clients: HashMap<SocketAddrV4, Client>,
    tell: Box<dyn Fn(FileEvent) + Send>,
}

impl TftpServer {
    pub(super) fn new(
        socket: UdpSocket,
        connect: impl Fn() -> Result<UdpSocket> + Send + 'static,
        files: Arc<dyn BootFiles>,
        tell: impl Fn(FileEvent) + Send + 'static,
    ) -> Self {
        Self { socket, connect: Box::new(connect), files, clients: HashMap::new(), tell: Box::new(tell) }
    }

    /// Runs until `stop` is set. `Io` if the socket fails.
    pub(super) fn run(mut self, clock: &Clock, stop: &Stop) -> Result<()> {
        while !stop.is_stopped() {
            let is_asked = self.wait(clock)?;
            let now = clock.now();
            if is_asked {
                self.accept(now);
            }
            let addresses: Vec<SocketAddrV4> = self.clients.keys().copied().collect();
            for address in addresses {
                self.serve(address, now);
            }
        }
        Ok(())
    }

    /// Waits for a packet, or until something is to be sent again. Returns whether a request has
    /// come.
    fn wait(&self, clock: &Clock) -> Result<bool> {
        let now = clock.now();
        let sleep = self.clients.values().map(|client| client.transfer.wakes_at().since(now)).min();
        let sleep = sleep.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
        let sockets = std::iter::once(&self.socket).chain(self.clients.values().map(|client| &client.socket));
        let mut polled: Vec<PollFd> = sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(sleep).unwrap_or_default();
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(Error::from_io("wait for requests of TFTP", std::io::Error::from(error)));
            }
        }
        Ok(!polled[0].revents().is_empty())
    }

    /// Takes all requests that wait.
    fn accept(&mut self, now: Instant) {
        let mut packet = [0; PACKET_BYTES_MAX];
        while let Ok((len, from)) = self.socket.recv_from(&mut packet) {
            let SocketAddr::V4(from) = from else { continue };
            // A client that asks again has not got our first packet: it gets it again by time.
            if self.clients.contains_key(&from) {
                continue;
            }
            if let Err((code, text)) = self.begin(&packet[..len], from, now) {
                let _ = self.socket.send_to(&error_packet(code, text), from);
            }
        }
    }

    fn begin(
        &mut self,
        packet: &[u8],
        from: SocketAddrV4,
        now: Instant,
    ) -> std::result::Result<(), (ErrorCode, &'static str)> {
        let request = Request::parse(packet)?;
        let of_one = self.clients.keys().filter(|other| other.ip() == from.ip()).count();
        if self.clients.len() >= TRANSFERS_MAX || of_one >= TRANSFERS_OF_ONE_MAX {
            return Err((ErrorCode::Other, "too many transfers, try again"));
        }
        let name = request.name.trim_start_matches('/').to_owned();
        let Some(content) = self.files.open(&name) else {
            (self.tell)(FileEvent::Missing(*from.ip(), name));
            return Err((ErrorCode::NotFound, "no such file"));
        };
        let connected = (self.connect)().and_then(|socket| {
            socket.connect(from).map_err(|e| Error::from_io("answer a request of TFTP", e))?;
            Ok(socket)
        });
        let socket = connected.map_err(|_| (ErrorCode::Other, "no socket is free, try again"))?;
        (self.tell)(FileEvent::Begins(*from.ip(), name.clone(), content.len() as u64));
        let transfer = Transfer::begin(&request, content.len() as u64, now);
        self.clients.insert(from, Client { socket, transfer, content, name });
        Ok(())
    }

    /// Reads what a client sent, and sends what is due.
    fn serve(&mut self, address: SocketAddrV4, now: Instant) {
        let Some(client) = self.clients.get_mut(&address) else { return };
        let mut packet = [0; PACKET_BYTES_MAX];
        // The socket is connected: nobody else's packets arrive. An error is an answer that the client has gone, which
        // may be forged: it ends by time.
        while let Ok(len) = client.socket.recv(&mut packet) {
            client.transfer.receive(now, &packet[..len]);
        }
        let mut out = Vec::new();
        while let Some(output) = client.transfer.poll(now) {
            match output {
                Output::Packet(packet) => out = packet,
                Output::Block(header, range) => {
                    out.clear();
                    out.extend(header);
                    let index = |at: u64| usize::try_from(at).expect("inside the file");
                    out.extend_from_slice(&client.content[index(range.start)..index(range.end)]);
                }
            }
            // A packet that the link does not take is lost, and sent again like any other.
            let _ = client.socket.send(&out);
        }
        let outcome = client.transfer.outcome();
        if outcome != Outcome::Running
            && let Some(client) = self.clients.remove(&address)
        {
            let event = if outcome == Outcome::Silent { FileEvent::Silent } else { FileEvent::Ends };
            (self.tell)(event(*address.ip(), client.name));
        }
    }
}
