//! The table of machines as a state machine: time, calls and an administrator's words come in, decisions come out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::time::Duration;

use base::{Instant, Result};
use net::api::{JobStage, JobStatus, MachineStatus, Machines, Power};
use net::mac::Mac;

use super::machine::{Call, Decision, Machine, Now, Record, Rules, Step, Task, check};
use super::silence::{Last, Watch};
use super::wakes::Wakes;

/// Most machines that were admitted.
pub(super) const MACHINES_MAX: usize = 10_000;
/// Most machines that nobody has admitted. Anybody on the network can call: the newest ones are kept.
const STRANGERS_MAX: usize = 1000;
/// How long one of these is kept that is silent.
const STRANGER_TIME: Duration = Duration::from_secs(24 * 3600);
/// When the next call of a machine is due: with nothing to do, and after a first call, which proves nothing yet.
const AGAIN: Duration = Duration::from_secs(3);
const AT_ONCE: Duration = Duration::from_millis(10);

/// What the passing time brings.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Machines of which nothing is heard any more, and what to do.
    pub lost: Vec<(Mac, String)>,
    /// Machines that are to boot now, and how they are got to.
    pub due: Vec<(Mac, Power)>,
}

/// All machines.
#[derive(Debug, Clone)]
pub(super) struct Table {
    watch: Watch,
    pub(super) machines: BTreeMap<Mac, Machine>,
    pub(super) open_until: Instant,
    pub(super) last_job: u64,
    pub(super) changed: BTreeSet<Mac>,
    pub(super) wakes: Wakes,
}

impl Table {
    /// The table of these records, in which `last_job` was the last one that was ever given. A machine that has a job
    /// counts as seen `now`: it may be at work.
    pub(super) fn of(records: Vec<(Mac, Record)>, last_job: u64, watch: Watch, now: Instant) -> Self {
        // Tables of before have no such number.
        let known = records.iter().filter_map(|(_, record)| Some(record.job.as_ref()?.job)).max();
        let last_job = last_job.max(known.unwrap_or_default());
        let machine = |record: Record| {
            let is_taken = record.job.as_ref().is_some_and(|job| job.stage == JobStage::Taken);
            let called = record.begun_by().filter(|_| is_taken).map(|key| (now, key.to_owned()));
            let is_woken = |job: &&JobStatus| job.stage == JobStage::Queued && record.woken == Some(job.job);
            let expected = record.job.as_ref().filter(is_woken).map(|_| (now, Last::Power));
            Machine { called, worked: is_taken.then_some(now), expected, record, ..Machine::default() }
        };
        // Tables of before have strangers, too. They call again.
        let (admitted, strangers): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|(_, record)| record.admitted);
        Self {
            watch,
            machines: admitted.into_iter().map(|(mac, record)| (mac, machine(record))).collect(),
            open_until: Instant::ZERO,
            last_job,
            changed: strangers.into_iter().map(|(mac, _)| mac).collect(),
            wakes: Wakes::default(),
        }
    }

    /// The number of the last job that was ever given.
    pub(super) fn last_job(&self) -> u64 {
        self.last_job
    }

    /// Lets records count as changed that could not be kept.
    pub(super) fn keep_changed(&mut self, changed: &[(Mac, Option<Record>)]) {
        self.changed.extend(changed.iter().map(|(mac, _)| *mac));
    }

    /// The records that have changed since the last call, `None` for those that are gone. What strangers say is not
    /// kept: they can be as many as they like.
    pub(super) fn take_changed(&mut self) -> Vec<(Mac, Option<Record>)> {
        let changed = std::mem::take(&mut self.changed);
        let record = |mac| match self.machines.get(&mac) {
            Some(machine) => machine.record.admitted.then(|| (mac, Some(machine.record.clone()))),
            None => Some((mac, None)),
        };
        changed.into_iter().filter_map(record).collect()
    }

    /// How many machines were admitted.
    pub(super) fn admitted(&self) -> usize {
        self.machines.values().filter(|machine| machine.record.admitted).count()
    }

    /// The entry of a machine. A stranger takes the place of the one that is silent for longest, if there are many.
    fn entry(&mut self, mac: Mac) -> &mut Machine {
        if !self.machines.contains_key(&mac) {
            let strangers = || self.machines.iter().filter(|(_, machine)| !machine.record.admitted);
            if strangers().count() >= STRANGERS_MAX {
                let oldest = strangers().min_by_key(|(_, machine)| machine.seen.map(|(seen, _)| seen));
                let oldest = oldest.map(|(mac, _)| *mac);
                oldest.and_then(|oldest| self.machines.remove(&oldest));
            }
        }
        self.machines.entry(mac).or_default()
    }

    /// A machine was seen in a step of its boot, which anybody can pretend.
    pub(super) fn seen(&mut self, mac: Mac, step: Step, now: Instant) {
        // A system that boots from its disk and is none of ours makes no entry.
        if step != Step::System || self.machines.contains_key(&mac) {
            self.entry(mac).sighted(step, now);
        }
    }

    /// A machine calls. One that has not shown that it has its key changes nothing, and is to call again. `Invalid` if
    /// it says more than a machine has to say.
    pub(super) fn call(&mut self, mac: Mac, call: Call<'_>, now: Now) -> Result<Decision> {
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        check(call.facts)?;
        if !call.proven {
            let (again_ms, task) = (milliseconds(AT_ONCE), Task::Wait("one moment".to_owned()));
            let (name, ended, wake, news) = (None, None, Vec::new(), None);
            return Ok(Decision { again_ms, name, task, again: false, ended, wake, news });
        }
        let is_open = now.at < self.open_until && self.admitted() < MACHINES_MAX;
        let rules = Rules { is_open, strict: self.watch.strict };
        let hold = self.hold(mac, now.at);
        let machine = self.entry(mac);
        let before = machine.record.clone();
        let task = machine.call(mac, &call, rules, hold, now);
        let why = if let Task::Wait(why) = &task { why } else { "" };
        let news = machine.news(&before, &call, why, now.at);
        let stage = |record: &Record| record.job.as_ref().map(|job| job.stage);
        let ended = stage(&before) == Some(JobStage::Taken)
            && [Some(JobStage::Done), Some(JobStage::Failed)].contains(&stage(&machine.record));
        let work = machine.record.job.as_ref().map(|job| job.work.clone());
        let ended = work.filter(|_| ended);
        let name = machine.record.name.clone();
        let again = before.begun_by().is_some();
        let network = call.facts.network.as_deref().filter(|_| machine.is_agent_with(call.key));
        if machine.record != before {
            self.changed.insert(mac);
        }
        let wake = network.map(|network| self.wakes.take(network, now.at)).unwrap_or_default();
        Ok(Decision { again_ms: milliseconds(AGAIN), name, task, again, ended, wake, news })
    }

    /// Why a machine has to wait for others that got the same job: so that they begin together, and share what is sent.
    fn hold(&self, mac: Mac, now: Instant) -> Option<String> {
        let waits =
            |job: &&JobStatus| job.window > 0 && [JobStage::Queued, JobStage::Lost].contains(&job.stage);
        let own = self.machines.get(&mac)?.record.job.as_ref().filter(waits)?;
        let of_group = |machine: &&Machine| {
            machine.record.job.as_ref().is_some_and(|job| job.with == own.with && job.window > 0)
        };
        let group = || self.machines.values().filter(of_group);
        // Once one has begun, the others follow. One that was lost may have vanished before.
        let waits = [JobStage::Queued, JobStage::Lost];
        if group().any(|machine| machine.record.job.as_ref().is_some_and(|job| !waits.contains(&job.stage))) {
            return None;
        }
        let first = group().filter_map(|machine| machine.arrived(own.with)).min().unwrap_or(now);
        let left =
            Duration::from_secs(own.window).checked_sub(now.since(first)).filter(|left| !left.is_zero())?;
        let is_missing = |(other, machine): &(&Mac, &Machine)| {
            **other != mac && of_group(machine) && !machine.is_here(now)
        };
        match self.machines.iter().filter(is_missing).count() {
            0 => None,
            missing => {
                Some(format!("for {missing} more to begin together, {} s at most", left.as_secs().max(1)))
            }
        }
    }

    /// Whether firmware is to start our system: of a machine that is not known, or that has a job to do.
    pub(super) fn boots_ours(&self, mac: Mac, unix: u64) -> bool {
        let Some(machine) = self.machines.get(&mac).filter(|machine| machine.record.admitted) else {
            return true;
        };
        let done = [JobStage::Done, JobStage::Back];
        let waits = |job: &JobStatus| !done.contains(&job.stage) && !job.is_early(unix);
        machine.record.job.as_ref().is_some_and(|job| waits(job) && !job.work.is_for_agents())
            || machine.record.facts.is_none()
    }

    /// Whether the agent of a machine that was admitted can wake others on its network.
    pub(super) fn has_wakers(&self, now: Instant) -> bool {
        let wakes = |machine: &Machine| {
            let facts = machine.record.facts.as_ref().filter(|_| machine.record.admitted);
            facts.is_some_and(|facts| facts.network.is_some()) && machine.is_here(now)
        };
        self.machines.values().any(wakes)
    }

    /// The machines that are always given the same address.
    pub(super) fn fixed(&self) -> HashMap<Mac, Ipv4Addr> {
        let fixed = |(mac, machine): (&Mac, &Machine)| Some((*mac, machine.record.address?));
        self.machines.iter().filter_map(fixed).collect()
    }

    /// The name of a machine.
    pub(super) fn name(&self, mac: Mac) -> Option<String> {
        self.machines.get(&mac)?.record.name.clone()
    }

    /// All machines, by name and address.
    pub(super) fn list(&self, now: Instant) -> Machines {
        let mut machines: Vec<_> =
            self.machines.iter().map(|(mac, machine)| machine.status(*mac, now)).collect();
        machines.sort_by(|one, other| {
            let key =
                |status: &MachineStatus| (status.name.is_none(), status.name.clone(), status.mac.clone());
            key(one).cmp(&key(other))
        });
        Machines { machines, open_seconds: self.open_until.since(now).as_secs() }
    }

    /// Finds machines of which nothing is heard any more, and such as are to boot; each once. Strangers that are
    /// silent for long are forgotten.
    pub(super) fn sweep(&mut self, now: Now) -> Swept {
        let mut swept = Swept::default();
        self.machines.retain(|_, machine| {
            let is_there = machine.seen.is_some_and(|(seen, _)| now.at.since(seen) < STRANGER_TIME);
            machine.record.admitted || is_there
        });
        for (mac, machine) in &mut self.machines {
            let is_silent = machine.is_silent(now.at);
            let Some(job) = &mut machine.record.job else { continue };
            if job.stage == JobStage::Taken && is_silent {
                job.stage = JobStage::Lost;
                let why = match job.work.is_for_agents() {
                    false => "it fell silent at work: look at its screen; it goes on when it boots again",
                    true => "it fell silent at work; it goes on when its agent calls again",
                };
                job.reason = Some(why.to_owned());
                swept.lost.push((*mac, why.to_owned()));
            }
            let is_due = job.stage == JobStage::Queued && !job.is_early(now.unix);
            if is_due && job.power != Power::Leave && machine.record.woken != Some(job.job) {
                machine.record.woken = Some(job.job);
                swept.due.push((*mac, job.power));
                if job.power == Power::Wake {
                    self.wakes.add(*mac, now.at);
                }
                machine.expected = Some((now.at, Last::Power));
            }
            swept.lost.extend(machine.missed(self.watch, now).map(|why| (*mac, why)));
        }
        self.changed.extend(swept.lost.iter().map(|(mac, _)| mac));
        self.changed.extend(swept.due.iter().map(|(mac, _)| mac));
        swept
    }
}
