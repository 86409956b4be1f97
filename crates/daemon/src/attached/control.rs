//! The control socket of a disk: lets in who may open it, a few at a time, and does what they ask.

use std::io::BufReader;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use net::clock::Stop;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::protocol::{Answer, Request, receive, send};

/// Most connections at once; who comes then is told so.
const CONNECTIONS_MAX: usize = 16;
/// How long a request and the taking of its answer may last.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether whoever asked is still there.
const LOOK: Duration = Duration::from_millis(200);

/// Does what is asked. Called from many threads.
pub(super) trait Rule: Send + Sync + 'static {
    /// Does it, for whoever asks.
    fn perform(&self, request: Request, asker: &Arc<Asker>) -> Result<Answer>;

    /// The answer to a request to detach was sent, or could not be.
    fn answered(&self);
}

/// Who asks: takes answers before the last one, on any thread, and may go before that.
pub(super) struct Asker {
    stream: Mutex<UnixStream>,
    gone: Stop,
}

impl Asker {
    fn new(stream: UnixStream) -> Self {
        Self { stream: Mutex::new(stream), gone: Stop::new() }
    }

    /// Tells of something before the last answer.
    pub(super) fn tell(&self, answer: &Answer) {
        // Whoever went is noticed by who waits for that.
        let _ = self.send(answer);
    }

    fn send(&self, answer: &Answer) -> std::io::Result<()> {
        send(&mut self.stream.lock(), answer)
    }

    /// Says when whoever asked has gone: a signal ended it, say. It is looked for inside of [`Self::while_here`].
    pub(super) fn gone(&self) -> &Stop {
        &self.gone
    }

    /// Looks whether whoever asked has gone.
    pub(super) fn look(&self) -> bool {
        if self.has_gone() {
            self.gone.stop();
        }
        self.gone.is_stopped()
    }

    /// Does `work`, and meanwhile looks whether whoever asked is still there.
    pub(super) fn while_here<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let (this, is_over) = (Arc::clone(self), Arc::clone(&over));
        let look = move || {
            let mut over = is_over.0.lock();
            while !*over && !this.look() {
                is_over.1.wait_for(&mut over, LOOK);
            }
        };
        // Without a thread nobody looks.
        let looks = std::thread::Builder::new().name("control".into()).spawn(look).ok();
        let done = work();
        *over.0.lock() = true;
        over.1.notify_all();
        // It only looks.
        let _ = looks.map(JoinHandle::join);
        done
    }

    /// Whether the other end was closed, both ways: who only has nothing more to ask still waits for the answer.
    fn has_gone(&self) -> bool {
        let Ok(stream) = self.stream.lock().try_clone() else {
            return false;
        };
        let mut watched = [PollFd::new(&stream, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut watched, Some(&now)), Ok(1..)) && watched[0].revents().contains(PollFlags::HUP)
    }
}

/// A socket that is listened at until this is closed or dropped.
pub(super) struct Control {
    listener: Arc<UnixListener>,
    door: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// Lets clients in.
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
        // Wakes who accepts. Nothing else can be done about it.
        let _ = rustix::net::shutdown(self.listener.as_fd(), rustix::net::Shutdown::Both);
        if let Some(door) = self.door.lock().take() {
            // One that panicked has said so.
            let _ = door.join();
        }
    }
}

fn accept_all(listener: &UnixListener, rule: &Arc<dyn Rule>) {
    let here = Arc::new(AtomicUsize::new(0));
    while let Ok((mut stream, _)) = listener.accept() {
        if here.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            here.fetch_sub(1, Ordering::Relaxed);
            let error = Error::new(ErrorKind::Refused, "too many ask this disk at once: try again");
            // Whoever does not listen to that sees the end.
            let _ = send(&mut stream, &refusal(&error));
            continue;
        }
        let (rule, place) = (Arc::clone(rule), Place(Arc::clone(&here)));
        let thread = std::thread::Builder::new().name("control".into());
        // Who gets no thread sees the end.
        let _ = thread.spawn(move || {
            let _place = place;
            // An error is one of this connection.
            let _ = converse(stream, &*rule);
        });
    }
}

/// One that is free again when it is dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn converse(stream: UnixStream, rule: &dyn Rule) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(stream.try_clone()?);
    let asker = Arc::new(Asker::new(stream));
    loop {
        let received = receive(&mut lines);
        let detaches = matches!(received, Ok(Some(Request::Detach { .. })));
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
