//! The receivers of a session and their machines, for statistics, for the report interval, and for the number of
//! reports that the search for the rate waits for. Which objects are sent does not depend on this list.
//!
//! A host may be admitted and never send a report, or send reports and never hear a packet. Such hosts count only for
//! [`NEWCOMER`] after they joined, so that the others do not wait for them.

use std::collections::{BTreeMap, HashMap, VecDeque};

use base::limits::SESSION_RECEIVERS_MAX;
use base::{Duration, Instant};

use crate::multicast::server::machines::{MachineId, Machines, Vote};
use crate::multicast::stats::ReceiverStatistics;
use crate::multicast::wire::header::ReceiverId;
use crate::multicast::wire::report::{ReceiverCounters, Report};

/// For this time a receiver counts although it has reported nothing, or no block that arrived.
const NEWCOMER: Duration = Duration::from_millis(150);

#[derive(Debug)]
struct Member {
    machine: MachineId,
    joined: Instant,
    /// The sequence of the next BLOCK when it was admitted; none if it came back by itself.
    sequence: Option<u64>,
    heard: Instant,
    /// Value of [`Members::concurrent`] when it joined.
    concurrent_before: Duration,
    reports: u64,
    counters: ReceiverCounters,
    /// It is no newcomer any more.
    settled: bool,
    /// Number of requests that were ignored because its machine had no credit left.
    overdrawn: u64,
}

impl Member {
    /// It has never reported anything, for too long.
    fn is_silent(&self) -> bool {
        self.settled && self.reports == 0
    }

    /// It has never reported a block that arrived, for too long.
    fn is_deaf(&self) -> bool {
        self.settled && self.counters.blocks_arrived == 0
    }
}

/// The receivers of a session.
#[derive(Debug)]
pub(super) struct Members {
    timeout: Duration,
    list: BTreeMap<ReceiverId, Member>,
    /// Members that joined less than `NEWCOMER` ago, and some that left since, the oldest first.
    newcomers: VecDeque<(Instant, ReceiverId)>,
    /// How many members are silent.
    silent: u32,
    machines: Machines,
    /// The machine of everyone who was ever admitted, `SESSION_RECEIVERS_MAX` at most. Who leaves and comes back would
    /// otherwise be a machine of its own, with a vote and a credit of its own.
    homes: HashMap<ReceiverId, MachineId>,
    total: u64,
    /// Total time during which the session had at least two receivers, up to `changed`.
    concurrent: Duration,
    changed: Instant,
    /// When to look for silent receivers.
    look_at: Instant,
}

impl Members {
    /// No receivers, in a session whose heads have `heads_blocks` blocks together.
    pub(super) fn new(timeout: Duration, heads_blocks: u64) -> Self {
        let (zero, list) = (Instant::ZERO, BTreeMap::new());
        Self {
            timeout,
            list,
            newcomers: VecDeque::new(),
            silent: 0,
            machines: Machines::new(heads_blocks),
            homes: HashMap::new(),
            total: 0,
            concurrent: Duration::ZERO,
            changed: zero,
            look_at: zero,
        }
    }

    /// Number of receivers that report, newcomers included: those that the report interval is for.
    pub(super) fn reporting(&mut self, now: Instant) -> u32 {
        self.age(now);
        self.count() - self.silent
    }

    /// Number of machines with receivers to which packets arrive, newcomers included.
    pub(super) fn hearing(&mut self, now: Instant) -> u32 {
        self.age(now);
        self.machines.hearing()
    }

    /// The machine of a member.
    pub(super) fn machine_of(&self, receiver: ReceiverId) -> Option<MachineId> {
        self.list.get(&receiver).map(|member| member.machine)
    }

    /// Whether a report of `receiver` counts for the rate. One that is not counted as a member does not.
    pub(super) fn vote(&mut self, now: Instant, receiver: ReceiverId) -> Vote {
        match self.machine_of(receiver) {
            Some(machine) => self.machines.vote(now, machine, receiver),
            None => Vote::No,
        }
    }

    /// Whether the machine of `receiver` has credit for repairs when the next BLOCK has this sequence.
    pub(super) fn has_credit(&mut self, receiver: ReceiverId, sequence: u64) -> bool {
        let Some(member) = self.list.get_mut(&receiver) else { return false };
        let has_credit = self.machines.has_credit(member.machine, sequence);
        member.overdrawn += u64::from(!has_credit);
        has_credit
    }

    /// The sequence of the next BLOCK when the first receiver of the machine of `receiver` was admitted; 0 if it is not
    /// known.
    pub(super) fn joined_sequence(&self, receiver: ReceiverId) -> u64 {
        self.machine_of(receiver).map_or(0, |machine| self.machines.joined_sequence(machine))
    }

    /// The machine of `receiver` pays for repairs of `blocks` blocks.
    pub(super) fn charge(&mut self, receiver: ReceiverId, blocks: u32) {
        if let Some(machine) = self.machine_of(receiver) {
            self.machines.charge(machine, blocks);
        }
    }

    /// Ends the time of newcomers.
    fn age(&mut self, now: Instant) {
        while let Some(&(joined, receiver)) = self.newcomers.front() {
            if now.since(joined) < NEWCOMER {
                return;
            }
            self.newcomers.pop_front();
            if let Some(member) = self.list.get_mut(&receiver)
                && !std::mem::replace(&mut member.settled, true)
            {
                self.silent += u32::from(member.is_silent());
                if member.is_deaf() {
                    self.machines.is_deaf(member.machine);
                }
            }
        }
    }

    /// Number of receivers now.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.list.len()).expect("SESSION_RECEIVERS_MAX")
    }

    /// Number of receivers that ever joined.
    pub(super) const fn total(&self) -> u64 {
        self.total
    }

    /// Sets how long a receiver may be silent before [`Self::expire`] removes it.
    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Adds a receiver of `machine` that was admitted but has sent nothing yet; true if it is new.
    /// Its first packet has this sequence, or a later one. If `SESSION_RECEIVERS_MAX` receivers were admitted before
    /// it, it is served but not counted.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        receiver: ReceiverId,
        machine: MachineId,
        sequence: u64,
    ) -> bool {
        if self.homes.len() == SESSION_RECEIVERS_MAX && !self.homes.contains_key(&receiver) {
            return false;
        }
        self.machines.joins(machine, sequence);
        let machine = *self.homes.entry(receiver).or_insert(machine);
        let known = self.list.contains_key(&receiver);
        self.enter(now, receiver, machine).sequence.get_or_insert(sequence);
        !known
    }

    /// The sequence of the next BLOCK when the first of the present members was admitted.
    pub(super) fn oldest_sequence(&self) -> Option<u64> {
        self.list.values().filter_map(|member| member.sequence).min()
    }

    /// Notes a report; true if its sender is new, or had left. The report of a receiver that does not count changes
    /// nothing here.
    pub(super) fn hear(&mut self, now: Instant, report: &Report) -> bool {
        let Some(&machine) = self.homes.get(&report.receiver) else { return false };
        let known = self.list.contains_key(&report.receiver);
        let member = self.enter(now, report.receiver, machine);
        let (silent, deaf) = (member.is_silent(), member.is_deaf());
        (member.heard, member.counters) = (now, report.counters);
        member.reports += 1;
        let (is_deaf, machine) = (member.is_deaf(), member.machine);
        self.silent -= u32::from(silent);
        self.changes(machine, deaf, is_deaf);
        !known
    }

    /// Counts a member of `machine` that was and is deaf, or not.
    fn changes(&mut self, machine: MachineId, was_deaf: bool, is_deaf: bool) {
        match (was_deaf, is_deaf) {
            (true, false) => self.machines.hears(machine),
            (false, true) => self.machines.is_deaf(machine),
            _ => {}
        }
    }

    fn enter(&mut self, now: Instant, receiver: ReceiverId, machine: MachineId) -> &mut Member {
        if !self.list.contains_key(&receiver) {
            self.tick(now);
            self.total += 1;
            self.newcomers.push_back((now, receiver));
            debug_assert!(self.list.len() as u64 <= self.total, "every receiver was counted when it joined");
            if self.list.is_empty() {
                self.look_at = now + self.timeout;
            }
            self.machines.hears(machine);
        }
        let concurrent_before = self.concurrent;
        self.list.entry(receiver).or_insert_with(|| Member {
            machine,
            joined: now,
            sequence: None,
            heard: now,
            concurrent_before,
            reports: 0,
            counters: ReceiverCounters::default(),
            settled: false,
            overdrawn: 0,
        })
    }

    /// Removes the sender of a LEAVE.
    pub(super) fn leave(&mut self, now: Instant, report: &Report) -> Option<ReceiverStatistics> {
        let member = self.list.get_mut(&report.receiver)?;
        let was_deaf = member.is_deaf();
        member.counters = report.counters;
        let (machine, is_deaf) = (member.machine, member.is_deaf());
        self.changes(machine, was_deaf, is_deaf);
        self.take_out(now, report.receiver)
    }

    /// When to call [`Self::expire`].
    pub(super) fn expires_at(&self) -> Option<Instant> {
        (!self.list.is_empty()).then_some(self.look_at)
    }

    /// Removes one receiver that was silent for longer than the timeout. Call it until it returns `None`.
    pub(super) fn expire(&mut self, now: Instant) -> Option<ReceiverStatistics> {
        if self.expires_at().is_none_or(|at| now < at) {
            return None;
        }
        let silent = self.list.iter().find(|(_, member)| now.since(member.heard) >= self.timeout);
        let silent = silent.map(|(&receiver, _)| receiver);
        if silent.is_none() {
            self.look_at = now + self.timeout / 4;
        }
        self.take_out(now, silent?)
    }

    /// The statistics of all receivers.
    pub(super) fn statistics(&self, now: Instant) -> Vec<ReceiverStatistics> {
        self.list.iter().map(|(&receiver, member)| self.show(now, receiver, member)).collect()
    }

    fn take_out(&mut self, now: Instant, receiver: ReceiverId) -> Option<ReceiverStatistics> {
        self.tick(now);
        let member = self.list.remove(&receiver)?;
        self.silent -= u32::from(member.is_silent());
        self.changes(member.machine, member.is_deaf(), true);
        self.machines.leaves(member.machine, receiver);
        Some(self.show(now, receiver, &member))
    }

    /// Advances `concurrent` to `now`.
    fn tick(&mut self, now: Instant) {
        self.concurrent = self.concurrent_at(now);
        self.changed = now;
    }

    fn concurrent_at(&self, now: Instant) -> Duration {
        self.concurrent + if self.list.len() > 1 { now.since(self.changed) } else { Duration::ZERO }
    }

    fn show(&self, now: Instant, receiver: ReceiverId, member: &Member) -> ReceiverStatistics {
        ReceiverStatistics {
            receiver,
            joined: member.joined,
            runtime: now.since(member.joined),
            concurrent: self.concurrent_at(now).saturating_sub(member.concurrent_before),
            reports: member.reports,
            counters: member.counters,
            overdrawn: member.overdrawn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: MachineId = MachineId(1);

    fn report(receiver: u32) -> Report {
        let counters = ReceiverCounters { blocks_arrived: 1, ..ReceiverCounters::default() };
        Report { receiver: ReceiverId(receiver), timestamp_us: 0, seen: 0, crowded: false, counters }
    }

    #[test]
    fn who_comes_back_is_the_same_machine() {
        let mut members = Members::new(Duration::from_secs(1), 0);
        let now = Instant(1_000_000);
        for receiver in 0..3 {
            assert!(members.admit(now, ReceiverId(receiver), ONE, 0));
        }
        members.admit(now, ReceiverId(3), MachineId(2), 0);
        members.charge(ReceiverId(0), 1 << 20);
        assert_eq!(members.vote(now, ReceiverId(0)), Vote::Counts);
        // Two of them leave, and one is silent for too long.
        (1..3).for_each(|receiver| assert!(members.leave(now, &report(receiver)).is_some()));
        let later = now + Duration::from_secs(2);
        assert!(!members.hear(later, &report(0)) && !members.hear(later, &report(3)));
        let back = later + Duration::from_secs(2);
        members.hear(back, &report(3));
        assert!(members.expire(back).is_some_and(|gone| gone.receiver == ReceiverId(0)));
        for receiver in 0..3 {
            assert!(members.hear(back, &report(receiver)), "it is back");
            assert!(!members.has_credit(ReceiverId(receiver), 0), "of {receiver}");
        }
        assert_eq!((members.count(), members.hearing(back)), (4, 2));
        let votes = (0..3).map(|receiver| members.vote(back, ReceiverId(receiver)));
        assert_eq!(votes.filter(|&vote| vote != Vote::No).count(), 1);
    }

    #[test]
    fn who_was_never_admitted_does_not_count() {
        let mut members = Members::new(Duration::from_secs(1), 0);
        assert!(!members.hear(Instant(1), &report(7)));
        assert_eq!((members.count(), members.total()), (0, 0));
        let most = u32::try_from(SESSION_RECEIVERS_MAX).unwrap();
        for receiver in 0..=most {
            let counts = members.admit(Instant(1), ReceiverId(receiver), ONE, 0);
            assert_eq!(counts, receiver < most, "{receiver}");
        }
    }
}
