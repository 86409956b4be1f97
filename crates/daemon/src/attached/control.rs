//! Serves the control socket of a disk: accepts connections, reads their requests and sends the answers. The socket's
//! file permissions decide which clients can connect.

use std::io::BufReader;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use net::api::SetOrder;
use net::clock::Stop;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::protocol::{Answer, Request, receive, send};

/// Maximum number of connections at the same time; further ones get `refused`.
const CONNECTIONS_MAX: usize = 16;
/// Time limit for receiving a request and for sending an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval of checks whether the client is still connected.
const LOOK: Duration = Duration::from_millis(200);

/// Performs requests. Called from many threads.
pub(super) trait Rule: Send + Sync + 'static {
    /// Performs a request and returns its last answer. Earlier answers go to `asker`.
    fn perform(&self, request: Request, asker: &Arc<Asker>) -> Result<Answer>;

    /// Called when the answer to a detach request was sent, or could not be sent.
    fn answered(&self);
}

/// The client of a request. Any thread may send it answers before the last one; it may disconnect at any time.
pub(super) struct Asker {
    stream: Mutex<UnixStream>,
    /// Its requests, and orders for the one that is performed.
    lines: Mutex<BufReader<UnixStream>>,
    /// Whether its request is done by its orders: their end calls it off.
    orders: AtomicBool,
    gone: Stop,
}

impl Asker {
    fn new(stream: UnixStream) -> std::io::Result<Self> {
        let lines = Mutex::new(BufReader::new(stream.try_clone()?));
        Ok(Self { stream: Mutex::new(stream), lines, orders: AtomicBool::new(false), gone: Stop::new() })
    }

    /// Its request is done by its orders from here on.
    pub(super) fn takes_orders(&self) {
        self.orders.store(true, Ordering::Relaxed);
    }

    /// Waits for an order that the client gives while its request is performed, for `limit` at most.
    ///
    /// # Errors
    /// `Unreachable` if the client says nothing for so long, or has disconnected.
    pub(super) fn order(&self, limit: Option<Duration>) -> Result<SetOrder> {
        let mut lines = self.lines.lock();
        // A limit of zero would be none.
        let limit = limit.map(|limit| limit.max(Duration::from_millis(1)));
        let lost =
            |why: &str| Error::new(ErrorKind::Unreachable, format!("the client that gives orders {why}"));
        lines
            .get_ref()
            .set_read_timeout(limit)
            .map_err(|error| base::Error::from_io("wait for an order", error))?;
        let received = receive::<SetOrder>(&mut lines);
        let _ = lines.get_ref().set_read_timeout(Some(PATIENCE));
        match received {
            Ok(order) => order.ok_or_else(|| lost("has disconnected")),
            Err(error) if error.kind() == ErrorKind::Invalid => Err(error),
            Err(_) => Err(lost(&format!("says nothing for {:?}", limit.unwrap_or_default()))),
        }
    }

    /// Sends an answer before the last one.
    pub(super) fn tell(&self, answer: &Answer) {
        // A disconnected client is noticed by `while_here`.
        let _ = self.send(answer);
    }

    fn send(&self, answer: &Answer) -> std::io::Result<()> {
        send(&mut self.stream.lock(), answer)
    }

    /// Is stopped when the client has disconnected, for example because a signal ended it. Only [`Self::look`] checks
    /// that, which [`Self::while_here`] calls regularly.
    pub(super) fn gone(&self) -> &Stop {
        &self.gone
    }

    /// Checks whether the client has disconnected, and returns true from then on.
    pub(super) fn look(&self) -> bool {
        if self.has_gone() {
            self.gone.stop();
        }
        self.gone.is_stopped()
    }

    /// Runs `work`, and meanwhile checks regularly whether the client is still connected.
    pub(super) fn while_here<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let (this, is_over) = (Arc::clone(self), Arc::clone(&over));
        let look = move || {
            let mut over = is_over.0.lock();
            while !*over && !this.look() {
                is_over.1.wait_for(&mut over, LOOK);
            }
        };
        // If no thread can be started, the commit runs without these checks.
        let looks = std::thread::Builder::new().name("control".into()).spawn(look).ok();
        let done = work();
        *over.0.lock() = true;
        over.1.notify_all();
        // A panic of that thread does not matter: it only checks.
        let _ = looks.map(JoinHandle::join);
        done
    }

    /// Whether the client has closed both directions. One that closed only its sending side still waits for the
    /// answer; if it gives orders, that calls off what it waits for.
    fn has_gone(&self) -> bool {
        let Ok(stream) = self.stream.lock().try_clone() else {
            return false;
        };
        let looks_for =
            if self.orders.load(Ordering::Relaxed) { PollFlags::RDHUP } else { PollFlags::empty() };
        let mut watched = [PollFd::new(&stream, looks_for)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut watched, Some(&now)), Ok(1..))
            && watched[0].revents().intersects(PollFlags::HUP | looks_for)
    }
}

/// A control socket that accepts clients until this is dropped.
pub(super) struct Control {
    listener: Arc<UnixListener>,
    door: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// Starts to accept clients.
    pub(super) fn start(listener: UnixListener, rule: Arc<dyn Rule>) -> Result<Self> {
        let listener = Arc::new(listener);
        let accepts = Arc::clone(&listener);
        let door = std::thread::Builder::new().name("control".into());
        let door = door.spawn(move || accept_all(&accepts, &rule)).map_err(|error| {
            Error::from_source(ErrorKind::Io, "start a thread for the control socket", error)
        })?;
        Ok(Self { listener, door: Mutex::new(Some(door)) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Wakes the accepting thread. An error cannot be handled here.
        let _ = rustix::net::shutdown(self.listener.as_fd(), rustix::net::Shutdown::Both);
        if let Some(door) = self.door.lock().take() {
            // A panic of the thread was already reported.
            let _ = door.join();
        }
    }
}

fn accept_all(listener: &UnixListener, rule: &Arc<dyn Rule>) {
    let here = Arc::new(AtomicUsize::new(0));
    while let Ok((mut stream, _)) = listener.accept() {
        if here.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            here.fetch_sub(1, Ordering::Relaxed);
            let error =
                Error::new(ErrorKind::Refused, "too many clients of this disk at the same time: try again");
            // If this cannot be sent, the client sees the connection close.
            let _ = send(&mut stream, &refusal(&error));
            continue;
        }
        let (rule, place) = (Arc::clone(rule), Place(Arc::clone(&here)));
        let thread = std::thread::Builder::new().name("control".into());
        // If no thread can be started, the client sees the connection close.
        let _ = thread.spawn(move || {
            let _place = place;
            // An error concerns only this connection.
            let _ = converse(stream, &*rule);
        });
    }
}

/// One of the connections counted against the maximum, until this is dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn converse(stream: UnixStream, rule: &dyn Rule) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let asker = Arc::new(Asker::new(stream)?);
    loop {
        let received = receive(&mut asker.lines.lock());
        let detaches = received.as_ref().is_ok_and(|request| request.as_ref().is_some_and(Request::detaches));
        let answer = match received {
            Ok(None) => return Ok(()),
            Err(error) => {
                return asker.send(&refusal(&error));
            }
            Ok(Some(request)) => rule.perform(request, &asker).unwrap_or_else(|error| refusal(&error)),
        };
        let sent = asker.send(&answer);
        if detaches {
            rule.answered();
        }
        sent?;
    }
}

fn refusal(error: &Error) -> Answer {
    Answer::Error { kind: error.kind().into(), message: base::chain(error) }
}
