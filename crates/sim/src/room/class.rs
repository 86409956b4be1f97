//! Classes of receivers with equal links. They see the same packets at the same times, except for random losses, so
//! that their link is computed once.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use base::Instant;
use proto::multicast::Downstream;

use crate::network::Link;

/// Consecutive hosts with equal links.
#[derive(Debug)]
pub(super) struct Class {
    pub hosts: Range<usize>,
    pub link: Link,
}

/// The packets that the server sent at one time.
#[derive(Debug)]
pub(super) struct Burst {
    pub packets: Vec<Downstream<'static>>,
    /// Size of each packet on the wire, in bytes.
    pub wire_bytes: Vec<usize>,
    /// One bit for each packet that some receiver has or had a use for.
    pub used: Cell<u64>,
}

/// A burst on its way to a class.
#[derive(Debug)]
pub(super) struct Flight {
    pub class: usize,
    pub burst: Rc<Burst>,
    /// When each packet arrives, ascending; `None` for those that found the port's queue full.
    pub at: Vec<Option<Instant>>,
}

impl Class {
    /// When the packets of a burst arrive, apart from random losses.
    pub(super) fn arrivals(&mut self, now: Instant, burst: &Burst) -> Vec<Option<Instant>> {
        let delay = self.link.delay;
        let mut arrival = |bytes| self.link.through_port(now, bytes).map(|at| at + delay);
        burst.wire_bytes.iter().map(|&bytes| arrival(bytes)).collect()
    }
}
