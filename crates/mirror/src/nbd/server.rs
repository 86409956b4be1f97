//! The server: it accepts clients, and lets running requests finish when it stops.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex};

use crate::nbd::connection::{Connection, negotiate};
use crate::nbd::event::{Event, Log};
use crate::nbd::exports::{Export, Exports};
use crate::nbd::input::Input;
use crate::nbd::places::{Place, Places, Shared};
use crate::nbd::serve::Service;
use crate::nbd::tls::Tls;
use crate::nbd::transport::{Socket, Transport};

/// Serves disks to NBD clients until it is stopped or dropped.
pub struct Server {
    shared: Arc<Shared>,
    doors: Mutex<Vec<(Arc<Listener>, JoinHandle<()>)>>,
}

impl Server {
    /// A server of `exports` for at most `clients_max` connections at the same time. Further clients are told that
    /// there is no place.
    #[must_use]
    pub fn new(exports: Arc<dyn Exports>, clients_max: usize, log: Log) -> Self {
        let shared = Shared {
            exports,
            clients_max,
            log,
            stopping: AtomicBool::new(false),
            places: Mutex::default(),
            changed: Condvar::new(),
        };
        Self { shared: Arc::new(shared), doors: Mutex::default() }
    }

    /// Accepts clients on a Unix socket. Every process that can open the socket may use every disk.
    pub fn listen_unix(&self, listener: UnixListener) -> Result<()> {
        self.open_door(Listener::Unix(listener))
    }

    /// Accepts clients on a TCP socket, with TLS as `tls` says.
    pub fn listen_tcp(&self, listener: TcpListener, tls: Tls) -> Result<()> {
        self.open_door(Listener::Tcp(listener, tls))
    }

    fn open_door(&self, listener: Listener) -> Result<()> {
        let (shared, listener) = (Arc::clone(&self.shared), Arc::new(listener));
        let door = Arc::clone(&listener);
        let thread = std::thread::Builder::new().name("nbd door".into());
        let thread = thread
            .spawn(move || shared.accept_all(&door))
            .map_err(|error| Error::from_source(ErrorKind::Io, "start a thread for NBD clients", error))?;
        self.doors.lock().push((listener, thread));
        Ok(())
    }

    /// Accepts no more clients and requests, waits at most `grace` for running requests, and makes all writes
    /// durable. Then disconnects the remaining clients, and returns how many there were.
    pub fn stop(&self, grace: Duration) -> usize {
        let shared = &self.shared;
        for transport in shared.stop().transports() {
            transport.stop_receiving();
        }
        self.close_doors();
        let busy = |places: &mut Places| places.transports().next().is_some();
        let mut places = shared.lock();
        shared.changed.wait_while_for(&mut places, busy, grace);
        let left = places.transports().count();
        places.transports().for_each(|transport| transport.cut());
        left
    }

    /// Disconnects all clients at once, without answering the requests in flight, and accepts no more. A client that
    /// reconnects (QEMU with `reconnect-delay`) repeats its requests to the process that serves the disk next. After
    /// [`Self::stop`] it would get an error instead.
    pub fn leave(&self) {
        {
            let places = self.shared.lock();
            places.transports().for_each(|transport| transport.cut());
            self.shared.begin_stop();
        }
        self.close_doors();
    }

    fn close_doors(&self) {
        for (listener, thread) in self.doors.lock().drain(..) {
            listener.close();
            // The listener is closed even if its thread panicked.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// A socket that accepts clients.
enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener, Tls),
}

impl Listener {
    fn accept(&self) -> io::Result<(Socket, String)> {
        let (socket, peer) = match self {
            Self::Unix(listener) => (Socket::Unix(listener.accept()?.0), "on this machine".to_owned()),
            Self::Tcp(listener, _) => {
                let (stream, peer) = listener.accept()?;
                (Socket::Tcp(stream), peer.to_string())
            }
        };
        socket.prepare()?;
        Ok((socket, peer))
    }

    fn tls(&self) -> &Tls {
        match self {
            Self::Unix(_) => &Tls::Off,
            Self::Tcp(_, tls) => tls,
        }
    }

    /// Wakes the thread that waits in accept(2).
    fn close(&self) {
        let descriptor = match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener, _) => listener.as_fd(),
        };
        // Nothing can be done about an error.
        let _ = rustix::net::shutdown(descriptor, rustix::net::Shutdown::Both);
    }
}

impl Shared {
    fn accept_all(self: &Arc<Self>, listener: &Listener) {
        while !self.is_stopping() {
            match listener.accept() {
                Ok((socket, peer)) => self.admit(socket, peer, listener.tls()),
                Err(_) => self.pause(),
            }
        }
    }

    fn admit(self: &Arc<Self>, socket: Socket, peer: String, tls: &Tls) {
        let transport = Arc::new(Transport::new(socket));
        let Some(place) = self.place(&transport) else { return transport.cut() };
        let (log, name, tls) = (&self.log, peer.clone(), tls.clone());
        let thread = std::thread::Builder::new().name("nbd".into());
        let started = thread.spawn(move || place.serve(transport, peer, &tls));
        if let Err(error) = started {
            log(&Event::Dropped { peer: name, error: format!("start a thread for it: {error}") });
        }
    }
}

impl Place {
    /// Serves one client, from the greeting to its end.
    fn serve(self, transport: Arc<Transport>, peer: String, tls: &Tls) {
        let shared = Arc::clone(&self.shared);
        let mut input = Input::new();
        let full = Full(shared.clients_max);
        if self.full {
            (shared.log)(&Event::Dropped { peer: peer.clone(), error: full.words() });
        }
        let exports = if self.full { &full as &dyn Exports } else { &*shared.exports };
        match negotiate(&transport, exports, tls, &mut input) {
            Ok(Some(session)) => {
                let service = Service { transport, session, log: Arc::clone(&shared.log) };
                Connection::run(service, peer, input, self);
            }
            Ok(None) => transport.turn().finish(),
            Err(error) => {
                transport.cut();
                if !self.full {
                    (shared.log)(&Event::Dropped { peer, error: base::chain(&error) });
                }
            }
        }
    }
}

/// The exports for clients that get no place: none, with an error that says why.
struct Full(usize);

impl Full {
    fn words(&self) -> String {
        format!("{} clients are connected already, which is the limit", self.0)
    }
}

impl Exports for Full {
    fn list(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn find(&self, _name: &str) -> Result<Export> {
        Err(Error::new(ErrorKind::Refused, self.words()))
    }
}
