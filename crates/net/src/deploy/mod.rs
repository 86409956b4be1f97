//! Puts an image on hosts that are reached by ssh, with one program for each attempt, or by their agents, with one job
//! for each: drives [`proto::deploy`].

mod agents;
mod attempt;
mod ending;
mod meeting;
mod program;
mod set;
mod ssh;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::api::HostJob;
use crate::clock::{Clock, Stop};
use base::{Digest, Instant};
use proto::deploy::{Action, Said};
pub use proto::deploy::{Counts, Deploy, HostState, Rules};

pub use self::agents::Agents;
use self::attempt::Attempt;
use self::ending::{Ending, GRACE};
pub use self::meeting::Meeting;
pub use self::set::{Checkpoint, Failure, Member, Phase, SetRules, Standing, Stored, make_set};
pub use self::ssh::{Address, Ssh};

/// How often the caller is told of the time that passes, and of what changed.
const TICK: Duration = Duration::from_millis(200);

/// A host, and what it is to do.
#[derive(Debug, Clone)]
pub struct Host {
    /// Its name, for people.
    pub name: String,
    /// How it is reached. By agents: the card by which the server knows it.
    pub address: Address,
    /// What it is to do. [`HostJob::resume`] is also set from the second attempt on.
    pub job: HostJob,
}

/// What an attempt says.
struct Word {
    host: usize,
    attempt: u32,
    said: Said,
}

/// How hosts are reached.
pub enum Way<'a> {
    /// By ssh. With a meeting they begin to fetch together with those of other programs.
    Ssh(&'a Ssh, Option<&'a Meeting>),
    /// By their agents, which take jobs from a server.
    Agents(&'a Agents),
}

/// Deploys the version whose root is `wanted` to all `hosts`, and returns when each of them has ended. `tell` gets to
/// know how far all is, several times a second; when `stop` is set, what runs is called off.
pub fn run(
    hosts: &[Host],
    (wanted, rules): (Digest, Rules),
    way: &Way<'_>,
    stop: &Stop,
    mut tell: impl FnMut(&Deploy, Instant),
) -> Deploy {
    let clock = Clock::start();
    let (sender, words) = channel();
    let mut driver =
        Driver { hosts, way, clock, sender, running: BTreeMap::new(), ending: Ending::within(GRACE) };
    let mut deploy = Deploy::new(hosts.len(), wanted, rules, clock.now());
    let mut called_off = false;
    loop {
        if stop.is_stopped() && !std::mem::replace(&mut called_off, true) {
            deploy.cancel().into_iter().for_each(|action| driver.act(action));
        }
        deploy.next(clock.now()).into_iter().for_each(|action| driver.act(action));
        tell(&deploy, clock.now());
        if deploy.is_over() {
            return deploy;
        }
        driver.kill_those_that_stay();
        let until = deploy.wakes().map_or(TICK, |at| at.since(clock.now()).min(TICK));
        driver.hear(&mut deploy, &words, until);
    }
}

/// The attempts that run.
struct Driver<'a> {
    hosts: &'a [Host],
    way: &'a Way<'a>,
    clock: Clock,
    sender: Sender<Word>,
    running: BTreeMap<usize, Running>,
    ending: Ending,
}

/// An attempt that runs.
enum Running {
    Program(Attempt),
    Job(agents::Job),
}

impl Running {
    fn call_off(&self) {
        match self {
            Self::Program(attempt) => attempt.call_off(),
            Self::Job(job) => job.call_off(),
        }
    }

    fn kill(&self) {
        match self {
            Self::Program(attempt) => attempt.kill(),
            Self::Job(job) => job.kill(),
        }
    }
}

impl Driver<'_> {
    fn act(&mut self, action: Action) {
        match action {
            Action::Start { host, attempt } => {
                let Host { address, job, .. } = &self.hosts[host];
                let job = HostJob { resume: job.resume || attempt > 1, ..job.clone() };
                let sender = self.sender.clone();
                let say = move |said| drop(sender.send(Word { host, attempt, said }));
                let started = match self.way {
                    Way::Ssh(ssh, meeting) => {
                        Attempt::start(ssh.command(address), job, meeting.cloned(), say).map(Running::Program)
                    }
                    Way::Agents(agents) => Some(Running::Job(agents.start(&address.host, &job, say))),
                };
                // What can't be started has said so.
                started.into_iter().for_each(|started| drop(self.running.insert(host, started)));
            }
            Action::Stop { host } => {
                self.running.get(&host).into_iter().for_each(Running::call_off);
                self.ending.begins(host, self.clock.now());
            }
        }
    }

    /// Ends those that were called off and are still there.
    fn kill_those_that_stay(&mut self) {
        let now = self.clock.now();
        let running = &self.running;
        self.ending.kill_those_that_stay(
            now,
            |host| running.contains_key(&host),
            |host| running[&host].kill(),
        );
    }

    /// Takes what hosts said, for `time` at most.
    fn hear(&mut self, deploy: &mut Deploy, words: &Receiver<Word>, time: Duration) {
        let first = words.recv_timeout(time).ok();
        for Word { host, attempt, said } in first.into_iter().chain(words.try_iter()) {
            if matches!(said, Said::Ready { .. } | Said::Failed { .. }) {
                self.running.remove(&host);
            }
            deploy.heard(host, attempt, said, self.clock.now());
        }
    }
}
