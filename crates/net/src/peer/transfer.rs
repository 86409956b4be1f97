//! One connection to a member that sends objects. Source: `formats/peer.md`, section 4.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::Error;
use base::limits::OBJECT_BYTES_MAX;
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use proto::peer::{MemberId, Part, Record, Source, batch_of};

use super::channel;
use super::node::Node;
use super::want::{Event, Want};

/// Pieces of an object in which its arrival is noted.
const PIECE_BYTES: usize = 64 << 10;

type Outcome<T> = Result<T, Trouble>;

/// What the thread of a connection shows while it works.
#[derive(Default)]
pub(super) struct Pulse {
    /// To close the connection while its thread waits for bytes.
    pub(super) stream: Mutex<Option<TcpStream>>,
    pub(super) received_bytes: AtomicU64,
    /// It waits until this machine takes an object.
    pub(super) is_taking: AtomicBool,
}

/// The thread of a connection to a member.
pub(super) struct Transfer<'a> {
    pub(super) node: &'a Node,
    pub(super) want: &'a Want<'a>,
    pub(super) peer_bytes: &'a AtomicU64,
    pub(super) member: MemberId,
    pub(super) ordered: Receiver<Part>,
    pub(super) pulse: Arc<Pulse>,
    pub(super) events: Sender<Event>,
}

impl Transfer<'_> {
    /// Serves orders until there are no more, or the connection ends.
    pub(super) fn run(self, address: SocketAddr, number: u64) {
        let outcome = self.transfer(address);
        let event = match outcome {
            Err(Trouble::Fatal(error)) => Event::Fatal(error),
            Err(Trouble::Busy) => Event::Busy(self.member, number),
            Ok(()) | Err(Trouble::Connection) => Event::Ended(self.member, number),
        };
        let _ = self.events.send(event);
    }

    fn transfer(&self, address: SocketAddr) -> Outcome<()> {
        let (mut sender, mut receiver) =
            channel::connect(address, self.node.swarm(), self.node.transfer_key(), self.node.is_narrow())?;
        *self.pulse.stream.lock() = Some(sender.stream()?);
        // What was asked for and did not come, by batch.
        let mut expected: HashMap<u32, u32> = HashMap::new();
        loop {
            let mut order = match expected.is_empty() {
                true => Some(self.ordered.recv().map_err(|_| Trouble::Connection)?),
                false => self.ordered.try_recv().ok(),
            };
            while let Some(part) = order {
                *expected.entry(part.batch).or_default() |= part.mask;
                sender.put(Record::Get(part), &[])?;
                order = self.ordered.try_recv().ok();
            }
            sender.flush()?;
            match receiver.record()? {
                Record::Object { object, bytes } => {
                    let part = batch_of(object.into());
                    take_off(&mut expected, part)?;
                    let mut content = vec![0; self.length(object.into(), bytes)?];
                    for piece in content.chunks_mut(PIECE_BYTES) {
                        receiver.fill(piece)?;
                        self.pulse.received_bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
                    }
                    self.take(object.into(), content.into())?;
                }
                Record::Lacks(part) => {
                    take_off(&mut expected, part)?;
                    let _ = self.events.send(Event::Lacks(self.member, part));
                }
                Record::Busy => return Err(Trouble::Busy),
                Record::Get(_) => return Err(Trouble::Connection),
            }
        }
    }

    /// The length of an object that is about to come, if it is right.
    fn length(&self, object: u64, bytes: u32) -> Outcome<usize> {
        let right =
            self.want.taker.object(object).map_or(bytes <= OBJECT_BYTES_MAX, |known| known.len == bytes);
        if !right {
            let _ = self.events.send(Event::Arrived(Source::Member(self.member), object, false));
            return Err(Trouble::Connection);
        }
        Ok(bytes as usize)
    }

    fn take(&self, object: u64, content: Bytes) -> Outcome<()> {
        let length = content.len() as u64;
        self.pulse.is_taking.store(true, Ordering::Relaxed);
        let right = self.want.taker.take(object, content).map_err(Trouble::Fatal)?;
        self.pulse.is_taking.store(false, Ordering::Relaxed);
        if right {
            self.peer_bytes.fetch_add(length, Ordering::Relaxed);
            (self.want.arrived)(length);
        }
        let _ = self.events.send(Event::Arrived(Source::Member(self.member), object, right));
        if right { Ok(()) } else { Err(Trouble::Connection) }
    }
}

/// Removes objects from those that are expected. An error if they are not.
fn take_off(expected: &mut HashMap<u32, u32>, part: Part) -> Outcome<()> {
    let mask = expected.get_mut(&part.batch).ok_or(Trouble::Connection)?;
    if part.mask & !*mask != 0 {
        return Err(Trouble::Connection);
    }
    *mask &= !part.mask;
    if *mask == 0 {
        expected.remove(&part.batch);
    }
    Ok(())
}

/// Why a connection ends.
enum Trouble {
    /// The member failed, or sent what it should not.
    Connection,
    /// The member serves as many as it can.
    Busy,
    /// The pull cannot go on.
    Fatal(Error),
}

impl From<std::io::Error> for Trouble {
    fn from(_: std::io::Error) -> Self {
        Self::Connection
    }
}
