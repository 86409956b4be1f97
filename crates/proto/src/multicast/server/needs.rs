//! Processes what receivers report as missing.

use base::Instant;

use super::Server;
use crate::multicast::repair::repairs_max;
use crate::multicast::wire::header::ReceiverId;
use crate::multicast::wire::report::{Lacking, NeedBlocks, NeedSymbols, Report};

impl Server {
    /// Adds what a receiver is missing to what is pending. True if the server should send a STATUS at once, so that
    /// other receivers with the same need stay silent.
    pub(super) fn take_needs(&mut self, now: Instant, report: &Report, lacking: &Lacking) -> bool {
        // A forged packet may have raised the receiver's `seen` beyond what was sent.
        let seen = report.seen.min(self.sequence);
        let mut news = false;
        for need in &lacking.whole {
            for object in need.objects.first..need.objects.end() {
                // Heads and urgent objects go before what others wait for. So who gets them again pays for it.
                let is_first = need.urgent || object < self.config.shape.heads;
                let costs = is_first && self.schedule.ever_went_out(object);
                let may = !costs || self.has_credit(report.receiver);
                if !may && !need.urgent {
                    continue;
                }
                // What went out since the machine joined goes after what others want for the first time.
                let joined = self.members.joined_sequence(report.receiver);
                let is_again = self.schedule.last_pass(object).is_some_and(|first| first >= joined);
                let blocks = self.blocks(object);
                let fresh = match is_again {
                    true => self.schedule.ask_again(object, blocks, seen, need.cause),
                    false => self.schedule.ask(object, blocks, seen, need.cause),
                };
                self.statistics.merged += u64::from(!fresh);
                let urged = need.urgent && may && self.schedule.urge(object);
                if costs && (urged || fresh && !need.urgent) {
                    self.members.charge(report.receiver, self.blocks(object));
                }
                news |= fresh | urged;
            }
        }
        for need in &lacking.blocks {
            news |= self.take_block_needs(now, report.receiver, seen, need);
        }
        for need in &lacking.symbols {
            news |= self.take_symbol_needs(now, report.receiver, seen, need);
        }
        news
    }

    pub(super) fn take_block_needs(
        &mut self,
        now: Instant,
        receiver: ReceiverId,
        seen: u64,
        need: &NeedBlocks,
    ) -> bool {
        let (object, blocks) = (need.object, self.blocks(need.object));
        // The object was never sent or has no such block: another member has deceived this receiver by a forged
        // packet.
        let misled = !self.schedule.ever_went_out(object) || need.blocks().any(|block| block >= blocks);
        let mut news = misled && self.schedule.ask(object, blocks, seen, need.cause);
        if self.schedule.is_pending(object) {
            self.statistics.merged += u64::from(!news);
            return news;
        }
        let count = u32::try_from(need.blocks().count()).unwrap_or(u32::MAX);
        if self.is_coded(object) && !self.is_worth(now, receiver, object, count) {
            return false;
        }
        if !self.has_credit(receiver) {
            return news;
        }
        let mut added = 0;
        for block in need.blocks() {
            let is_new = self.schedule.has_passed(object, block, seen)
                && self.repairs.ask_block(object, blocks, block, seen, need.cause);
            added += u32::from(is_new);
        }
        self.members.charge(receiver, added);
        news |= added > 0;
        self.statistics.merged += u64::from(!news);
        news
    }

    /// Like [`Self::take_block_needs`]. Returns true only if a receiver was deceived: symbols are sent at once, and
    /// their *coming* field announces the rest, so no STATUS is needed.
    pub(super) fn take_symbol_needs(
        &mut self,
        now: Instant,
        receiver: ReceiverId,
        seen: u64,
        need: &NeedSymbols,
    ) -> bool {
        let mut news = false;
        for (object, &count) in (need.first..).zip(&need.counts).filter(|(_, count)| **count > 0) {
            let (blocks, count) = (self.blocks(object), u32::from(count));
            if !self.schedule.ever_went_out(object) || !self.is_coded(object) {
                news |= self.schedule.ask(object, blocks, seen, need.cause);
            }
            if self.schedule.is_pending(object)
                || !self.schedule.has_passed(object, blocks - 1, seen)
                || !self.is_worth(now, receiver, object, count)
                || !self.has_credit(receiver)
            {
                continue;
            }
            let added = self.repairs.ask_symbols(object, blocks, self.with_losses(count), seen, need.cause);
            if added > 0 {
                self.members.charge(receiver, added);
                self.proactive.asked(object, count, need.cause);
            }
            self.statistics.merged += u64::from(added == 0);
        }
        news
    }

    /// The number of symbols to send so that about `count` of them arrive at the present loss rate.
    pub(super) fn with_losses(&self, count: u32) -> u32 {
        let loss = u64::from(self.rate.loss_per_million().min(500_000));
        let more = (u64::from(count) * loss + (1_000_000 - loss) / 2) / (1_000_000 - loss);
        count + u32::try_from(more).unwrap_or(0)
    }

    /// Whether to repair now what this receiver is missing of an object. If a receiver loses much more than the
    /// others, its repairs would slow all of them down; so they wait until nothing else is wanted. Heads are exempt:
    /// they are few, and no receiver can begin without them.
    pub(super) fn is_worth(&mut self, now: Instant, receiver: ReceiverId, object: u64, count: u32) -> bool {
        let hearing = self.members.hearing(now);
        count <= repairs_max(self.blocks(object), self.rate.loss_per_million())
            || object < self.config.shape.heads
            || hearing <= 1
            || self.schedule.is_empty()
            || self
                .members
                .machine_of(receiver)
                .is_some_and(|machine| self.outliers.are_many(object, machine, hearing))
    }

    /// Whether the machine of `receiver` may have more repairs now. While there is nothing to send, they slow nobody,
    /// and nobody earns credit; but what is accepted then is sent before what others ask for next, so it is only one
    /// object.
    fn has_credit(&mut self, receiver: ReceiverId) -> bool {
        self.is_empty() || self.members.has_credit(receiver, self.sequence)
    }
}
