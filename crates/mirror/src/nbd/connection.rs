//! One client: its handshake, then threads that take turns at receiving from its socket.
//!
//! The thread that holds the *lead* (a lock) receives requests. It answers reads that need not wait itself, several
//! in one system call if more requests are already received. For any other request it gives the lead to a waiting
//! thread, executes the request, replies, and waits for the lead again. So requests overlap, replies are sent in the
//! order in which they are ready, and requests are never queued or copied. A thread is started if none waits for the
//! lead, up to [`REQUESTS_MAX`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use crate::Durability;
use crate::nbd::batch::Batch;
use crate::nbd::event::Event;
use crate::nbd::exports::Exports;
use crate::nbd::handshake::{Negotiation, Session, Step, greeting};
use crate::nbd::input::Input;
use crate::nbd::places::Place;
use crate::nbd::reply;
use crate::nbd::request::{Code, Command, Cookie, REQUEST_BYTES, Range, Refusal, Request, parse};
use crate::nbd::serve::{Job, Memory, PIECE_BYTES, Service, pieces};
use crate::nbd::tls::Tls;
use crate::nbd::transport::{Deadline, Transport};

/// Maximum number of requests of one client that are executed at the same time. Others wait in its socket.
pub const REQUESTS_MAX: usize = 32;
/// Reads of at most this many bytes may be answered by the thread that holds the lead.
const NEAR_BYTES_MAX: u32 = 64 << 10;
/// Maximum time from the first byte to the choice of a disk.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// Does the handshake. `None` if the client leaves before it has chosen a disk.
pub(super) fn negotiate(
    transport: &Transport,
    exports: &dyn Exports,
    tls: &Tls,
    input: &mut Input,
) -> Result<Option<Session>> {
    let broke = |error| Error::from_source(ErrorKind::Io, "shake hands with an NBD client", error);
    let deadline = Deadline::after(HANDSHAKE_TIME_MAX);
    let mut negotiation = Negotiation::new(exports, tls.privacy());
    let mut output = Vec::from(greeting());
    loop {
        transport.hurry(Some(&deadline)).map_err(broke)?;
        transport.turn().send(&output).map_err(broke)?;
        output.clear();
        let (taken, step) = negotiation.advance(input.ready(), &mut output)?;
        input.consume(taken);
        match step {
            Step::Continue => {}
            Step::Receive => {
                if !input.fill(transport, input.ready().len() + 1).map_err(broke)? {
                    return Ok(None);
                }
            }
            Step::StartTls => {
                transport.turn().send(&output).map_err(broke)?;
                output.clear();
                start_tls(transport, tls, input, &deadline)?;
            }
            Step::Serve(session) => {
                transport.turn().send(&output).map_err(broke)?;
                transport.hurry(None).map_err(broke)?;
                return Ok(Some(session));
            }
            Step::End => {
                transport.turn().send(&output).map_err(broke)?;
                return Ok(None);
            }
        }
    }
}

fn start_tls(transport: &Transport, tls: &Tls, input: &Input, deadline: &Deadline) -> Result<()> {
    if !input.ready().is_empty() {
        return Err(Error::new(
            ErrorKind::Refused,
            "an NBD client sent bytes between STARTTLS and its reply",
        ));
    }
    let config = tls.config().expect("TLS was offered");
    let failed = |error| Error::from_source(ErrorKind::Io, "begin TLS with an NBD client", error);
    transport.start_tls(config, deadline).map_err(failed)
}

/// The connection of a client that has chosen a disk.
pub(super) struct Connection {
    service: Service,
    peer: String,
    lead: Mutex<Lead>,
    members: AtomicUsize,
    waiting: AtomicUsize,
    /// The client wrote something that may not be durable yet.
    written: AtomicBool,
    /// The client was disconnected, and this was logged; other threads that notice it do not log it again.
    dropped: AtomicBool,
    place: Place,
}

/// The state that belongs to the thread with the lead.
struct Lead {
    input: Input,
    batch: Batch,
    ended: bool,
}

impl Connection {
    /// Serves the client on this thread and others, until it leaves or the server stops.
    pub(super) fn run(service: Service, peer: String, input: Input, place: Place) {
        let lead = Mutex::new(Lead { input, batch: Batch::new(), ended: false });
        let (members, waiting) = (AtomicUsize::new(1), AtomicUsize::new(0));
        let export = service.session.name.clone();
        (service.log)(&Event::Connected { peer: peer.clone(), export });
        let (written, dropped) = (AtomicBool::new(false), AtomicBool::new(false));
        let this = Self { service, peer, lead, members, waiting, written, dropped, place };
        Self::work(&Arc::new(this));
    }

    /// The loop of each thread.
    fn work(this: &Arc<Self>) {
        let _watch = Watch(this);
        let mut memory = Memory::default();
        while let Some(job) = this.next(&mut memory) {
            if let Err(error) = this.service.perform(job, &mut memory) {
                this.drop_client(&error);
            }
        }
    }

    /// Waits for the lead and receives requests until there is a job. `None` if the connection ends.
    fn next(self: &Arc<Self>, memory: &mut Memory) -> Option<Job> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut lead = self.lead.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        if lead.ended {
            return None;
        }
        match self.lead(&mut lead, memory) {
            Ok(Some(job)) => {
                self.reinforce();
                return Some(job);
            }
            Ok(None) => {}
            Err(error) => self.drop_client(&error),
        }
        lead.ended = true;
        None
    }

    /// Starts a thread that takes the lead, unless one waits for it already.
    fn reinforce(self: &Arc<Self>) {
        let members = self.members.load(Ordering::Relaxed);
        if self.waiting.load(Ordering::Relaxed) > 0 || members >= REQUESTS_MAX {
            return;
        }
        let this = Arc::clone(self);
        let started = std::thread::Builder::new().name("nbd".into()).spawn(move || Self::work(&this));
        // If no thread could be started, this thread takes the lead again after its job.
        if started.is_ok() {
            self.members.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn lead(&self, lead: &mut Lead, memory: &mut Memory) -> Result<Option<Job>> {
        let transport = &*self.service.transport;
        loop {
            let Some(head) = lead.input.ready().first_chunk::<REQUEST_BYTES>() else {
                lead.batch.send(transport).map_err(broke)?;
                if self.place.is_stopping() || !lead.input.fill(transport, REQUEST_BYTES).map_err(broke)? {
                    return Ok(None);
                }
                continue;
            };
            let request = parse(head, &self.service.session.rules)?;
            lead.input.consume(REQUEST_BYTES);
            let request = if self.place.is_stopping() { too_late(request) } else { request };
            match request {
                Ok(Request { command: Command::Disconnect, .. }) => return Ok(None),
                Ok(request) => {
                    if let Some(job) = self.take(request, lead, memory)? {
                        return Ok(Some(job));
                    }
                }
                Err(refusal) => {
                    let reply = self.service.refusal(refusal.cookie, refusal.code, refusal.why);
                    lead.batch.push(transport, &reply).map_err(broke)?;
                    if !lead.input.skip(transport, refusal.payload_bytes as usize).map_err(broke)? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Answers a request at once, or returns it as a job.
    fn take(&self, request: Request, lead: &mut Lead, memory: &mut Memory) -> Result<Option<Job>> {
        let Request { cookie, command } = request;
        if let Command::Read { range, .. } = command
            && range.bytes <= NEAR_BYTES_MAX
            && self.read_now(cookie, range, &mut lead.batch).map_err(broke)?
        {
            return Ok(None);
        }
        lead.batch.send(&self.service.transport).map_err(broke)?;
        if matches!(command, Command::Write { .. } | Command::WriteZeroes { .. } | Command::Discard { .. }) {
            self.written.store(true, Ordering::Relaxed);
        }
        match command {
            Command::Write { range, durability } => {
                self.receive_write(cookie, range, durability, lead, memory)
            }
            _ => Ok(Some(Job::Request(request))),
        }
    }

    /// Reads into the batch if the read need not wait. False if it must.
    fn read_now(&self, cookie: Cookie, range: Range, batch: &mut Batch) -> io::Result<bool> {
        let (data, simple) =
            (reply::data(cookie, range.offset, range.bytes, true), reply::simple(cookie, None));
        let head = if self.service.session.rules.structured { &data[..] } else { &simple[..] };
        let room = batch.room(&self.service.transport, head.len() + range.bytes as usize)?;
        let read = self.service.session.disk.read_now(range.offset, &mut room[head.len()..]);
        // After an error, a job tries again and reports it.
        let done = matches!(read, Ok(true));
        if done {
            room[..head.len()].copy_from_slice(head);
            batch.keep(head.len() + range.bytes as usize);
        }
        Ok(done)
    }

    /// Receives the bytes of a write and writes all pieces but the last, which becomes a job. `None` if the client
    /// ends the connection before.
    fn receive_write(
        &self,
        cookie: Cookie,
        range: Range,
        durability: Durability,
        lead: &mut Lead,
        memory: &mut Memory,
    ) -> Result<Option<Job>> {
        let (transport, disk) = (&self.service.transport, &self.service.session.disk);
        let mut earlier: Option<Result<()>> = None;
        for piece in pieces(range) {
            let room = memory.room(piece.bytes as usize);
            if !lead.input.take(transport, room).map_err(broke)? {
                return Ok(None);
            }
            if piece.offset + u64::from(piece.bytes) == range.offset + u64::from(range.bytes) {
                return Ok(Some(Job::Write { cookie, range: piece, durability, earlier }));
            }
            assert_eq!(piece.bytes, PIECE_BYTES, "only the last piece is short");
            earlier = Some(
                earlier.unwrap_or(Ok(())).and_then(|()| disk.write(piece.offset, room, Durability::Cached)),
            );
        }
        unreachable!("a range has a last piece")
    }

    fn drop_client(&self, error: &(dyn std::error::Error + 'static)) {
        self.service.transport.cut();
        if !self.dropped.swap(true, Ordering::Relaxed) {
            let error = base::chain(error);
            (self.service.log)(&Event::Dropped { peer: self.peer.clone(), error });
        }
    }
}

/// Runs when the last thread has ended, so no request is in flight.
impl Drop for Connection {
    fn drop(&mut self) {
        let (session, log) = (&self.service.session, &self.service.log);
        if self.written.load(Ordering::Relaxed)
            && let Err(error) = session.disk.flush()
            && error.kind() != ErrorKind::Refused
        {
            let error = base::chain(&error);
            log(&Event::Failed { export: session.name.clone(), error });
        }
        self.service.transport.turn().finish();
        log(&Event::Disconnected { peer: self.peer.clone(), export: session.name.clone() });
    }
}

/// Disconnects the client if a thread panics: its request would never be answered, and the client would wait
/// forever.
struct Watch<'a>(&'a Connection);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.service.transport.cut();
        }
    }
}

fn broke(error: io::Error) -> Error {
    Error::from_source(ErrorKind::Io, "exchange bytes with an NBD client", error)
}

/// Refuses a request because the server stops.
fn too_late(request: std::result::Result<Request, Refusal>) -> std::result::Result<Request, Refusal> {
    let Request { cookie, command } = request?;
    let payload_bytes = match command {
        Command::Disconnect => return request,
        Command::Write { range, .. } => range.bytes,
        _ => 0,
    };
    Err(Refusal { cookie, code: Code::Shutdown, why: "the server is stopping", payload_bytes })
}
