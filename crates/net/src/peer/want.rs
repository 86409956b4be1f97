//! What a pull is for, and what its threads tell it.

use std::ops::Range;
use std::time::Duration;

use base::{Error, Result};
use bytes::Bytes;
use crossbeam_channel::Receiver;
use image::{ObjectRef, ObjectSource};
use proto::peer::{MemberId, Part, Source};

use crate::clock::Stop;

/// Takes what arrives. Threads share it.
pub trait Taker: Sync {
    /// Digest and length of an object, if they are known.
    fn object(&self, id: u64) -> Option<ObjectRef>;

    /// Verifies an object and takes it; may wait until there is room. False if it is wrong.
    ///
    /// # Errors
    /// What ends the pull: the target failed.
    fn take(&self, id: u64, bytes: Bytes) -> Result<bool>;

    /// The server did not send an object. The pull ends with the error that this returns; with `None` it goes on, and
    /// nobody wants the object any more.
    fn failed(&self, _id: u64, error: Error) -> Option<Error> {
        Some(error)
    }

    /// Hears what happens while objects are pulled on demand.
    fn hear(&self, _news: News) {}
}

/// What a pull on demand notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// The redirector knows nobody else who has objects or lacks them.
    Alone,
    /// It knows others.
    Others,
    /// It does not answer.
    Deaf,
    /// Members did not send an object in time.
    Overdue,
    /// A member sent an object.
    Came,
}

/// A message to a pull on demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Somebody waits for this object: it is asked for at once, and members are waited for about a second.
    Want(u64),
    /// This object arrived in another way.
    Have(u64),
}

/// What to pull, and from whom else.
pub struct Want<'a> {
    /// The objects.
    pub objects: Vec<Range<u64>>,
    /// Takes them.
    pub taker: &'a dyn Taker,
    /// The server, for what no member has.
    pub server: &'a dyn ObjectSource,
    /// Most objects that are fetched from the server at the same time.
    pub at_once: usize,
    /// Mean length of an object, in bytes.
    pub object_bytes: u32,
    /// Ends the pull.
    pub stop: &'a Stop,
    /// Ends the pull when others are found to lack the same: multicast serves them together.
    pub alone: bool,
    /// Ends the pull after this time.
    pub limit: Option<Duration>,
    /// What else is wanted, as it comes. The pull goes on until all senders are gone.
    pub demands: Option<Receiver<Demand>>,
    /// Counts bytes of objects as they arrive from members.
    pub arrived: &'a (dyn Fn(u64) + Sync),
}

/// What happened on another thread.
pub(super) enum Event {
    Arrived(Source, u64, bool),
    Lacks(MemberId, Part),
    /// The server did not send an object, and it is wanted no more.
    Failed(u64),
    /// The connection of this number to a member has ended.
    Ended(MemberId, u64),
    /// So did this one: the member serves as many as it can.
    Busy(MemberId, u64),
    /// The pull cannot go on.
    Fatal(Error),
}
