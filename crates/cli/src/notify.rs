//! Reports the state of the service to systemd (`sd_notify(3)`), by a datagram to the socket in `NOTIFY_SOCKET`. Does
//! nothing if that is not set.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable with the socket: a path, or `@` and an abstract name.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Reports that the service is ready.
pub(crate) fn ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={status}"));
}

/// Reports that the service is about to end.
pub(crate) fn stopping() {
    tell("STOPPING=1");
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os(VARIABLE) else { return };
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&socket),
    };
    // The service works also if systemd cannot be told.
    let _ = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
}
