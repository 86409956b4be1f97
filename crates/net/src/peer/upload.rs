//! Serves objects of a spool to other members, one thread for each connection.

use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use proto::peer::{Part, Record, SwarmId};

use super::channel::{self, Sender};
use super::spool::Spool;
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

/// The connections that are served.
#[derive(Default)]
pub(super) struct Uploads(Mutex<(u64, Vec<Upload>)>);

/// A connection: its number, which no other had, and whose it is.
type Upload = (u64, IpAddr, TcpStream);

impl Uploads {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.lock().1.len()
    }

    /// Closes all.
    pub(super) fn close(&self) {
        for (_, _, stream) in &self.0.lock().1 {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Counts one more from `address` until it leaves by the number returned; `None` if there are too many.
    fn enter(&self, address: IpAddr, stream: &TcpStream) -> io::Result<Option<u64>> {
        let (last, all) = &mut *self.0.lock();
        let same = all.iter().filter(|(_, other, _)| *other == address).count();
        if all.len() >= UPLOADS_MAX || same >= UPLOADS_PER_ADDRESS_MAX {
            return Ok(None);
        }
        *last += 1;
        all.push((*last, address, stream.try_clone()?));
        Ok(Some(*last))
    }

    fn leave(&self, number: u64) {
        self.0.lock().1.retain(|(other, ..)| *other != number);
    }
}

/// What a machine serves.
pub(super) struct Served {
    pub(super) swarm: SwarmId,
    /// Opens transfers.
    pub(super) key: [u8; 32],
    pub(super) spool: Spool,
    pub(super) uploads: Uploads,
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
    loop {
        match receiver.record()? {
            Record::Get(part) => send_part(part, &mut sender, served)?,
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
