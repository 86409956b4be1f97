//! Serves objects of a spool to other members, one thread for each connection.

use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use base::Instant;
use parking_lot::{Condvar, Mutex};
use proto::peer::{Part, Record, SwarmId};

use super::channel::{self, Sender};
use super::spool::Spool;
use crate::clock::Clock;
use crate::pace::Pace;
use crate::udp;
use crate::waker::Waker;

/// Most connections that are served at the same time.
const UPLOADS_MAX: usize = 16;
/// Most of them to one address.
const UPLOADS_PER_ADDRESS_MAX: usize = 4;
/// Most connections at all.
const THREADS_MAX: usize = 64;
/// A connection that asks for nothing is closed after this time.
const IDLE_MAX: Duration = Duration::from_secs(20);
/// Longest wait for a connection, so that the end of the node is noticed.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// What a connection had asked for has been sent if it asked for nothing for this time.
const ASKED_ALL_AFTER: Duration = Duration::from_millis(100);

/// The connections that are served.
pub(super) struct Uploads {
    clock: Clock,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    last_number: u64,
    all: Vec<Upload>,
    /// How many of them are being sent something.
    sending: usize,
    /// When the last of them had been sent everything.
    sent_at: Instant,
}

/// A connection.
struct Upload {
    /// No other had it.
    number: u64,
    address: IpAddr,
    stream: TcpStream,
}

impl Uploads {
    /// None yet.
    pub(super) fn new() -> Self {
        let state = State { last_number: 0, all: Vec::new(), sending: 0, sent_at: Instant::ZERO };
        Self { clock: Clock::start(), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.state.lock().all.len()
    }

    /// Waits until all have been sent what they asked for, at most for `limit`.
    pub(super) fn finish(&self, limit: Duration) {
        let until = self.clock.now() + limit;
        let mut state = self.state.lock();
        while !state.all.is_empty() {
            let now = self.clock.now();
            let done_at = if state.sending > 0 { until } else { until.min(state.sent_at + ASKED_ALL_AFTER) };
            if done_at <= now {
                return;
            }
            let _ = self.changed.wait_for(&mut state, done_at.since(now));
        }
    }

    /// Closes all.
    pub(super) fn close(&self) {
        for upload in &self.state.lock().all {
            let _ = upload.stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Counts one more from `address` until it leaves by the number returned; `None` if there are too many.
    fn enter(&self, address: IpAddr, stream: &TcpStream) -> io::Result<Option<u64>> {
        let state = &mut *self.state.lock();
        let same = state.all.iter().filter(|upload| upload.address == address).count();
        if state.all.len() >= UPLOADS_MAX || same >= UPLOADS_PER_ADDRESS_MAX {
            return Ok(None);
        }
        state.last_number += 1;
        let number = state.last_number;
        state.all.push(Upload { number, address, stream: stream.try_clone()? });
        Ok(Some(number))
    }

    fn leave(&self, number: u64) {
        self.state.lock().all.retain(|upload| upload.number != number);
        self.changed.notify_all();
    }

    /// Counts one that is being sent something, while `send` runs.
    fn sending<T>(&self, send: impl FnOnce() -> T) -> T {
        self.state.lock().sending += 1;
        let sent = send();
        let mut state = self.state.lock();
        (state.sending, state.sent_at) = (state.sending - 1, self.clock.now());
        drop(state);
        self.changed.notify_all();
        sent
    }
}

/// What a machine serves.
pub(super) struct Served {
    pub(super) swarm: SwarmId,
    /// Opens transfers.
    pub(super) key: [u8; 32],
    pub(super) spool: Spool,
    pub(super) uploads: Uploads,
    /// `None`: as fast as the others take it.
    pub(super) pace: Option<Arc<Pace>>,
    /// Bytes of objects that were sent.
    pub(super) sent_bytes: AtomicU64,
    /// Wakes the threads of the node.
    pub(super) waker: Waker,
}

/// Accepts connections until the node ends.
pub(super) fn listen(listener: &TcpListener, served: &Arc<Served>, over: &AtomicBool) {
    let threads = Arc::new(());
    while !over.load(Ordering::Acquire) {
        let _ = udp::wait(&[listener, &served.waker], None, WAIT_MAX);
        while let Ok((stream, from)) = listener.accept() {
            // Also those that are told to go elsewhere, or never finish the handshake, have a thread.
            if Arc::strong_count(&threads) > THREADS_MAX {
                continue;
            }
            let (served, thread) = (Arc::clone(served), Arc::clone(&threads));
            let address = from.ip().to_canonical();
            let accepted =
                stream.set_nonblocking(false).and_then(|()| served.uploads.enter(address, &stream));
            thread::spawn(move || {
                // Errors concern only this transfer: the other side asks somebody else.
                let Ok(number) = accepted else { return };
                let _ = serve(stream, number.is_some(), &served);
                number.into_iter().for_each(|number| served.uploads.leave(number));
                drop(thread);
            });
        }
    }
}

fn serve(stream: TcpStream, may: bool, served: &Served) -> io::Result<()> {
    let (mut sender, mut receiver) =
        channel::accept(stream, |swarm| (swarm == served.swarm).then_some(served.key))?;
    if !may {
        sender.put(Record::Busy, &[])?;
        return sender.flush();
    }
    receiver.be_patient(IDLE_MAX)?;
    sender.keep(served.pace.clone());
    loop {
        match receiver.record()? {
            Record::Get(part) => served.uploads.sending(|| send_part(part, &mut sender, served))?,
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "an asker only asks")),
        }
    }
}

fn send_part(part: Part, sender: &mut Sender, served: &Served) -> io::Result<()> {
    let mut lacked = 0;
    for object in part.objects() {
        let Some(bytes) = served.spool.get(object) else {
            lacked |= proto::peer::batch_of(object).mask;
            continue;
        };
        let number = u32::try_from(object).map_err(io::Error::other)?;
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        sender.put(Record::Object { object: number, bytes: length }, &bytes)?;
        served.sent_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
    if lacked != 0 {
        sender.put(Record::Lacks(Part { mask: lacked, ..part }), &[])?;
    }
    sender.flush()
}
