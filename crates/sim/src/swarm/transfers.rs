//! The driver of each member, and the objects between members: in order and not lost, as by TCP.

use base::Instant;
use proto::peer::{Action, MemberId, Packet, Part, Source, batch_of};

use super::member::{at_address, name, sealed};
use super::scenario::Nature;
use super::world::{Event, To, World};

/// Most objects that a member fetches from the server at a time.
const AT_ONCE: usize = 8;

impl World {
    /// Does what a member's seeker wants, as the driver in `net` does.
    pub(super) fn drive(&mut self, now: Instant, who: usize) {
        if self.members[who].gone || self.members[who].done {
            return;
        }
        self.feel_pulses(now, who);
        let seeker = &mut self.members[who].seeker;
        if seeker.poll_timeout(now).is_some_and(|due| due <= now) {
            seeker.handle_timeout(now);
        }
        while let Some((number, request)) = self.members[who].seeker.poll_request(now) {
            self.checker.requested(now, who);
            let bytes = sealed(name(who), number, &Packet::Request(request));
            self.send(now, To::Server, who, 0, bytes);
        }
        while let Some(action) = self.members[who].seeker.poll_action() {
            match action {
                Action::Pull { member, address, part } => {
                    let objects: Vec<u64> = part.objects().collect();
                    let holder = at_address(address).filter(|&holder| holder < self.members.len());
                    self.checker.pulls(now, who, holder.filter(|&holder| name(holder) == member), &objects);
                    self.pull(now, who, member, holder, part);
                }
                Action::Server(part) => self.members[who].orders.extend(part.objects()),
                Action::Drop(member) => {
                    self.members[who].connections.remove(&member);
                    self.checker.ended(who, member.0 as usize - 1);
                }
            }
        }
        while self.members[who].ordered < AT_ONCE
            && let Some(object) = self.members[who].orders.pop_front()
        {
            self.members[who].ordered += 1;
            self.checker.orders(now, who, object);
            let at = self.server_free_at.max(now) + self.scenario.object_time;
            self.server_free_at = at;
            self.queue.push(at + self.scenario.round_trip, Event::FromServer { who, object });
        }
        let member = &mut self.members[who];
        if let Some(due) = member.seeker.poll_timeout(now)
            && member.wakes.is_none_or(|wakes| wakes > due)
        {
            member.wakes = Some(due);
            self.queue.push(due.max(now + self.scenario.object_time / 8), Event::Timer(who));
        }
    }

    /// Members that send, though no whole object yet, do not stall.
    fn feel_pulses(&mut self, now: Instant, who: usize) {
        let senders: Vec<MemberId> = self.members[who].connections.keys().copied().collect();
        for sender in senders {
            let Some(holder) = self.members.get(sender.0 as usize - 1) else { continue };
            let nature = self.scenario.members[sender.0 as usize - 1].nature;
            let sends = !holder.gone && holder.stalled_until <= now && holder.free_at > now;
            if sends && !matches!(nature, Nature::Hostile(_)) {
                self.members[who].seeker.moved(now, Source::Member(sender));
            }
        }
    }

    fn pull(&mut self, now: Instant, who: usize, member: MemberId, holder: Option<usize>, part: Part) {
        let asker = &mut self.members[who];
        let connected = &mut asker.connected;
        let connection = *asker.connections.entry(member).or_insert_with(|| {
            *connected += 1;
            *connected
        });
        let ended = Event::Ended { who, holder: member, connection };
        // Another member than the one that was named closes the connection.
        let Some(holder) = holder.filter(|&holder| self.members[holder].started) else {
            return self.queue.push(now + self.scenario.round_trip, ended);
        };
        if self.members[holder].gone {
            // Nothing answers, or its system says that nobody listens.
            return match self.scenario.members[holder].fate {
                Some((_, super::scenario::Fate::Dies)) => {}
                _ => self.queue.push(now + self.scenario.round_trip, ended),
            };
        }
        self.serve(now, (who, member, connection), holder, part);
    }

    fn serve(
        &mut self,
        now: Instant,
        (who, member, connection): (usize, MemberId, u64),
        holder: usize,
        part: Part,
    ) {
        let (nature, time) = (self.scenario.members[holder].nature, self.scenario.object_time);
        let arrives_after = self.scenario.round_trip;
        let mut lacked = 0;
        for object in part.objects() {
            let right = match nature {
                Nature::Honest => true,
                Nature::Liar(often) => !self.chance.hits(often),
                Nature::Hostile(malice) if malice.stalls => return,
                Nature::Hostile(_) => false,
            };
            let from = &mut self.members[holder];
            if !from.held.has(object) && !matches!(nature, Nature::Hostile(_)) {
                lacked |= batch_of(object).mask;
                continue;
            }
            from.free_at = from.free_at.max(now) + time;
            let at = from.free_at + arrives_after;
            // The connection is known by the name under which the holder was offered.
            let holder = member.0 as usize - 1;
            self.queue.push(at, Event::Object { who, holder, connection, object, right });
        }
        if lacked != 0 {
            let part = Part { mask: lacked, ..part };
            let at = self.members[holder].free_at.max(now) + arrives_after;
            let holder = member.0 as usize - 1;
            self.queue.push(at, Event::Lacks { who, holder, connection, part });
        }
    }

    fn is_open(&self, who: usize, holder: usize, connection: u64) -> bool {
        let asker = &self.members[who];
        !asker.gone && asker.connections.get(&name(holder)) == Some(&connection)
    }

    pub(super) fn object(
        &mut self,
        now: Instant,
        who: usize,
        (holder, connection): (usize, u64),
        object: u64,
        right: bool,
    ) {
        if !self.is_open(who, holder, connection) {
            return;
        }
        if let Some(from) = self.members.get(holder) {
            if from.gone {
                return;
            }
            if from.stalled_until > now {
                let at = from.stalled_until;
                return self.queue.push(at, Event::Object { who, holder, connection, object, right });
            }
        }
        self.checker.arrives(now, who, Some(holder), object, right);
        self.got(now, who, Source::Member(name(holder)), object, right);
    }

    pub(super) fn server_sent(&mut self, now: Instant, who: usize, object: u64) {
        if self.members[who].gone {
            return;
        }
        self.members[who].ordered -= 1;
        self.checker.arrives(now, who, None, object, true);
        self.got(now, who, Source::Server, object, true);
    }

    fn got(&mut self, now: Instant, who: usize, source: Source, object: u64, right: bool) {
        let member = &mut self.members[who];
        if member.done {
            return;
        }
        member.seeker.arrived(now, source, object, right);
        if right {
            member.held.set(object, true);
        }
        if member.seeker.missing() == 0 {
            member.done = true;
            self.checker.done(now, who);
        }
        self.drive(now, who);
    }

    pub(super) fn lacks(&mut self, now: Instant, who: usize, (holder, connection): (usize, u64), part: Part) {
        if self.is_open(who, holder, connection) {
            part.objects().for_each(|object| self.checker.lacked(who, holder, object));
            self.members[who].seeker.lacks(now, Source::Member(name(holder)), part);
            self.drive(now, who);
        }
    }

    pub(super) fn ended(&mut self, now: Instant, who: usize, holder: MemberId, connection: u64) {
        let index = holder.0 as usize - 1;
        if self.is_open(who, index, connection) {
            self.members[who].connections.remove(&holder);
            self.checker.ended(who, index);
            self.members[who].seeker.failed(now, holder);
            self.drive(now, who);
        }
    }
}
