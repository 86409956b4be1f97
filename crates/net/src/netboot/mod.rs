//! What firmware needs to boot from the network: DHCP tells where the boot loader is, TFTP brings it, and what
//! it loads.
//!
//! Each server answers on one interface, which the user names: on any other network it would tell strangers what to
//! boot.

mod dhcp;
mod files;
mod firmware;
pub mod iso;
mod leases;
mod other;
mod reply;
#[cfg(test)]
mod tests;
mod tftp;
pub mod unified;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, Result};
use socket2::{Domain, Protocol, Socket, Type};

use crate::clock::{Clock, Stop};
use crate::interface::Interface;
use crate::mac::Mac;
pub use dhcp::Asked;
use dhcp::{CLIENT_PORT, PROXY_PORT, SERVER_PORT, Site};
pub use files::BootFiles;
pub use firmware::Firmware;
pub use leases::{LeaseBook, Leases, is_host};
pub use other::other_dhcp;
pub use tftp::FileEvent;
use tftp::TftpServer;

/// Where requests of TFTP arrive.
const TFTP_PORT: u16 = 69;
/// Where a packet that wakes goes; no program listens.
const WAKE_PORT: u16 = 9;
/// How long a thread sleeps at most, so that it notices when it should stop.
const SLEEP_MAX: Duration = Duration::from_millis(200);
/// Longest message of DHCP that is read, in bytes.
const MESSAGE_BYTES_MAX: usize = 1500;

/// How machines are helped to boot.
pub struct NetbootOptions {
    /// The one network on which they are.
    pub interface: Interface,
    /// Our address there.
    pub address: Ipv4Addr,
    /// What they are told by DHCP.
    pub dhcp: Dhcp,
    /// What they boot.
    pub files: Arc<dyn BootFiles>,
    /// Is told what happens, by several threads.
    pub tell: Arc<dyn Fn(NetbootEvent) + Send + Sync>,
}

/// What machines are told by DHCP.
pub enum Dhcp {
    /// Where their boot loader is; another server gives addresses.
    Loader,
    /// An address, too.
    Address(Leases),
    /// Nothing: another server tells them all.
    Nothing,
}

/// What happens while machines boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetbootEvent {
    /// A machine asked by DHCP; true if it was answered.
    Asked(Asked, bool),
    /// A file is read.
    File(FileEvent),
    /// One of the servers has ended, and why: machines can't boot any more.
    Failed(String),
}

/// Servers that run until this is dropped.
pub struct Netboot {
    stop: Stop,
    threads: Vec<JoinHandle<()>>,
}

impl Netboot {
    /// Starts the servers. `Refused` if a port is in use, `Denied` without the right to open it.
    pub fn start(options: NetbootOptions) -> Result<Self> {
        let NetbootOptions { interface: Interface { name, .. }, address, dhcp, files, tell } = options;
        let stop = Stop::new();
        let any = |port| bound(&name, Ipv4Addr::UNSPECIFIED, port).map(|socket| (socket, port));
        let (sockets, leases) = match dhcp {
            Dhcp::Nothing => (Vec::new(), None),
            Dhcp::Loader => (vec![any(SERVER_PORT)?, any(PROXY_PORT)?], None),
            Dhcp::Address(leases) => (vec![any(SERVER_PORT)?, any(PROXY_PORT)?], Some(leases)),
        };
        let requests = bound(&name, address, TFTP_PORT)?;
        requests.set_nonblocking(true).map_err(|e| Error::from_io("prepare a socket", e))?;
        let site = Arc::new(parking_lot::Mutex::new(Site { address, files: files.clone(), leases }));
        let clock = Clock::start();
        let mut threads = Vec::new();
        for (socket, port) in sockets {
            let (site, stop, tell) = (site.clone(), stop.clone(), tell.clone());
            threads.push(std::thread::spawn(move || {
                or_tell(answer(&socket, port, &site, &clock, &stop, &*tell), &*tell);
            }));
        }
        let connect = move || {
            let socket = bound(&name, address, 0)?;
            socket.set_nonblocking(true).map_err(|e| Error::from_io("prepare a socket", e))?;
            Ok(socket)
        };
        let (told, asked) = (tell.clone(), stop.clone());
        let server = TftpServer::new(requests, connect, files, move |event| told(NetbootEvent::File(event)));
        threads.push(std::thread::spawn(move || or_tell(server.run(&clock, &asked), &*tell)));
        Ok(Self { stop, threads })
    }
}

impl Drop for Netboot {
    fn drop(&mut self) {
        self.stop.stop();
        // A server that panicked has said so.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Wakes the machine with the card `mac` on the network of `interface`: by a packet that its card waits for while the
/// machine is off (AMD, "Magic Packet Technology"). Nothing tells whether it has come. `Io`.
pub fn wake(interface: &str, mac: Mac) -> Result<()> {
    let packet = [[0xFF; 6].as_slice(), &mac.0.repeat(16)].concat();
    let socket = bound(interface, Ipv4Addr::UNSPECIFIED, 0)?;
    let to = SocketAddrV4::new(Ipv4Addr::BROADCAST, WAKE_PORT);
    socket
        .send_to(&packet, to)
        .map(drop)
        .map_err(|e| Error::from_io(format!("wake {mac} on `{interface}`"), e))
}

/// Tells why a server has ended.
fn or_tell(ended: Result<()>, tell: &dyn Fn(NetbootEvent)) {
    if let Err(error) = ended {
        tell(NetbootEvent::Failed(error.to_string()));
    }
}

/// Answers DHCP at one port until `stop` is set.
fn answer(
    socket: &UdpSocket,
    port: u16,
    site: &parking_lot::Mutex<Site>,
    clock: &Clock,
    stop: &Stop,
    tell: &dyn Fn(NetbootEvent),
) -> Result<()> {
    let failed = |error| Error::from_io("wait for requests of DHCP", error);
    socket.set_read_timeout(Some(SLEEP_MAX)).map_err(failed)?;
    let mut packet = [0; MESSAGE_BYTES_MAX];
    while !stop.is_stopped() {
        let (len, from) = match socket.recv_from(&mut packet) {
            Ok((len, SocketAddr::V4(from))) => (len, from),
            Ok(_) => continue,
            Err(error) if is_nothing(&error) => continue,
            Err(error) => return Err(failed(error)),
        };
        let received = site.lock().receive(&packet[..len], port, clock.now());
        let Some((asked, answer)) = received else { continue };
        let sent = answer.map(|answer| {
            // At the port of a proxy the client has an address, and waits where it asked from.
            let to = if port == PROXY_PORT && from.port() != CLIENT_PORT { from } else { answer.to };
            socket.send_to(&answer.packet, to)
        });
        tell(NetbootEvent::Asked(asked, matches!(sent, Some(Ok(_)))));
    }
    Ok(())
}

fn is_nothing(error: &std::io::Error) -> bool {
    use std::io::ErrorKind as Io;
    // The last one is an answer to what was sent before.
    matches!(error.kind(), Io::WouldBlock | Io::TimedOut | Io::Interrupted | Io::ConnectionRefused)
}

/// A UDP socket that takes packets of one interface alone.
fn bound(interface: &str, address: Ipv4Addr, port: u16) -> Result<UdpSocket> {
    let open = || -> std::io::Result<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        // A DHCP server of this machine may have the port on another interface, or for itself.
        socket.set_reuse_address(port == SERVER_PORT)?;
        socket.bind_device(Some(interface.as_bytes()))?;
        socket.set_broadcast(true)?;
        socket.bind(&SocketAddrV4::new(address, port).into())?;
        Ok(socket)
    };
    let opened = open().map_err(|error| {
        let what = format!("open UDP port {port} on `{interface}`");
        Error::from_io(what, error)
    });
    Ok(opened?.into())
}
