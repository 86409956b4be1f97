//! Reaches an equal share of the link with fewer cuts.
//!
//! All flows that share a queue are cut in proportion and rise equally. So with every cut a share `x` moves a little
//! towards the equal share `e`: `x' = x + a (e − x)`, with `a` of 0.05 to 0.1. No flow knows `e`, but each sees its
//! own share move, and continues in that direction. With momentum `m` (Polyak's heavy ball) the difference shrinks
//! per cut by the factor `√m`, if that is less than `1 − a`. A flow that is alone sees the same share again, which is
//! the link, and stays there. The additional changes of all flows cancel out, so the sum of the rates is unchanged.

/// Part of the last change that is added to the next.
const MOMENTUM: f64 = 0.7;
/// Lowest and highest factor for the rate.
const LEAST: f64 = 0.75;
const MOST: f64 = 1.3;
/// A share that was measured more than this many seconds ago is ignored.
const MEMORY: f64 = 3.0;
/// Longest time of one packet in seconds (120 Mbit/s): slower links have too few packets to measure a share, and
/// become equal as quickly without this.
const PACKET_MAX: f64 = 0.000_1;

/// The shares at the last two cuts. Rates in bits per second, times in seconds.
#[derive(Debug, Default)]
pub(super) struct Share {
    now: Option<f64>,
    before: Option<(f64, f64)>,
}

impl Share {
    /// The rate is cut because of a queue, while the link delivers `delivered`.
    pub(super) fn cut(&mut self, delivered: f64) {
        self.now = Some(delivered);
    }

    /// The queue of the cut has drained at `now`: returns the factor for the rate. `packet` is the time of one
    /// packet.
    pub(super) fn drained(&mut self, now: f64, packet: f64) -> f64 {
        let Some(share) = self.now.take().filter(|share| *share > 0.0) else { return 1.0 };
        let before = self.before.replace((share, now));
        let told = before.filter(|(_, at)| now - at < MEMORY && packet < PACKET_MAX);
        let grown = told.map_or(0.0, |(before, _)| (share - before) / share);
        (1.0 + MOMENTUM * grown).clamp(LEAST, MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of cuts until two shares differ by less than a tenth, if each cut moves them by 0.07 of the distance
    /// towards a half.
    fn cuts(packet: f64) -> u32 {
        let mut shares = [Share::default(), Share::default()];
        let mut rates = [0.85e9, 0.15e9];
        for cut in 0..100 {
            if f64::abs(rates[0] - rates[1]) < 0.1e9 {
                return cut;
            }
            for (share, rate) in shares.iter_mut().zip(&mut rates) {
                share.cut(*rate);
                *rate = (*rate * share.drained(f64::from(cut) * 0.3, packet)) * 0.93 + 0.07 * 0.5e9;
            }
        }
        100
    }

    #[test]
    fn shares_become_equal_in_half_as_many_cuts() {
        let (with, without) = (cuts(0.000_012), cuts(0.000_2));
        assert!(without > 20 && 2 * with < without, "{with} {without}");
    }

    #[test]
    fn who_is_alone_stays_and_bounds_hold() {
        let mut share = Share::default();
        let mut at = |now: f64, delivered: f64| {
            share.cut(delivered);
            share.drained(now, 0.000_012)
        };
        assert!([at(0.0, 1e9), at(0.3, 1e9), at(0.6, 1e9)].iter().all(|tend| (tend - 1.0).abs() < 1e-9));
        assert!((at(0.9, 0.1e9) - LEAST).abs() < 1e-9 && (at(1.2, 1e9) - MOST).abs() < 1e-9);
        assert!((at(9.0, 0.5e9) - 1.0).abs() < 1e-9, "too long ago");
    }
}
