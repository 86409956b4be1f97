//! Connections whose segments are small in both directions, for a network that loses full-size packets without a word.
//!
//! The size must be set on a socket before it connects, and the HTTP client gives no access to its sockets. So it
//! connects to a local socket of this process, and threads carry the bytes on. Sources: tcp(7), `TCP_MAXSEG`;
//! RFC 2923, section 2.1 (black holes).

use std::ffi::OsString;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as LocalAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use socket2::{Domain, Socket, TcpKeepalive, Type};

use crate::clock;

/// A connection ends if its other side has not acknowledged anything for this long: the server's machine may be off, or
/// its name may have moved to another address. The next connection resolves the name anew.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(15);
/// How often an idle connection asks whether its other side is still there.
pub(super) const KEEPALIVE: Duration = Duration::from_secs(5);
/// What IPv6 packets of 1280 bytes carry, which every network must pass (RFC 8200, section 5).
pub(crate) const SEGMENT_BYTES: u32 = 1220;
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Finds the addresses of the server, for each connection anew.
pub(super) type Resolve = dyn Fn() -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// A running relay. Dropping it ends it; connections go on until one of their sides closes them.
pub(super) struct Relay {
    listener: Arc<UnixListener>,
    name: String,
}

impl Relay {
    /// Starts to listen at a random address in memory.
    pub(super) fn start(resolve: Arc<Resolve>) -> io::Result<Self> {
        let mut chance = clock::jitter();
        let name = format!("diskcast-{:016x}{:016x}", chance.u64(), chance.u64());
        let listener = UnixListener::bind_addr(&LocalAddr::from_abstract_name(&name)?)?;
        let listener = Arc::new(listener);
        let accepting = Arc::clone(&listener);
        thread::Builder::new().name("relay".into()).spawn(move || {
            while let Ok((near, _)) = accepting.accept() {
                let resolve = Arc::clone(&resolve);
                // Without a thread the connection closes, which is an error that passes.
                let _ = thread::Builder::new().name("relay".into()).spawn(move || carry(&near, &*resolve));
            }
        })?;
        Ok(Self { listener, name })
    }

    /// Its address, as paths name those in memory: after a zero byte.
    pub(super) fn path(&self) -> PathBuf {
        OsString::from(format!("\0{}", self.name)).into()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
    }
}

/// Carries bytes both ways until one side closes or fails.
fn carry(near: &UnixStream, resolve: &Resolve) {
    let Ok(far) = connect(resolve) else { return };
    let close = || {
        let _ = (near.shutdown(Shutdown::Both), far.shutdown(Shutdown::Both));
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = io::copy(&mut &*near, &mut &far);
            close();
        });
        let _ = io::copy(&mut &far, &mut &*near);
        close();
    });
}

fn connect(resolve: &Resolve) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for address in resolve()? {
        match connect_to(address) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_tcp_mss(SEGMENT_BYTES)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(SILENCE_MAX))?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))?;
    socket.connect_timeout(&address.into(), CONNECT_TIME_MAX)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn bytes_pass_both_ways_in_small_segments_until_one_side_closes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let relay = Relay::start(Arc::new(move || Ok(vec![address]))).unwrap();
        let path = relay.path();
        let name = &path.as_os_str().as_encoded_bytes()[1..];
        let local = LocalAddr::from_abstract_name(name).unwrap();
        let mut near = UnixStream::connect_addr(&local).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        assert!(socket2::SockRef::from(&far).tcp_mss().unwrap() <= SEGMENT_BYTES);
        near.write_all(b"up").unwrap();
        let mut bytes = [0; 4];
        far.read_exact(&mut bytes[..2]).unwrap();
        far.write_all(b"down").unwrap();
        near.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"down");
        drop(far);
        assert_eq!(near.read(&mut bytes).unwrap(), 0);
        drop(relay);
        while UnixStream::connect_addr(&local).is_ok() {
            thread::yield_now();
        }
    }
}
