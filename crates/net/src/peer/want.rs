//! What a pull is for, and what its threads tell it.

use std::ops::Range;
use std::time::Duration;

use base::{Error, Result};
use bytes::Bytes;
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
    /// Counts bytes of objects as they arrive from members.
    pub arrived: &'a (dyn Fn(u64) + Sync),
}

/// What happened on another thread.
pub(super) enum Event {
    Arrived(Source, u64, bool),
    Lacks(MemberId, Part),
    /// The connection of this number to a member has ended.
    Ended(MemberId, u64),
    /// So did this one: the member serves as many as it can.
    Busy(MemberId, u64),
    /// The pull cannot go on.
    Fatal(Error),
}
