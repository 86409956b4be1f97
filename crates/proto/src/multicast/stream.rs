//! A receiver's view of the running stream: how far it is, what has had time to arrive, what was lost.

use base::{Duration, Instant};

use super::mutant::Mutant;
use super::packet::BlockHeader;
use super::status::Status;

/// Packets may overtake each other by so much before one counts as lost.
const REORDERING: Duration = Duration::from_millis(2);

/// Where the stream is.
#[derive(Debug)]
pub(super) struct Stream {
    heads: u64,
    /// All BLOCKs below this sequence have left the server. `None` until something was heard.
    sent: Option<u64>,
    /// All BLOCKs below this have had time to arrive, too.
    settled: u64,
    /// What `sent` was at some time, to become `settled`.
    mark: (Instant, u64),
    /// Sequence at which this receiver began to listen, and how many BLOCKs came since.
    joined_sequence: u64,
    arrived: u64,
    /// The cursor when this receiver began to listen, and now.
    joined_cursor: u64,
    cursor: u64,
    /// The cursor has come round since.
    wrapped: bool,
    /// The server said at this sequence that it has nothing left to send.
    idle_at: Option<u64>,
    mutant: Mutant,
}

impl Stream {
    pub(super) fn new(heads: u64, mutant: Mutant) -> Self {
        Self {
            heads,
            sent: None,
            settled: 0,
            mark: (Instant::ZERO, 0),
            joined_sequence: 0,
            arrived: 0,
            joined_cursor: heads,
            cursor: heads,
            wrapped: false,
            idle_at: None,
            mutant,
        }
    }

    /// Nothing was heard yet.
    pub(super) const fn is_unheard(&self) -> bool {
        self.sent.is_none()
    }

    /// A BLOCK came.
    pub(super) fn block(&mut self, now: Instant, header: &BlockHeader) {
        if self.sent.is_none() {
            self.begin(now, header.sequence, header.object);
        }
        self.arrived += 1;
        self.reach(now, header.sequence + 1);
        if !header.repair && header.object >= self.heads && header.sequence + 1 == self.sent.unwrap_or(0) {
            self.move_cursor(header.object);
        }
    }

    /// A STATUS came.
    pub(super) fn status(&mut self, now: Instant, status: &Status) {
        if self.sent.is_none() {
            self.begin(now, status.sequence, status.cursor);
        }
        if status.sequence < self.settled {
            // The server has not sent what has had time to arrive: another member lied about a sequence.
            (self.sent, self.settled, self.mark) =
                (Some(status.sequence), status.sequence, (now, status.sequence));
        }
        if self.sent.is_some_and(|sent| status.sequence >= sent) {
            self.move_cursor(status.cursor);
            self.idle_at = status.idle.then_some(status.sequence);
        }
        self.reach(now, status.sequence);
    }

    /// Lets time pass.
    pub(super) fn settle(&mut self, now: Instant) {
        let sent = self.sent.unwrap_or(0);
        if self.mutant.is(Mutant::ClaimsToHaveSeenMore) {
            self.settled = sent * 2;
        } else if now.since(self.mark.0) >= REORDERING {
            self.settled = self.mark.1;
            self.mark = (now, sent);
        }
    }

    /// All BLOCKs below this sequence have been sent and had time to arrive.
    pub(super) const fn settled(&self) -> u64 {
        self.settled
    }

    /// Whether the pass whose block 0 had sequence `first` can't go on: the server has nothing left to send, or has
    /// never been there.
    pub(super) fn is_over(&self, first: u64) -> bool {
        self.idle_at.is_some_and(|sequence| sequence == self.settled)
            || self.sent.is_none_or(|sent| first >= sent)
    }

    /// The sequence at which this receiver began to listen.
    pub(super) const fn joined_sequence(&self) -> u64 {
        self.joined_sequence
    }

    /// Where the server sends now.
    pub(super) const fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Whether the cursor has passed `object` since this receiver began to listen.
    pub(super) const fn went_by(&self, object: u64) -> bool {
        let behind = object < self.cursor;
        if self.wrapped {
            behind || object >= self.joined_cursor
        } else {
            behind && object >= self.joined_cursor
        }
    }

    /// BLOCKs that did not come although they had the time.
    pub(super) const fn lost(&self) -> u64 {
        self.settled.saturating_sub(self.joined_sequence).saturating_sub(self.arrived)
    }

    fn begin(&mut self, now: Instant, sequence: u64, cursor: u64) {
        (self.sent, self.settled, self.mark) = (Some(sequence), sequence, (now, sequence));
        (self.joined_sequence, self.joined_cursor) = (sequence, cursor.max(self.heads));
        self.cursor = self.joined_cursor;
    }

    fn reach(&mut self, now: Instant, sent: u64) {
        self.sent = self.sent.max(Some(sent));
        self.settle(now);
    }

    fn move_cursor(&mut self, cursor: u64) {
        self.wrapped |= cursor < self.cursor;
        self.cursor = cursor;
    }
}
