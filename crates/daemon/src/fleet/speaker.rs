//! Who may speak for a card, and who may go on with a job that was begun.
//!
//! The agent of a host keeps its key; a machine that boots from the network draws a new one at each boot. Addresses of
//! cards and what firmware sends can be pretended by anybody, keys can't. An administrator confirms a key by its
//! fingerprint. Until then it is marked, and what it may get depends on who was there before.

use base::Instant;
use net::api::JobStage;
use net::mac::Mac;
use net::machine_key::fingerprint;

use super::keys::{Held, Known, News, Rival};
use super::machine::{Call, Machine, Now, Record, Rules, SILENCE, Step};

impl Record {
    /// The key of the machine's agent, or of the system in memory.
    pub(super) fn known(&self, runs: bool) -> Option<&Known> {
        if runs { self.agent_key.as_ref() } else { self.key.as_ref() }
    }

    pub(super) fn known_mut(&mut self, runs: bool) -> &mut Option<Known> {
        if runs { &mut self.agent_key } else { &mut self.key }
    }

    /// The key with which the job was begun that is still to be done.
    pub(super) fn begun_by(&self) -> Option<&str> {
        let job = self.job.as_ref().filter(|job| job.is_open())?;
        match &self.held {
            Some(held) if held.job == job.job => Some(&held.key),
            // Tables of before do not say it.
            _ if job.stage == JobStage::Taken => {
                self.known(job.work.is_for_agents()).map(|known| &*known.public)
            }
            _ => None,
        }
    }

    /// An administrator says that the key with this fingerprint is the machine's. One that has not been heard yet is
    /// waited for.
    pub(super) fn confirm(&mut self, name: String) {
        let mut known = self.key.iter_mut().chain(&mut self.agent_key).filter(|known| known.is_called(&name));
        match known.next() {
            Some(known) => {
                known.confirmed = true;
                self.named = None;
            }
            None => self.named = Some(name),
        }
    }
}

impl Machine {
    /// Lets a caller that has shown its key speak for the machine, or keeps it in mind as a rival, and returns why.
    pub(super) fn hear(&mut self, mac: Mac, call: &Call<'_>, rules: Rules, now: Now) -> Option<String> {
        let is_named = self.record.named.as_ref().is_some_and(|named| *named == fingerprint(call.key));
        if let Some(why) = self.turned_away(mac, call, rules, now.at).filter(|_| !is_named) {
            let told = self.rival.take().and_then(|rival| rival.told);
            self.rival = Some(Rival { known: Known::new(call.key, call.from, now.unix), at: now.at, told });
            return Some(why);
        }
        let runs = call.facts.runs;
        let known = self.record.known_mut(runs);
        if known.as_ref().is_none_or(|known| known.public != call.key) {
            *known = Some(Known::new(call.key, call.from, now.unix));
            self.idle = None;
        }
        if let Some(known) = self.record.known_mut(runs) {
            known.address = Some(call.from);
            known.confirmed |= is_named;
        }
        if is_named {
            self.record.named = None;
        }
        if self.rival.as_ref().is_some_and(|rival| rival.known.public == call.key) {
            self.rival = None;
        }
        if self.record.begun_by() == Some(call.key) {
            self.worked = Some(now.at);
        }
        (self.called, self.expected) = (Some((now.at, call.key.to_owned())), None);
        self.seen = Some((now.at, Step::Agent));
        self.record.facts = Some(call.facts.clone());
        // While two call with one card, somebody has to say which one is meant.
        self.record.admitted |= rules.is_open && self.rival(now.at).is_none();
        let what = "an administrator must admit this machine";
        (!self.record.admitted).then(|| {
            let name = fingerprint(call.key);
            format!("{what}: diskcast hosts admit {mac}, or by its key: diskcast hosts admit {name}")
        })
    }

    /// Why a caller does not speak for the machine.
    fn turned_away(&self, mac: Mac, call: &Call<'_>, rules: Rules, now: Instant) -> Option<String> {
        let admit = || format!("diskcast hosts admit {}", fingerprint(call.key));
        if self.record.named.is_some() {
            let what = "an administrator named another key for this machine";
            return Some(format!("{what}: {}, if this is the right one", admit()));
        }
        let runs = call.facts.runs;
        let known = self.record.known(runs);
        let is_known = known.is_some_and(|known| known.public == call.key);
        if runs && self.record.admitted && known.is_some() && !is_known {
            let what = "an agent with another key called from this card before";
            return Some(format!("{what}: {}, or diskcast hosts remove {mac}", admit()));
        }
        let begun_by = self.record.begun_by();
        if known.is_some_and(|known| is_known && known.confirmed) || begun_by == Some(call.key) {
            return None;
        }
        if self.called.as_ref().is_some_and(|(at, key)| key != call.key && is_recent(*at, now)) {
            return Some("another machine with this address of a network card is at work".to_owned());
        }
        let job =
            self.record.job.as_ref().filter(|job| begun_by.is_some() && job.work.is_for_agents() == runs)?;
        // A machine that was started anew goes on with its job; an agent has kept its key.
        let what = format!("the job `{}` was begun with another key", job.work);
        if runs || job.work.writes() || rules.strict {
            return Some(format!("{what}: an administrator must say {}", admit()));
        }
        let was_silent = self.worked.is_none_or(|worked| !is_recent(worked, now));
        let was_started = self.booted.is_some_and(|booted| self.worked.is_none_or(|worked| booted > worked));
        (!was_silent || !was_started).then(|| {
            let look = "the firmware of this card was not seen since";
            format!("{what}, and {look}: start the machine from the network, or {}", admit())
        })
    }

    /// Why it may not begin the job that it has before an administrator has confirmed its key.
    pub(super) fn unconfirmed(&self, call: &Call<'_>, rules: Rules) -> Option<String> {
        let job = self.record.job.as_ref().filter(|job| job.work.writes() || rules.strict)?;
        let is_confirmed = self.record.known(call.facts.runs).is_some_and(|known| known.confirmed);
        let what =
            format!("an administrator must confirm the key of this machine for the job `{}`", job.work);
        (!is_confirmed).then(|| format!("{what}: diskcast hosts admit {}", fingerprint(call.key)))
    }

    /// Takes note that the job is begun with the key of `call`, or gone on with.
    pub(super) fn hold(&mut self, job: u64, call: &Call<'_>, now: Instant) {
        let is_held = self.record.begun_by().is_some_and(|key| key != call.key);
        self.record.held = Some(Held { job, key: call.key.to_owned() });
        self.worked = Some(now);
        if let Some(known) = self.record.known_mut(call.facts.runs) {
            known.followed |= is_held;
        }
    }

    /// All keys with which somebody calls as this machine.
    pub(super) fn keys(&self, now: Instant) -> impl Iterator<Item = &Known> {
        let rival = self.rival(now).map(|rival| &rival.known);
        self.record.key.iter().chain(&self.record.agent_key).chain(rival)
    }

    /// Somebody else who calls with the same card.
    pub(super) fn rival(&self, now: Instant) -> Option<&Rival> {
        self.rival.as_ref().filter(|rival| is_recent(rival.at, now))
    }

    /// What the log is to say of the key of `call`, before which the record was `before`.
    pub(super) fn news(&mut self, before: &Record, call: &Call<'_>, why: &str, now: Instant) -> Option<News> {
        if !self.record.admitted {
            return None;
        }
        let what = match (&mut self.rival, self.record.known(call.facts.runs)) {
            // Anybody can draw new keys all day.
            (Some(rival), _) if rival.known.public == call.key => {
                if rival.told.is_some_and(|told| is_recent(told, now)) {
                    return None;
                }
                rival.told = Some(now);
                format!("gets nothing: {why}")
            }
            (_, Some(known)) => {
                let was = before.known(call.facts.runs);
                let is_same = was.is_some_and(|was| was.public == known.public);
                let followed = known.followed && !(is_same && was.is_some_and(|was| was.followed));
                let words = match (followed, known.confirmed, was) {
                    (true, _, _) => "goes on with a job that another key had begun",
                    _ if is_same && before.admitted => return None,
                    (_, true, _) => "is the one that an administrator named",
                    (_, false, Some(_)) if !is_same => "is new, and nobody has confirmed it",
                    _ => "is the first one, and nobody has confirmed it",
                };
                words.to_owned()
            }
            _ => return None,
        };
        Some(News { fingerprint: fingerprint(call.key), what })
    }
}

fn is_recent(then: Instant, now: Instant) -> bool {
    now.since(then) <= SILENCE
}
