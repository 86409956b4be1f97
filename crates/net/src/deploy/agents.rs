//! Hosts that are reached by their agents: each attempt is a job in the table of a server, which is asked how far it
//! is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::{Digest, Error, ErrorKind, Result};
use parking_lot::{Condvar, Mutex};
use proto::deploy::Said;

use super::attempt::number_of;
use super::program::may_help;
use crate::api::{HostJob, JobRequest, JobStage, JobStatus, MachineChange, MachineStatus, Power, Put, Work};
use crate::client::Client;

/// How often the table is asked.
const LOOK: Duration = Duration::from_secs(1);
/// An agent calls every few seconds, whether it has a job or waits for one.
const SILENT_SECONDS: u64 = 15;

/// The agents that call one server. One thread speaks to it: a server that is away keeps nobody else waiting.
pub struct Agents(Arc<Table>);

struct Table {
    client: Client,
    /// How hosts are got to start.
    power: Power,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    last: u64,
    /// Attempts that are not over, by numbers of their own.
    attempts: BTreeMap<u64, Attempt>,
    has_ended: bool,
}

struct Attempt {
    /// The card by which the server knows the host.
    mac: String,
    target: String,
    put: Put,
    /// The number of its job, once it was given.
    job: Option<u64>,
    called_off: bool,
    say: Box<dyn Fn(Said) + Send>,
}

/// An attempt that runs.
pub(super) struct Job {
    table: Arc<Table>,
    attempt: u64,
}

impl Agents {
    /// The agents that call the server of `client`, which may give jobs; it gets hosts to start as `power` says. `Io`
    /// if no thread can be started.
    pub fn of(client: Client, power: Power) -> Result<Self> {
        let table = Arc::new(Table { client, power, state: Mutex::default(), changed: Condvar::new() });
        let asks = Arc::clone(&table);
        let spawned = std::thread::Builder::new().name("deploy-agents".into()).spawn(move || asks.run());
        spawned.map_err(|error| Error::from_source(ErrorKind::Io, "watch the jobs of agents", error))?;
        Ok(Self(table))
    }

    /// Gives the host with the card `mac` its job. `say` gets how far it is.
    pub(super) fn start(&self, mac: &str, job: &HostJob, say: impl Fn(Said) + Send + 'static) -> Job {
        let attempt = Attempt {
            mac: mac.to_owned(),
            target: job.target.clone(),
            put: Put { retried: job.resume, ..job.put.clone() },
            job: None,
            called_off: false,
            say: Box::new(say),
        };
        let mut state = self.0.state.lock();
        state.last += 1;
        let number = state.last;
        state.attempts.insert(number, attempt);
        self.0.changed.notify_all();
        Job { table: Arc::clone(&self.0), attempt: number }
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        // The thread may wait for a server that is away, and is not waited for.
        self.0.state.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

/// What is to be done with an attempt.
enum Task {
    Give { mac: String, target: String, put: Put },
    TakeBack { mac: String, job: u64 },
}

impl Table {
    /// Gives jobs, takes them back, and asks how far they are, until all has ended.
    fn run(&self) {
        loop {
            for (attempt, task) in self.tasks() {
                let result = match &task {
                    Task::Give { mac, target, put } => self.give(mac, target, put).map(Some),
                    Task::TakeBack { mac, job } => self.take_back(mac, *job).map(|()| None),
                };
                self.done(attempt, &task, result);
            }
            let asked: BTreeSet<u64> = self.state.lock().attempts.keys().copied().collect();
            // While the server is away, hosts say nothing.
            if let (false, Ok(table)) = (asked.is_empty(), self.client.machines()) {
                let mut state = self.state.lock();
                state.attempts.retain(|number, attempt| {
                    let machine = table.machines.iter().find(|machine| machine.mac == attempt.mac);
                    // What was given since is not in it yet.
                    !asked.contains(number) || machine.is_none_or(|machine| attempt.look(machine))
                });
            }
            let mut state = self.state.lock();
            if !state.has_ended && !state.attempts.values().any(Attempt::has_task) {
                self.changed.wait_for(&mut state, LOOK);
            }
            if state.has_ended {
                return;
            }
        }
    }

    fn tasks(&self) -> Vec<(u64, Task)> {
        let state = self.state.lock();
        let task = |(number, attempt): (&u64, &Attempt)| {
            let mac = attempt.mac.clone();
            match (attempt.called_off, attempt.job) {
                (false, None) => {
                    let (target, put) = (attempt.target.clone(), attempt.put.clone());
                    Some((*number, Task::Give { mac, target, put }))
                }
                (true, Some(job)) => Some((*number, Task::TakeBack { mac, job })),
                _ => None,
            }
        };
        state.attempts.iter().filter_map(task).collect()
    }

    /// Takes note of what became of a task.
    fn done(&self, attempt: u64, task: &Task, result: Result<Option<u64>>) {
        let mut state = self.state.lock();
        let Some(found) = state.attempts.get_mut(&attempt) else {
            drop(state);
            // It was called off meanwhile.
            if let (Task::Give { mac, .. }, Ok(Some(job))) = (task, result) {
                let _ = self.take_back(mac, job);
            }
            return;
        };
        let said = match (task, result) {
            (Task::Give { .. }, Ok(job)) => {
                found.job = job;
                return;
            }
            (Task::Give { .. }, Err(error)) => {
                // It may be at work, or the server away.
                let again =
                    matches!(error.kind(), ErrorKind::Refused | ErrorKind::Unreachable | ErrorKind::Io);
                Said::Failed { why: base::chain(&error), again }
            }
            (Task::TakeBack { .. }, Ok(_)) => {
                Said::Failed { why: "it was called off".to_owned(), again: false }
            }
            // It is at work: it may end in time.
            (Task::TakeBack { .. }, Err(_)) => {
                found.called_off = false;
                return;
            }
        };
        (found.say)(said);
        state.attempts.remove(&attempt);
    }

    /// Gives a job, and returns its number. A job that the host is at, with the same content for the same target, is
    /// that of an attempt that was given up: it is gone on with.
    fn give(&self, mac: &str, target: &str, put: &Put) -> Result<u64> {
        let request = JobRequest {
            work: Work::Put(put.clone()),
            machines: vec![mac.to_owned()],
            disk: Some(target.to_owned()),
            begins: 0,
            power: self.power,
            window: 0,
        };
        let refused = match self.client.give_job(&request) {
            Ok(made) => {
                let job = made.machines.first().and_then(|machine| machine.job.as_ref());
                return job.map(|job| job.job).ok_or_else(|| Error::corrupt("the server gave no job"));
            }
            Err(error) if error.kind() == ErrorKind::Refused => error,
            Err(error) => return Err(error),
        };
        let job = self.job_of(mac)?.filter(|job| job.is_open() && is_for(job, target, put));
        job.map(|job| job.job).ok_or(refused)
    }

    fn take_back(&self, mac: &str, number: u64) -> Result<()> {
        // Another manager may have given another one since.
        let waits =
            |job: &JobStatus| job.job == number && matches!(job.stage, JobStage::Queued | JobStage::Lost);
        match self.job_of(mac)?.is_some_and(|job| waits(&job)) {
            true => {
                let change = MachineChange::Cancel { machines: vec![mac.to_owned()] };
                self.client.change_machines(&change).map(drop)
            }
            false => Err(Error::new(ErrorKind::Refused, "its host is at work on it")),
        }
    }

    fn job_of(&self, mac: &str) -> Result<Option<JobStatus>> {
        let machines = self.client.machines()?.machines;
        Ok(machines.into_iter().find(|machine| machine.mac == mac).and_then(|machine| machine.job))
    }
}

/// Whether a job brings the content of `put` to `target`.
fn is_for(job: &JobStatus, target: &str, put: &Put) -> bool {
    let is_it =
        matches!(&job.work, Work::Put(Put { root, copy, .. }) if *root == put.root && *copy == put.copy);
    is_it && job.disk.as_deref() == Some(target)
}

impl Attempt {
    fn has_task(&self) -> bool {
        self.called_off == self.job.is_some()
    }

    /// Tells how far it is on `machine`. Returns whether it goes on.
    fn look(&self, machine: &MachineStatus) -> bool {
        let Some(number) = self.job else { return true };
        let said = match news(number, machine) {
            News::Nothing => return true,
            News::Alive => Said::Alive,
            News::Progress { step, done, total } => Said::Progress { step, done, total },
            News::Done => match self.put.root.parse::<Digest>() {
                Ok(root) => Said::Ready { root },
                Err(_) => Said::Failed { why: "its job named no content".to_owned(), again: false },
            },
            News::Failed(why, exit) => Said::Failed { why, again: exit.is_none_or(may_help) },
            News::Gone => {
                Said::Failed { why: "its job was taken back, or another one given".to_owned(), again: false }
            }
        };
        let goes_on = matches!(said, Said::Alive | Said::Progress { .. });
        (self.say)(said);
        goes_on
    }
}

/// What the table tells of a job.
#[derive(Debug, PartialEq, Eq)]
enum News {
    Nothing,
    Alive,
    Progress {
        step: u8,
        done: u64,
        total: u64,
    },
    Done,
    /// Why, and with which exit code.
    Failed(String, Option<u8>),
    Gone,
}

fn news(number: u64, machine: &MachineStatus) -> News {
    let Some(job) = machine.job.as_ref().filter(|job| job.job == number) else { return News::Gone };
    let calls = machine.called_seconds_ago.is_some_and(|seconds| seconds <= SILENT_SECONDS);
    match (job.stage, &machine.progress) {
        (JobStage::Done | JobStage::Back, _) => News::Done,
        (JobStage::Failed, _) => News::Failed(job.reason.clone().unwrap_or_default(), job.exit),
        (JobStage::Lost, _) => News::Nothing,
        (JobStage::Queued | JobStage::Taken, _) if !calls => News::Nothing,
        (JobStage::Taken, Some(progress)) => News::Progress {
            step: number_of(&progress.step),
            done: progress.done_bytes,
            total: progress.total_bytes,
        },
        (JobStage::Queued | JobStage::Taken, _) => News::Alive,
    }
}

impl Job {
    /// Takes it back, unless its host is at work.
    pub(super) fn call_off(&self) {
        let mut state = self.table.state.lock();
        let Some(attempt) = state.attempts.get_mut(&self.attempt) else { return };
        attempt.called_off = true;
        if attempt.job.is_some() {
            self.table.changed.notify_all();
        } else {
            (attempt.say)(Said::Failed { why: "it was called off".to_owned(), again: false });
            state.attempts.remove(&self.attempt);
        }
    }

    /// Waits for it no longer.
    pub(super) fn kill(&self) {
        if let Some(attempt) = self.table.state.lock().attempts.remove(&self.attempt) {
            let why =
                "its agent may be at work, and goes on: `diskcast hosts` shows how far it is".to_owned();
            (attempt.say)(Said::Failed { why, again: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::JobProgress;

    fn status(stage: &str, seen: Option<u64>, progress: Option<JobProgress>) -> MachineStatus {
        let job = serde_json::json!({ "job": 7, "stage": stage, "reason": "no room", "disk": "/x" });
        let mut job = job.as_object().unwrap().clone();
        let work = Work::Put(Put { root: "ab".to_owned(), ..Put::default() });
        job.extend(serde_json::to_value(&work).unwrap().as_object().unwrap().clone());
        let machine = serde_json::json!({ "mac": "52:54:00:00:00:01", "admitted": true, "job": job });
        let machine: MachineStatus = serde_json::from_value(machine).unwrap();
        MachineStatus { called_seconds_ago: seen, progress, ..machine }
    }

    #[test]
    fn a_job_is_as_far_as_the_table_says_while_its_agent_calls() {
        let progress = JobProgress { step: "install".to_owned(), done_bytes: 1, total_bytes: 2 };
        assert_eq!(news(7, &status("queued", Some(3), None)), News::Alive);
        assert_eq!(news(7, &status("queued", Some(16), None)), News::Nothing);
        assert_eq!(news(7, &status("queued", None, None)), News::Nothing);
        let taken = news(7, &status("taken", Some(0), Some(progress.clone())));
        assert_eq!(taken, News::Progress { step: 2, done: 1, total: 2 });
        assert_eq!(news(7, &status("taken", Some(99), Some(progress))), News::Nothing);
        assert_eq!(news(7, &status("lost", Some(0), None)), News::Nothing);
        assert_eq!(news(7, &status("done", None, None)), News::Done);
        assert_eq!(news(7, &status("failed", None, None)), News::Failed("no room".to_owned(), None));
        assert_eq!(news(8, &status("done", None, None)), News::Gone);
    }

    #[test]
    fn only_a_job_with_the_same_content_for_the_same_target_is_gone_on_with() {
        let job = status("taken", None, None).job.unwrap();
        let put = |root: &str| Put { root: root.to_owned(), ..Put::default() };
        assert!(is_for(&job, "/x", &put("ab")));
        assert!(!is_for(&job, "/y", &put("ab")) && !is_for(&job, "/x", &put("cd")));
        let copy = Put { copy: Some(crate::api::Copies::Overlay), ..put("ab") };
        assert!(!is_for(&job, "/x", &copy));
    }
}
