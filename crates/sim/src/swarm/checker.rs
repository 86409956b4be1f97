//! The rules of a swarm. The checker sees what is sent and what arrives, and uses no state of the machines.

use std::collections::{BTreeMap, BTreeSet};

use base::{Duration, Instant};

use super::scenario::SwarmScenario;
use crate::checkers::Violation;

/// A receiver gets an object at least so often, since the server has all.
const PROGRESS: Duration = Duration::from_secs(16);
/// A receiver asks at most so often in a second, besides some requests at the start and for each object.
const REQUESTS_A_SECOND: u64 = 1500;

#[derive(Debug, Clone, Default)]
struct Seen {
    began: Option<Instant>,
    progressed: Instant,
    /// Right objects that arrived.
    right: BTreeSet<u64>,
    /// Objects that are asked of each member, by its number.
    asked: BTreeMap<usize, BTreeSet<u64>>,
    from_server: BTreeSet<u64>,
    ordered: BTreeSet<u64>,
    liars: BTreeSet<usize>,
    requests: u64,
    done: bool,
    gone: bool,
}

/// The checker of one run.
#[derive(Debug)]
pub(super) struct Checker {
    scenario: SwarmScenario,
    seen: Vec<Seen>,
    pub(super) server_objects: u64,
    pub(super) peer_objects: u64,
    violations: Vec<Violation>,
}

impl Checker {
    pub(super) fn new(scenario: &SwarmScenario) -> Self {
        let seen = vec![Seen::default(); scenario.members.len()];
        Self { scenario: scenario.clone(), seen, server_objects: 0, peer_objects: 0, violations: Vec::new() }
    }

    pub(super) fn into_violations(self) -> Vec<Violation> {
        self.violations
    }

    fn breach(&mut self, rule: &'static str, what: String) {
        if self.violations.iter().filter(|violation| violation.rule == rule).count() < 3 {
            self.violations.push(Violation { rule, what });
        }
    }

    pub(super) fn began(&mut self, now: Instant, who: usize) {
        (self.seen[who].began, self.seen[who].progressed) = (Some(now), now);
    }

    pub(super) fn requested(&mut self, now: Instant, who: usize) {
        let seen = &mut self.seen[who];
        seen.requests += 1;
        let ms = now.since(seen.began.unwrap_or(now)).as_millis() as u64;
        let most = 200 + 4 * u64::from(self.scenario.objects) + ms * REQUESTS_A_SECOND / 1000;
        if seen.requests > most {
            let what = format!("{now:?}: member {who} sent {} requests, at most {most}", seen.requests);
            self.breach("requests are bounded", what);
        }
    }

    /// `who` asks `holder` (`None`: nobody is there) for objects.
    pub(super) fn pulls(&mut self, now: Instant, who: usize, holder: Option<usize>, objects: &[u64]) {
        if let Some(holder) = holder {
            let seen = &mut self.seen[who];
            seen.asked.entry(holder).or_default().extend(objects);
            if seen.liars.contains(&holder) {
                let what = format!("{now:?}: member {who} asks {holder} again");
                self.breach("a liar is asked no more", what);
            }
        }
        self.bounds(now, who);
    }

    fn bounds(&mut self, now: Instant, who: usize) {
        let SwarmScenario { window_objects, request_objects, fan_in, .. } = self.scenario;
        let seen = &self.seen[who];
        let senders = seen.asked.values().filter(|objects| !objects.is_empty()).count();
        let out: BTreeSet<u64> = seen.asked.values().flatten().chain(&seen.ordered).copied().collect();
        let of_members: BTreeSet<u64> = seen.asked.values().flatten().copied().collect();
        let (of_members, window) = (of_members.len(), (window_objects + request_objects) as usize);
        // What the server is to send comes beside it.
        let (out, most) = (out.len(), window + window_objects as usize);
        if senders > fan_in {
            self.breach(
                "few send at a time",
                format!("{now:?}: {senders} to member {who}, at most {fan_in}"),
            );
        }
        if of_members > window {
            let what = format!("{now:?}: member {who} asked members for {of_members}, at most {window}");
            self.breach("the window is bounded", what);
        }
        if out > most {
            let what = format!("{now:?}: {out} objects under way to member {who}, at most {most}");
            self.breach("the window is bounded", what);
        }
    }

    pub(super) fn orders(&mut self, now: Instant, who: usize, object: u64) {
        let seen = &mut self.seen[who];
        seen.ordered.insert(object);
        self.server_objects += 1;
        if !seen.from_server.insert(object) {
            let what = format!("{now:?}: member {who} asks for object {object} again");
            self.breach("the server is asked once for an object", what);
        }
        self.bounds(now, who);
    }

    /// An object arrives from `holder`, or from the server.
    pub(super) fn arrives(
        &mut self,
        now: Instant,
        who: usize,
        holder: Option<usize>,
        object: u64,
        right: bool,
    ) {
        let seen = &mut self.seen[who];
        match holder {
            Some(holder) => {
                self.peer_objects += 1;
                seen.asked.entry(holder).or_default().remove(&object);
                if !right {
                    seen.liars.insert(holder);
                }
            }
            None => drop(seen.ordered.remove(&object)),
        }
        if right {
            // Who was asked for it, too, sends it for nothing: at the end, and few.
            for asked in seen.asked.values_mut() {
                asked.remove(&object);
            }
        }
        if right && seen.right.insert(object) {
            seen.progressed = now;
        }
    }

    /// `holder` lacks this.
    pub(super) fn lacked(&mut self, who: usize, holder: usize, object: u64) {
        self.seen[who].asked.entry(holder).or_default().remove(&object);
    }

    /// The connection of `who` to `holder` has ended.
    pub(super) fn ended(&mut self, who: usize, holder: usize) {
        self.seen[who].asked.remove(&holder);
    }

    pub(super) fn done(&mut self, now: Instant, who: usize) {
        self.seen[who].done = true;
        let right = self.seen[who].right.len();
        if right != self.scenario.objects as usize {
            let what =
                format!("{now:?}: member {who} ends with {right} of {} objects", self.scenario.objects);
            self.breach("who is done has everything, and right", what);
        }
    }

    pub(super) fn gone(&mut self, who: usize) {
        self.seen[who].gone = true;
    }

    /// Looks now and then whether everybody makes progress.
    pub(super) fn look(&mut self, now: Instant, members: usize) {
        for who in 0..self.seen.len() {
            let seen = &mut self.seen[who];
            let waits = seen.began.is_some() && !seen.done && !seen.gone;
            if waits && now.since(seen.progressed) > PROGRESS {
                seen.progressed = now;
                let what = format!("{now:?}: member {who} has {} objects", seen.right.len());
                self.breach("nobody waits while the server has it", what);
            }
        }
        if members > self.scenario.members_max {
            self.breach("tables are bounded", format!("{now:?}: {members} members"));
        }
    }

    pub(super) fn end(&mut self, now: Instant, stays: impl Fn(usize) -> bool) {
        for who in (0..self.seen.len()).filter(|&who| stays(who)) {
            if !self.seen[who].done {
                let what = format!("{now:?}: member {who} has {} objects", self.seen[who].right.len());
                self.breach("everybody ends", what);
            }
        }
        // Each place takes a copy at most, and what two ask for before either reports.
        let objects = u64::from(self.scenario.objects);
        let places: BTreeSet<u32> = self.scenario.members.iter().map(|someone| someone.place).collect();
        let most = objects * places.len() as u64 + objects / 4 + 64;
        if self.scenario.is_calm() && self.server_objects > most {
            let what = format!("{} of {objects} objects, at most {most}", self.server_objects);
            self.breach("the server sends little", what);
        }
    }
}
