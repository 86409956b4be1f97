//! The part of a member that asks: which objects to ask for next, where to get those that were offered, and what to do
//! when a holder fails, stalls or lies. Source: `formats/peer.md`, section 5.
//!
//! A driver sends what [`Seeker::poll_request`] returns to the redirector, obeys [`Seeker::poll_action`], and tells
//! what came of it. Every wait is bounded: in the end the server is asked.

mod counters;
mod hearing;
mod known;
mod next;
mod offers;
mod patience;
mod pulls;
mod scouts;
#[cfg(test)]
mod tests;
mod urgent;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use base::{Duration, Instant};

use super::availability::{Availability, Part, batch_of};
use super::wire::packet::{MemberId, Offer, Offered, Request};
pub use counters::SeekerCounters;
pub use hearing::Hearing;
use known::Known;
use patience::Patience;
pub use pulls::Source;
use pulls::{Pull, Pulls};
use scouts::Scouts;
use urgent::Urgent;

/// Most requests without an answer.
const REQUESTS_MAX: usize = 16;
/// Most parts that wait until they may be asked for again. With more, all members together would ask for everything all
/// the time while nobody has it.
const WAITS_MAX: usize = 32;
/// While others lack the same, so many requests' objects are left to the server at a time.
const SERVER_REQUESTS: u32 = 2;
/// Most requests without an answer that look for what others got meanwhile.
const SCOUTS_MAX: usize = 4;
/// Time until a request is repeated; doubled each time.
const ANSWER_AFTER: Duration = Duration::from_millis(100);
/// The server is asked for the objects of a request that was sent so often without an answer.
const TRIES_MAX: u32 = 4;
/// A member that sends nothing for this time is given up.
const STALLED_AFTER: Duration = Duration::from_secs(2);
/// At the end, objects that would take longer than this are asked of somebody else, too.
const LATE_AFTER: Duration = Duration::from_millis(400);
/// Most objects that are asked twice at a time.
const DOUBLED_MAX: u32 = 8;
/// So much is under way as arrives in this time: more would only wait in the queues of those that send it.
const UNDER_WAY: Duration = Duration::from_millis(150);
/// The rate of arrivals is taken over about this time.
const RATE_OVER: Duration = Duration::from_millis(300);
/// Nobody waits longer at a time, whatever an offer says.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// If the redirector names a member that is avoided, it is asked again after this time: a request names only few of
/// those that are avoided, and asked at once it would name the same one.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// A member that is busy is not asked for this time.
const BUSY_FOR: Duration = Duration::from_millis(250);

/// What a seeker knows before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeekerConfig {
    /// Number of objects of the version.
    pub objects: u32,
    /// Number of this member among those of the swarm, from 0: each begins elsewhere, so that together they ask the
    /// server for each object once.
    pub rank: u32,
    /// Most objects under way.
    pub window_objects: u32,
    /// Most objects of one request. Small requests spread what few hold over many, who then have it for others.
    pub request_objects: u32,
    /// Most members that send at the same time: many at once overflow the port of the switch.
    pub fan_in: usize,
}

/// What the driver is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Ask a member for objects, over the connection to it, which is made if there is none.
    Pull {
        /// Who.
        member: MemberId,
        /// Where.
        address: SocketAddr,
        /// Which.
        part: Part,
    },
    /// Ask the server for objects.
    Server(Part),
    /// Close the connection to a member: it stalls or lies, or is asked for nothing now.
    Drop(MemberId),
}

/// A request without an answer.
#[derive(Debug, Clone, Copy)]
struct Asked {
    number: u32,
    part: Part,
    tries: u32,
    due: Instant,
    why: Why,
}

/// Why a request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The objects are next.
    Next,
    /// A member is sending them already, but slowly.
    Doubles,
    /// Others may have them by now, at this share.
    Scouts(usize),
}

impl Asked {
    fn is_scout(&self) -> bool {
        matches!(self.why, Why::Scouts(_))
    }
}

/// The machine.
#[derive(Debug)]
pub struct Seeker {
    config: SeekerConfig,
    /// Objects that are wanted and did not arrive.
    missing: Availability,
    /// Objects that were asked for, or are being sent.
    out: Availability,
    /// Where the next request is looked for; `None` before the first.
    cursor: Option<u32>,
    /// By batch, objects that somebody was to send and did not. They are asked for before others: the redirector may
    /// let other members wait until this one has them.
    failed: BTreeMap<u32, u32>,
    number: u32,
    asked: Vec<Asked>,
    /// Objects that are not to be asked for before this time.
    delayed: Vec<(Part, Instant)>,
    pulls: Pulls,
    /// Offers of members beyond `fan_in`.
    held: VecDeque<(MemberId, SocketAddr, Part)>,
    known: Known,
    urgent: Urgent,
    scouts: Scouts,
    actions: VecDeque<Action>,
    hearing: Hearing,
    patience: Patience,
    /// Objects per second that arrived lately, as of `rated_at`.
    rate: f64,
    rated_at: Instant,
    counters: SeekerCounters,
}

impl Seeker {
    /// A seeker that wants nothing yet.
    #[must_use]
    pub fn new(config: SeekerConfig) -> Self {
        let (missing, out) = (Availability::none(config.objects), Availability::none(config.objects));
        Self {
            config,
            missing,
            out,
            cursor: None,
            failed: BTreeMap::new(),
            number: 0,
            asked: Vec::new(),
            delayed: Vec::new(),
            pulls: Pulls::default(),
            held: VecDeque::new(),
            known: Known::default(),
            urgent: Urgent::default(),
            scouts: Scouts::default(),
            actions: VecDeque::new(),
            hearing: Hearing::default(),
            patience: Patience::default(),
            rate: 0.0,
            rated_at: Instant::ZERO,
            counters: SeekerCounters::default(),
        }
    }

    /// The same, that goes on at `now` with what another one of the same member found out.
    #[must_use]
    pub fn with_hearing(self, now: Instant, hearing: Hearing) -> Self {
        Self { hearing: hearing.carried_to(now), ..self }
    }

    /// Whether anybody answers.
    #[must_use]
    pub fn hearing(&self) -> Hearing {
        self.hearing
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> SeekerCounters {
        self.counters
    }

    /// Wants an object.
    pub fn want(&mut self, object: u64) {
        self.missing.set(object, true);
    }

    /// Wants an object for which somebody waits: after a short time the server is asked, whatever members do.
    pub fn want_now(&mut self, now: Instant, object: u64) {
        if self.missing.count() == 0 {
            // Nothing was wanted for a time: that nothing arrived then says nothing about members.
            self.patience = Patience::default();
        }
        self.missing.set(object, true);
        self.urgent.begin(now, object);
    }

    /// Whether an object is wanted and did not arrive.
    #[must_use]
    pub fn wants(&self, object: u64) -> bool {
        self.missing.has(object)
    }

    /// Number of objects that are wanted and did not arrive.
    #[must_use]
    pub fn missing(&self) -> u32 {
        self.missing.count()
    }

    /// An object arrived in another way, or is wanted no more.
    pub fn have(&mut self, object: u64) {
        self.missing.set(object, false);
        self.out.set(object, false);
        self.urgent.end(object);
        self.pulls.settle(object);
    }

    /// The next request for the redirector, with its number; also the repetition of one.
    pub fn poll_request(&mut self, now: Instant) -> Option<(u32, Request)> {
        if let Some(number) = self.repeat(now) {
            return Some(number);
        }
        if self.asked.len() >= REQUESTS_MAX {
            return None;
        }
        let (part, why) = loop {
            let (part, why) = self.next_request(now)?;
            self.patience.begin(now);
            self.out.set_mask(part.batch, self.out.mask(part.batch) | part.mask);
            if why != Why::Next || !self.hearing.is_in_vain(now, self.asked.len()) {
                break (part, why);
            }
            self.ask_server(now, part);
        };
        self.number = self.number.wrapping_add(1);
        self.counters.requests += 1;
        let asked = Asked { number: self.number, part, tries: 1, due: now + ANSWER_AFTER, why };
        self.asked.push(asked);
        Some((self.number, self.request(now, &asked)))
    }

    /// What the driver is to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// An object arrived from `source`; `right` if its digest is. True if it was still wanted.
    pub fn arrived(&mut self, now: Instant, source: Source, object: u64, right: bool) -> bool {
        self.pulls.moved(now, source);
        self.rate = self.rate(now) + RATE_OVER.as_secs_f64().recip();
        self.rated_at = now;
        let wanted = self.missing.has(object);
        match (right, source) {
            (true, _) => {
                if wanted {
                    self.patience.came(now, source != Source::Server);
                    match source {
                        Source::Server => self.counters.from_server += 1,
                        Source::Member(_) => self.counters.from_members += 1,
                    }
                }
                self.have(object);
            }
            (false, Source::Member(member)) => {
                self.counters.liars += 1;
                self.known.lied(member);
                self.give_up(now, member);
                self.actions.push_back(Action::Drop(member));
            }
            (false, Source::Server) => {
                let lost = self.pulls.lose(Source::Server, batch_of(object));
                self.ask_again(lost);
            }
        }
        self.admit_held(now);
        wanted
    }

    /// A source has sent something, though no whole object, or was kept from it by this machine.
    pub fn moved(&mut self, now: Instant, source: Source) {
        self.pulls.moved(now, source);
    }

    /// A source does not have these.
    pub fn lacks(&mut self, now: Instant, source: Source, part: Part) {
        let lost = self.pulls.lose(source, part);
        self.ask_again(lost);
        // It did not fail, but it would be named again at once.
        if let Source::Member(member) = source {
            self.known.avoid_for(now, member, BUSY_FOR);
        }
        self.admit_held(now);
    }

    /// The connection to a member failed, or was closed.
    pub fn failed(&mut self, now: Instant, member: MemberId) {
        if self.pulls.has(Source::Member(member)) {
            self.counters.failures += 1;
            self.give_up(now, member);
        } else {
            // It had sent all that it was asked for.
            self.known.disconnect(member);
        }
        self.admit_held(now);
    }

    /// A member serves as many as it can, and closed the connection. That is no failure.
    pub fn busy(&mut self, now: Instant, member: MemberId) {
        self.let_go(member);
        self.known.avoid_for(now, member, BUSY_FOR);
        self.admit_held(now);
    }

    /// When [`Self::handle_timeout`] or [`Self::poll_request`] should be called next at the latest.
    #[must_use]
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let asked = self.asked.iter().map(|asked| asked.due);
        let stalled = self.pulls.stalls_at(self.stalled_after());
        let delayed = self.delayed.iter().map(|(_, until)| *until);
        let late = (self.missing.count() > 0 && !self.pulls.is_empty()).then(|| now + LATE_AFTER / 4);
        let rest = self.known.idle_at().into_iter().chain(self.urgent.due()).chain(self.scouts.due(now));
        asked.chain(stalled).chain(delayed).chain(late).chain(rest).min()
    }

    /// Gives up members that stall, and requests that nobody answers.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.delayed.retain(|(_, until)| *until > now);
        for member in self.pulls.stalled(now, self.stalled_after()) {
            self.counters.failures += 1;
            self.give_up(now, member);
            self.actions.push_back(Action::Drop(member));
        }
        let Self { known, pulls, actions, .. } = self;
        let idle = known.idle(now, |member| pulls.has(Source::Member(member)));
        actions.extend(idle.into_iter().map(Action::Drop));
        let tries_max = self.hearing.tries_max();
        let is_over = |asked: &Asked| asked.due <= now && (asked.tries >= tries_max || asked.is_scout());
        while let Some(index) = self.asked.iter().position(is_over) {
            let asked = self.asked.swap_remove(index);
            if self.missed(now, &asked) {
                self.give_back(asked.part);
                continue;
            }
            self.counters.unanswered += 1;
            self.hearing.missed(now);
            match asked.why {
                Why::Doubles | Why::Scouts(_) => self.give_back(asked.part),
                Why::Next => self.ask_server(now, asked.part),
            }
        }
        for object in self.urgent.overdue(now, |within, object| self.pulls.is_coming(now, within, object)) {
            let part = batch_of(object);
            self.counters.overdue += 1;
            self.out.set_mask(part.batch, self.out.mask(part.batch) | part.mask);
            self.ask_server(now, part);
        }
        self.admit_held(now);
    }

    /// A member that sends nothing for this time is given up.
    fn stalled_after(&self) -> Duration {
        if self.urgent.is_empty() { STALLED_AFTER } else { urgent::STALLED_AFTER }
    }

    /// Objects per second that arrived lately.
    fn rate(&self, now: Instant) -> f64 {
        self.rate * (-now.since(self.rated_at).as_secs_f64() / RATE_OVER.as_secs_f64()).exp()
    }

    /// Most objects under way now: at least three requests.
    fn window(&self, now: Instant) -> u32 {
        let least = self.config.request_objects.saturating_mul(3).min(self.config.window_objects);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts saturate")]
        let window = (self.rate(now) * UNDER_WAY.as_secs_f64()) as u32;
        window.clamp(least, self.config.window_objects)
    }

    fn repeat(&mut self, now: Instant) -> Option<(u32, Request)> {
        let tries_max = self.hearing.tries_max();
        let is_due = |asked: &&mut Asked| asked.due <= now && asked.tries < tries_max && !asked.is_scout();
        let asked = self.asked.iter_mut().find(is_due)?;
        asked.due = now + ANSWER_AFTER * (1 << asked.tries);
        asked.tries += 1;
        let asked = *asked;
        self.counters.repeated += 1;
        Some((asked.number, self.request(now, &asked)))
    }

    fn request(&self, now: Instant, asked: &Asked) -> Request {
        let (avoided, blamed) = self.known.avoided(now);
        let (direct, scouts) = (self.patience.is_direct(now), asked.is_scout());
        Request { part: asked.part, avoided, blamed, direct, scouts }
    }

    fn pull(&mut self, now: Instant, member: MemberId, address: SocketAddr, part: Part) {
        let source = Source::Member(member);
        if !self.pulls.has(source) && self.pulls.members() >= self.config.fan_in {
            self.held.push_back((member, address, part));
            return;
        }
        self.known.connect(now, member);
        self.pulls.begin(Pull::new(now, source, part));
        self.actions.push_back(Action::Pull { member, address, part });
    }

    fn ask_server(&mut self, now: Instant, part: Part) {
        let mask = part.mask & self.missing.mask(part.batch) & !self.pulls.mask_of_server(part.batch);
        if mask == 0 {
            return;
        }
        let part = Part { mask, ..part };
        part.objects().for_each(|object| self.urgent.end(object));
        self.pulls.begin(Pull::new(now, Source::Server, part));
        self.actions.push_back(Action::Server(part));
    }

    fn admit_held(&mut self, now: Instant) {
        while self.pulls.members() < self.config.fan_in {
            let Some((member, address, part)) = self.held.pop_front() else { return };
            let part = Part { mask: part.mask & self.missing.mask(part.batch), ..part };
            if self.known.is_avoided(now, member) || part.mask == 0 {
                self.ask_again(part);
            } else {
                self.pull(now, member, address, part);
            }
        }
    }

    /// Somebody was to send these, and does not. They are asked for again at once.
    fn ask_again(&mut self, part: Part) {
        *self.failed.entry(part.batch).or_default() |= part.mask;
        self.give_back(part);
    }

    /// These are not under way any more, unless somebody else sends them, or will be asked for them, too.
    fn give_back(&mut self, part: Part) {
        let asked = self.asked.iter().map(|asked| asked.part);
        let others = asked.chain(self.held.iter().map(|(_, _, part)| *part));
        let others = others.filter(|other| other.batch == part.batch);
        let still = others.fold(self.pulls.mask(part.batch), |mask, other| mask | other.mask);
        self.out.set_mask(part.batch, self.out.mask(part.batch) & !(part.mask & !still));
    }

    fn give_up(&mut self, now: Instant, member: MemberId) {
        self.let_go(member);
        self.known.avoid(now, member);
    }

    /// A member sends nothing more.
    fn let_go(&mut self, member: MemberId) {
        self.known.disconnect(member);
        for part in self.pulls.end(Source::Member(member)) {
            self.ask_again(part);
        }
    }
}
