//! Seeded bugs: the simulator switches one on and shows that its checkers see it. Without the feature `mutants` there
//! is only [`Mutant::None`], and each question for another one is answered at compile time.

/// A bug to be found. Which machine has it is said at each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mutant {
    /// The machine as it is.
    #[default]
    None,
}
