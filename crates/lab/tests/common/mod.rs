//! What the tests of the lab share: sockets in hosts, groups, and a stream between two hosts.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use lab::{Host, Star, StarOptions};

pub(crate) const PORT: u16 = 7700;
pub(crate) const GROUP: Ipv4Addr = Ipv4Addr::new(239, 77, 0, 1);
pub(crate) const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0x77, 1);
/// Much longer than any step of these tests takes. A step that takes longer has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn star(options: StarOptions) -> Option<Star> {
    lab::available_or_skip().then(|| Star::build(&options).unwrap())
}

#[expect(clippy::disallowed_methods, reason = "real kernels take real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A socket in `host` that has joined both groups.
pub(crate) fn joined(host: &Host) -> UdpSocket {
    let ipv4 = host.ipv4();
    let join = move || {
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap();
        socket.join_multicast_v6(&GROUP_V6, 0).unwrap();
        socket2::SockRef::from(&socket).join_multicast_v4(&GROUP, &ipv4).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    host.run(join).unwrap().join().unwrap()
}

pub(crate) fn sender(host: &Host) -> UdpSocket {
    let open = || UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    host.run(open).unwrap().join().unwrap()
}

/// The address for a dual-stack socket, which needs IPv4 addresses mapped to IPv6.
pub(crate) fn to(address: impl Into<IpAddr>) -> SocketAddr {
    let address = match address.into() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    (address, PORT).into()
}

pub(crate) fn receive(socket: &UdpSocket) -> Vec<u8> {
    let mut packet = [0; 2000];
    loop {
        match socket.recv(&mut packet) {
            Ok(count) => return packet[..count].to_vec(),
            // A receive with a time limit is not restarted when the kernel interrupts it (`man 7 signal`).
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("the packet arrives: {error}"),
        }
    }
}

/// Sends `bytes` by TCP from one host to another, and returns the time from the connection to the last byte.
pub(crate) fn stream(from: &Host, to: &Host, bytes: usize) -> Duration {
    let address = (to.ipv4(), PORT);
    let listener = to.run(move || TcpListener::bind(address).unwrap()).unwrap().join().unwrap();
    let upload =
        from.run(move || TcpStream::connect(address).unwrap().write_all(&vec![5; bytes]).unwrap()).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let started = now();
    let count = std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
    let took = now() - started;
    upload.join().unwrap();
    assert_eq!(count, bytes as u64);
    took
}
