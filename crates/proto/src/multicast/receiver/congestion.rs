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
/// A window is crowded if packets in it usually waited this much longer than those to the typical receiver. It is the
/// queue above which the rate of a session is cut.
const QUEUE_US: u32 = 4000;
/// Where packets to all receivers wait, they have to wait longer by one part in `TYPICAL_PART` of that, too.
const TYPICAL_PART: u32 = 2;
/// The receiver leaves after this many crowded windows in a row: the typical receiver's queue is drained within two.
const CROWDED_WINDOWS: u8 = 6;
/// At least so many packets were lost in them. What else enters a port fills it until it overflows; a queue that stays
/// from the session's start, when this port lost less than others, loses nothing.
const CROWDED_LOSSES: u64 = 4;

/// What a receiver counted up to now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    /// Packets that arrived since the receiver joined.
    pub arrived: u64,
    /// Packets that were lost since the receiver joined.
    pub lost: u64,
    /// How long packets to the typical receiver wait, in microseconds, as of the last STATUS.
    pub typical_us: Option<u32>,
}

/// How the path to a receiver shows that it carries less than the session sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strain {
    /// For a second many packets were lost.
    Losses,
    /// For longer packets waited in a queue that the others do not have: the link is slower, or other traffic enters
    /// it.
    Queue,
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
    /// Packets that were lost in those crowded windows.
    crowded_lost: u64,
    /// Number of windows in a row that were not crowded.
    free: u8,
    is_crowded: bool,
}

impl Congestion {
    /// Of a receiver whose link is full of other traffic, and that knows it.
    pub(super) fn crowded() -> Self {
        Self { is_crowded: true, ..Self::default() }
    }

    /// Whether the link was full for `CROWDED_WINDOWS` windows in a row, and not as long free since.
    pub(super) fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// Says so when the last of `LOSSY_WINDOWS` lossy windows or of `CROWDED_WINDOWS` crowded windows with losses ends;
    /// again after as many crowded ones.
    /// `usual_us` is called once per window for the time, in microseconds, that packets usually waited since its last
    /// call.
    pub(super) fn look(
        &mut self,
        now: Instant,
        counted: Counted,
        usual_us: impl FnOnce() -> u32,
    ) -> Option<Strain> {
        if now.since(self.since) < WINDOW {
            return None;
        }
        let arrived = counted.arrived.saturating_sub(self.arrived);
        let lost = counted.lost.saturating_sub(self.lost);
        let sent = arrived.saturating_add(lost);
        if sent < PACKETS_MIN {
            return None;
        }
        let is_lossy = u128::from(lost) * 100 >= u128::from(sent) * u128::from(LOSS_PERCENT);
        let usual_us = usual_us();
        let is_crowded = counted.typical_us.is_some_and(|typical_us| {
            usual_us.saturating_sub(typical_us) >= QUEUE_US.max(typical_us / TYPICAL_PART)
        });
        self.lossy = if is_lossy { self.lossy.saturating_add(1) } else { 0 };
        if is_crowded {
            (self.crowded, self.free) = (self.crowded.saturating_add(1), 0);
            self.crowded_lost += lost;
        } else {
            (self.crowded, self.free) = (0, self.free.saturating_add(1));
            self.crowded_lost = 0;
        }
        let is_full = self.crowded >= CROWDED_WINDOWS && self.crowded_lost >= CROWDED_LOSSES;
        self.is_crowded = is_full || (self.is_crowded && self.free < CROWDED_WINDOWS);
        (self.since, self.arrived, self.lost) = (now, counted.arrived, counted.lost);
        if is_lossy && self.lossy == LOSSY_WINDOWS {
            return Some(Strain::Losses);
        }
        if !is_full {
            return None;
        }
        (self.crowded, self.crowded_lost) = (0, 0);
        Some(Strain::Queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether ten windows with these losses in percent, usual waits in milliseconds and the typical receiver's say
    /// that the receiver should leave.
    fn says(losses: [u64; 10], waits_ms: [u32; 10], typical_ms: Option<u32>) -> bool {
        let mut congestion = Congestion::default();
        let (mut arrived, mut lost) = (0, 0);
        losses.into_iter().zip(waits_ms).zip(1..).any(|((loss, wait_ms), window)| {
            (arrived, lost) = (arrived + 100 - loss, lost + loss);
            let typical_us = typical_ms.map(|ms| ms * 1000);
            let counted = Counted { arrived, lost, typical_us };
            congestion.look(Instant::ZERO + WINDOW * window, counted, || wait_ms * 1000).is_some()
        })
    }

    #[test]
    fn only_lasting_heavy_loss_counts() {
        assert!(says([0, 90, 90, 90, 90, 0, 0, 0, 0, 0], [0; 10], None));
        assert!(!says([0, 90, 90, 90, 0, 90, 90, 90, 0, 0], [0; 10], None));
        assert!(!says([10; 10], [0; 10], None));
    }

    #[test]
    fn only_a_lasting_queue_that_the_others_do_not_have_counts() {
        assert!(says([1; 10], [0, 9, 9, 9, 9, 9, 9, 0, 0, 0], Some(1)));
        assert!(!says([1; 10], [9; 10], Some(6)), "all have it: the rate will fall");
        assert!(!says([1; 10], [9; 10], None), "the server does not tell");
        assert!(!says([1; 10], [9, 9, 9, 9, 9, 1, 9, 9, 9, 9], Some(1)));
        assert!(!says([1; 10], [3; 10], Some(0)));
        assert!(!says([1; 10], [60; 10], Some(50)), "TCP fills the server's own link");
        assert!(says([1; 10], [20; 10], Some(8)));
        assert!(says([0, 0, 0, 0, 0, 0, 0, 0, 5, 0], [9; 10], Some(1)));
        assert!(!says([0; 10], [20; 10], Some(8)), "it stays from the beginning");
    }
}
