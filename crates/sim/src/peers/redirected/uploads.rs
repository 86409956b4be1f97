//! The connections that a member serves. They take turns, object by object. Source: `crates/net/src/peer/upload.rs`.

use std::collections::VecDeque;

use base::{Duration, Instant};
use proto::peer::{Availability, Part};

use super::{Message, token};
use crate::fabric::Place;
use crate::peers::Stage;

/// Most connections that are served at the same time.
const UPLOADS_MAX: usize = 16;
/// A connection that asks for nothing is closed after this time.
const IDLE_MAX: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct Upload {
    to: Place,
    number: u64,
    /// Objects that are still to be sent.
    queue: VecDeque<u32>,
    moved: Instant,
}

/// The connections that a member serves.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    all: VecDeque<Upload>,
    is_sending: bool,
}

impl Uploads {
    pub(super) fn count(&self) -> u8 {
        self.all.len() as u8
    }

    /// `from` asks for objects over its connection of this number.
    pub(super) fn get(
        &mut self,
        stage: &mut Stage<Message>,
        at: Place,
        (from, number): (Place, u64),
        part: Part,
        held: &Availability,
    ) {
        let now = stage.now();
        self.all.retain(|upload| !upload.queue.is_empty() || now.since(upload.moved) < IDLE_MAX);
        let known = self.all.iter().position(|upload| (upload.to, upload.number) == (from, number));
        let index = known.unwrap_or_else(|| {
            self.all.push_back(Upload { to: from, number, queue: VecDeque::new(), moved: now });
            self.all.len() - 1
        });
        if self.all.len() > UPLOADS_MAX {
            self.all.pop_back();
            return stage.tell(at, from, Message::Busy(number));
        }
        let has = part.mask & held.mask(part.batch);
        let upload = &mut self.all[index];
        upload.moved = now;
        upload.queue.extend(Part { mask: has, ..part }.objects().map(|object| object as u32));
        if has != part.mask {
            stage.tell(at, from, Message::Lacks(Part { mask: part.mask & !has, ..part }));
        }
        if !self.is_sending {
            self.send_next(stage, at);
        }
    }

    /// Sends the next object of the connection whose turn it is.
    pub(super) fn send_next(&mut self, stage: &mut Stage<Message>, at: Place) {
        self.is_sending = false;
        for _ in 0..self.all.len() {
            self.all.rotate_left(1);
            let upload = self.all.back_mut().expect("there is one");
            if let Some(chunk) = upload.queue.pop_front() {
                upload.moved = stage.now();
                let free = stage.send(at, upload.to, chunk);
                stage.wake(at, free, token::UPLOAD);
                self.is_sending = true;
                return;
            }
        }
    }

    /// The asker has closed a connection.
    pub(super) fn closed(&mut self, from: Place, number: u64) {
        self.all.retain(|upload| (upload.to, upload.number) != (from, number));
    }

    /// Whether this connection is open.
    pub(super) fn has(&self, from: Place, number: u64) -> bool {
        self.all.iter().any(|upload| (upload.to, upload.number) == (from, number))
    }

    /// Closes all.
    pub(super) fn close(&mut self, stage: &mut Stage<Message>, at: Place) {
        for upload in self.all.drain(..) {
            stage.tell(at, upload.to, Message::Closed(upload.number));
        }
    }
}
