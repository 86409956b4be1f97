//! Seeded bugs: the simulator switches one on and shows that its checkers see it. Without the feature `mutants` every
//! question for one is answered with no at compile time.

/// A bug to be found, each in one place of one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mutant {
    /// The machines as they are.
    #[default]
    None,
    /// Receiver: an object counts as complete without its last block.
    IgnoresLastBlock,
    /// Receiver: takes a wrong digest for a right one.
    AcceptsWrongDigest,
    /// Receiver: reports at every opportunity, without spreading or stretching.
    ForgetsBackOff,
    /// Receiver: never asks for single blocks.
    DropsBlockNeeds,
    /// Receiver: a released slot stays counted.
    LeaksSlot,
    /// Receiver: takes objects beyond its memory.
    IgnoresBudget,
    /// Receiver: what it once asked for it never asks for again.
    AsksOnce,
    /// Receiver: puts a block one place too far.
    MisplacesBlock,
    /// Receiver: takes the highest sequence for what has had time to arrive, times two.
    ClaimsToHaveSeenMore,
    /// Server: what was sent stays wanted.
    NeverClearsPending,
    /// Server: sends again what is still on its way.
    IgnoresSequence,
    /// Server: the cursor wraps to the second object behind the heads.
    WrapsOneTooFar,
    /// Server: heads wait for their turn.
    HeadsLast,
    /// Server: never misses who went without a word.
    NeverExpires,
    /// Server: resends are not booked.
    BooksNothing,
    /// Server: the same symbols again and again.
    RepeatsSymbols,
    /// Server: sends symbols for each report, whatever went out since.
    ForgetsSymbolsSent,
    /// Receiver: a symbol that comes twice counts twice.
    CountsSymbolTwice,
    /// Receiver: never asks for symbols.
    AsksForNoSymbols,
    /// Receiver: hears of what is pending, and asks for it all the same.
    IgnoresEcho,
    /// Receiver: takes symbols for the blocks in whose places they lie.
    ForgetsSymbolsHeld,
}

impl Mutant {
    /// Every bug but none.
    pub const ALL: [Self; 21] = [
        Self::IgnoresLastBlock,
        Self::AcceptsWrongDigest,
        Self::ForgetsBackOff,
        Self::DropsBlockNeeds,
        Self::LeaksSlot,
        Self::IgnoresBudget,
        Self::AsksOnce,
        Self::MisplacesBlock,
        Self::ClaimsToHaveSeenMore,
        Self::NeverClearsPending,
        Self::IgnoresSequence,
        Self::WrapsOneTooFar,
        Self::HeadsLast,
        Self::NeverExpires,
        Self::BooksNothing,
        Self::RepeatsSymbols,
        Self::ForgetsSymbolsSent,
        Self::CountsSymbolTwice,
        Self::AsksForNoSymbols,
        Self::IgnoresEcho,
        Self::ForgetsSymbolsHeld,
    ];

    /// Whether this is `bug`, in a build that has bugs at all.
    pub(super) fn is(self, bug: Self) -> bool {
        cfg!(feature = "mutants") && self == bug
    }
}
