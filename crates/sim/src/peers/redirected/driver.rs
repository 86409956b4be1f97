//! What surrounds the seeker of a receiver: obeys it, and tells it what happens. Source: `crates/net/src/peer/pull.rs`
//! and `node.rs`.

use std::rc::Rc;

use proto::peer::{Action, Offered, Report, Source, Window, is_kept};

use super::member::Member;
use super::{Message, PORT, Redirected, address, name, own_offer, place, token};
use crate::fabric::Place;
use crate::peers::Stage;

/// Most objects that are fetched from the server at the same time while others lack them, too.
const CROWDED_AT_ONCE: usize = 2;
/// Reports that tell what a member holds, at most at a time.
const WINDOWS_MAX: usize = 4;

impl Redirected {
    /// A message arrives at a receiver.
    pub(super) fn member_told(
        &mut self,
        stage: &mut Stage<Message>,
        at: Place,
        from: Place,
        message: Message,
    ) {
        let now = stage.now();
        let member = self.member(stage, at);
        match message {
            Message::Granted(grant) => {
                member.granted(&grant, |chunk| stage.holds(at, chunk));
                self.report_due(stage, at);
                self.seek_if_cast_is_over(stage, at);
            }
            Message::Request(asker, number, request, _) => {
                let offer = own_offer(at, request.part, &member.held);
                stage.tell(at, place(asker), Message::Offer(number, offer));
            }
            Message::Offer(number, offer) => {
                if let Offered::Nobody { others } = offer.offered {
                    member.is_crowded = others;
                }
                if let Some(seeker) = &mut member.seeker {
                    seeker.handle_offer(now, number, address(from).ip(), &offer);
                }
                self.drive(stage, at);
            }
            Message::Get(connection, part) => {
                let Member { uploads, held, .. } = member;
                uploads.get(stage, at, (from, connection), part, held);
            }
            Message::Closed(number) if member.connections.get(&name(from)) == Some(&number) => {
                member.connections.remove(&name(from));
                if let Some(seeker) = &mut member.seeker {
                    seeker.failed(now, name(from));
                }
                self.drive(stage, at);
            }
            Message::Busy(number) if member.connections.get(&name(from)) == Some(&number) => {
                member.connections.remove(&name(from));
                if let Some(seeker) = &mut member.seeker {
                    seeker.busy(now, name(from));
                }
                self.drive(stage, at);
            }
            Message::Closed(number) => member.uploads.closed(from, number),
            Message::Lacks(part) => {
                if let Some(seeker) = &mut member.seeker {
                    seeker.lacks(now, Source::Member(name(from)), part);
                }
                self.drive(stage, at);
            }
            _ => {}
        }
    }

    /// A chunk has arrived.
    pub(super) fn member_got(
        &mut self,
        stage: &mut Stage<Message>,
        at: Place,
        from: Place,
        chunk: u32,
        fresh: bool,
    ) {
        let (now, number, server) =
            (stage.now(), stage.number(at).expect("a receiver"), stage.setting().server);
        let mut together = 1;
        if let Some(cast) = self.server.multicast() {
            cast.settle(number, chunk);
            together = cast.together();
        }
        let member = &mut self.members[number];
        if fresh {
            let is_cast = from == server && member.casting.is_some();
            let kept = !is_cast || is_kept(chunk.into(), member.rank, together);
            member.held.set(chunk.into(), kept);
        }
        if let Some(waits) = &mut member.casting {
            waits.set(chunk.into(), false);
            return self.seek_if_cast_is_over(stage, at);
        }
        if from == server {
            member.ordered.retain(|&ordered| ordered != chunk);
        }
        let source = if from == server { Source::Server } else { Source::Member(name(from)) };
        if let Some(seeker) = &mut member.seeker {
            seeker.arrived(now, source, chunk.into(), true);
        }
        self.drive(stage, at);
    }

    fn seek_if_cast_is_over(&mut self, stage: &mut Stage<Message>, at: Place) {
        let member = self.member(stage, at);
        if member.casting.as_ref().is_some_and(|waits| waits.count() > 0) {
            return;
        }
        if member.casting.take().is_some() {
            stage.unlisten(at);
            if let Some(cast) = self.server.multicast() {
                cast.leave(at);
            }
        }
        self.member(stage, at).seek(|chunk| stage.holds(at, chunk));
        self.drive(stage, at);
    }

    /// Does what the seeker wants.
    pub(super) fn drive(&mut self, stage: &mut Stage<Message>, at: Place) {
        let (now, server, redirector) = (stage.now(), stage.setting().server, self.towards_server(stage, at));
        let room = stage.room(at);
        let member = self.member(stage, at);
        let Some(seeker) = &mut member.seeker else { return };
        if seeker.missing() == 0 {
            return;
        }
        if seeker.poll_timeout(now).is_some_and(|due| due <= now) {
            seeker.handle_timeout(now);
        }
        let has_room = !member.bounded || room >= member.window;
        while has_room && let Some((number, request)) = seeker.poll_request(now) {
            stage.ask(at, redirector, Message::Request(name(at), number, request, 0));
        }
        while let Some(action) = seeker.poll_action() {
            match action {
                Action::Pull { member: holder, part, .. } => {
                    let connected = &mut member.connected;
                    let number = *member.connections.entry(holder).or_insert_with(|| {
                        *connected += 1;
                        *connected
                    });
                    stage.tell(at, place(holder), Message::Get(number, part));
                }
                Action::Server(part) => member.orders.extend(part.objects().map(|object| object as u32)),
                Action::Drop(holder) => {
                    if let Some(number) = member.connections.remove(&holder) {
                        stage.tell(at, place(holder), Message::Closed(number));
                    }
                }
            }
        }
        let most = if member.is_crowded { CROWDED_AT_ONCE.min(member.at_once) } else { member.at_once };
        while member.ordered.len() < most
            && let Some(chunk) = member.orders.pop_front()
        {
            member.ordered.push(chunk);
            stage.tell(at, server, Message::Fetch(chunk));
        }
        if let Some(due) = seeker.poll_timeout(now)
            && member.wakes.is_none_or(|wakes| wakes > due)
        {
            member.wakes = Some(due);
            stage.wake(at, due, token::SEEKER);
        }
    }

    /// The time for which the seeker asked has come.
    pub(super) fn seeker_due(&mut self, stage: &mut Stage<Message>, at: Place) {
        let now = stage.now();
        let member = self.member(stage, at);
        if member.wakes.is_some_and(|wakes| wakes <= now) {
            member.wakes = None;
            self.drive(stage, at);
        }
    }

    /// Reports what a member holds, if it is time, and asks to be woken for the next report.
    pub(super) fn report_due(&mut self, stage: &mut Stage<Message>, at: Place) {
        if !stage.is_present(at) {
            return;
        }
        let (now, to, rack) = (stage.now(), self.towards_server(stage, at), stage.switch(at).0);
        let member = self.member(stage, at);
        if member.told.is_none() || member.report_at() <= now {
            let mut first = member.told.map_or(0, |(first, _)| first);
            for _ in 0..WINDOWS_MAX {
                let window = Window::of(&member.held, first);
                first = window.objects.end;
                let (uploads, objects) = (member.uploads.count(), member.held.objects());
                let report = Report { port: PORT, uploads, place: rack, objects, window };
                stage.tell(at, to, Message::Report(name(at), Rc::new(report)));
                if first >= objects {
                    first = 0;
                    break;
                }
            }
            (member.told, member.reported) = (Some((first, member.held.count())), now);
        }
        // It looks once in an interval whether something has changed.
        let next = now + member.interval;
        stage.wake(at, next, token::REPORT);
    }
}
