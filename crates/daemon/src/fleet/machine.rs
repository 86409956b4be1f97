//! What is kept of one machine, and what it is told.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use base::{Error, ErrorKind, Instant, Result};
use net::api::{JobOutcome, JobProgress, JobStage, JobStatus, MachineFacts, MachineStatus, Work};
use net::mac::Mac;
use net::machine_key::parse_fingerprint;
use serde::{Deserialize, Serialize};

use super::keys::{Held, Known, News, Rival};
use super::silence::{Last, Watch};

/// A machine that has said nothing for this long is away. It calls every few seconds.
pub(super) const SILENCE: Duration = Duration::from_secs(60);
/// A machine that waits has called within this time.
const HERE: Duration = Duration::from_secs(10);
/// How long a machine waits for a job.
const IDLE: Duration = Duration::from_secs(900);
/// What a machine waits for that has no job.
const NOTHING: &str = "nothing to do";
/// Longest text of a machine that is kept, in bytes.
const TEXT_BYTES_MAX: usize = 2000;
/// Most disks that a machine may have.
const DISKS_MAX: usize = 256;

/// The time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Now {
    /// For what is measured.
    pub at: Instant,
    /// For what an administrator says: seconds since 1970.
    pub unix: u64,
}

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
    /// The address that it is always given by DHCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
    #[serde(default)]
    pub admitted: bool,
    /// The key of the system in memory that called last.
    #[serde(default)]
    pub key: Option<Known>,
    /// That of its agent, which stays once the machine was admitted.
    #[serde(default)]
    pub agent_key: Option<Known>,
    /// Fingerprint of the key that an administrator named, until it calls: nobody else is heard.
    #[serde(default)]
    pub named: Option<String>,
    /// The job that was begun last, and with which key.
    #[serde(default)]
    pub held: Option<Held>,
    #[serde(default)]
    pub facts: Option<MachineFacts>,
    #[serde(default)]
    pub job: Option<JobStatus>,
    /// The job for which it was got to boot. Kept, since a restart of the server is no reason to restart machines.
    #[serde(default)]
    pub woken: Option<u64>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Machine {
    pub record: Record,
    /// When anything was seen of it, which anybody may have pretended: it decides nothing.
    pub seen: Option<(Instant, Step)>,
    /// When its firmware or boot loader was seen.
    pub booted: Option<Instant>,
    /// When it last showed that it has its key, and which one that was.
    pub called: Option<(Instant, String)>,
    /// When the key last called with which its job was begun.
    pub worked: Option<Instant>,
    pub rival: Option<Rival>,
    /// Since when it waits in our system with nothing to do.
    pub idle: Option<Instant>,
    /// What was seen last, and when, if more is to come.
    pub expected: Option<(Instant, Last)>,
    /// When it first asked for the job that it has, and the number of that job's request.
    pub arrived: Option<(u64, Instant)>,
    /// How far its job is, as it said last.
    pub progress: Option<JobProgress>,
}

/// What a machine says.
pub(super) struct Call<'a> {
    pub facts: &'a MachineFacts,
    pub key: &'a str,
    /// Where it calls from.
    pub from: IpAddr,
    pub outcome: Option<&'a JobOutcome>,
    /// The job that it works on already, and needs no order for.
    pub working: Option<u64>,
    /// How far that job is.
    pub progress: Option<&'a JobProgress>,
    /// Whether it signed the nonce of the answer before.
    pub proven: bool,
}

/// What holds for all machines when one calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Whether who calls is admitted.
    pub is_open: bool,
    /// Whether a job begins only with a key that an administrator has confirmed.
    pub strict: bool,
}

/// What a machine is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    pub again_ms: u64,
    pub name: Option<String>,
    pub task: Task,
    /// Whether the work of the task was given to the machine before.
    pub again: bool,
    /// The work that this call ended.
    pub ended: Option<Work>,
    /// The machines that it is to wake on its network.
    pub wake: Vec<Mac>,
    /// What the log is to say of its key.
    pub news: Option<News>,
}

/// What a machine is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Task {
    Wait(String),
    Work(Box<JobStatus>),
    Start,
}

impl Machine {
    /// What it is told, which has shown that it has its key.
    pub(super) fn call(
        &mut self,
        mac: Mac,
        call: &Call<'_>,
        rules: Rules,
        hold: Option<String>,
        now: Now,
    ) -> Task {
        if let Some(why) = self.hear(mac, call, rules, now) {
            return Task::Wait(why);
        }
        let own = self.record.job.as_ref().map(|job| job.job);
        // What an administrator will see of it is a word.
        let is_word = |step: &str| step.len() <= 16 && step.bytes().all(|byte| byte.is_ascii_lowercase());
        let is_at_it = own.is_some() && call.working == own;
        self.progress = call.progress.filter(|progress| is_at_it && is_word(&progress.step)).cloned();
        if call.working.is_some() && call.working != own {
            // It fell silent, and meanwhile the job was taken back, or another one given.
            self.expected = own.map(|_| (now.at, Last::Wait));
            return Task::Wait("a job that was taken back is still at work".to_owned());
        }
        let (runs, begun_by) = (call.facts.runs, self.record.begun_by().map(str::to_owned));
        let Some(job) = &mut self.record.job else { return self.idle(now.at, runs) };
        if let Some(outcome) = call.outcome.filter(|outcome| {
            outcome.job == job.job && job.stage == JobStage::Taken && begun_by.as_deref() == Some(call.key)
        }) {
            job.stage = if outcome.failure.is_some() { JobStage::Failed } else { JobStage::Done };
            job.exit = outcome.exit.filter(|_| outcome.failure.is_some());
            job.reason = outcome
                .failure
                .as_deref()
                .map(|why| why[..why.floor_char_boundary(TEXT_BYTES_MAX)].to_owned());
        }
        if job.is_early(now.unix) {
            return Task::Wait(format!("the job `{}` begins in {} s", job.work, job.begins - now.unix));
        }
        self.idle = None;
        if job.is_open() {
            return match job.work.is_for_agents() == runs {
                true => self.begin(call, rules, hold, now),
                false => self.elsewhere(),
            };
        }
        match job.stage {
            JobStage::Failed => {
                Task::Wait(format!("the job failed: {}", job.reason.as_deref().unwrap_or("no word")))
            }
            _ if job.work.ends_with_start() && runs => {
                job.stage = JobStage::Back;
                Task::Wait(NOTHING.to_owned())
            }
            _ if job.work.ends_with_start() => {
                self.expected = Some((now.at, Last::Start));
                Task::Start
            }
            _ => Task::Wait(format!("the job `{}` is done", job.work)),
        }
    }

    /// What it is told that has a job which is still to be done.
    fn begin(&mut self, call: &Call<'_>, rules: Rules, hold: Option<String>, now: Now) -> Task {
        let begun_by = self.record.begun_by();
        let has_begun = begun_by.is_some();
        let why = if begun_by == Some(call.key) { None } else { self.unconfirmed(call, rules) };
        let Some(job) = &mut self.record.job else { return Task::Wait(NOTHING.to_owned()) };
        if !has_begun {
            // One that was missed while it booted is there after all.
            (job.stage, job.reason, job.exit) = (JobStage::Queued, None, None);
        }
        if why.is_none() && !has_begun {
            self.arrived = self.arrived.filter(|(with, _)| *with == job.with).or(Some((job.with, now.at)));
        }
        if let Some(why) = why.or(hold.filter(|_| !has_begun)) {
            self.expected = Some((now.at, Last::Wait));
            return Task::Wait(why);
        }
        (job.stage, job.reason, job.exit) = (JobStage::Taken, None, None);
        let job = job.clone();
        self.hold(job.job, call, now.at);
        match call.working == Some(job.job) {
            true => Task::Wait("at work".to_owned()),
            false => Task::Work(Box::new(job)),
        }
    }

    /// It was seen in a step of its boot, which anybody can pretend: that changes what is expected, and nothing else.
    pub(super) fn sighted(&mut self, step: Step, now: Instant) {
        self.seen = Some((now, step));
        if matches!(step, Step::Firmware | Step::Loader) {
            self.booted = Some(now);
        }
        let Some(job) = &self.record.job else { return };
        // Once for each job: a system with an address of its own never shows itself.
        let comes_back = job.work.ends_with_start() && job.reason.is_none();
        let last = match (step, job.stage) {
            (Step::System, JobStage::Done) => None,
            (Step::Firmware | Step::Loader, JobStage::Done) if comes_back => Some(Last::Start),
            (Step::Firmware, JobStage::Queued | JobStage::Lost) => Some(Last::Firmware),
            (Step::Loader, JobStage::Queued | JobStage::Lost) => Some(Last::Loader),
            _ => return,
        };
        self.expected = last.map(|last| (now, last));
    }

    /// What a machine does that has no job: it waits for one for a while, then starts from its disk, unless it has.
    fn idle(&mut self, now: Instant, runs: bool) -> Task {
        let since = *self.idle.get_or_insert(now);
        match runs || now.since(since) < IDLE {
            true => Task::Wait(NOTHING.to_owned()),
            false => Task::Start,
        }
    }

    /// What a machine does whose job is for the other one of its own system and ours.
    fn elsewhere(&mut self) -> Task {
        let Some(job) = &mut self.record.job else { return Task::Wait(NOTHING.to_owned()) };
        if job.stage == JobStage::Taken {
            job.stage = JobStage::Lost;
            job.reason = Some("the machine was started anew while it worked".to_owned());
        }
        match job.work.is_for_agents() {
            true => Task::Start,
            false => Task::Wait(format!("the job `{}` begins when it boots from the network", job.work)),
        }
    }

    /// When it first asked for its job of the request `with`.
    pub(super) fn arrived(&self, with: u64) -> Option<Instant> {
        self.arrived.filter(|(of, _)| *of == with).map(|(_, at)| at)
    }

    /// Whether it called just now.
    pub(super) fn is_here(&self, now: Instant) -> bool {
        self.called.as_ref().is_some_and(|(called, _)| now.since(*called) < HERE)
    }

    /// Whether an administrator admitted it, and its own agent has this key.
    pub(super) fn is_agent_with(&self, key: &str) -> bool {
        self.record.admitted && self.record.agent_key.as_ref().is_some_and(|known| known.public == key)
    }

    /// `Refused` if it is at work.
    pub(super) fn check_free(&self, mac: Mac) -> Result<()> {
        match self.record.job.as_ref().is_some_and(|job| job.stage == JobStage::Taken) {
            true => Err(Error::new(
                ErrorKind::Refused,
                format!("{} is at work on another job", self.called_by(mac)),
            )),
            false => Ok(()),
        }
    }

    /// Whether nothing is heard any more of the key with which its job was begun.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        self.worked.is_none_or(|worked| now.since(worked) > SILENCE)
    }

    /// Why it counts as lost from now on, if it does: nothing came that was expected.
    pub(super) fn missed(&mut self, watch: Watch, now: Now) -> Option<String> {
        let (since, last) = self.expected.filter(|(since, _)| now.at.since(*since) > watch.boot_time)?;
        let job = self.record.job.as_mut()?;
        // What was seen before it begins says nothing of whether the machine comes.
        self.expected = None;
        if job.is_early(now.unix) {
            return None;
        }
        let stage = match (job.stage, last) {
            (JobStage::Done, Last::Start) if watch.sees_systems => JobStage::Done,
            (_, Last::Start) => return None,
            (JobStage::Queued | JobStage::Lost, _) => JobStage::Lost,
            _ => return None,
        };
        let why = last.why(now.at.since(since));
        (job.stage, job.reason) = (stage, Some(why.clone()));
        Some(why)
    }

    pub(super) fn called_by(&self, mac: Mac) -> String {
        self.record.name.clone().unwrap_or_else(|| mac.to_string())
    }

    pub(super) fn status(&self, mac: Mac, now: Instant) -> MachineStatus {
        MachineStatus {
            mac: mac.to_string(),
            name: self.record.name.clone(),
            groups: self.record.groups.iter().cloned().collect(),
            address: self.record.address,
            admitted: self.record.admitted,
            called_seconds_ago: self.called.as_ref().map(|(called, _)| now.since(*called).as_secs()),
            seen_seconds_ago: self.seen.map(|(seen, _)| now.since(seen).as_secs()),
            seen_in: self.seen.map(|(_, step)| step.name().to_owned()),
            key: self.record.key.as_ref().map(Known::status),
            agent_key: self.record.agent_key.as_ref().map(Known::status),
            rival: self.rival(now).map(|rival| rival.known.status()),
            named_key: self.record.named.clone(),
            facts: self.record.facts.clone(),
            job: self.record.job.clone(),
            progress: self.progress.clone(),
        }
    }
}

/// Whether `text` can be a host name (RFC 1123) or the name of a group.
pub(super) fn is_name(text: &str) -> bool {
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(is_right)
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text.parse::<Mac>().is_err()
        && parse_fingerprint(text).is_none()
}

/// `Invalid` if a machine says more of itself than a machine has to say.
pub(super) fn check(facts: &MachineFacts) -> Result<()> {
    let disks = facts
        .disks
        .iter()
        .flat_map(|disk| [Some(&disk.path), disk.serial.as_ref(), disk.model.as_ref()].into_iter().flatten());
    let own = [&facts.serial, &facts.product, &facts.network].into_iter().flatten().chain([&facts.firmware]);
    let fits = |text: &String| text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control);
    if facts.disks.len() <= DISKS_MAX && disks.chain(own).all(fits) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, "a machine says more of itself than fits into the table"))
}
