//! The table of machines as a state machine: time, calls and an administrator's words come in, decisions come out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::{Error, ErrorKind, Instant, Result};
use net::api::{
    JobRequest, JobStage, JobStatus, JobsMade, MACHINE, MachineChange, MachineStatus, Machines, NewMachine,
    Power, Work,
};
use net::mac::Mac;

use super::machine::{Call, Decision, Machine, Now, Record, Step, Task, check, is_name};
use super::silence::{Last, Watch};
use super::wakes::Wakes;

/// Most machines in the table.
const MACHINES_MAX: usize = 10_000;
/// Most of these that nobody has admitted: anybody on the network can call.
const STRANGERS_MAX: usize = 1000;
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
    machines: BTreeMap<Mac, Machine>,
    open_until: Instant,
    last_job: u64,
    changed: BTreeSet<Mac>,
    wakes: Wakes,
}

impl Table {
    /// The table of these records, in which `last_job` was the last one that was ever given. A machine that has a job
    /// counts as seen `now`: it may be at work.
    pub(super) fn of(records: Vec<(Mac, Record)>, last_job: u64, watch: Watch, now: Instant) -> Self {
        // Tables of before have no such number.
        let known = records.iter().filter_map(|(_, record)| Some(record.job.as_ref()?.job)).max();
        let last_job = last_job.max(known.unwrap_or_default());
        let machine = |record: Record| {
            let called = record.job.as_ref().filter(|job| job.stage == JobStage::Taken).map(|_| now);
            let is_woken = |job: &&JobStatus| job.stage == JobStage::Queued && record.woken == Some(job.job);
            let expected = record.job.as_ref().filter(is_woken).map(|_| (now, Last::Power));
            Machine { called, expected, record, ..Machine::default() }
        };
        let machines = records.into_iter().map(|(mac, record)| (mac, machine(record))).collect();
        Self {
            watch,
            machines,
            open_until: Instant::ZERO,
            last_job,
            changed: BTreeSet::new(),
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

    /// The records that have changed since the last call, `None` for those that are gone.
    pub(super) fn take_changed(&mut self) -> Vec<(Mac, Option<Record>)> {
        let changed = std::mem::take(&mut self.changed);
        changed
            .into_iter()
            .map(|mac| (mac, self.machines.get(&mac).map(|machine| machine.record.clone())))
            .collect()
    }

    /// What the next call of a machine must sign.
    pub(super) fn nonce(&self, mac: Mac) -> Option<&str> {
        self.machines.get(&mac)?.nonce.as_deref()
    }

    /// The entry of a machine; a stranger gets one if there is room.
    fn entry(&mut self, mac: Mac) -> Option<&mut Machine> {
        if !self.machines.contains_key(&mac) {
            let strangers = self.machines.values().filter(|machine| !machine.record.admitted).count();
            if self.machines.len() >= MACHINES_MAX || strangers >= STRANGERS_MAX {
                return None;
            }
        }
        Some(self.machines.entry(mac).or_default())
    }

    /// A machine was seen in a step of its boot, which anybody can pretend.
    pub(super) fn seen(&mut self, mac: Mac, step: Step, now: Instant) {
        // A system that boots from its disk and is none of ours makes no entry.
        if step == Step::System && !self.machines.contains_key(&mac) {
            return;
        }
        let Some(machine) = self.entry(mac) else { return };
        machine.seen = Some((now, step));
        let job = machine.record.job.as_ref();
        let stage = job.map(|job| job.stage);
        // Once for each job: a system with an address of its own never shows itself.
        let comes_back = job.is_some_and(|job| job.work.ends_with_start() && job.reason.is_none());
        let (stage, last) = match (step, stage) {
            (Step::System, Some(JobStage::Done)) => (JobStage::Back, None),
            (Step::Firmware | Step::Loader, Some(JobStage::Done)) if comes_back => {
                (JobStage::Done, Some(Last::Start))
            }
            (Step::Firmware, Some(JobStage::Queued | JobStage::Lost)) => {
                (JobStage::Queued, Some(Last::Firmware))
            }
            (Step::Loader, Some(JobStage::Queued | JobStage::Lost)) => (JobStage::Queued, Some(Last::Loader)),
            _ => return,
        };
        machine.expected = last.map(|last| (now, last));
        let Some(job) = machine.record.job.as_mut() else { return };
        if job.stage != stage {
            (job.stage, job.reason) = (stage, None);
            self.changed.insert(mac);
        }
    }

    /// A machine calls. `Invalid` if it says more than a machine has to say; `Full` if the table is.
    pub(super) fn call(&mut self, mac: Mac, call: Call<'_>, now: Now) -> Result<Decision> {
        check(call.facts)?;
        let is_open = now.at < self.open_until;
        let hold = self.hold(mac, now.at);
        let machine = self.entry(mac).ok_or_else(|| {
            Error::new(
                ErrorKind::Full,
                "the server's table of machines is full: remove some (diskcast hosts)",
            )
        })?;
        machine.seen = Some((now.at, Step::Agent));
        machine.nonce = Some(call.nonce.clone());
        let before = machine.record.clone();
        let (task, again) = match machine.call(mac, &call, is_open, hold, now) {
            Some(task) => (task, AGAIN),
            None => (Task::Wait("one moment".to_owned()), AT_ONCE),
        };
        let again_ms = u64::try_from(again.as_millis()).unwrap_or(u64::MAX);
        let stage = |record: &Record| record.job.as_ref().map(|job| job.stage);
        let ended = stage(&before) == Some(JobStage::Taken)
            && [Some(JobStage::Done), Some(JobStage::Failed)].contains(&stage(&machine.record));
        let work = machine.record.job.as_ref().map(|job| job.work.clone());
        let ended = work.filter(|_| ended);
        let name = machine.record.name.clone();
        let again = stage(&before) != Some(JobStage::Queued);
        let network =
            call.facts.network.as_deref().filter(|_| call.proven && machine.is_agent_with(call.key));
        if machine.record != before {
            self.changed.insert(mac);
        }
        let wake = network.map(|network| self.wakes.take(network, now.at)).unwrap_or_default();
        Ok(Decision { nonce: call.nonce, again_ms, name, task, again, ended, wake })
    }

    /// Why a machine has to wait for others that got the same job: so that they begin together, and share what is sent.
    fn hold(&self, mac: Mac, now: Instant) -> Option<String> {
        let waits = |job: &&JobStatus| job.window > 0 && job.stage == JobStage::Queued;
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

    /// An administrator's change. Returns the machines that it is about.
    pub(super) fn apply(&mut self, change: &MachineChange, now: Instant) -> Result<Vec<MachineStatus>> {
        let about = match change {
            MachineChange::Add { machines } => self.add(machines)?,
            MachineChange::Admit { machines } => {
                let macs = self.meant(machines)?;
                for mac in &macs {
                    self.record(*mac).admitted = true;
                }
                macs
            }
            MachineChange::Remove { machines } => {
                let macs = self.meant(machines)?;
                let gone = macs.iter().map(|mac| self.machines[mac].status(*mac, now)).collect();
                for mac in macs {
                    self.machines.remove(&mac);
                    self.wakes.drop(mac);
                    self.changed.insert(mac);
                }
                return Ok(gone);
            }
            MachineChange::Cancel { machines } => self.cancel(machines)?,
            MachineChange::Open { seconds } => {
                self.open_until = now + Duration::from_secs(*seconds);
                BTreeSet::new()
            }
        };
        Ok(about.into_iter().map(|mac| self.machines[&mac].status(mac, now)).collect())
    }

    fn record(&mut self, mac: Mac) -> &mut Record {
        self.changed.insert(mac);
        &mut self.machines.entry(mac).or_default().record
    }

    fn add(&mut self, machines: &[NewMachine]) -> Result<BTreeSet<Mac>> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        let macs = machines.iter().map(|machine| machine.mac.parse()).collect::<Result<Vec<Mac>>>()?;
        if self.machines.len() + macs.len() > MACHINES_MAX {
            return invalid(format!("the table holds {MACHINES_MAX} machines at most"));
        }
        // Everything is checked before anything is changed.
        let mut names: BTreeMap<&str, Mac> = self
            .machines
            .iter()
            .filter_map(|(mac, machine)| Some((machine.record.name.as_deref()?, *mac)))
            .collect();
        for (machine, mac) in machines.iter().zip(&macs) {
            for text in machine.name.iter().chain(machine.groups.iter().flatten()) {
                if !is_name(text) {
                    return invalid(format!(
                        "`{text}` is no name: it has letters, digits and `-`, 63 at most"
                    ));
                }
            }
            if let Some(name) = &machine.name
                && let Some(other) = names.insert(name, *mac).filter(|other| other != mac)
            {
                return invalid(format!("`{name}` is the name of {other}, too"));
            }
        }
        for (machine, mac) in machines.iter().zip(&macs) {
            let record = self.record(*mac);
            record.admitted = true;
            if machine.name.is_some() {
                record.name.clone_from(&machine.name);
            }
            if let Some(groups) = &machine.groups {
                record.groups = groups.iter().cloned().collect();
            }
        }
        Ok(macs.into_iter().collect())
    }

    /// The machines that these words mean: a name, an address, a group, or `*` for all. `NotFound` if a word means
    /// none.
    fn meant(&self, words: &[String]) -> Result<BTreeSet<Mac>> {
        let mut meant = BTreeSet::new();
        for word in words {
            let mac = word.parse::<Mac>().ok();
            let fits = |(at, machine): &(&Mac, &Machine)| {
                word == "*"
                    || Some(**at) == mac
                    || machine.record.name.as_ref() == Some(word)
                    || machine.record.groups.contains(word)
            };
            let found: Vec<Mac> = self.machines.iter().filter(fits).map(|(mac, _)| *mac).collect();
            if found.is_empty() {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("no machine and no group is called `{word}`"),
                ));
            }
            meant.extend(found);
        }
        Ok(meant)
    }

    /// Takes jobs back. `Refused`, with nothing changed, if a machine is at work.
    fn cancel(&mut self, words: &[String]) -> Result<BTreeSet<Mac>> {
        let macs = self.meant(words)?;
        for mac in &macs {
            self.machines[mac].check_free(*mac)?;
        }
        for mac in &macs {
            self.record(*mac).job = None;
            self.wakes.drop(*mac);
        }
        Ok(macs)
    }

    /// Gives machines a job; `work` has the version that was meant. `Refused`, with nothing changed, if one of them was
    /// not admitted, or is at work.
    pub(super) fn give(&mut self, request: &JobRequest, work: &Work, now: Instant) -> Result<JobsMade> {
        let macs = self.meant(&request.machines)?;
        for mac in &macs {
            let machine = &self.machines[mac];
            machine.check_free(*mac)?;
            if !machine.record.admitted {
                let name = machine.called_by(*mac);
                let text = format!("{name} was not admitted: diskcast hosts admit {mac}");
                return Err(Error::new(ErrorKind::Refused, text));
            }
        }
        let with = self.last_job + 1;
        for mac in &macs {
            self.last_job += 1;
            let (work, disk) = of_machine(work, request.disk.as_deref(), &self.machines[mac].called_by(*mac));
            let job = JobStatus {
                job: self.last_job,
                work,
                disk,
                begins: request.begins,
                power: request.power,
                with,
                window: request.window,
                stage: JobStage::Queued,
                reason: None,
            };
            self.record(*mac).job = Some(job);
            self.machines.entry(*mac).or_default().expected = None;
        }
        let machines = macs.into_iter().map(|mac| self.machines[&mac].status(mac, now)).collect();
        Ok(JobsMade { work: work.clone(), machines })
    }

    /// Finds machines of which nothing is heard any more, and such as are to boot; each once.
    pub(super) fn sweep(&mut self, now: Now) -> Swept {
        let mut swept = Swept::default();
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

/// The work and the target of one machine, which `name` means.
fn of_machine(work: &Work, disk: Option<&str>, name: &str) -> (Work, Option<String>) {
    match work {
        Work::Put(put) => (Work::Put(put.of_machine(name)), disk.map(|target| target.replace(MACHINE, name))),
        work => (work.clone(), disk.map(str::to_owned)),
    }
}
