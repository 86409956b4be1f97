//! Seeded bugs: the simulator switches one on and shows that its checkers see it. Without the feature `mutants` every
//! question for one is answered with no at compile time.

/// A bug to be found, each in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mutant {
    /// The core as it is.
    #[default]
    None,
    /// A write is over before its record is in the journal.
    ForgetsRecord,
    /// Sectors that were not here are recorded before their data is written.
    RecordsAhead,
    /// Sectors that were here are recorded after their data is written.
    RecordsBehind,
    /// A flush writes its barrier without syncing the data.
    SkipsDataSync,
    /// A flush syncs the data and writes no barrier.
    SkipsBarrier,
    /// A flush is over although another one that began before the write is not.
    JoinsRunningFlush,
    /// A barrier covers what came into the journal while the data was synced.
    CoversTooMuch,
    /// The journal is replaced while records are on their way to it.
    RewritesAtOnce,
    /// A fill writes over dirty sectors.
    FillsOverDirty,
    /// A fill writes over sectors that were committed meanwhile.
    FillsOverKept,
    /// A chunk counts as clean before it is written.
    CleanBeforeFill,
    /// Writes do not wait for a fill of their chunk.
    WritesIntoFill,
    /// A write over a frozen sector does not copy it first.
    SkipsCopy,
    /// A read of the frozen generation looks at the local file only.
    ReadsThawed,
    /// A freeze does not wait for writes under way.
    FreezesAtOnce,
    /// Chunks that were clean before a power cut are trusted.
    TrustsSuspects,
    /// What lies in the local file without a record is not cleared.
    LeavesVoid,
    /// Records behind the last barrier are used after a power cut.
    UsesUnbarriered,
    /// After an abandoned commit only what was written since is dirty.
    ForgetsFrozen,
    /// A write over sectors that are free leaves them so.
    FreesWhatIsWritten,
    /// After a power cut sectors count as free that were written over unnoticed.
    TrustsFreed,
    /// A version of which nobody knows whether it was published is not looked for.
    ForgetsPromise,
    /// An item that failed at one source is not tried at the others.
    NeverRetries,
    /// What one source has damaged is an error, although another is away.
    BelievesOne,
    /// Each reader of a chunk fetches it for itself.
    FetchesTwice,
    /// What came by itself is written while writes to its chunk are under way.
    ArrivesUnsettled,
    /// What was left to come by itself is never fetched.
    LeavesForEver,
}

impl Mutant {
    /// All of them that are bugs.
    pub const ALL: [Self; 27] = [
        Self::ForgetsRecord,
        Self::RecordsAhead,
        Self::RecordsBehind,
        Self::SkipsDataSync,
        Self::SkipsBarrier,
        Self::JoinsRunningFlush,
        Self::CoversTooMuch,
        Self::RewritesAtOnce,
        Self::FillsOverDirty,
        Self::FillsOverKept,
        Self::CleanBeforeFill,
        Self::WritesIntoFill,
        Self::SkipsCopy,
        Self::ReadsThawed,
        Self::FreezesAtOnce,
        Self::TrustsSuspects,
        Self::LeavesVoid,
        Self::UsesUnbarriered,
        Self::ForgetsFrozen,
        Self::FreesWhatIsWritten,
        Self::TrustsFreed,
        Self::ForgetsPromise,
        Self::NeverRetries,
        Self::BelievesOne,
        Self::FetchesTwice,
        Self::ArrivesUnsettled,
        Self::LeavesForEver,
    ];

    /// Whether `chosen` is this bug.
    #[must_use]
    pub fn is(self, chosen: Self) -> bool {
        cfg!(feature = "mutants") && self == chosen
    }
}
