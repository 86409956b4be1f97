//! Tells systemd how the service is (`sd_notify(3)`): a datagram to the socket that it names, nothing where it names
//! none.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable that names the socket: a path, or an abstract name behind an `@`.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// The service does its work from now on.
pub(crate) fn ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={status}"));
}

/// The service is about to end.
pub(crate) fn stopping() {
    tell("STOPPING=1");
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os(VARIABLE) else { return };
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&socket),
    };
    // Nobody who could be told is no reason not to work.
    let _ = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
}
