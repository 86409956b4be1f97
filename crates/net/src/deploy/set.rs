//! Makes a set of the disks of hosts that are reached by ssh: drives [`proto::checkpoint`] with one program for each
//! host.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::api::{MemberJob, MemberWord, SetOrder};
use crate::clock::{Clock, Stop};
use base::Instant;
use proto::checkpoint::{Action, Order, Said};
pub use proto::checkpoint::{Checkpoint, Failure, Phase, Rules as SetRules, Standing};

use super::ending::{Ending, GRACE};
use super::program::{End, Line, Listener, Program, may_help};
use super::{Address, Ssh, TICK};

/// How often hosts are told that we are alive.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// A host, and the disk that becomes a member.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its name, for people.
    pub name: String,
    /// How it is reached.
    pub address: Address,
    /// Its disk.
    pub job: MemberJob,
}

/// A version that a host has stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stored {
    /// Its image.
    pub image: String,
    /// Its number.
    pub number: u64,
    /// Bytes that were sent for it.
    pub bytes: u64,
    /// How long its disk was frozen until all were.
    pub frozen: Duration,
}

/// What a program says.
struct Heard {
    host: usize,
    round: u32,
    what: What,
}

enum What {
    Word(MemberWord),
    Last(Said),
}

/// Makes a set of the disks of `members`, and returns when all is over. When all have stored their disks, `publish`
/// gets their versions in the order of the members, and makes the set visible; its error says why it could not. `tell`
/// gets to know how far all is, several times a second; when `stop` is set, it is called off.
pub fn make_set(
    members: &[Member],
    rules: SetRules,
    ssh: &Ssh,
    stop: &Stop,
    mut publish: impl FnMut(&[Stored]) -> Result<(), String>,
    mut tell: impl FnMut(&Checkpoint, Instant),
) -> Checkpoint {
    let clock = Clock::start();
    let (sender, words) = channel();
    let stored = vec![Stored::default(); members.len()];
    let mut driver = Driver {
        members,
        ssh,
        clock,
        sender,
        stored,
        running: BTreeMap::new(),
        // A machine that is being frozen is thawed when that has ended.
        ending: Ending::within(GRACE + rules.freeze),
        alive: clock.now(),
    };
    let mut set = Checkpoint::new(members.len(), rules, clock.now());
    let mut called_off = false;
    loop {
        if stop.is_stopped() && !std::mem::replace(&mut called_off, true) {
            set.cancel().into_iter().for_each(|action| driver.act(action));
        }
        for action in set.next(clock.now()) {
            if action == Action::Publish {
                let outcome = publish(&driver.stored);
                set.published(outcome, clock.now()).into_iter().for_each(|action| driver.act(action));
            } else {
                driver.act(action);
            }
        }
        tell(&set, clock.now());
        if set.phase() == Phase::Over {
            return set;
        }
        driver.pass_time();
        let until = set.wakes().map_or(TICK, |at| at.since(clock.now()).min(TICK));
        driver.hear(&mut set, &words, until);
    }
}

/// The programs that run.
struct Driver<'a> {
    members: &'a [Member],
    ssh: &'a Ssh,
    clock: Clock,
    sender: Sender<Heard>,
    stored: Vec<Stored>,
    running: BTreeMap<usize, Program>,
    ending: Ending,
    /// When hosts were last told that we are alive.
    alive: Instant,
}

impl Driver<'_> {
    fn act(&mut self, action: Action) {
        match action {
            Action::Start { host, round } => {
                let Member { address, job, .. } = &self.members[host];
                let sender = self.sender.clone();
                let say = move |what| drop(sender.send(Heard { host, round, what }));
                let (says, told) = (say.clone(), say.clone());
                let talk = move |_: &Program, listener| listen(listener, &says);
                let ended = move |last: Option<Option<MemberWord>>, end: End| {
                    told(What::Last(outcome(last.flatten(), &end)))
                };
                match Program::start(self.ssh.command(address), job, talk, ended) {
                    Ok(program) => drop(self.running.insert(host, program)),
                    Err(why) => say(What::Last(Said::Failed { why, again: false })),
                }
            }
            Action::Tell { host, order } => {
                let order = match order {
                    Order::Freeze => SetOrder::Freeze,
                    Order::GoOn => SetOrder::GoOn,
                    Order::Finish => SetOrder::Finish,
                };
                self.running.get(&host).into_iter().for_each(|program| program.tell(&order));
            }
            Action::Stop { host } => {
                self.running.get(&host).into_iter().for_each(Program::call_off);
                self.ending.begins(host, self.clock.now());
            }
            Action::Publish => unreachable!("it is done where the versions are"),
        }
    }

    /// Says that we are alive, and ends those that were called off and are still there.
    fn pass_time(&mut self) {
        let now = self.clock.now();
        if now.since(self.alive) >= HEARTBEAT {
            self.alive = now;
            self.running.values().for_each(|program| program.tell(&SetOrder::Alive));
        }
        let running = &self.running;
        self.ending.kill_those_that_stay(
            now,
            |host| running.contains_key(&host),
            |host| running[&host].kill(),
        );
    }

    /// Takes what hosts said, for `time` at most.
    fn hear(&mut self, set: &mut Checkpoint, words: &Receiver<Heard>, time: Duration) {
        let first = words.recv_timeout(time).ok();
        for Heard { host, round, what } in first.into_iter().chain(words.try_iter()) {
            let said = match what {
                What::Last(said) => {
                    self.running.remove(&host);
                    said
                }
                What::Word(word) => self.take(host, word),
            };
            let actions = set.heard(host, round, said, self.clock.now());
            actions.into_iter().for_each(|action| self.act(action));
        }
    }

    fn take(&mut self, host: usize, word: MemberWord) -> Said {
        let stored = &mut self.stored[host];
        match word {
            MemberWord::Prepared => Said::Prepared,
            MemberWord::Frozen => Said::Frozen,
            MemberWord::Moment { seconds } => {
                stored.frozen = Duration::try_from_secs_f64(seconds).unwrap_or_default();
                Said::Alive
            }
            MemberWord::Stored { image, number, stored_bytes } => {
                (stored.image, stored.number, stored.bytes) = (image, number, stored_bytes);
                Said::Stored
            }
            MemberWord::Alive { .. } | MemberWord::Ended | MemberWord::Failed { .. } => Said::Alive,
        }
    }
}

/// Tells what is said, and returns the last word.
fn listen(mut listener: Listener, say: &impl Fn(What)) -> Option<MemberWord> {
    loop {
        match listener.next() {
            Line::Word(last @ (MemberWord::Ended | MemberWord::Failed { .. })) => return Some(last),
            Line::Word(word) => say(What::Word(word)),
            Line::TooLong => {
                let message = "it says more than a host has to say".to_owned();
                return Some(MemberWord::Failed { exit: 1, message, hint: None });
            }
            Line::End => return None,
        }
    }
}

/// The last word of a program that has ended.
fn outcome(last: Option<MemberWord>, end: &End) -> Said {
    match last {
        Some(MemberWord::Ended) => Said::Ended,
        Some(MemberWord::Failed { exit, message, hint }) => {
            let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
            Said::Failed { why: format!("{message}{hint}"), again: may_help(exit) }
        }
        _ => {
            let (why, again) = end.explain();
            Said::Failed { why, again }
        }
    }
}
