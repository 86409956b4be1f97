//! The machines behind the receivers of a session. A host may run several receivers, and a hostile one may pretend to
//! be many. So a machine has one vote on the rate, counts once, and has one credit for repairs, however many of its
//! receivers take part. Source: `formats/multicast.md`, section 6.

use std::collections::HashMap;

use base::{Duration, Instant};

use crate::multicast::wire::header::ReceiverId;

/// Where a receiver runs, as the driver knows it from the control connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineId(pub u32);

/// After this time without a report of the receiver that votes, another one of its machine takes over.
const VOTER_SILENT: Duration = Duration::from_secs(1);
/// Reports for the rate that come sooner after another one of the same machine do not count: a flood of them must not
/// crowd out those of others.
const VOTE_SPACING: Duration = Duration::from_millis(3);
/// A machine earns the repair of one block for this many blocks that the server sends; for one if it is alone.
const BLOCKS_PER_REPAIR: u64 = 8;
/// Most repairs that a machine may save up, in blocks, besides those of all heads.
const CREDIT_MAX: u64 = 2048;

/// Whether a report counts for the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vote {
    /// It counts.
    Counts,
    /// It counts from now on, in place of those of another receiver of the same machine.
    Replaces(ReceiverId),
    /// Another receiver of the same machine votes.
    No,
}

#[derive(Debug)]
struct Machine {
    /// Number of its receivers to which packets arrive, newcomers included.
    hearing: u32,
    /// The receiver that votes, and when a receiver of this machine last voted.
    voter: Option<ReceiverId>,
    voted_at: Option<Instant>,
    /// What its repairs may cost, in parts of a block: `BLOCKS_PER_REPAIR` of them are one block. It is negative after
    /// a large repair. It grew until `earned_at`, a sequence.
    credit: i64,
    earned_at: u64,
    /// The sequence of the next BLOCK when it joined.
    joined_sequence: u64,
}

/// See the module. Machines stay known until the session ends, so that leaving renews no credit.
#[derive(Debug)]
pub(super) struct Machines {
    list: HashMap<MachineId, Machine>,
    /// How many of them hear the session.
    hearing: u32,
    credit_max: i64,
}

impl Machines {
    /// No machines, in a session whose heads have `heads_blocks` blocks together: a receiver may need all of them
    /// again.
    pub(super) fn new(heads_blocks: u64) -> Self {
        let credit_max = (CREDIT_MAX + heads_blocks).saturating_mul(BLOCKS_PER_REPAIR);
        let credit_max = i64::try_from(credit_max).unwrap_or(i64::MAX / 2);
        Self { list: HashMap::new(), hearing: 0, credit_max }
    }

    /// Number of machines that hear the session.
    pub(super) const fn hearing(&self) -> u32 {
        self.hearing
    }

    /// A receiver of `machine` was admitted when the next BLOCK had this sequence. Only the first one counts.
    pub(super) fn joins(&mut self, machine: MachineId, sequence: u64) {
        if !self.list.contains_key(&machine) {
            self.entry(machine).joined_sequence = sequence;
        }
    }

    /// The sequence of the next BLOCK when `machine` joined; 0 if it is not known.
    pub(super) fn joined_sequence(&self, machine: MachineId) -> u64 {
        self.list.get(&machine).map_or(0, |machine| machine.joined_sequence)
    }

    /// One more receiver of `machine` hears the session.
    pub(super) fn hears(&mut self, machine: MachineId) {
        let machine = self.entry(machine);
        machine.hearing += 1;
        self.hearing += u32::from(machine.hearing == 1);
    }

    /// One receiver fewer of `machine` hears the session.
    pub(super) fn is_deaf(&mut self, machine: MachineId) {
        let machine = self.entry(machine);
        debug_assert!(machine.hearing > 0, "it was counted when it heard");
        machine.hearing = machine.hearing.saturating_sub(1);
        self.hearing -= u32::from(machine.hearing == 0);
    }

    /// `receiver` of `machine` left, and votes no more. When it last voted still counts: who leaves and comes back
    /// again and again must not vote more often.
    pub(super) fn leaves(&mut self, machine: MachineId, receiver: ReceiverId) {
        let machine = self.entry(machine);
        machine.voter.take_if(|voter| *voter == receiver);
    }

    /// Whether a report of `receiver` of `machine` counts for the rate.
    pub(super) fn vote(&mut self, now: Instant, machine: MachineId, receiver: ReceiverId) -> Vote {
        let machine = self.entry(machine);
        let other = machine.voter.filter(|&voter| voter != receiver);
        let pause = if other.is_some() { VOTER_SILENT } else { VOTE_SPACING };
        if machine.voted_at.is_some_and(|at| now.since(at) < pause) {
            return Vote::No;
        }
        (machine.voter, machine.voted_at) = (Some(receiver), Some(now));
        other.map_or(Vote::Counts, Vote::Replaces)
    }

    /// Whether `machine` has credit for repairs when the next BLOCK has this sequence.
    pub(super) fn has_credit(&mut self, machine: MachineId, sequence: u64) -> bool {
        let credit_max = self.credit_max;
        let machine = self.entry(machine);
        let earned = sequence.saturating_sub(machine.earned_at);
        machine.credit = machine.credit.saturating_add_unsigned(earned).min(credit_max);
        machine.earned_at = sequence;
        machine.credit >= BLOCKS_PER_REPAIR.cast_signed()
    }

    /// `machine` pays for repairs of `blocks` blocks.
    pub(super) fn charge(&mut self, machine: MachineId, blocks: u32) {
        let price = if self.hearing <= 1 { 1 } else { BLOCKS_PER_REPAIR };
        let machine = self.entry(machine);
        machine.credit = machine.credit.saturating_sub_unsigned(u64::from(blocks) * price);
    }

    fn entry(&mut self, machine: MachineId) -> &mut Machine {
        let credit = self.credit_max;
        let new =
            Machine { hearing: 0, voter: None, voted_at: None, credit, earned_at: 0, joined_sequence: 0 };
        self.list.entry(machine).or_insert(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: MachineId = MachineId(1);

    #[test]
    fn a_machine_counts_once() {
        let mut machines = Machines::new(0);
        [ONE, ONE, MachineId(2)].into_iter().for_each(|machine| machines.hears(machine));
        assert_eq!(machines.hearing(), 2);
        machines.is_deaf(ONE);
        assert_eq!(machines.hearing(), 2);
        machines.is_deaf(ONE);
        assert_eq!(machines.hearing(), 1);
    }

    #[test]
    fn one_receiver_of_a_machine_votes_until_it_is_silent_or_leaves() {
        let mut machines = Machines::new(0);
        let at = |milliseconds: u64| Instant(milliseconds * 1_000_000);
        let (first, second) = (ReceiverId(1), ReceiverId(2));
        assert_eq!(machines.vote(at(0), ONE, first), Vote::Counts);
        assert_eq!(machines.vote(at(1), ONE, second), Vote::No);
        assert_eq!(machines.vote(at(2), MachineId(2), ReceiverId(3)), Vote::Counts);
        assert_eq!(machines.vote(at(2), ONE, first), Vote::No, "too soon");
        assert_eq!(machines.vote(at(900), ONE, first), Vote::Counts);
        assert_eq!(machines.vote(at(1899), ONE, second), Vote::No);
        assert_eq!(machines.vote(at(1900), ONE, second), Vote::Replaces(first));
        machines.leaves(ONE, second);
        assert_eq!(machines.vote(at(1901), ONE, first), Vote::No, "leaving makes no vote come sooner");
        assert_eq!(machines.vote(at(1903), ONE, first), Vote::Counts);
    }

    #[test]
    fn repairs_cost_what_the_stream_earns() {
        let mut machines = Machines::new(10);
        [ONE, MachineId(2)].into_iter().for_each(|machine| machines.hears(machine));
        machines.charge(ONE, 2057);
        assert!(machines.has_credit(ONE, 0));
        machines.charge(ONE, 1);
        assert!(!machines.has_credit(ONE, 0) && !machines.has_credit(ONE, 7) && machines.has_credit(ONE, 8));
        assert!(machines.has_credit(MachineId(2), 8), "each machine has its own");
        assert!(machines.has_credit(ONE, 1 << 40));
        machines.charge(ONE, 2058 + 100);
        assert!(
            !machines.has_credit(ONE, (1 << 40) + 807),
            "it is bounded, and what was too much is paid later"
        );
        assert!(machines.has_credit(ONE, (1 << 40) + 808));
        machines.is_deaf(MachineId(2));
        machines.charge(ONE, 100);
        assert!(!machines.has_credit(ONE, (1 << 40) + 907) && machines.has_credit(ONE, (1 << 40) + 908));
    }
}
