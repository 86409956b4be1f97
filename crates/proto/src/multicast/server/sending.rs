//! Chooses the next blocks and symbols to send.

use base::Instant;

use super::{
    HEADS_AHEAD_MAX, Pass, Piece, REPAIRS_IN_ROW_MAX, REPORTS_MISSED_MAX, Server, UNANSWERED, UNHEARD_BLOCKS,
    header_wire_bytes, packet_wire_bytes,
};
use crate::multicast::bits::index;
use crate::multicast::clock::micros;
use crate::multicast::server::cache::Place;
use crate::multicast::server::event::Run;
use crate::multicast::wire::header::{BlockHeader, COMING_MAX};

impl Server {
    /// Has the driver load the objects that will be sent next.
    pub(super) fn plan(&mut self) {
        while self.cache.has_room_ahead()
            || self.schedule.hurries_heads(HEADS_AHEAD_MAX)
            || self.schedule.fronts() == (None, None)
        {
            let Some(object) = self.schedule.plan() else { break };
            // Even with a full cache the first object of a plan is loaded; otherwise nothing could be sent.
            self.cache.pin(object, self.config.object_bytes[index(object)].into(), &mut self.events);
        }
        while self.cache.has_room_ahead() || self.repairs.front().is_none() {
            let Some(object) = self.repairs.plan() else { break };
            self.cache.pin(object, self.config.object_bytes[index(object)].into(), &mut self.events);
        }
    }

    /// Whether blocks are held back, since they arrive nowhere, or nobody can say so: what is sent on would only fill
    /// the network, which others need.
    pub(super) fn is_muted(&mut self, now: Instant) -> bool {
        if self.members.hearing(now) > 0 {
            self.heard_sequence = self.sequence;
        }
        let patience = UNANSWERED.max(self.report_interval * REPORTS_MISSED_MAX);
        let is_answered = self.last_report.is_none_or(|(.., at)| now.since(at) <= patience);
        self.muted = self.sequence - self.heard_sequence >= UNHEARD_BLOCKS || !is_answered;
        self.muted
    }

    /// The next run, in this order: heads and urgent objects that were never sent; repairs; heads and urgent objects
    /// that are sent again; other objects. An object that is not in memory does not hold up the others. A pass that
    /// began is always completed first, so that its blocks have consecutive sequences.
    pub(super) fn next_run(&mut self, now: Instant) -> Option<Run> {
        loop {
            if self.pass.is_some() {
                return Some(self.run_of_pass(now));
            }
            let (head, data) = self.schedule.fronts();
            let head = head.filter(|_| now >= self.gather.heads_from());
            let data = data.filter(|_| now >= self.gather.others_from());
            let repair = self.repairs.front();
            let ready =
                |object: Option<u64>| object.filter(|&object| self.cache.place(object) != Place::Loading);
            // A receiver whose buffer was full requests a head again. Repairs let receivers free their buffers, so
            // they go first.
            let crowded = self.repairs_in_row >= REPAIRS_IN_ROW_MAX;
            let waits = |object: u64| ready(repair).is_some() && self.schedule.ever_went_out(object);
            if let Some(object) = ready(head).filter(|&object| crowded || !waits(object)) {
                self.begin_pass(object);
            } else if let Some(object) = ready(repair).filter(|_| !crowded || ready(data).is_none()) {
                if let Some(run) = self.run_of_repair(now, object) {
                    self.repairs_in_row = self.repairs_in_row.saturating_add(run.count.into());
                    return Some(run);
                }
            } else {
                self.begin_pass(ready(data)?);
            }
        }
    }

    /// Removes an object from the plan, and begins a pass over it if it is in memory.
    pub(super) fn begin_pass(&mut self, object: u64) {
        debug_assert!(self.pass.is_none(), "a pass is completed before the next one begins");
        self.repairs_in_row = 0;
        self.schedule.take(object);
        if self.cache.place(object) == Place::Ready {
            self.gather.goes(object < self.config.shape.heads);
            self.repairs.supersede(object);
            self.outliers.forget(object);
            let again = self.schedule.begin_pass(object, self.sequence);
            let ahead = if self.is_coded(object) { self.proactive.symbols(self.blocks(object)) } else { 0 };
            self.pass = Some(Pass { object, next_block: 0, again, ahead, ahead_left: ahead });
        }
        self.plan();
    }

    pub(super) fn run_of_pass(&mut self, now: Instant) -> Run {
        let mut pass = self.pass.take().expect("called within a pass");
        let blocks = self.blocks(pass.object);
        let most = self.run_blocks_max();
        let run = if pass.next_block < blocks {
            let count = (blocks - pass.next_block).min(most.into());
            let (object, first, again) = (pass.object, pass.next_block, pass.again);
            pass.next_block += count;
            self.run(now, Piece { object, first, count, again, repair: false, coming: pass.ahead.into() })
        } else {
            let wanted = u32::from(pass.ahead_left).min(most.into());
            let (first, count) = self.repairs.take_symbols(pass.object, blocks, wanted, self.sequence);
            pass.ahead_left -= u8::try_from(count).expect("no more than wanted");
            self.statistics.symbols_ahead += u64::from(count);
            let coming = u32::from(pass.ahead_left) + u32::from(count) - 1;
            let (object, count) = (pass.object, count.into());
            self.run(now, Piece { object, first, count, again: None, repair: true, coming })
        };
        if pass.next_block == blocks && pass.ahead_left == 0 {
            if self.is_coded(pass.object) {
                self.proactive.passed(now, pass.object, pass.ahead);
            }
            self.cache.unpin(pass.object);
            self.plan();
        } else {
            self.pass = Some(pass);
        }
        run
    }

    pub(super) fn run_of_repair(&mut self, now: Instant, object: u64) -> Option<Run> {
        let absent = self.cache.place(object) == Place::Absent;
        let (blocks, most) = (self.blocks(object), self.run_blocks_max());
        let taken = if absent { None } else { self.repairs.take_run(blocks, most, self.sequence) };
        let done = taken.as_ref().is_none_or(|run| run.done);
        let run = taken.map(|run| {
            let (first, count, again) = (run.first, u32::from(run.count), Some(run.cause));
            let coming = if first >= blocks { run.more + count - 1 } else { 0 };
            self.run(now, Piece { object, first, count, again, repair: true, coming })
        });
        if run.is_none() {
            self.repairs.drop_front();
        }
        if done {
            self.cache.unpin(object);
            self.plan();
        }
        run
    }

    /// Accounts for a piece as sent at `now`, and returns its headers.
    pub(super) fn run(&mut self, now: Instant, piece: Piece) -> Run {
        let shape = self.config.shape;
        let Piece { object, first, count, .. } = piece;
        debug_assert!((1..=u32::from(self.run_blocks_max())).contains(&count), "a run of {count} packets");
        debug_assert_eq!(self.cache.place(object), Place::Ready, "only objects in memory are sent");
        let object_bytes = self.config.object_bytes[index(object)];
        let first_header = BlockHeader {
            sequence: self.sequence,
            timestamp_us: micros(now),
            object,
            block: u16::try_from(first).expect("OBJECT_BLOCKS_MAX"),
            object_bytes,
            repair: piece.repair,
            coming: u8::try_from(piece.coming).unwrap_or(u8::MAX).min(COMING_MAX),
        };
        let block_bytes = u32::from(shape.block_bytes);
        let is_symbols = first_header.symbol(&shape).is_some();
        let payload = if is_symbols {
            u64::from(count * block_bytes)
        } else {
            let end = (first + count) * block_bytes;
            u64::from(end.min(object_bytes) - (first * block_bytes).min(object_bytes))
        };
        self.rate.sent(now, payload + header_wire_bytes(&self.config) * u64::from(count));
        self.sequence += u64::from(count);
        self.statistics.blocks_sent += u64::from(count);
        self.statistics.symbols_sent += if is_symbols { count.into() } else { 0 };
        self.statistics.bytes_sent += payload;
        if let Some(cause) = piece.again {
            self.statistics.resent.book(cause, count.into());
        }
        Run { first: first_header, count: u16::try_from(count).expect("at most run_blocks_max") }
    }

    /// Most blocks of one run, such that a switch can buffer it at the present rate.
    pub(super) fn run_blocks_max(&self) -> u16 {
        self.rate.run_blocks_max(packet_wire_bytes(&self.config), self.config.run_blocks_max)
    }
}
