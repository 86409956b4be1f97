//! The redirector: knows which member of a swarm holds which objects, and names one to who asks. The server runs it,
//! and an agent on a switch. Source: `formats/peer.md`, section 3; seed 004.
//!
//! Members that are near (at the same place) go first; of those, the ones with the least to send, in turn. What nobody
//! near holds is fetched to a place once: who asks first gets it from afar, the others wait until he has it.
//!
//! Nothing here is trusted for content: who was named wrongly costs an attempt. All tables are bounded.

mod choice;
mod leases;
mod swarm;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;

use base::{Duration, Instant};

use super::wire::packet::{MemberId, Report, Request, SwarmId};
pub use choice::{Choice, Chosen, Contact, SwarmView};
use swarm::Swarm;

/// Bounds of a redirector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedirectorConfig {
    /// A member that is silent for this time is forgotten.
    pub silent_after: Duration,
    /// Most swarms.
    pub swarms_max: usize,
    /// Most members of all swarms.
    pub members_max: usize,
    /// Most bytes of the tables of who holds what, of all swarms.
    pub table_bytes_max: u64,
    /// Whether the tags of packets are verified before they come here, and it has the keys to answer, as at the server.
    /// An agent on a switch has no keys: a report counts only if it comes from where the member was first heard, and a
    /// request is passed on as a whole, so it waits as a whole.
    pub authentic: bool,
}

impl Default for RedirectorConfig {
    fn default() -> Self {
        Self {
            silent_after: Duration::from_secs(6),
            swarms_max: 1024,
            members_max: 1 << 14,
            table_bytes_max: 256 << 20,
            authentic: true,
        }
    }
}

/// What a redirector has done since it began. Counters never decrease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RedirectorCounters {
    /// Reports that counted.
    pub reports: u64,
    /// Reports that did not: too many members, another size, or from elsewhere.
    pub refused: u64,
    /// Requests.
    pub requests: u64,
    /// Objects for which a member near was named.
    pub near: u64,
    /// Objects for which a member far was named.
    pub far: u64,
    /// Objects that nobody had.
    pub nobody: u64,
    /// Objects that somebody near was about to have.
    pub waits: u64,
    /// Members that were named no more, because others got wrong bytes from them.
    pub banned: u64,
}

/// The machine. Swarms come by [`Redirector::expect`] or with the first report.
#[derive(Debug)]
pub struct Redirector {
    config: RedirectorConfig,
    swarms: HashMap<SwarmId, Swarm>,
    members: usize,
    table_bytes: u64,
    counters: RedirectorCounters,
    swept_at: Instant,
}

impl Redirector {
    /// A redirector that knows nobody.
    #[must_use]
    pub fn new(config: RedirectorConfig) -> Self {
        let counters = RedirectorCounters::default();
        Self { config, swarms: HashMap::new(), members: 0, table_bytes: 0, counters, swept_at: Instant::ZERO }
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> RedirectorCounters {
        self.counters
    }

    /// Members of all swarms.
    #[must_use]
    pub fn members(&self) -> usize {
        self.members
    }

    /// Says how many objects a swarm's version has. Members that said otherwise are forgotten. False if there are too
    /// many swarms.
    pub fn expect(&mut self, now: Instant, swarm: SwarmId, objects: u32) -> bool {
        if self.swarms.get(&swarm).is_some_and(|known| known.objects() != objects) {
            self.forget(swarm);
        }
        if !self.swarms.contains_key(&swarm) && self.swarms.len() >= self.config.swarms_max {
            self.sweep(now);
        }
        let full = self.swarms.len() >= self.config.swarms_max;
        match self.swarms.get_mut(&swarm) {
            Some(known) => known.touch(now),
            None if full => return false,
            None => drop(self.swarms.insert(swarm, Swarm::new(now, objects))),
        }
        true
    }

    /// Which objects the members of a swarm hold together, as runs.
    #[must_use]
    pub fn held(&self, swarm: SwarmId) -> Vec<Range<u32>> {
        self.swarms.get(&swarm).map(Swarm::held).unwrap_or_default()
    }

    /// A swarm in numbers.
    #[must_use]
    pub fn view(&self, swarm: SwarmId) -> SwarmView {
        self.swarms.get(&swarm).map(Swarm::view).unwrap_or_default()
    }

    /// A member tells what it holds.
    pub fn handle_report(
        &mut self,
        now: Instant,
        swarm: SwarmId,
        member: MemberId,
        contact: Contact,
        report: &Report,
    ) {
        let bytes = u64::from(report.objects).div_ceil(8);
        let is_new = self.swarms.get(&swarm).is_none_or(|known| !known.has(member));
        let full = self.members >= self.config.members_max
            || self.table_bytes.saturating_add(bytes) > self.config.table_bytes_max;
        if member.0 == 0 || is_new && full {
            self.counters.refused += 1;
            return;
        }
        let known = self.swarms.contains_key(&swarm) || self.expect(now, swarm, report.objects);
        let took = known.then(|| self.swarms.get_mut(&swarm)).flatten();
        let took =
            took.is_some_and(|swarm| swarm.report(now, member, contact, report, self.config.authentic));
        match took {
            true if is_new => {
                self.members += 1;
                self.table_bytes += bytes;
                self.counters.reports += 1;
            }
            true => self.counters.reports += 1,
            false => self.counters.refused += 1,
        }
    }

    /// A member serves no more. Without verified tags it must come from where the member is heard.
    pub fn handle_leave(&mut self, swarm: SwarmId, member: MemberId, contact: Contact) {
        let authentic = self.config.authentic;
        let Some(known) = self.swarms.get_mut(&swarm) else { return };
        if known.contact(member).is_some_and(|heard| authentic || heard == contact) {
            known.remove(member);
            self.members -= 1;
            self.table_bytes -= u64::from(known.objects()).div_ceil(8);
        }
    }

    /// A member asks who holds some objects. `None` for a swarm that nobody knows.
    pub fn handle_request(
        &mut self,
        now: Instant,
        swarm: SwarmId,
        member: MemberId,
        request: &Request,
    ) -> Option<Choice> {
        let swarm = self.swarms.get_mut(&swarm)?;
        self.counters.requests += 1;
        self.counters.banned += swarm.blame(now, member, request);
        let (choice, is_near) = swarm.choose(now, member, request, self.config.authentic);
        let objects = u64::from(choice.part.count());
        match choice.chosen {
            Chosen::Nobody { .. } => self.counters.nobody += objects,
            Chosen::Wait { .. } => self.counters.waits += objects,
            Chosen::Member { .. } if is_near => self.counters.near += objects,
            Chosen::Member { .. } => self.counters.far += objects,
        }
        Some(choice)
    }

    /// [`Self::handle_request`] for who has the key to answer. A request with hops comes from an agent on a switch,
    /// which knows that somebody near is about to have the objects, and has no key to say so.
    pub fn handle_passed_on(
        &mut self,
        now: Instant,
        swarm: SwarmId,
        member: MemberId,
        request: &Request,
        hops: u8,
    ) -> Option<Choice> {
        if hops == 0 {
            return self.handle_request(now, swarm, member, request);
        }
        self.swarms.contains_key(&swarm).then(|| {
            self.counters.requests += 1;
            self.counters.waits += u64::from(request.part.count());
            Choice::wait(request.part)
        })
    }

    /// When [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!self.swarms.is_empty()).then(|| self.swept_at + self.config.silent_after / 4)
    }

    /// Forgets who was silent for too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            self.sweep(now);
        }
    }

    fn sweep(&mut self, now: Instant) {
        self.swept_at = now;
        let silent_after = self.config.silent_after;
        for swarm in self.swarms.values_mut() {
            let removed = swarm.sweep(now, silent_after);
            self.members -= removed;
            self.table_bytes -= removed as u64 * u64::from(swarm.objects()).div_ceil(8);
        }
        self.swarms.retain(|_, swarm| !swarm.is_deserted(now, silent_after));
    }

    fn forget(&mut self, swarm: SwarmId) {
        if let Some(swarm) = self.swarms.remove(&swarm) {
            let members = swarm.view().members as usize;
            self.members -= members;
            self.table_bytes -= members as u64 * u64::from(swarm.objects()).div_ceil(8);
        }
    }
}
