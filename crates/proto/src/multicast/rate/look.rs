//! The input of one step of the rate's law.

use super::sense::View;

/// What happened since the last step. Rates in bits per second, times in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// Now.
    pub now: f64,
    /// Time since the last step.
    pub passed: f64,
    /// The sending rate in that time.
    pub sent: f64,
    /// Whether less was sent than the rate allowed, because the link or the source was slower.
    pub limited: bool,
    /// What the typical receiver sees, if enough receivers reported.
    pub view: Option<View>,
    /// The loss that does not depend on the rate, if known.
    pub baseline: Option<f64>,
    /// Whether the view is based on packets that were sent after the last cut.
    pub fresh: bool,
    /// The rate at which data arrived at the typical receiver.
    pub delivered: f64,
    /// Time of one packet at the present rate.
    pub packet: f64,
}
