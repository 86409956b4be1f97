//! Makes a disk available to NBD clients: its export, its Unix socket and its TCP port.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Error, ErrorKind, Result};
use mirror::nbd::{Export, ExportTable, Server, Tls};
use mirror::{Mirror, Served};

use super::event::Log;
use super::settings::{Settings, of_disk};
use super::{socket, tls};

/// The export table with the disk as its only export.
pub(super) fn exports(settings: &Settings, mirror: &Arc<Mirror>) -> Result<Arc<ExportTable>> {
    let disk = Arc::clone(mirror) as Arc<dyn Served>;
    let disk = if settings.read_only { Arc::new(mirror::ReadOnly(disk)) as Arc<dyn Served> } else { disk };
    let table = ExportTable::default();
    let description = settings.image.clone();
    table.insert(&settings.name, Export { disk, description }).map_err(of_disk(&settings.name))?;
    Ok(Arc::new(table))
}

/// A log for NBD events that also counts the connected clients.
pub(super) fn counting(clients: &Arc<AtomicU64>, log: Log) -> mirror::nbd::Log {
    let clients = Arc::clone(clients);
    Arc::new(move |event| {
        match event {
            mirror::nbd::Event::Connected { .. } => clients.fetch_add(1, Ordering::Relaxed),
            mirror::nbd::Event::Disconnected { .. } => clients.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
        log(&event.into());
    })
}

/// Listens on the configured sockets and returns their NBD URIs.
pub(super) fn listen(server: &Server, settings: &Settings, folder: &Path) -> Result<Vec<String>> {
    let socket = settings.nbd_socket(folder);
    server.listen_unix(socket::listen(&socket)?).map_err(of_disk(&settings.name))?;
    let mut uris = vec![format!("nbd+unix:///{}?socket={}", settings.name, socket.display())];
    if let Some(address) = settings.listen {
        let (listener, bound) = bind(address)?;
        let tls = settings.tls.as_ref().map(tls::server).transpose()?;
        let scheme = if tls.is_some() { "nbds" } else { "nbd" };
        server.listen_tcp(listener, tls.map_or(Tls::Off, Tls::Required)).map_err(of_disk(&settings.name))?;
        uris.push(format!("{scheme}://{bound}/{}", settings.name));
    }
    Ok(uris)
}

/// Binds `address` and returns the actual address, which has a port also if `address` has port 0. `Refused` if it is
/// in use or not of this machine.
pub(super) fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let failed = |error: std::io::Error| {
        use std::io::ErrorKind as Kind;
        let taken = matches!(error.kind(), Kind::AddrInUse | Kind::AddrNotAvailable);
        let kind = if taken { ErrorKind::Refused } else { ErrorKind::Io };
        Error::from_source(kind, format!("listen on {address}"), error)
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}
