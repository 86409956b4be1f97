//! What an agent does with a frame: takes what members tell, and decides for each REQUEST who is to get it. No
//! sockets and no clock; the redirector of `proto` knows who holds what. Source: `formats/peer.md`, section 3; seed
//! 004.

use std::collections::HashMap;

use base::{Duration, Instant};
use proto::peer::{
    Chosen, Contact, MemberId, Packet, Peek, Redirector, RedirectorConfig, Report, Request, SwarmId, open,
    peek,
};

use super::frame::{self, Target};
use net::mac::Mac;

/// A member that is silent for this time is forgotten, as at the server.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(6);
/// Most members. A switch has at most some hundred ports; more may be behind switches below.
pub(super) const MEMBERS_MAX: usize = 4096;
const SWARMS_MAX: usize = 256;
/// Most bytes of what members hold: 64 MiB are 4096 members with images of 32 GiB.
const TABLE_BYTES_MAX: u64 = 64 << 20;

/// What an agent did. Counters never decrease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SwitchCounters {
    /// REPORTs that counted.
    pub reports: u64,
    /// REPORTs and LEAVEs that did not: the tables are full, or the member was heard elsewhere.
    pub refused: u64,
    /// LEAVEs.
    pub leaves: u64,
    /// REQUESTs that the rules held back for the agent.
    pub requests: u64,
    /// Those of them that went to a member.
    pub redirected: u64,
    /// Those of them that went on to the server, which says that they are to wait: somebody here is about to have the
    /// objects.
    pub waits: u64,
    /// Those that went on to the server as they are: nobody here has the objects.
    pub passed: u64,
    /// Frames that were damaged, or no packets of this protocol.
    pub invalid: u64,
    /// Frames that could not be sent.
    pub unsent: u64,
    /// Frames that found the agent's queue full.
    pub lost: u64,
    /// REQUESTs that the kernel redirected by itself.
    pub redirected_in_kernel: u64,
}

/// A member as the switch hears it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) contact: Contact,
    pub(super) mac: Mac,
    pub(super) at: Instant,
}

/// Something that members told, for the tables of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// A REPORT that counted.
    Reported(SwarmId, MemberId, Heard, Report),
    /// The member left, or was silent.
    Gone(SwarmId, MemberId),
}

/// What an agent decides about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// This member is to get it.
    Member(Target),
    /// The asker is to wait. Only the server has the key to say so.
    Wait,
}

/// The agent's mind.
#[derive(Debug)]
pub(super) struct Agent {
    own: Mac,
    redirector: Redirector,
    members: HashMap<(SwarmId, MemberId), Heard>,
    counters: SwitchCounters,
    changes: Vec<Change>,
    /// Whether somebody takes the changes.
    tells_changes: bool,
    swept_at: Instant,
}

impl Agent {
    /// An agent of a switch with this address, which knows nobody. Changes are kept until they are taken if
    /// `tells_changes`.
    pub(super) fn new(own: Mac, tells_changes: bool) -> Self {
        let config = RedirectorConfig {
            silent_after: SILENT_AFTER,
            swarms_max: SWARMS_MAX,
            members_max: MEMBERS_MAX,
            table_bytes_max: TABLE_BYTES_MAX,
            authentic: false,
        };
        let (redirector, members, changes) = (Redirector::new(config), HashMap::new(), Vec::new());
        let counters = SwitchCounters::default();
        Self { own, redirector, members, counters, changes, tells_changes, swept_at: Instant::ZERO }
    }

    pub(super) fn counters(&self) -> SwitchCounters {
        self.counters
    }

    pub(super) fn counters_mut(&mut self) -> &mut SwitchCounters {
        &mut self.counters
    }

    pub(super) fn members(&self) -> usize {
        self.members.len()
    }

    pub(super) fn swarms(&self) -> usize {
        let mut swarms: Vec<u64> = self.members.keys().map(|(swarm, _)| swarm.0).collect();
        swarms.sort_unstable();
        swarms.dedup();
        swarms.len()
    }

    pub(super) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Takes a frame that arrived at the port with index `ingress`, and may change where it goes. True if it is to be
    /// sent: it was held back for the agent.
    pub(super) fn handle(&mut self, now: Instant, ingress: u32, frame: &mut [u8]) -> bool {
        self.sweep(now);
        let Some(datagram) = frame::read(frame) else { return self.invalid() };
        let payload = &frame[datagram.payload.clone()];
        let (head, packet) = match (peek(payload), open(None, payload)) {
            (Ok(head), Ok(packet)) => (head, packet),
            // The server could not read it either.
            _ => return self.invalid(),
        };
        let contact = Contact { from: datagram.from, ingress };
        match packet {
            Packet::Report(report) => self.report(now, &head, contact, datagram.source, report),
            Packet::Leave => self.leave(&head, contact),
            Packet::Request(request) => return self.request(now, &head, contact, &request, frame),
            Packet::Offer(_) => {}
        }
        false
    }

    fn invalid(&mut self) -> bool {
        self.counters.invalid += 1;
        false
    }

    fn report(&mut self, now: Instant, head: &Peek, contact: Contact, mac: Mac, mut report: Report) {
        let key = (head.swarm, head.member);
        // The port says where a member is, whatever it says itself: at the port of an upper switch all those of a lower
        // one are near each other.
        report.place = contact.ingress;
        let known = self.members.get(&key);
        let is_elsewhere = known.is_some_and(|heard| (heard.contact, heard.mac) != (contact, mac));
        let is_full = known.is_none() && self.members.len() >= MEMBERS_MAX;
        if is_elsewhere || is_full {
            self.counters.refused += 1;
            return;
        }
        let before = self.redirector.counters().reports;
        self.redirector.handle_report(now, head.swarm, head.member, contact, &report);
        if self.redirector.counters().reports == before {
            self.counters.refused += 1;
            return;
        }
        self.counters.reports += 1;
        let heard = Heard { contact, mac, at: now };
        self.members.insert(key, heard);
        self.note(Change::Reported(head.swarm, head.member, heard, report));
    }

    fn leave(&mut self, head: &Peek, contact: Contact) {
        let key = (head.swarm, head.member);
        match self.members.get(&key) {
            Some(heard) if heard.contact == contact => {
                self.counters.leaves += 1;
                self.members.remove(&key);
                self.redirector.handle_leave(head.swarm, head.member, contact);
                self.note(Change::Gone(head.swarm, head.member));
            }
            Some(_) => self.counters.refused += 1,
            // The second one, or of a member that never reported.
            None => {}
        }
    }

    fn request(
        &mut self,
        now: Instant,
        head: &Peek,
        contact: Contact,
        request: &Request,
        frame: &mut [u8],
    ) -> bool {
        self.counters.requests += 1;
        if !frame::settle(frame) {
            return self.invalid();
        }
        let done = match self.choose(now, head, contact, request) {
            Some(Verdict::Member(target)) if frame::redirect(frame, &target) => &mut self.counters.redirected,
            Some(Verdict::Wait) if frame::count_hop(frame) => &mut self.counters.waits,
            _ => &mut self.counters.passed,
        };
        *done += 1;
        true
    }

    /// What is to happen with a request, if the server is not to decide.
    fn choose(&mut self, now: Instant, head: &Peek, contact: Contact, request: &Request) -> Option<Verdict> {
        let asker = self.members.get(&(head.swarm, head.member));
        let is_forged = asker.is_some_and(|heard| heard.contact != contact);
        if is_forged || head.hops > 0 || request.direct {
            return None;
        }
        let choice = self.redirector.handle_request(now, head.swarm, head.member, request)?;
        // Whoever lies is known to the server only if it gets these.
        if request.blamed != 0 {
            return None;
        }
        let (member, contact) = match choice.chosen {
            Chosen::Member { member, contact, .. } => (member, contact),
            Chosen::Wait { .. } => return Some(Verdict::Wait),
            Chosen::Nobody { .. } => return None,
        };
        let heard = self.members.get(&(head.swarm, member))?;
        Some(Verdict::Member(Target { source: self.own, destination: heard.mac, to: contact.from }))
    }

    /// Forgets members that were silent for too long.
    pub(super) fn sweep(&mut self, now: Instant) {
        if now.since(self.swept_at) < SILENT_AFTER / 8 {
            return;
        }
        self.swept_at = now;
        self.redirector.handle_timeout(now);
        let mut gone = Vec::new();
        self.members.retain(|&(swarm, member), heard| {
            let stays = now.since(heard.at) <= SILENT_AFTER;
            if !stays {
                gone.push((swarm, member));
            }
            stays
        });
        gone.into_iter().for_each(|(swarm, member)| self.note(Change::Gone(swarm, member)));
    }

    fn note(&mut self, change: Change) {
        if self.tells_changes {
            self.changes.push(change);
        }
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "numbers of tests are small")]
mod tests {
    use proto::multicast::Key;
    use proto::peer::{AVOIDED_MAX, Part, Window, seal_packet};

    use super::*;
    use crate::frame::read;
    use crate::frame::tests::frame;

    const SERVER: &str = "10.77.0.1:7717";
    const SWARM: SwarmId = SwarmId(7);
    const OBJECTS: u32 = 100;

    fn agent() -> Agent {
        Agent::new(Mac([0xaa; 6]), false)
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    /// A frame of member `id`, which is at 10.77.0.`id` and hears requests at port 7700.
    fn of(id: u8, packet: &Packet) -> Vec<u8> {
        let bytes = seal_packet(&Key([id; 16]), SWARM, MemberId(id.into()), 1, packet);
        let from = format!("10.77.0.{id}:7700").parse().unwrap();
        frame(Mac([id; 6]), from, SERVER.parse().unwrap(), &bytes)
    }

    fn report(id: u8, objects: std::ops::Range<u32>) -> Vec<u8> {
        let window = Window { objects: 0..OBJECTS, held: vec![objects] };
        of(id, &Packet::Report(Report { port: 7700, uploads: 0, place: 0, objects: OBJECTS, window }))
    }

    fn request(id: u8, direct: bool, blamed: u8) -> Vec<u8> {
        let mut avoided = [MemberId(0); AVOIDED_MAX];
        avoided[0] = MemberId(u64::from(blamed) * 9);
        let part = Part { batch: 1, mask: 1 };
        of(id, &Packet::Request(Request { part, avoided, blamed, direct, scouts: false }))
    }

    /// Where a request of member `id` at port `ingress` goes.
    fn asks(agent: &mut Agent, now: Instant, (id, ingress): (u8, u32), direct: bool, blamed: u8) -> String {
        let mut frame = request(id, direct, blamed);
        assert!(agent.handle(now, ingress, &mut frame), "a request is sent once, to somebody");
        let seen = read(&frame).unwrap();
        assert!(frame::settle(&mut frame));
        let (hops, own) = (frame[seen.payload.start + 6], seen.source == Mac([0xaa; 6]));
        match (seen.to.to_string() == SERVER, hops, own) {
            (true, 1, false) => "wait".to_owned(),
            (is_server, hops, own) => {
                assert_eq!((hops == 0, own), (is_server, !is_server));
                seen.to.ip().to_string()
            }
        }
    }

    #[test]
    fn requests_go_round_those_who_hold_the_objects_and_else_to_the_server() {
        let mut agent = agent();
        let ask = |agent: &mut Agent, second| asks(agent, at(second), (9, 9), false, 0);
        assert_eq!(ask(&mut agent, 0), "10.77.0.1", "nobody is known");
        for id in [2, 3, 4] {
            assert!(!agent.handle(at(1), id.into(), &mut report(id, 0..40)), "a report is a copy");
        }
        assert!(!agent.handle(at(1), 5, &mut report(5, 0..20)));
        let mut named: Vec<String> = (0..6).map(|_| ask(&mut agent, 1)).collect();
        named.sort();
        let both = |id: u8| [format!("10.77.0.{id}"), format!("10.77.0.{id}")];
        assert_eq!(named, [both(2), both(3), both(4)].concat());
        assert_eq!(asks(&mut agent, at(1), (9, 9), true, 0), "10.77.0.1", "only the server may answer");
        assert_eq!(asks(&mut agent, at(1), (9, 9), false, 1), "10.77.0.1", "the server hears who is blamed");
        let own: Vec<String> = (0..4).map(|_| asks(&mut agent, at(2), (3, 3), false, 0)).collect();
        assert!(!own.contains(&"10.77.0.3".to_owned()), "{own:?}");
        assert!(!agent.handle(at(3), 2, &mut of(2, &Packet::Leave)));
        assert!((0..6).all(|_| ask(&mut agent, 3) != "10.77.0.2"));
        assert_eq!(ask(&mut agent, 20), "10.77.0.1", "who is silent is forgotten");
        assert_eq!((agent.members(), agent.swarms()), (0, 0));
    }

    #[test]
    fn a_member_behind_the_asker_s_port_goes_first() {
        let mut agent = agent();
        for (id, ingress) in [(2, 1), (3, 2), (4, 1), (9, 2)] {
            let objects = if id == 9 { 0..1 } else { 0..40 };
            assert!(!agent.handle(at(1), ingress, &mut report(id, objects)));
        }
        assert!((0..5).all(|_| asks(&mut agent, at(1), (9, 2), false, 0) == "10.77.0.3"));
    }

    #[test]
    fn what_one_behind_a_port_gets_from_elsewhere_the_others_there_wait_for() {
        let mut agent = agent();
        for (id, ingress, objects) in [(2, 9, 0..1), (4, 9, 0..1), (3, 3, 0..40)] {
            assert!(!agent.handle(at(1), ingress, &mut report(id, objects)));
        }
        assert_eq!(asks(&mut agent, at(1), (2, 9), false, 0), "10.77.0.3");
        assert_eq!(asks(&mut agent, at(1), (4, 9), false, 0), "wait", "the server has the key to say so");
        assert_eq!(asks(&mut agent, at(1), (4, 9), false, 1), "10.77.0.1", "the server hears who is blamed");
        assert!(!agent.handle(at(2), 9, &mut report(2, 0..40)));
        assert_eq!(asks(&mut agent, at(2), (4, 9), false, 0), "10.77.0.2");
        assert_eq!((agent.counters().redirected, agent.counters().waits, agent.counters().passed), (2, 1, 1));
    }

    #[test]
    fn nobody_speaks_for_a_member_from_another_port() {
        let mut agent = agent();
        assert!(!agent.handle(at(1), 2, &mut report(2, 0..40)));
        assert!(!agent.handle(at(1), 3, &mut report(2, 0..1)), "other objects, from port 3");
        assert!(!agent.handle(at(1), 3, &mut of(2, &Packet::Leave)));
        let mut moved = report(2, 0..1);
        moved[6..12].fill(0x66);
        assert!(!agent.handle(at(1), 2, &mut moved), "another machine at the same port");
        assert_eq!(agent.counters().refused, 3);
        assert_eq!(asks(&mut agent, at(1), (9, 9), false, 0), "10.77.0.2");
        assert_eq!(
            asks(&mut agent, at(1), (2, 5), false, 0),
            "10.77.0.1",
            "who asks in its name gets no peer"
        );
        assert!(!agent.handle(at(1), 2, &mut of(2, &Packet::Leave)));
        assert_eq!(asks(&mut agent, at(1), (9, 9), false, 0), "10.77.0.1");
    }

    #[test]
    fn tables_are_bounded_whatever_is_sent() {
        let mut agent = agent();
        let window = || Window { objects: 0..OBJECTS, held: std::iter::once(0..40).collect() };
        let report =
            |objects| Packet::Report(Report { port: 7700, uploads: 0, place: 0, objects, window: window() });
        for id in 1..3 * MEMBERS_MAX as u64 {
            let bytes = seal_packet(&Key([1; 16]), SwarmId(id % 500), MemberId(id), 1, &report(OBJECTS));
            let from = "10.77.0.2:7700".parse().unwrap();
            agent.handle(at(1), 2, &mut frame(Mac([2; 6]), from, SERVER.parse().unwrap(), &bytes));
        }
        assert_eq!((agent.members(), agent.redirector.members()), (MEMBERS_MAX, MEMBERS_MAX));
        assert!(agent.swarms() <= SWARMS_MAX && agent.changes.is_empty());
        agent.sweep(at(20));
        for id in 1..9 {
            assert!(!agent.handle(at(21), 2, &mut of(id, &report(u32::MAX - 1))), "half a gigabyte of bits");
        }
        assert_eq!(agent.members(), 0);
    }

    #[test]
    fn damaged_frames_go_nowhere_and_nothing_panics() {
        let (mut agent, mut chance) = (agent(), base::Chance::from_seed(6));
        agent.handle(at(1), 2, &mut report(2, 0..40));
        let mut sent = 0;
        for _ in 0..20_000 {
            let mut frame = request(9, false, 0);
            for _ in 0..1 + chance.below(3) {
                let at = 34 + chance.below(frame.len() as u64 - 34) as usize;
                frame[at] ^= 1 << chance.below(8);
            }
            frame.truncate(frame.len() - usize::from(chance.below(4) == 0));
            if agent.handle(at(1), 9, &mut frame) {
                assert!(frame::settle(&mut frame));
                sent += 1;
            }
        }
        let found = agent.counters();
        assert_eq!((found.invalid, found.redirected + found.waits + found.passed), (20_000 - sent, sent));
        assert!(found.invalid > 19_000, "{found:?}");
    }
}
