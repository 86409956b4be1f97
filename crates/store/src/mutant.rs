//! Seeded bugs: the simulator switches one on and shows that its checkers see it. Without the feature `mutants` every
//! question for one is answered with no at compile time.

/// A rule of formats/repository.md, "Pruning", that is broken, each in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mutant {
    /// The protocol as it is.
    #[default]
    None,
    /// Writer: counts on objects that are condemned.
    CountsOnCondemned,
    /// Writer: stores anew where a prune may still delete.
    StoresAnewInPlace,
    /// Writer: does not look whether its epoch has passed when it has its lease.
    IgnoresNextEpoch,
    /// Writer: creates a version without a commit.
    CommitsNothing,
    /// Writer: goes on when its lease is revoked.
    IgnoresRevocation,
    /// Writer and prune: append to a log without looking whether it was deleted.
    TrustsDeletedLogs,
    /// Writer: forgets the parts in doubt.
    WriterForgetsDoubt,
    /// Prune: does not wait for leases, nor revoke them.
    LeavesLeasesOpen,
    /// Prune: does not mark what was committed under leases.
    ForgetsCommits,
    /// Prune: looks at leases of the last epoch only.
    ForgetsOlderEpochs,
    /// Prune: does not make a version of a commit whose writer died.
    LeavesCommitsUndecided,
    /// Prune: does not mark a second time.
    MarksOnce,
    /// Prune: deletes without saying so in its lease first.
    DeletesUnannounced,
    /// Prune: hands no part in doubt on.
    PruneForgetsDoubt,
    /// Prune: begins beside one that has not ended.
    LeavesPredecessorRunning,
    /// Prune: takes what was removed after it began for removed.
    LooksForTombstonesLate,
    /// Prune: forgets commits of versions that no list has shown yet.
    ClosesUnlisted,
    /// Prune: takes copies in other slots for something else.
    OverlooksCopies,
    /// Prune: keeps a copy that another prune may still delete, and deletes the others.
    KeepsCondemnedCopies,
    /// Prune: deletes the records of earlier prunes before a list shows a later one.
    ForgetsUnshownPrunes,
    /// Prune: deletes the records of removed versions before a list shows their floor.
    TrustsUnshownFloors,
    /// Prune: leaves its lists and the leases' logs.
    LeavesRecords,
}

impl Mutant {
    /// Every bug but none.
    pub const ALL: [Self; 22] = [
        Self::CountsOnCondemned,
        Self::StoresAnewInPlace,
        Self::IgnoresNextEpoch,
        Self::CommitsNothing,
        Self::IgnoresRevocation,
        Self::TrustsDeletedLogs,
        Self::WriterForgetsDoubt,
        Self::LeavesLeasesOpen,
        Self::ForgetsCommits,
        Self::ForgetsOlderEpochs,
        Self::LeavesCommitsUndecided,
        Self::MarksOnce,
        Self::DeletesUnannounced,
        Self::PruneForgetsDoubt,
        Self::LeavesPredecessorRunning,
        Self::LooksForTombstonesLate,
        Self::ClosesUnlisted,
        Self::OverlooksCopies,
        Self::KeepsCondemnedCopies,
        Self::ForgetsUnshownPrunes,
        Self::TrustsUnshownFloors,
        Self::LeavesRecords,
    ];
}
