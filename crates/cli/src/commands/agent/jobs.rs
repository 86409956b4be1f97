//! Takes jobs of a server, which does not reach this host otherwise.

use std::path::Path;
use std::time::Duration;

use daemon::private_file::{make_private, read_private};
use net::api::{HostJob, JobOutcome, JobProgress, MachineAnswer, Order, Put, WORK_FORMAT, Work};
use net::client::ClientOptions;
use net::clock::Stop;
use net::interface;
use net::machine_key::MachineKey;
use net::token::{JoinToken, Secret};
use parking_lot::Mutex;

use super::args::Args;
use super::work;
use crate::commands::Context;
use crate::commands::caller::Caller;
use crate::commands::facts::{describe, facts};
use crate::commands::job_log::{Log, cut};
use crate::exit::{Exit, Failure, Result};

/// How long one call waits for the server.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause before the next one if it is away.
const AWAY: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct Jobs<'a> {
    context: &'a Context,
    args: &'a Args,
    caller: Caller,
    /// The interface by whose card the server knows this host.
    interface: String,
    stop: Stop,
}

impl<'a> Jobs<'a> {
    pub(super) fn new(context: &'a Context, args: &'a Args, server: &str, stop: &Stop) -> Result<Self> {
        let options = ClientOptions {
            first_patience: PATIENCE,
            patience: PATIENCE,
            stop: stop.clone(),
            ..ClientOptions::default()
        };
        let mut name = String::new();
        let caller = Caller::new((server, args.pin.as_deref()), options, |client| {
            let interface = match &args.interface {
                Some(name) => interface::choose(name)?,
                None => interface::towards(client.address()?)?.0,
            };
            let facts = facts(&interface, true)?;
            name = interface.name;
            Ok((key(&args.keeping.folder()?, &facts.mac)?, facts))
        })?;
        Ok(Self { context, args, caller, interface: name, stop: stop.clone() })
    }

    /// Takes one job after the other until it is told to stop.
    pub(super) fn run(&self) {
        let output = self.context.output;
        let facts = describe(self.caller.facts());
        output.note(&format!("this host is {facts}, with the key {}", self.caller.key()));
        let (mut outcome, mut told) = (None::<JobOutcome>, String::new());
        let mut tell = |words: String| {
            if words != told {
                output.note(&words);
                told = words;
            }
        };
        while !self.stop.is_stopped() {
            let answer = match self.caller.ask(outcome.as_ref()) {
                Ok(answer) => answer,
                Err(_) if self.stop.is_stopped() => return,
                Err(failure) => {
                    tell(format!("the server did not answer; trying again: {}", failure.message));
                    self.stop.pause(AWAY);
                    continue;
                }
            };
            self.wake(&answer.wake);
            let pause = Duration::from_millis(answer.again_ms);
            match answer.order {
                // The server has not heard yet what became of it.
                Order::Work { job, .. } if outcome.as_ref().is_some_and(|outcome| outcome.job == job) => {}
                Order::Work {
                    job,
                    work: Work::Put(put),
                    disk: Some(target),
                    secret: Some(secret),
                    again,
                } => {
                    tell(format!("job {job}: {} goes to {target}", put.reference));
                    outcome = self.put(job, &self.job(put, target, secret, again));
                    if let Some(failure) = outcome.as_ref().and_then(|outcome| outcome.failure.as_ref()) {
                        output.warning(&format!("job {job}: {failure}"));
                    }
                    continue;
                }
                Order::Work { job, work, .. } => {
                    tell(format!("job {job}: an agent does not do this: {work}"));
                }
                Order::Wait { why } => tell(format!("waits: {why}")),
                Order::Start => {}
            }
            self.stop.pause(pause);
        }
    }

    /// Wakes machines on the network of this host.
    fn wake(&self, cards: &[String]) {
        for card in cards {
            let woken = card.parse().and_then(|mac| net::netboot::wake(&self.interface, mac));
            match woken {
                Ok(()) => self.context.output.note(&format!("woke {card} on `{}`", self.interface)),
                Err(error) => self.context.output.warning(&base::chain(&error)),
            }
        }
    }

    fn job(&self, put: Put, target: String, secret: Secret, again: bool) -> HostJob {
        let token = JoinToken { fingerprint: self.caller.fingerprint, secret };
        HostJob {
            format: WORK_FORMAT,
            server: self.caller.server().to_owned(),
            token: token.to_string(),
            target,
            resume: again || put.retried,
            put,
            ..HostJob::default()
        }
    }

    /// Does a job. `None` if it was called off, which does not end it: it continues when the agent runs again.
    fn put(&self, number: u64, job: &HostJob) -> Option<JobOutcome> {
        let (progress, mut log) = (Mutex::new(None::<JobProgress>), Log::default());
        let places = (&self.args.keeping, &self.args.place);
        let work = || work::run(job, places, &self.stop, (&progress, &mut log));
        let heard = |answer: &MachineAnswer| self.wake(&answer.wake);
        let done = self.caller.at_work(number, &|| progress.lock().clone(), &heard, work);
        if self.stop.is_stopped() && done.is_err() {
            return None;
        }
        let exit = done.as_ref().err().map(|failure| failure.exit as u8);
        let failure = done.err().map(|Failure { message, hint, .. }| {
            let hint = hint.map(|hint| format!("; hint: {hint}")).unwrap_or_default();
            let mut words = format!("{message}{hint}");
            cut(&mut words);
            words
        });
        log.add(failure.as_deref().unwrap_or("done"));
        Some(JobOutcome { job: number, failure, exit, log: log.into_text() })
    }
}

/// The key of this host, which stays. One of an image that was captured elsewhere is left alone: hosts have their own.
fn key(folder: &Path, mac: &str) -> Result<MachineKey> {
    let path = folder.join(format!("agent-{}.key", mac.replace(':', "-")));
    if !path.exists() {
        let mut seed = [0; MachineKey::SEED_BYTES];
        getrandom::fill(&mut seed).map_err(|_| Failure::new(Exit::Failed, "there are no random numbers"))?;
        make_private(&path, base::hex::encode(&seed).as_bytes())?;
    }
    let text = read_private(&path)?;
    let seed = std::str::from_utf8(&text).ok().and_then(|text| base::hex::decode(text.trim()));
    let seed = seed.ok_or_else(|| {
        let text = format!("`{}` has no key", path.display());
        Failure::new(Exit::Failed, text).hint("remove it; an administrator must then admit this host again")
    })?;
    Ok(MachineKey::of_seed(&seed)?)
}
