//! The control socket of a disk: lets in who may open it, a few at a time, and does what they ask.

use std::io::BufReader;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::protocol::{Answer, Request, receive, send};
use crate::error::{Error, ErrorKind, Result};

/// Most connections at once; who comes then is told so.
const CONNECTIONS_MAX: usize = 16;
/// How long a request and the taking of its answer may last.
const PATIENCE: Duration = Duration::from_secs(10);

/// Does what is asked. Called from many threads; `tell` takes answers before the last one.
pub trait Rule: Send + Sync + 'static {
    /// Does it.
    fn perform(&self, request: Request, tell: &mut dyn FnMut(Answer)) -> Result<Answer>;

    /// The answer to a request to detach was sent, or could not be.
    fn answered(&self);
}

/// A socket that is listened at until this is closed or dropped.
pub struct Control {
    listener: Arc<UnixListener>,
    door: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// Lets clients in.
    pub fn start(listener: UnixListener, rule: Arc<dyn Rule>) -> Result<Self> {
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
        if let Some(door) = self.door.lock().unwrap_or_else(PoisonError::into_inner).take() {
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
    let (mut lines, mut stream) = (BufReader::new(stream.try_clone()?), stream);
    loop {
        let received = receive(&mut lines);
        let detaches = matches!(received, Ok(Some(Request::Detach { .. })));
        let answer = match received {
            Ok(None) => return Ok(()),
            Err(error) => {
                send(&mut stream, &refusal(&error))?;
                return Ok(());
            }
            Ok(Some(request)) => {
                let done = rule.perform(request, &mut |answer| {
                    // Whoever went does not stop what was begun.
                    let _ = send(&mut stream, &answer);
                });
                done.unwrap_or_else(|error| refusal(&error))
            }
        };
        let sent = send(&mut stream, &answer);
        if detaches {
            rule.answered();
        }
        sent?;
    }
}

fn refusal(error: &Error) -> Answer {
    Answer::Error { kind: error.kind(), message: base::fault::chain(error) }
}
