//! What a disk got from other machines, and they from it.

/// What a disk got from other machines, and they from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SwarmTraffic {
    /// Encoded bytes that other machines sent.
    pub peer_bytes: u64,
    /// Encoded bytes that other machines got.
    pub served_bytes: u64,
    /// Objects that other machines did not send in time, so that the server was asked.
    pub overdue: u64,
    /// How often other machines were left alone for a time, because too many objects were overdue.
    pub shunned: u64,
}

impl SwarmTraffic {
    /// The sum.
    pub(super) fn and(self, more: Self) -> Self {
        Self {
            peer_bytes: self.peer_bytes + more.peer_bytes,
            served_bytes: self.served_bytes + more.served_bytes,
            overdue: self.overdue + more.overdue,
            shunned: self.shunned + more.shunned,
        }
    }
}
