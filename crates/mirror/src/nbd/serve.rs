//! Executes requests that may have to wait, on a thread of their own while others go on: it calls the disk and sends
//! the reply.

use std::io;

use base::{Error, ErrorKind, Result};

use crate::nbd::context::Context;
use crate::nbd::event::{Event, Log};
use crate::nbd::handshake::Session;
use crate::nbd::reply;
use crate::nbd::request::{Code, Command, Cookie, Range, Request};
use crate::nbd::transport::Transport;
use crate::{Durability, StatusRun};

/// The disk is read and written in pieces of at most this many bytes, which limits the memory of a request.
pub(super) const PIECE_BYTES: u32 = 1 << 20;
/// Reads of at least this many bytes look for holes first.
const SPARSE_BYTES_MIN: u32 = 32 << 10;
/// Maximum number of runs that a read asks for; bytes after the last run are read as data.
const READ_RUNS_MAX: usize = 64;
/// Maximum number of runs in a block status reply; clients ask again for the rest.
const STATUS_RUNS_MAX: usize = 4096;

/// A request that a thread executes.
pub(super) enum Job {
    /// A request without payload.
    Request(Request),
    /// The last piece of a write. Its bytes are at the front of the thread's memory.
    Write {
        /// The identifier of the request.
        cookie: Cookie,
        /// The range of the piece.
        range: Range,
        /// The durability that the whole request wants.
        durability: Durability,
        /// The result of the pieces before, if there were any.
        earlier: Option<Result<()>>,
    },
}

/// The buffer of a thread. It grows up to one piece and the head of its reply.
#[derive(Default)]
pub(super) struct Memory(Vec<u8>);

impl Memory {
    /// Its first `count` bytes, with undefined content.
    pub(super) fn room(&mut self, count: usize) -> &mut [u8] {
        if self.0.len() < count {
            self.0.resize(count, 0);
        }
        &mut self.0[..count]
    }
}

/// What the threads of a connection need to execute requests.
pub(super) struct Service {
    /// The connection to the client.
    pub transport: std::sync::Arc<Transport>,
    /// What was negotiated.
    pub session: Session,
    /// Where failures are logged.
    pub log: Log,
}

impl Service {
    /// Executes a job and replies. An error means that the connection failed.
    pub(super) fn perform(&self, job: Job, memory: &mut Memory) -> io::Result<()> {
        let disk = &self.session.disk;
        let (cookie, command) = match job {
            Job::Request(Request { cookie, command }) => (cookie, command),
            Job::Write { cookie, range, durability, earlier } => {
                let done = self.write(range, durability, earlier, memory);
                return self.reply_to(cookie, done);
            }
        };
        let done = match command {
            Command::Read { range, whole } if whole || !self.session.rules.structured => {
                return self.read_whole(cookie, range, memory);
            }
            Command::Read { range, .. } => return self.read_sparse(cookie, range, memory),
            Command::Status { range, one } => return self.status(cookie, range, one),
            Command::Flush => disk.flush(),
            Command::Discard { range, durability } => {
                disk.discard(range.offset, range.bytes.into(), durability)
            }
            Command::WriteZeroes { range, space, durability } => {
                disk.write_zeroes(range.offset, range.bytes.into(), space, durability)
            }
            Command::Cache { range } => {
                pieces(range).try_for_each(|piece| disk.read(piece.offset, memory.room(piece.bytes as usize)))
            }
            Command::Write { .. } | Command::Disconnect => unreachable!("no jobs of this shape"),
        };
        self.reply_to(cookie, done)
    }

    /// The bytes of an error reply.
    pub(super) fn refusal(&self, cookie: Cookie, code: Code, words: &str) -> Vec<u8> {
        if !self.session.rules.structured {
            return reply::simple(cookie, Some(code)).into();
        }
        let mut bytes = Vec::new();
        reply::error(&mut bytes, cookie, code, words);
        bytes
    }

    fn write(
        &self,
        range: Range,
        durability: Durability,
        earlier: Option<Result<()>>,
        memory: &mut Memory,
    ) -> Result<()> {
        let (disk, bytes) = (&self.session.disk, memory.room(range.bytes as usize));
        let Some(earlier) = earlier else { return disk.write(range.offset, bytes, durability) };
        earlier?;
        disk.write(range.offset, bytes, Durability::Cached)?;
        // The earlier pieces were written as `Cached`, so only a flush makes all of them durable.
        if durability == Durability::Durable { disk.flush() } else { Ok(()) }
    }

    fn reply_to(&self, cookie: Cookie, done: Result<()>) -> io::Result<()> {
        match done {
            Ok(()) => self.transport.turn().send(&reply::simple(cookie, None)),
            Err(error) => self.fail(cookie, &error),
        }
    }

    fn fail(&self, cookie: Cookie, error: &Error) -> io::Result<()> {
        let words = base::chain(error);
        let reply = self.refusal(cookie, error.kind().into(), &words);
        self.transport.turn().send(&reply)?;
        if error.kind() != ErrorKind::Refused {
            (self.log)(&Event::Failed { export: self.session.name.clone(), error: words });
        }
        Ok(())
    }

    /// Replies with one head and then all bytes. After the head was sent, an error can only be reported by ending
    /// the connection.
    fn read_whole(&self, cookie: Cookie, range: Range, memory: &mut Memory) -> io::Result<()> {
        let structured = self.session.rules.structured;
        if structured && range.bytes > PIECE_BYTES {
            let reply = self.refusal(cookie, Code::Overflow, "too long for one chunk");
            return self.transport.turn().send(&reply);
        }
        let (data, simple) =
            (reply::data(cookie, range.offset, range.bytes, true), reply::simple(cookie, None));
        let head = if structured { &data[..] } else { &simple[..] };
        let (mut turn, mut head) = (None, head);
        for piece in pieces(range) {
            let room = memory.room(head.len() + piece.bytes as usize);
            room[..head.len()].copy_from_slice(head);
            match self.session.disk.read(piece.offset, &mut room[head.len()..]) {
                Ok(()) => turn.get_or_insert_with(|| self.transport.turn()).send(room)?,
                Err(error) if turn.is_none() => return self.fail(cookie, &error),
                Err(error) => return Err(io::Error::other(error)),
            }
            head = &[];
        }
        Ok(())
    }

    /// Replies with one chunk for each piece of data and each hole. Other replies may be sent between them.
    fn read_sparse(&self, cookie: Cookie, range: Range, memory: &mut Memory) -> io::Result<()> {
        let end = range.offset + u64::from(range.bytes);
        let mut at = range.offset;
        for (bytes, zero) in self.zeros(range) {
            if zero {
                let mut reply = Vec::new();
                reply::hole(&mut reply, cookie, at, bytes, at + u64::from(bytes) == end);
                self.transport.turn().send(&reply)?;
            } else {
                for piece in pieces(Range { offset: at, bytes }) {
                    let last = piece.offset + u64::from(piece.bytes) == end;
                    let room = memory.room(reply::DATA_BYTES + piece.bytes as usize);
                    let (head, data) = room.split_at_mut(reply::DATA_BYTES);
                    head.copy_from_slice(&reply::data(cookie, piece.offset, piece.bytes, last));
                    if let Err(error) = self.session.disk.read(piece.offset, data) {
                        return self.fail(cookie, &error);
                    }
                    self.transport.turn().send(room)?;
                }
            }
            at += u64::from(bytes);
        }
        Ok(())
    }

    /// The lengths of the range's runs in bytes, and whether they are known to be zeros.
    fn zeros(&self, range: Range) -> Vec<(u32, bool)> {
        let mut runs = Vec::new();
        if range.bytes >= SPARSE_BYTES_MIN {
            // If the status is not known, everything is read.
            runs =
                self.session.disk.status(range.offset, range.bytes.into(), READ_RUNS_MAX).unwrap_or_default();
        }
        let mut told: Vec<(u32, bool)> = Vec::new();
        let mut left = range.bytes;
        for StatusRun { bytes, status } in runs {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(left);
            join(&mut told, bytes, status.zero);
            left -= bytes;
        }
        join(&mut told, left, false);
        told
    }

    fn status(&self, cookie: Cookie, range: Range, one: bool) -> io::Result<()> {
        let runs_max = if one { 1 } else { STATUS_RUNS_MAX };
        let runs = match self.session.disk.status(range.offset, range.bytes.into(), runs_max) {
            Ok(runs) => runs,
            Err(error) => return self.fail(cookie, &error),
        };
        let mut bytes = Vec::new();
        let (last, others) = self.session.contexts.split_last().expect("status needs a context");
        let mut tell = |context: &Context, last| {
            reply::status(&mut bytes, cookie, *context, &context.tell(&runs), last);
        };
        others.iter().for_each(|context| tell(context, false));
        tell(last, true);
        self.transport.turn().send(&bytes)
    }
}

/// Splits a range into pieces of at most [`PIECE_BYTES`].
pub(super) fn pieces(range: Range) -> impl Iterator<Item = Range> {
    (0..range.bytes.div_ceil(PIECE_BYTES)).map(move |index| {
        let skip = index * PIECE_BYTES;
        Range { offset: range.offset + u64::from(skip), bytes: (range.bytes - skip).min(PIECE_BYTES) }
    })
}

fn join(told: &mut Vec<(u32, bool)>, bytes: u32, zero: bool) {
    match told.last_mut() {
        Some(last) if last.1 == zero => last.0 += bytes,
        _ if bytes > 0 => told.push((bytes, zero)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_their_range() {
        let range = Range { offset: 512, bytes: 2 * PIECE_BYTES + 4096 };
        let all: Vec<_> = pieces(range).collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[2], Range { offset: 512 + 2 * u64::from(PIECE_BYTES), bytes: 4096 });
        assert_eq!(pieces(Range { offset: 0, bytes: PIECE_BYTES }).count(), 1);
    }
}
