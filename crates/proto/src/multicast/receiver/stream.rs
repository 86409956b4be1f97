//! A receiver's view of the stream: which sequences were sent, which had time to arrive, and how many were lost.

use base::{Duration, Instant};

use crate::multicast::wire::header::BlockHeader;
use crate::multicast::wire::status::Status;

/// A BLOCK counts as lost if it is this much later than a BLOCK that was sent after it.
const REORDERING: Duration = Duration::from_millis(2);

/// Where the stream is.
#[derive(Debug)]
pub(super) struct Stream {
    heads: u64,
    /// All BLOCKs below this sequence have been sent. `None` before the first packet.
    sent: Option<u64>,
    /// All BLOCKs below this sequence have been sent and had time to arrive.
    decided: u64,
    /// The value of `sent` at this time; it becomes `decided` after `REORDERING`.
    mark: (Instant, u64),
    /// Sequence at which this receiver began to listen, and the number of BLOCKs that arrived since.
    joined_sequence: u64,
    arrived: u64,
    /// The cursor when this receiver began to listen, and now.
    joined_cursor: u64,
    cursor: u64,
    /// The cursor has wrapped since.
    wrapped: bool,
    /// The sequence at which the server announced that it has nothing left to send.
    idle_at: Option<u64>,
}

impl Stream {
    pub(super) fn new(heads: u64) -> Self {
        Self {
            heads,
            sent: None,
            decided: 0,
            mark: (Instant::ZERO, 0),
            joined_sequence: 0,
            arrived: 0,
            joined_cursor: heads,
            cursor: heads,
            wrapped: false,
            idle_at: None,
        }
    }

    /// Whether no packet has arrived yet.
    pub(super) const fn is_unheard(&self) -> bool {
        self.sent.is_none()
    }

    /// A BLOCK arrived.
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

    /// A STATUS arrived.
    pub(super) fn status(&mut self, now: Instant, status: &Status) {
        if self.sent.is_none() {
            self.begin(now, status.sequence, status.cursor);
        }
        if status.sequence < self.decided {
            // The server has not sent blocks that counted as sent: another member forged a sequence. Start again from
            // here.
            (self.sent, self.decided, self.mark) =
                (Some(status.sequence), status.sequence, (now, status.sequence));
            self.joined_sequence = self.joined_sequence.min(status.sequence);
        }
        if self.sent.is_some_and(|sent| status.sequence >= sent) {
            self.move_cursor(status.cursor);
            self.idle_at = status.idle.then_some(status.sequence);
        }
        self.reach(now, status.sequence);
    }

    /// Advances `decided` if `REORDERING` has passed.
    pub(super) fn decide(&mut self, now: Instant) {
        if now.since(self.mark.0) >= REORDERING {
            debug_assert!(
                self.mark.1 <= self.sent.unwrap_or(0),
                "only what was sent can have had time to arrive"
            );
            self.decided = self.mark.1;
            self.mark = (now, self.sent.unwrap_or(0));
        }
    }

    /// All BLOCKs below this sequence have been sent and had time to arrive.
    pub(super) const fn decided(&self) -> u64 {
        self.decided
    }

    /// Whether the pass whose block 0 has sequence `first` cannot continue: the server has nothing left to send, or
    /// has not reached that sequence, which was forged.
    pub(super) fn is_over(&self, first: u64) -> bool {
        self.idle_at.is_some_and(|sequence| sequence == self.decided)
            || self.sent.is_none_or(|sent| first >= sent)
    }

    /// The sequence at which this receiver began to listen.
    pub(super) const fn joined_sequence(&self) -> u64 {
        self.joined_sequence
    }

    /// The object from which the server continues to send.
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

    /// All BLOCKs below this sequence have been sent; 0 before the first packet.
    pub(super) fn sent(&self) -> u64 {
        self.sent.unwrap_or(0)
    }

    /// Number of BLOCKs that arrived.
    pub(super) const fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Number of BLOCKs that did not arrive although they had time to.
    pub(super) const fn lost(&self) -> u64 {
        self.decided.saturating_sub(self.joined_sequence).saturating_sub(self.arrived)
    }

    fn begin(&mut self, now: Instant, sequence: u64, cursor: u64) {
        (self.sent, self.decided, self.mark) = (Some(sequence), sequence, (now, sequence));
        (self.joined_sequence, self.joined_cursor) = (sequence, cursor.max(self.heads));
        self.cursor = self.joined_cursor;
    }

    fn reach(&mut self, now: Instant, sent: u64) {
        self.sent = self.sent.max(Some(sent));
        self.decide(now);
    }

    fn move_cursor(&mut self, cursor: u64) {
        self.wrapped |= cursor < self.cursor;
        self.cursor = cursor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(sequence: u64) -> Status {
        Status {
            sequence,
            timestamp_us: 0,
            cursor: 10,
            idle: false,
            queue: None,
            receivers: 1,
            report_interval: Duration::ZERO,
            echo: None,
            pending: Vec::new(),
            repairs: Vec::new(),
        }
    }

    fn at(milliseconds: u64) -> Instant {
        Instant(milliseconds * 1_000_000)
    }

    #[test]
    fn a_packet_counts_as_lost_only_after_it_had_time_to_be_overtaken() {
        let mut stream = Stream::new(0);
        stream.status(at(0), &status(5));
        stream.status(at(1), &status(9));
        assert_eq!(stream.decided(), 5);
        stream.decide(at(2));
        assert_eq!(stream.decided(), 5);
        stream.decide(at(4));
        assert_eq!((stream.decided(), stream.lost()), (9, 4));
    }

    #[test]
    fn the_server_knows_best_what_it_has_sent() {
        let mut stream = Stream::new(0);
        stream.status(at(0), &status(5));
        stream.status(at(1), &status(1 << 40));
        stream.decide(at(10));
        stream.decide(at(20));
        assert_eq!(stream.decided(), 1 << 40);
        stream.status(at(21), &status(6));
        assert_eq!(stream.decided(), 6);
        assert!(stream.is_over(1 << 39) && !stream.is_over(4));
    }

    #[test]
    fn what_went_by_is_told_from_what_never_did() {
        let mut stream = Stream::new(0);
        let mut status = status(0);
        (10..100).step_by(10).chain([0]).for_each(|cursor| {
            status.cursor = cursor;
            status.sequence += 1;
            stream.status(at(0), &status);
            assert_eq!(stream.went_by(15), cursor > 15 || cursor == 0, "cursor {cursor}");
            assert!(!stream.went_by(5), "cursor {cursor}");
        });
    }
}
