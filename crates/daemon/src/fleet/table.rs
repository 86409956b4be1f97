//! The table of machines as a state machine: time, calls and an administrator's words come in, decisions come out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::{Error, ErrorKind, Instant, Result};
use net::api::{
    DeployRequest, Deployment, JobOutcome, JobStage, JobStatus, MachineChange, MachineFacts, MachineStatus,
    Machines, NewMachine,
};
use net::mac::Mac;
use serde::{Deserialize, Serialize};

/// Most machines in the table.
const MACHINES_MAX: usize = 10_000;
/// Most of these that nobody has admitted: anybody on the network can call.
const STRANGERS_MAX: usize = 1000;
/// A machine that has said nothing for this long is away. It calls every few seconds.
const SILENCE: Duration = Duration::from_secs(60);
/// When the next call of a machine is due: with nothing to do, and after a first call, which proves nothing yet.
const AGAIN: Duration = Duration::from_secs(3);
const AT_ONCE: Duration = Duration::from_millis(10);
/// Longest text of a machine that is kept, in bytes.
const TEXT_BYTES_MAX: usize = 2000;
/// Most disks that a machine may have.
const DISKS_MAX: usize = 256;

/// A step of a boot in which a machine was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// Its firmware asked where to boot from.
    Firmware,
    /// Its boot loader asked what to load.
    Loader,
    /// Our system in memory called.
    Agent,
    /// Another system asked for an address.
    System,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Firmware => "firmware",
            Self::Loader => "loader",
            Self::Agent => "agent",
            Self::System => "system",
        }
    }
}

/// What is kept of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub groups: BTreeSet<String>,
    #[serde(default)]
    pub admitted: bool,
    /// Its public key, since it called last.
    #[serde(default)]
    pub key: Option<String>,
    #[serde(default)]
    pub facts: Option<MachineFacts>,
    #[serde(default)]
    pub job: Option<JobStatus>,
}

#[derive(Debug, Default)]
struct Machine {
    record: Record,
    seen: Option<(Instant, Step)>,
    /// When it last showed that it has its key.
    called: Option<Instant>,
    nonce: Option<String>,
}

/// What a machine says.
pub(super) struct Call<'a> {
    pub facts: &'a MachineFacts,
    pub key: &'a str,
    pub outcome: Option<&'a JobOutcome>,
    /// The job that it works on already, and needs no order for.
    pub working: Option<u64>,
    /// Whether it signed the nonce of the answer before.
    pub proven: bool,
    /// What it is to sign next.
    pub nonce: String,
}

/// What a machine is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    pub nonce: String,
    pub again_ms: u64,
    pub name: Option<String>,
    pub task: Task,
    /// Whether this call ended its job.
    pub ended: bool,
}

/// What a machine is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Task {
    Wait(String),
    Install(JobStatus),
    Start,
}

/// All machines.
#[derive(Debug, Default)]
pub(super) struct Table {
    machines: BTreeMap<Mac, Machine>,
    open_until: Instant,
    last_job: u64,
    changed: BTreeSet<Mac>,
}

impl Table {
    /// The table of these records. A machine that has a job counts as seen `now`: it may be at work.
    pub(super) fn of(records: Vec<(Mac, Record)>, now: Instant) -> Self {
        let last_job =
            records.iter().filter_map(|(_, record)| Some(record.job.as_ref()?.job)).max().unwrap_or_default();
        let machine = |record: Record| {
            let called = record.job.as_ref().filter(|job| job.stage == JobStage::Taken).map(|_| now);
            Machine { record, called, ..Machine::default() }
        };
        let machines = records.into_iter().map(|(mac, record)| (mac, machine(record))).collect();
        Self { machines, last_job, ..Self::default() }
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
        if step == Step::System
            && let Some(job) = machine.record.job.as_mut().filter(|job| job.stage == JobStage::Installed)
        {
            job.stage = JobStage::Back;
            self.changed.insert(mac);
        }
    }

    /// A machine calls. `Invalid` if it says more than a machine has to say; `Full` if the table is.
    pub(super) fn call(&mut self, mac: Mac, call: Call<'_>, now: Instant) -> Result<Decision> {
        check(call.facts)?;
        let is_open = now < self.open_until;
        let machine = self.entry(mac).ok_or_else(|| {
            Error::new(
                ErrorKind::Full,
                "the server's table of machines is full: remove some (diskcast hosts)",
            )
        })?;
        machine.seen = Some((now, Step::Agent));
        machine.nonce = Some(call.nonce.clone());
        let before = machine.record.clone();
        let (task, again) = match machine.call(mac, &call, is_open, now) {
            Some(task) => (task, AGAIN),
            None => (Task::Wait("one moment".to_owned()), AT_ONCE),
        };
        let again_ms = u64::try_from(again.as_millis()).unwrap_or(u64::MAX);
        let stage = |record: &Record| record.job.as_ref().map(|job| job.stage);
        let ended = stage(&before) == Some(JobStage::Taken)
            && [Some(JobStage::Installed), Some(JobStage::Failed)].contains(&stage(&machine.record));
        let name = machine.record.name.clone();
        let decision = Decision { nonce: call.nonce, again_ms, name, task, ended };
        if machine.record != before {
            self.changed.insert(mac);
        }
        Ok(decision)
    }

    /// Whether firmware is to start our system: of a machine that is not known, or that has a job to do.
    pub(super) fn boots_ours(&self, mac: Mac) -> bool {
        let Some(machine) = self.machines.get(&mac).filter(|machine| machine.record.admitted) else {
            return true;
        };
        let done = [JobStage::Installed, JobStage::Back];
        machine.record.job.as_ref().is_some_and(|job| !done.contains(&job.stage))
            || machine.record.facts.is_none()
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
                    self.changed.insert(mac);
                }
                return Ok(gone);
            }
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

    /// Gives machines a job. `Refused`, with nothing changed, if one of them was not admitted, or is at work.
    pub(super) fn deploy(
        &mut self,
        request: &DeployRequest,
        reference: &str,
        now: Instant,
    ) -> Result<Deployment> {
        let macs = self.meant(&request.machines)?;
        for mac in &macs {
            let machine = &self.machines[mac];
            let name = machine.called_by(*mac);
            let refused = |text: String| Err(Error::new(ErrorKind::Refused, text));
            if !machine.record.admitted {
                return refused(format!("{name} was not admitted: diskcast hosts admit {mac}"));
            }
            if machine.record.job.as_ref().is_some_and(|job| job.stage == JobStage::Taken) {
                return refused(format!("{name} is at work on another job"));
            }
        }
        for mac in &macs {
            self.last_job += 1;
            let job = JobStatus {
                job: self.last_job,
                reference: reference.to_owned(),
                disk: request.disk.clone(),
                after: request.after,
                stage: JobStage::Queued,
                reason: None,
            };
            self.record(*mac).job = Some(job);
        }
        let machines = macs.into_iter().map(|mac| self.machines[&mac].status(mac, now)).collect();
        Ok(Deployment { reference: reference.to_owned(), machines })
    }

    /// Finds machines that fell silent at work. Returns them once.
    pub(super) fn sweep(&mut self, now: Instant) -> Vec<Mac> {
        let mut lost = Vec::new();
        for (mac, machine) in &mut self.machines {
            let is_silent = machine.is_silent(now);
            if let Some(job) =
                machine.record.job.as_mut().filter(|job| job.stage == JobStage::Taken && is_silent)
            {
                job.stage = JobStage::Lost;
                let why =
                    "it fell silent while it installed: look at its screen; it goes on when it boots again";
                job.reason = Some(why.to_owned());
                lost.push(*mac);
            }
        }
        self.changed.extend(&lost);
        lost
    }
}

impl Machine {
    /// What it is told; `None` if it has to show first that it has its key.
    fn call(&mut self, mac: Mac, call: &Call<'_>, is_open: bool, now: Instant) -> Option<Task> {
        if !call.proven {
            return None;
        }
        // A machine draws a new key at each boot. While one with the old key is at work, another one lies.
        let is_new = self.record.key.as_deref() != Some(call.key);
        if is_new && self.record.key.is_some() && !self.is_silent(now) {
            let text = "another machine with this address of a network card is at work";
            return Some(Task::Wait(text.to_owned()));
        }
        self.record.key = Some(call.key.to_owned());
        self.called = Some(now);
        self.record.facts = Some(call.facts.clone());
        self.record.admitted |= is_open;
        if !self.record.admitted {
            return Some(Task::Wait(format!(
                "an administrator must admit this machine: diskcast hosts admit {mac}"
            )));
        }
        let Some(job) = &mut self.record.job else { return Some(Task::Wait("nothing to do".to_owned())) };
        if let Some(outcome) =
            call.outcome.filter(|outcome| outcome.job == job.job && job.stage == JobStage::Taken)
        {
            job.stage = if outcome.failure.is_some() { JobStage::Failed } else { JobStage::Installed };
            job.reason = outcome
                .failure
                .as_deref()
                .map(|why| why[..why.floor_char_boundary(TEXT_BYTES_MAX)].to_owned());
        }
        Some(match job.stage {
            JobStage::Queued | JobStage::Taken | JobStage::Lost => {
                (job.stage, job.reason) = (JobStage::Taken, None);
                match call.working == Some(job.job) {
                    true => Task::Wait("at work".to_owned()),
                    false => Task::Install(job.clone()),
                }
            }
            JobStage::Installed | JobStage::Back => Task::Start,
            JobStage::Failed => {
                Task::Wait(format!("the job failed: {}", job.reason.as_deref().unwrap_or("no word")))
            }
        })
    }

    fn is_silent(&self, now: Instant) -> bool {
        self.called.is_none_or(|called| now.since(called) > SILENCE)
    }

    fn called_by(&self, mac: Mac) -> String {
        self.record.name.clone().unwrap_or_else(|| mac.to_string())
    }

    fn status(&self, mac: Mac, now: Instant) -> MachineStatus {
        MachineStatus {
            mac: mac.to_string(),
            name: self.record.name.clone(),
            groups: self.record.groups.iter().cloned().collect(),
            admitted: self.record.admitted,
            seen_seconds_ago: self.seen.map(|(seen, _)| now.since(seen).as_secs()),
            seen_in: self.seen.map(|(_, step)| step.name().to_owned()),
            facts: self.record.facts.clone(),
            job: self.record.job.clone(),
        }
    }
}

/// Whether `text` can be a host name (RFC 1123) or the name of a group.
fn is_name(text: &str) -> bool {
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(is_right)
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text.parse::<Mac>().is_err()
}

/// `Invalid` if a machine says more of itself than a machine has to say.
fn check(facts: &MachineFacts) -> Result<()> {
    let disks = facts
        .disks
        .iter()
        .flat_map(|disk| [Some(&disk.path), disk.serial.as_ref(), disk.model.as_ref()].into_iter().flatten());
    let own = [facts.serial.as_ref(), facts.product.as_ref(), Some(&facts.firmware)].into_iter().flatten();
    let fits = |text: &String| text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control);
    if facts.disks.len() <= DISKS_MAX && disks.chain(own).all(fits) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, "a machine says more of itself than fits into the table"))
}
