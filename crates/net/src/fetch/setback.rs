//! What a fetch does when its session does not work out, and for how long.

use std::net::IpAddr;
use std::time::Duration;

use base::Result;

use crate::clock::{Clock, Stop};
use crate::probe::GroupListener;

/// A switch stops sending the packets of a session at most so long after a receiver left it: it asks two more times
/// for others, a second each (RFC 3376, section 8.8).
const LEFT: Duration = Duration::from_millis(2500);
/// In each time of this length that many packets of the session say that it goes on sending them.
const SLICE: Duration = Duration::from_millis(250);
const FLOODED_PACKETS: u64 = 16;
/// After so many without them, it has stopped.
const QUIET_SLICES: u32 = 2;

/// Why multicast does not work now.
pub(super) struct Setback {
    pub(super) reason: String,
    /// Time after which multicast is tried again; `None` for never.
    pub(super) again_after: Option<Duration>,
    /// The session's group and the index of the interface, if it was left so that this machine's link has room for
    /// others.
    pub(super) left: Option<(IpAddr, u32)>,
}

impl Setback {
    pub(super) fn for_good(reason: String) -> Self {
        Self { reason, again_after: None, left: None }
    }

    pub(super) fn after(reason: String, slice: Duration) -> Self {
        Self { reason, again_after: Some(slice), left: None }
    }
}

/// Whether the packets of a session that was left go on arriving at the interface with this index: a switch that does
/// not look at memberships sends them anyway. Without `CAP_NET_RAW`, nobody can tell.
pub(super) fn is_flooded(group: IpAddr, interface: u32, stop: &Stop) -> Result<bool> {
    let Some(mut listener) = GroupListener::open_to_all_groups(group, interface) else { return Ok(false) };
    let (clock, mut quiet) = (Clock::start(), 0);
    while quiet < QUIET_SLICES && !stop.is_stopped() {
        quiet = if listener.hears(FLOODED_PACKETS, SLICE)? { 0 } else { quiet + 1 };
        if quiet == 0 && clock.elapsed() >= LEFT {
            return Ok(true);
        }
    }
    Ok(false)
}
