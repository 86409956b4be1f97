//! What the law sees at each look at the rate.

use super::sense::View;

/// What happened since the last look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// Now.
    pub now: f64,
    /// Time since the last look.
    pub passed: f64,
    /// What was sent in it.
    pub sent: f64,
    /// Whether less was sent than the rate allowed: the link or the source was slower.
    pub limited: bool,
    /// What the typical receiver sees, if any was heard.
    pub view: Option<View>,
    /// Loss that does not depend on the rate, if known.
    pub baseline: Option<f64>,
    /// Whether the view was seen by packets that were sent since the last cut.
    pub fresh: bool,
    /// What the typical receiver got lately, and would have got of what was lost by chance.
    pub delivered: f64,
    /// Time that one packet takes at the rate.
    pub packet: f64,
}
