//! One swarm: its members, what each holds, and the choice among them.

use std::collections::HashMap;
use std::ops::Range;

use base::{Duration, Instant};

use super::choice::{Choice, Chosen, Contact, SwarmView};
use super::leases::Leases;
use crate::peer::availability::{Availability, Part};
use crate::peer::wire::packet::{AVOIDED_MAX, MemberId, Report, Request};

/// Of so many holders near, the one with the least to send is named.
const CANDIDATES: usize = 8;
/// What was assigned to a member counts half after this time.
const LOAD_HALVES: Duration = Duration::from_millis(200);
/// A member sends to so many at a time. What few hold reaches all sooner if it goes to few at full rate, who then have
/// it for others. Who lacks least goes first: it is done soonest, and the others find more elsewhere.
const SLOTS: usize = 2;
/// How long an asker keeps its slot after the last request that was assigned.
const SLOT_KEPT: Duration = Duration::from_millis(150);
/// A member is banned if so many others blame it, or the only other one.
const ACCUSERS: usize = 2;
/// Who blames more members than this is not believed.
const ACCUSED_MAX: u32 = 16;
/// A member that was heard within this time is there.
const PRESENT: Duration = Duration::from_secs(4);
/// A swarm without members is kept for this many times the time after which members are forgotten.
const DESERTED_FACTOR: u32 = 10;

#[derive(Debug)]
struct Member {
    id: MemberId,
    contact: Contact,
    /// Port of its transfers; 0 if it does not serve.
    port: u16,
    place: u32,
    held: Availability,
    heard_at: Instant,
    /// Objects assigned to it lately, as of `loaded_at`.
    load: f64,
    loaded_at: Instant,
    /// Who gets objects from it.
    slots: Vec<Slot>,
    /// Who got wrong bytes from it.
    accusers: Vec<MemberId>,
    accused: u32,
    banned: bool,
}

/// A member that gets objects from another.
#[derive(Debug, Clone, Copy)]
struct Slot {
    asker: MemberId,
    /// How many objects it lacked when something was last assigned.
    lacks: u32,
    /// When that was.
    at: Instant,
}

impl Member {
    fn load(&self, now: Instant) -> f64 {
        let halves = now.since(self.loaded_at).as_secs_f64() / LOAD_HALVES.as_secs_f64();
        self.load * (-halves).exp2()
    }

    /// How many objects it lacks, as far as it told.
    fn lacks(&self) -> u32 {
        self.held.objects() - self.held.count()
    }

    /// Whether `asker`, who lacks so many objects, may get some from it.
    fn has_room(&self, now: Instant, asker: MemberId, lacks: u32) -> bool {
        let others = self.slots.iter().filter(|slot| slot.asker != asker && now.since(slot.at) < SLOT_KEPT);
        let ours = self.slots.iter().find(|slot| slot.asker == asker);
        // Of equal ones, who has a slot keeps it.
        let first = |slot: &Slot| match ours {
            Some(ours) => (slot.lacks, slot.asker) < (ours.lacks.min(lacks), asker),
            None => slot.lacks <= lacks,
        };
        others.filter(|slot| first(slot)).count() < SLOTS
    }

    fn assign(&mut self, now: Instant, (asker, lacks): (MemberId, u32), objects: u32) {
        self.slots.retain(|slot| slot.asker != asker && now.since(slot.at) < SLOT_KEPT);
        self.slots.push(Slot { asker, lacks, at: now });
        self.load = self.load(now) + f64::from(objects);
        self.loaded_at = now;
    }
}

/// One swarm.
#[derive(Debug)]
pub(super) struct Swarm {
    objects: u32,
    members: Vec<Member>,
    slots: HashMap<MemberId, usize>,
    /// The members at each place.
    places: HashMap<u32, Vec<MemberId>>,
    /// The member that is looked at first for the next request.
    cursor: usize,
    leases: Leases,
    heard_at: Instant,
}

/// The best holder found so far.
struct Best {
    slot: usize,
    has_room: bool,
    mask: u32,
    load: f64,
}

impl Swarm {
    pub(super) fn new(now: Instant, objects: u32) -> Self {
        let (members, slots, leases) = (Vec::new(), HashMap::new(), Leases::default());
        Self { objects, members, slots, places: HashMap::new(), cursor: 0, leases, heard_at: now }
    }

    pub(super) fn touch(&mut self, now: Instant) {
        self.heard_at = now;
    }

    pub(super) fn objects(&self) -> u32 {
        self.objects
    }

    pub(super) fn has(&self, member: MemberId) -> bool {
        self.slots.contains_key(&member)
    }

    pub(super) fn contact(&self, member: MemberId) -> Option<Contact> {
        Some(self.members[*self.slots.get(&member)?].contact)
    }

    /// Takes what a member tells. False if it does not count.
    pub(super) fn report(
        &mut self,
        now: Instant,
        member: MemberId,
        contact: Contact,
        report: &Report,
        authentic: bool,
    ) -> bool {
        if report.objects != self.objects {
            return false;
        }
        self.heard_at = now;
        let slot = *self.slots.entry(member).or_insert_with(|| {
            self.places.entry(0).or_default().push(member);
            self.members.push(Member {
                id: member,
                contact,
                port: 0,
                place: 0,
                held: Availability::none(self.objects),
                heard_at: now,
                load: 0.0,
                loaded_at: now,
                slots: Vec::new(),
                accusers: Vec::new(),
                accused: 0,
                banned: false,
            });
            self.members.len() - 1
        });
        let known = &mut self.members[slot];
        if !authentic && known.contact != contact {
            return false;
        }
        (known.contact, known.heard_at) = (contact, now);
        let place = std::mem::replace(&mut known.place, report.place);
        known.port = report.port;
        known.held.replace(report.window.objects.clone(), report.window.held.iter().cloned());
        if place != report.place {
            self.leave_place(member, place);
            self.places.entry(report.place).or_default().push(member);
        }
        true
    }

    pub(super) fn remove(&mut self, member: MemberId) {
        let Some(slot) = self.slots.remove(&member) else { return };
        let place = self.members.swap_remove(slot).place;
        self.leave_place(member, place);
        if let Some(moved) = self.members.get(slot) {
            self.slots.insert(moved.id, slot);
        }
        let slots = &self.slots;
        self.leases.sweep(self.heard_at, |member| slots.contains_key(&member));
    }

    fn leave_place(&mut self, member: MemberId, place: u32) {
        if let Some(here) = self.places.get_mut(&place) {
            here.retain(|other| *other != member);
            if here.is_empty() {
                self.places.remove(&place);
            }
        }
    }

    /// Forgets members that were silent for too long. Returns how many.
    pub(super) fn sweep(&mut self, now: Instant, silent_after: Duration) -> usize {
        let silent: Vec<MemberId> = self
            .members
            .iter()
            .filter(|member| now.since(member.heard_at) > silent_after)
            .map(|m| m.id)
            .collect();
        silent.iter().for_each(|&member| self.remove(member));
        let slots = &self.slots;
        self.leases.sweep(now, |member| slots.contains_key(&member));
        silent.len()
    }

    pub(super) fn is_deserted(&self, now: Instant, silent_after: Duration) -> bool {
        self.members.is_empty() && now.since(self.heard_at) > silent_after * DESERTED_FACTOR
    }

    pub(super) fn view(&self) -> SwarmView {
        let whole = self.members.iter().filter(|member| member.held.is_whole()).count();
        let count = |members: usize| u32::try_from(members).unwrap_or(u32::MAX);
        SwarmView { members: count(self.members.len()), whole: count(whole), objects: self.objects }
    }

    /// What the members that serve hold together.
    pub(super) fn held(&self) -> Vec<Range<u32>> {
        let mut all = Availability::none(self.objects);
        for member in self.members.iter().filter(|member| member.port != 0 && !member.banned) {
            // Often one has everything, and there may be thousands.
            if all.is_whole() {
                break;
            }
            for batch in 0..all.batches() {
                all.set_mask(batch, all.mask(batch) | member.held.mask(batch));
            }
        }
        all.runs(0..self.objects).collect()
    }

    /// Notes whom `member` blames for wrong bytes. Returns how many members are banned by that.
    pub(super) fn blame(&mut self, now: Instant, member: MemberId, request: &Request) -> u64 {
        let Some(&accuser) = self.slots.get(&member) else { return 0 };
        let mut banned = 0;
        for index in (0..AVOIDED_MAX).filter(|index| request.blamed >> index & 1 == 1) {
            let Some(&slot) = self.slots.get(&request.avoided[index]) else { continue };
            if slot == accuser || self.members[slot].accusers.contains(&member) {
                continue;
            }
            self.members[accuser].accused += 1;
            if self.members[accuser].accused > ACCUSED_MAX {
                continue;
            }
            let others = self.members.iter().filter(|member| now.since(member.heard_at) < LOAD_HALVES * 50);
            let enough = ACCUSERS.min(others.count().saturating_sub(1));
            let accused = &mut self.members[slot];
            accused.accusers.push(member);
            if !accused.banned && accused.accusers.len() >= enough {
                accused.banned = true;
                banned += 1;
            }
        }
        banned
    }

    /// `member` will fetch these objects for its place, unless it serves nobody.
    fn lease(&mut self, now: Instant, place: u32, member: MemberId, part: Part) {
        if self.slots.get(&member).is_none_or(|&slot| self.members[slot].port != 0) {
            self.leases.take(now, place, member, part);
        }
    }

    /// Chooses for a request, and says whether the member chosen is near. If it `narrows`, the answer may be about a
    /// part of the objects.
    pub(super) fn choose(
        &mut self,
        now: Instant,
        member: MemberId,
        request: &Request,
        narrows: bool,
    ) -> (Choice, bool) {
        let part = request.part;
        let known = self.slots.get(&member).map(|&slot| &self.members[slot]);
        let (place, lacks) = known.map_or((0, self.objects), |member| (member.place, member.lacks()));
        let asker = (member, lacks);
        let near = self.near(now, asker, place, request);
        let wait = (Choice::wait(part), true);
        match near {
            Some(best) if best.has_room => return (self.assign(now, asker, &best, part.batch), true),
            Some(_) => return wait,
            // It takes no lease: others may get them from the server before it does.
            None if request.scouts => return wait,
            None => {}
        }
        let open = self.leases.open(now, place, member, part);
        if open == 0 || !narrows && open != part.mask {
            return wait;
        }
        let mut part = Part { mask: open, ..part };
        // Only what is open counts: who holds most of the rest may lack this.
        let Some(best) = self.far(now, asker, place, &Request { part, ..*request }) else {
            self.lease(now, place, member, part);
            let others = self.others_lack(now, member, part);
            return (Choice { part, chosen: Chosen::Nobody { others } }, false);
        };
        if !best.has_room {
            // Who waits itself keeps nobody waiting.
            self.leases.release(place, member, part);
            return wait;
        }
        part.mask = best.mask;
        self.lease(now, place, member, part);
        (self.assign(now, asker, &best, part.batch), false)
    }

    /// Whether members beside `asker` that were heard lately lack some of these objects.
    fn others_lack(&self, now: Instant, asker: MemberId, part: Part) -> bool {
        let others = self.members.iter().filter(|member| member.id != asker);
        others
            .filter(|member| now.since(member.heard_at) < PRESENT)
            .any(|member| part.mask & !member.held.mask(part.batch) != 0)
    }

    fn assign(&mut self, now: Instant, asker: (MemberId, u32), best: &Best, batch: u32) -> Choice {
        let part = Part { batch, mask: best.mask };
        let member = &mut self.members[best.slot];
        member.assign(now, asker, part.count());
        self.cursor = best.slot + 1;
        let chosen = Chosen::Member { member: member.id, contact: member.contact, port: member.port };
        Choice { part, chosen }
    }

    /// The best holder at `place`. Others are not looked at: there may be thousands.
    fn near(&self, now: Instant, asker: (MemberId, u32), place: u32, request: &Request) -> Option<Best> {
        let here = self.places.get(&place).map_or(&[][..], Vec::as_slice);
        let begin = self.cursor % here.len().max(1);
        let in_turn = here[begin..].iter().chain(&here[..begin]);
        self.best(now, asker, request, in_turn.map(|member| self.slots[member]))
    }

    /// The best holder elsewhere.
    fn far(&self, now: Instant, asker: (MemberId, u32), place: u32, request: &Request) -> Option<Best> {
        let begin = self.cursor % self.members.len().max(1);
        let in_turn = (begin..self.members.len()).chain(0..begin);
        self.best(now, asker, request, in_turn.filter(|&slot| self.members[slot].place != place))
    }

    /// The best holder of those at `slots`.
    fn best(
        &self,
        now: Instant,
        (asker, lacks): (MemberId, u32),
        request: &Request,
        slots: impl Iterator<Item = usize>,
    ) -> Option<Best> {
        let (mut best, mut seen): (Option<Best>, usize) = (None, 0);
        for slot in slots {
            let member = &self.members[slot];
            let mask = member.held.mask(request.part.batch) & request.part.mask;
            let refused = member.port == 0
                || member.banned
                || member.id == asker
                || request.avoided.contains(&member.id)
                || member.accusers.contains(&asker);
            if mask == 0 || refused {
                continue;
            }
            seen += 1;
            let (load, has_room) = (member.load(now), member.has_room(now, asker, lacks));
            // Of equal ones the first in turn; who has more of what is asked for may have a little more to send.
            let score = |load: f64, mask: u32| load - f64::from(mask.count_ones());
            let is_better = |best: &Best| match (has_room, best.has_room) {
                (true, true) | (false, false) => score(load, mask) + 0.5 < score(best.load, best.mask),
                (has_room, _) => has_room,
            };
            if best.as_ref().is_none_or(is_better) {
                best = Some(Best { slot, has_room, mask, load });
            }
            // Those without room are passed: others may have it.
            if seen >= CANDIDATES && best.as_ref().is_some_and(|best| best.has_room) {
                break;
            }
        }
        best
    }
}
