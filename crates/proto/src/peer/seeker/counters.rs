//! What a seeker counts.

/// What a seeker did. Counters never decrease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SeekerCounters {
    /// Requests sent, without repeated ones.
    pub requests: u64,
    /// Requests sent again.
    pub repeated: u64,
    /// Requests that were never answered.
    pub unanswered: u64,
    /// Objects that members sent.
    pub from_members: u64,
    /// Objects that the server sent.
    pub from_server: u64,
    /// Times that the redirector told to wait.
    pub waits: u64,
    /// Members that sent wrong bytes.
    pub liars: u64,
    /// Members that failed or stalled.
    pub failures: u64,
    /// Objects that were asked of a second member at the end.
    pub doubled: u64,
    /// Answers that said that others lack the same.
    pub crowded: u64,
    /// Objects that somebody waited for, and that members did not send in time.
    pub overdue: u64,
}

impl SeekerCounters {
    /// Adds what another seeker did.
    pub fn add(&mut self, other: &Self) {
        let Self { requests, repeated, unanswered, from_members, from_server, .. } = *other;
        let Self { waits, liars, failures, doubled, crowded, overdue, .. } = *other;
        self.requests += requests;
        self.repeated += repeated;
        self.unanswered += unanswered;
        self.from_members += from_members;
        self.from_server += from_server;
        self.waits += waits;
        self.liars += liars;
        self.failures += failures;
        self.doubled += doubled;
        self.crowded += crowded;
        self.overdue += overdue;
    }
}
