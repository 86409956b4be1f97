//! Detects that the network loses so many packets for this receiver, for so long, that it should leave the session.
//! Source: `formats/multicast.md`, section 7.

use base::{Duration, Instant};

/// The loss is measured over windows of at least this time,
const WINDOW: Duration = Duration::from_millis(250);
/// in which at least this many packets were sent.
const PACKETS_MIN: u64 = 32;
/// A window is bad if at least this percentage of them was lost.
const LOSS_PERCENT: u64 = 30;
/// The receiver is too slow after this many bad windows in a row.
const WINDOWS: u8 = 4;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Congestion {
    since: Instant,
    arrived: u64,
    lost: u64,
    bad: u8,
}

impl Congestion {
    /// True once when the last of `WINDOWS` bad windows ends. `arrived` and `lost` are packets since the receiver
    /// joined.
    pub(super) fn is_too_slow(&mut self, now: Instant, arrived: u64, lost: u64) -> bool {
        if now.since(self.since) < WINDOW {
            return false;
        }
        let new_arrived = arrived.saturating_sub(self.arrived);
        let new_lost = lost.saturating_sub(self.lost);
        let sent = new_arrived.saturating_add(new_lost);
        if sent >= PACKETS_MIN {
            let is_bad = u128::from(new_lost) * 100 >= u128::from(sent) * u128::from(LOSS_PERCENT);
            self.bad = if is_bad { self.bad.saturating_add(1) } else { 0 };
            (self.since, self.arrived, self.lost) = (now, arrived, lost);
            return is_bad && self.bad == WINDOWS;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether ten windows with these losses in percent report a slow receiver.
    fn says(losses: [u64; 10]) -> bool {
        let mut congestion = Congestion::default();
        let (mut arrived, mut lost) = (0, 0);
        losses.into_iter().zip(1..).any(|(loss, window)| {
            (arrived, lost) = (arrived + 100 - loss, lost + loss);
            congestion.is_too_slow(Instant::ZERO + WINDOW * window, arrived, lost)
        })
    }

    #[test]
    fn only_lasting_heavy_loss_counts() {
        assert!(says([0, 90, 90, 90, 90, 0, 0, 0, 0, 0]));
        assert!(!says([0, 90, 90, 90, 0, 90, 90, 90, 0, 0]));
        assert!(!says([10; 10]));
    }
}
