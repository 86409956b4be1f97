//! The rate, and what the driver knows of this machine's own link and processor.

use base::Duration;

use super::Server;
use crate::multicast::rate::OwnShare;

impl Server {
    /// Limits the rate to `bits_per_second` on the wire, whatever the network would carry: this session's share of
    /// the server's maximum.
    pub fn set_ceiling(&mut self, bits_per_second: u64) {
        self.rate.set_ceiling(bits_per_second);
    }

    /// Sets the part of this machine's own link that the session is to take; `None` if that link is not known to be the
    /// limit.
    pub fn set_own_share(&mut self, share: Option<OwnShare>) {
        self.rate.set_own_share(share);
    }

    /// Leaves room for `wire_bytes` that this machine sends by other ways through the same link: the session sends that
    /// much less, as if it had sent them.
    pub fn leave_room(&mut self, wire_bytes: u64) {
        self.rate.leave_room(wire_bytes);
    }

    /// The rate at which the server would send now if it had enough to send, in bits per second on the wire.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.rate.bits_per_second()
    }

    /// The link had no room for what was to be sent: what comes next is late for that reason, not since the driver woke
    /// up late.
    pub fn link_was_full(&mut self) {
        self.rate.excuse();
    }

    /// How late the driver woke up at most, lately: what it catches up has to fit into its socket.
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.rate.lateness()
    }
}
