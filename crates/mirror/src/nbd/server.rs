//! The server: listeners, the places of its clients, and an end that lets requests finish.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::ServerConfig;

use crate::nbd::connection::{Connection, negotiate};
use crate::nbd::event::{Event, Log};
use crate::nbd::exports::{Export, Exports};
use crate::nbd::handshake::Privacy;
use crate::nbd::input::Input;
use crate::nbd::serve::Service;
use crate::nbd::transport::{Socket, Transport};
use crate::{Error, ErrorKind, Result};

/// After the system could not give a connection (no file descriptors left, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Clients that came when all places were taken, and are being told so; more of them are cut off without a word.
const TURNED_AWAY_MAX: usize = 8;

/// How clients of a TCP listener stand to TLS. Who they are is asked if the configuration verifies certificates of
/// clients, and not at all without TLS.
#[derive(Debug, Clone)]
pub enum Tls {
    /// There is none.
    Off,
    /// Who asks for it gets it.
    Offered(Arc<ServerConfig>),
    /// Who does not ask for it is told nothing.
    Required(Arc<ServerConfig>),
}

impl Tls {
    pub(crate) fn privacy(&self) -> Privacy {
        match self {
            Self::Off => Privacy::Plain,
            Self::Offered(_) => Privacy::Offered,
            Self::Required(_) => Privacy::Required,
        }
    }

    pub(crate) fn config(&self) -> Option<&Arc<ServerConfig>> {
        match self {
            Self::Off => None,
            Self::Offered(config) | Self::Required(config) => Some(config),
        }
    }
}

/// Serves disks to NBD clients until it is stopped or dropped.
pub struct Server {
    shared: Arc<Shared>,
    doors: Mutex<Vec<(Arc<Listener>, JoinHandle<()>)>>,
}

impl Server {
    /// A server of `exports` for at most `clients_max` connections at once; others are told that there is no place.
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

    /// Lets clients in by a Unix socket; who may open it may use every disk.
    pub fn listen_unix(&self, listener: UnixListener) -> Result<()> {
        self.open_door(Listener::Unix(listener))
    }

    /// Lets clients in by TCP.
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
        self.doors.lock().unwrap_or_else(PoisonError::into_inner).push((listener, thread));
        Ok(())
    }

    /// Takes no more clients and requests, lets those in flight finish for at most `grace`, makes what they wrote
    /// durable, and cuts off who is left. Returns how many connections had to be cut off.
    pub fn stop(&self, grace: Duration) -> usize {
        let shared = &self.shared;
        for transport in shared.stop().transports() {
            transport.stop_receiving();
        }
        self.close_doors();
        let busy = |places: &mut Places| places.transports().next().is_some();
        let (places, _) = shared
            .changed
            .wait_timeout_while(shared.lock(), grace, busy)
            .unwrap_or_else(PoisonError::into_inner);
        let left = places.transports().count();
        places.transports().for_each(|transport| transport.cut());
        left
    }

    /// Goes without a word: takes no more clients, cuts off those who are here, and answers nothing of what is in flight.
    /// A client that connects anew (QEMU's with `reconnect-delay`) asks again whoever serves the disk then, where
    /// [`Self::stop`] would have told it of an error.
    pub fn leave(&self) {
        {
            let places = self.shared.lock();
            places.transports().for_each(|transport| transport.cut());
            self.shared.begin_stop();
        }
        self.close_doors();
    }

    fn close_doors(&self) {
        for (listener, thread) in self.doors.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            listener.close();
            // A door that panicked is closed, too.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// Where clients come in.
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

    /// Wakes who accepts.
    fn close(&self) {
        let descriptor = match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener, _) => listener.as_fd(),
        };
        // Nothing else can be done about it.
        let _ = rustix::net::shutdown(descriptor, rustix::net::Shutdown::Both);
    }
}

struct Shared {
    exports: Arc<dyn Exports>,
    clients_max: usize,
    log: Log,
    stopping: AtomicBool,
    places: Mutex<Places>,
    /// A place became free, or the server stops.
    changed: Condvar,
}

/// Who is here.
#[derive(Default)]
struct Places {
    taken: BTreeMap<u64, Arc<Transport>>,
    /// Of these, those who are only told that there is no place.
    turned_away: usize,
    next: u64,
}

impl Places {
    fn transports(&self) -> impl Iterator<Item = &Arc<Transport>> {
        self.taken.values()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// From now on no place is given, and no transport takes one.
    fn stop(&self) -> MutexGuard<'_, Places> {
        let places = self.lock();
        self.begin_stop();
        places
    }

    /// The same for who has the places.
    fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    fn accept_all(self: &Arc<Self>, listener: &Listener) {
        while !self.is_stopping() {
            match listener.accept() {
                Ok((socket, peer)) => self.admit(socket, peer, listener.tls()),
                Err(_) => self.pause(),
            }
        }
    }

    /// A place for the client of `transport`, if only to be told that there is none. None if the server stops, or too many are
    /// being told that already.
    fn place(self: &Arc<Self>, transport: &Arc<Transport>) -> Option<Place> {
        let mut places = self.lock();
        let full = places.taken.len() - places.turned_away >= self.clients_max;
        if self.is_stopping() || (full && places.turned_away >= TURNED_AWAY_MAX) {
            return None;
        }
        let number = places.next;
        places.next += 1;
        places.turned_away += usize::from(full);
        places.taken.insert(number, Arc::clone(transport));
        Some(Place { shared: Arc::clone(self), number, full })
    }

    fn pause(&self) {
        let stays = |_: &mut Places| !self.is_stopping();
        drop(self.changed.wait_timeout_while(self.lock(), ACCEPT_PAUSE, stays));
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

/// A client's place, free again when it is dropped.
pub struct Place {
    shared: Arc<Shared>,
    number: u64,
    /// All places were taken: this one is for being told so.
    full: bool,
}

impl Place {
    /// Whether requests are to be refused.
    pub fn is_stopping(&self) -> bool {
        self.shared.is_stopping()
    }

    /// One client, from the greeting to its end.
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
                    (shared.log)(&Event::Dropped { peer, error: base::fault::chain(&error) });
                }
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.shared.lock();
        places.taken.remove(&self.number);
        places.turned_away -= usize::from(self.full);
        self.shared.changed.notify_all();
    }
}

/// What is offered to clients for whom there is no place.
struct Full(usize);

impl Full {
    fn words(&self) -> String {
        format!("{} clients are here already, and no more are let in", self.0)
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
