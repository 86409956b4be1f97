//! Detects that this receiver should leave the session: the network loses too many of its packets for too long, or its
//! port is full while the ports of the others are not. A full port starves every other flow into it, and the session
//! follows the typical receiver, so only this receiver can make room.
//! Source: `formats/multicast.md`, section 7.

use base::{Duration, Instant};

/// Loss and queue are measured over windows of at least this time,
const WINDOW: Duration = Duration::from_millis(250);
/// in which at least this many packets were sent.
const PACKETS_MIN: u64 = 32;
/// A window is lossy if at least this percentage of them was lost.
const LOSS_PERCENT: u64 = 30;
/// The receiver leaves after this many lossy windows in a row.
const LOSSY_WINDOWS: u8 = 4;
/// A window is crowded if every packet in it waited at least this long, while packets to the typical receiver did not
/// wait. It is the queue above which the rate of a session is cut.
const QUEUE_US: u32 = 4000;
/// The receiver leaves after this many crowded windows in a row: the typical receiver's queue is drained within two.
const CROWDED_WINDOWS: u8 = 6;

/// What a receiver counted up to now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    /// Packets that arrived since the receiver joined.
    pub arrived: u64,
    /// Packets that were lost since the receiver joined.
    pub lost: u64,
    /// Whether packets to the typical receiver do not wait, as of the last STATUS.
    pub calm: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Congestion {
    since: Instant,
    arrived: u64,
    lost: u64,
    /// Number of lossy windows, and of crowded windows, in a row.
    lossy: u8,
    crowded: u8,
}

impl Congestion {
    /// True when the last of `LOSSY_WINDOWS` lossy windows or of `CROWDED_WINDOWS` crowded windows ends. `least_us`
    /// is called once per window for the shortest time, in microseconds, that a packet waited since its last call.
    pub(super) fn is_too_slow(
        &mut self,
        now: Instant,
        counted: Counted,
        least_us: impl FnOnce() -> u32,
    ) -> bool {
        if now.since(self.since) < WINDOW {
            return false;
        }
        let arrived = counted.arrived.saturating_sub(self.arrived);
        let lost = counted.lost.saturating_sub(self.lost);
        let sent = arrived.saturating_add(lost);
        if sent < PACKETS_MIN {
            return false;
        }
        let is_lossy = u128::from(lost) * 100 >= u128::from(sent) * u128::from(LOSS_PERCENT);
        let is_crowded = least_us() >= QUEUE_US && counted.calm;
        self.lossy = if is_lossy { self.lossy.saturating_add(1) } else { 0 };
        self.crowded = if is_crowded { self.crowded.saturating_add(1) } else { 0 };
        (self.since, self.arrived, self.lost) = (now, counted.arrived, counted.lost);
        (is_lossy && self.lossy == LOSSY_WINDOWS) || (is_crowded && self.crowded == CROWDED_WINDOWS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether ten windows with these losses in percent, shortest waits in milliseconds and words of the server say
    /// that the receiver should leave.
    fn says(losses: [u64; 10], waits_ms: [u32; 10], calm: bool) -> bool {
        let mut congestion = Congestion::default();
        let (mut arrived, mut lost) = (0, 0);
        losses.into_iter().zip(waits_ms).zip(1..).any(|((loss, wait_ms), window)| {
            (arrived, lost) = (arrived + 100 - loss, lost + loss);
            let counted = Counted { arrived, lost, calm };
            congestion.is_too_slow(Instant::ZERO + WINDOW * window, counted, || wait_ms * 1000)
        })
    }

    #[test]
    fn only_lasting_heavy_loss_counts() {
        assert!(says([0, 90, 90, 90, 90, 0, 0, 0, 0, 0], [0; 10], false));
        assert!(!says([0, 90, 90, 90, 0, 90, 90, 90, 0, 0], [0; 10], false));
        assert!(!says([10; 10], [0; 10], false));
    }

    #[test]
    fn only_a_lasting_queue_that_the_others_do_not_have_counts() {
        assert!(says([0; 10], [0, 9, 9, 9, 9, 9, 9, 0, 0, 0], true));
        assert!(!says([0; 10], [9; 10], false), "all have it: the rate will fall");
        assert!(!says([0; 10], [9, 9, 9, 9, 9, 1, 9, 9, 9, 9], true));
        assert!(!says([0; 10], [3; 10], true));
    }
}
