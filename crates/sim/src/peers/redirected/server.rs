//! The server: admits receivers, redirects, multicasts, and sends what nobody else has.

use std::collections::VecDeque;
use std::rc::Rc;

use base::Instant;
use proto::peer::{Availability, Contact, Redirector, RedirectorConfig};

use super::{Grant, Message, SWARM, address, token};
use crate::fabric::Place;
use crate::peers::Stage;
use crate::peers::multicast::Multicast;

/// The state of the server.
#[derive(Debug)]
pub(super) struct Server {
    redirector: Redirector,
    cast: Option<Multicast>,
    joined: u32,
    /// Objects that are asked for by unicast.
    fetched: VecDeque<(Place, u32)>,
    is_sending: bool,
}

impl Server {
    pub(super) fn new(cast: Option<Multicast>) -> Self {
        let redirector = Redirector::new(RedirectorConfig::default());
        Self { redirector, cast, joined: 0, fetched: VecDeque::new(), is_sending: false }
    }

    /// The multicast, if there is one.
    pub(super) fn multicast(&mut self) -> Option<&mut Multicast> {
        self.cast.as_mut()
    }

    pub(super) fn told(&mut self, stage: &mut Stage<Message>, from: Place, message: Message) {
        let (now, server) = (stage.now(), stage.setting().server);
        self.redirector.handle_timeout(now);
        let contact =
            |member: proto::peer::MemberId| Contact { from: address(super::place(member)), ingress: 0 };
        match message {
            Message::Join => self.admit(stage, now, from),
            Message::Lost(chunk) => {
                if let Some(cast) = &mut self.cast {
                    cast.lost(stage, chunk);
                }
            }
            Message::Report(member, report) => {
                self.redirector.handle_report(now, SWARM, member, contact(member), &report);
            }
            Message::Leave(member) => self.redirector.handle_leave(SWARM, member, contact(member)),
            Message::Request(member, number, request, hops) => {
                let choice = self.redirector.handle_passed_on(now, SWARM, member, &request, hops);
                if let Some(choice) = choice {
                    stage.tell(server, super::place(member), Message::Offer(number, choice.offer()));
                }
            }
            Message::Fetch(chunk) => {
                self.fetched.push_back((from, chunk));
                if !self.is_sending {
                    self.send_next(stage);
                }
            }
            _ => {}
        }
    }

    fn admit(&mut self, stage: &mut Stage<Message>, now: Instant, from: Place) {
        let (server, chunks) = (stage.setting().server, stage.setting().chunks);
        self.redirector.expect(now, SWARM, chunks);
        let mut held = Availability::none(chunks);
        self.redirector.held(SWARM).into_iter().for_each(|run| held.fill(run, true));
        let members = self.redirector.view(SWARM).members;
        let mut elsewhere = None;
        if let Some(cast) = self.cast.as_mut().filter(|_| !held.is_whole()) {
            let mut others = Availability::none(chunks);
            if held.count() > 0 {
                for chunk in
                    (0..chunks).filter(|&chunk| cast.is_elsewhere(now, chunk, held.has(chunk.into())))
                {
                    others.set(chunk.into(), true);
                }
            }
            stage.listen(from);
            cast.join(stage, from, |_, chunk| others.has(chunk.into()));
            elsewhere = Some(Rc::new(others));
        }
        let grant = Grant { rank: self.joined, members, elsewhere };
        self.joined += 1;
        stage.tell(server, from, Message::Granted(grant));
    }

    /// The multicast's next chunk.
    pub(super) fn cast(&mut self, stage: &mut Stage<Message>) {
        if let Some(cast) = &mut self.cast {
            cast.send_next(stage);
        }
    }

    /// Sends the next object that was asked for.
    pub(super) fn send_next(&mut self, stage: &mut Stage<Message>) {
        let server = stage.setting().server;
        let next = self.fetched.pop_front();
        self.is_sending = next.is_some();
        if let Some((to, chunk)) = next {
            let free = stage.send(server, to, chunk);
            stage.wake(server, free, token::UPLOAD);
        }
    }
}
