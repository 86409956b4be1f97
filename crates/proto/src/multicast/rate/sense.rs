//! Condenses the receivers' reports to what the typical receiver sees.
//!
//! The typical receiver is the median of those that reported recently; of two it is the better one. So the slow port,
//! slow disk or bad cable of a minority does not count.

use std::collections::{HashMap, HashSet, VecDeque};

use base::{Duration, Instant};

use super::feedback::Feedback;
use crate::multicast::wire::header::ReceiverId;

/// The reports of this time make a view, or those of the last `RECEIVERS` receivers if that takes longer. Of each
/// receiver the minimum delay counts, because a queue lasts and a pause of a host does not.
const VIEW: Duration = Duration::from_millis(30);
const RECEIVERS: usize = 12;
/// A receiver that reported within this time counts as active.
const LATELY: Duration = Duration::from_secs(1);
/// Most reports that are kept.
const SAMPLES_MAX: usize = 512;
/// The loss and the pace since the last report are measured over at least this time.
const SPAN_MIN: Duration = Duration::from_millis(5);
/// A packet may be this much late on hosts with busy processors; until then it does not count as lost.
const DOUBT: Duration = Duration::from_millis(25);
/// A receiver's loss is measured over one to two times this time, or over the time between two of its reports.
const LOSS_WINDOW: Duration = Duration::from_millis(50);
/// Fewer losses than this do not count: packets that overtake each other look lost for a moment.
const LOSSES_MIN: f64 = 5.0;
/// The baseline of the loss is computed from this many windows, as soon as there are `BASELINE_ENOUGH`.
const BASELINE_WINDOWS: usize = 24;
const BASELINE_ENOUGH: usize = 4;
/// Fewest packets for a loss that counts as the least, or as the loss after a cut.
const LEAST_OF: f64 = 100.0;
const BASELINE_WINDOW: Duration = Duration::from_millis(125);
/// The loss directly after a cut counts as this many windows.
const AFTER_CUT_WINDOWS: usize = 3;

/// A receiver's counters at some time.
#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Instant,
    arrived: u64,
    lost: u64,
}

impl Mark {
    /// The loss between this mark and `later`.
    fn until(self, later: Self) -> Loss {
        let lost = later.lost.saturating_sub(self.lost);
        let of = later.arrived.saturating_sub(self.arrived) + lost;
        Loss { part: ratio(lost, of.max(1)), of: ratio(of, 1) }
    }
}

impl Mark {
    /// Packets per second that arrived between this mark and `later`.
    fn pace(self, later: Self) -> f64 {
        let arrived = ratio(later.arrived.saturating_sub(self.arrived), 1);
        (arrived + 0.5) / later.at.since(self.at).as_secs_f64().max(1e-6)
    }
}

/// What the recent reports of one receiver said.
#[derive(Debug, Clone, Copy)]
struct ReceiverHistory {
    /// The era of its first report, and that of its marks.
    born: u32,
    era: u32,
    older: Mark,
    newer: Mark,
    /// The last counters that are certain, and newer ones: packets that they count as lost may still arrive.
    sure: Mark,
    doubted: Mark,
    /// End of the last measurement of at least `SPAN_MIN`, and its loss and its packets per second.
    last: Mark,
    recent: Option<(Loss, f64)>,
}

impl ReceiverHistory {
    /// Takes newer counters. A packet that counted as lost and arrived later was only overtaken.
    fn adopt(&mut self, mark: Mark) {
        self.doubted.lost = self.doubted.lost.min(mark.lost);
        if mark.at.since(self.doubted.at) < DOUBT {
            return;
        }
        (self.sure, self.doubted) = (self.doubted, mark);
        if self.sure.at.since(self.newer.at) >= LOSS_WINDOW {
            (self.older, self.newer) = (self.newer, self.sure);
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    receiver: ReceiverId,
    queue_us: u32,
    /// Over `LOSS_WINDOW`.
    loss: Loss,
    /// Since about the last report (`SPAN_MIN` at least).
    loss_last: Loss,
    /// Packets per second in the same time.
    pace_last: f64,
}

/// Loss over some packets.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Loss {
    /// Part that was lost, 0 to 1.
    pub part: f64,
    /// Number of packets sent.
    pub of: f64,
}

impl Loss {
    /// The excess over `base`, if it is significant (3.5 standard deviations) and more than `least`.
    pub(super) fn beyond(self, base: f64, least: f64) -> Option<f64> {
        let deviation = ((base * (1.0 - base) + 0.01 * least).max(0.0) / self.of.max(1.0)).sqrt();
        let excess = self.part - base;
        let many = excess * self.of >= LOSSES_MIN;
        (many && excess > least.max(3.5 * deviation)).then_some(excess)
    }
}

/// What the typical receiver sees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct View {
    /// Its queue now, in seconds: the minimum of its reports within the view.
    pub queue: f64,
    /// Its queue in its last report, in seconds.
    pub queue_last: f64,
    /// The same of those that had reported before the last cut: who came later has nothing of the queue that was there.
    pub queue_before: f64,
    /// The median of all receivers' queues in their last reports, in seconds. Of two, the mean.
    pub queue_median: f64,
    /// Its loss over `LOSS_WINDOW`.
    pub loss: Loss,
    /// Its loss between its last two reports.
    pub loss_last: Loss,
    /// Packets per second that it got recently.
    pub pace: f64,
    /// Number of receivers whose reports make this view.
    pub receivers: usize,
}

/// Reports of the receivers.
#[derive(Debug, Default)]
pub(super) struct Sense {
    receivers: HashMap<ReceiverId, ReceiverHistory>,
    samples: VecDeque<Sample>,
    /// Number of the rate's cuts: losses from before a cut say nothing about the rate after it.
    era: u32,
    era_from: Instant,
    /// Whether [`Self::book_after_cut`] has counted the first loss of this era.
    era_booked: bool,
    baseline: VecDeque<f64>,
    /// The lowest loss ever seen, which is the baseline until there are enough windows.
    least: Option<f64>,
    baseline_at: Instant,
}

impl Sense {
    /// Adds a report.
    pub(super) fn feedback(&mut self, now: Instant, report: &Feedback) {
        let mark = Mark { at: now, arrived: report.arrived, lost: report.lost };
        let new = ReceiverHistory {
            born: self.era,
            era: self.era,
            older: mark,
            newer: mark,
            sure: mark,
            doubted: mark,
            last: mark,
            recent: None,
        };
        let history = self.receivers.entry(report.receiver).or_insert(new);
        if now.since(history.last.at) >= SPAN_MIN {
            history.recent = Some((history.last.until(mark), history.last.pace(mark)));
            history.last = mark;
        }
        if history.era != self.era && now >= self.era_from {
            *history = ReceiverHistory { born: history.born, recent: history.recent, ..new };
        }
        history.adopt(mark);
        let loss = if history.era == self.era { history.older.until(history.sure) } else { Loss::default() };
        // The first report only gives the start values of the counters. A receiver to which nothing arrived cannot tell
        // how long packets wait.
        let Some((loss_last, pace_last)) = history.recent.filter(|_| report.arrived > 0) else { return };
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        let (receiver, queue_us) = (report.receiver, report.queue_us);
        self.samples.push_back(Sample { at: now, receiver, queue_us, loss, loss_last, pace_last });
    }

    /// Removes a receiver that left.
    pub(super) fn forget(&mut self, receiver: ReceiverId) {
        self.receivers.remove(&receiver);
        self.samples.retain(|sample| sample.receiver != receiver);
    }

    /// The rate was cut: losses are counted from zero, beginning at `from`.
    pub(super) fn begin_era(&mut self, from: Instant) {
        self.era += 1;
        self.era_from = from;
        self.era_booked = false;
        for sample in &mut self.samples {
            sample.loss = Loss::default();
        }
    }

    /// What the typical receiver sees, from recent reports that arrived at or after `from`; `None` if too few did.
    pub(super) fn view(&mut self, now: Instant, from: Instant) -> Option<View> {
        while self.samples.front().is_some_and(|sample| now.since(sample.at) > LATELY) {
            self.samples.pop_front();
        }
        let enough = RECEIVERS.min(self.active());
        let mut last: Vec<Sample> = Vec::new();
        let mut queues: Vec<(u32, u32)> = Vec::new();
        let mut paces: Vec<(f64, f64)> = Vec::new();
        // Newest first: the first report of a receiver is its last one.
        let mut seen: HashMap<ReceiverId, usize> = HashMap::new();
        for sample in self.samples.iter().rev().filter(|sample| sample.at >= from) {
            if now.since(sample.at) > VIEW && last.len() >= enough {
                break;
            }
            match seen.get(&sample.receiver) {
                Some(&index) => {
                    queues[index].0 = queues[index].0.min(sample.queue_us);
                    paces[index] = (paces[index].0 + sample.pace_last, paces[index].1 + 1.0);
                }
                None => {
                    seen.insert(sample.receiver, last.len());
                    last.push(*sample);
                    queues.push((sample.queue_us, sample.queue_us));
                    paces.push((sample.pace_last, 1.0));
                }
            }
        }
        if last.len() < enough {
            return None;
        }
        let paces = paces.iter().map(|(sum, count)| -sum / count);
        let most = |losses: Vec<Loss>| {
            let told: Vec<Loss> = losses.into_iter().filter(|loss| loss.of >= 20.0).collect();
            if 2 * told.len() > last.len() { typical(told.into_iter()) } else { None }
        };
        let loss = most(last.iter().map(|sample| sample.loss).collect());
        if let Some(loss) = loss.filter(|loss| loss.of >= LEAST_OF) {
            self.least = Some(self.least.map_or(loss.part, |least| least.min(loss.part)));
        }
        let loss_last = most(last.iter().map(|sample| sample.loss_last).collect());
        let seconds = |us: u32| f64::from(us) / 1e6;
        let born = |receiver| self.receivers.get(&receiver).map_or(self.era, |history| history.born);
        let before = last.iter().filter(|sample| born(sample.receiver) < self.era);
        let queue_last = typical(queues.iter().map(|(_, last)| *last))?;
        Some(View {
            queue: seconds(typical(queues.iter().map(|(least, _)| *least))?),
            queue_last: seconds(queue_last),
            queue_before: seconds(typical(before.map(|sample| sample.queue_us)).unwrap_or(queue_last)),
            queue_median: median(queues.iter().map(|(_, last)| seconds(*last)).collect())?,
            loss: loss.unwrap_or_default(),
            loss_last: loss_last.unwrap_or_default(),
            pace: -typical(paces)?,
            receivers: last.len(),
        })
    }

    /// Number of receivers that have reported and have not left.
    pub(super) fn judges(&self) -> usize {
        self.receivers.len()
    }

    /// Forgets which losses are usual.
    pub(super) fn forget_losses(&mut self) {
        self.baseline.clear();
        (self.least, self.era_booked) = (None, false);
    }

    /// Number of receivers that have reported recently.
    pub(super) fn active(&self) -> usize {
        self.samples.iter().map(|sample| sample.receiver).collect::<HashSet<ReceiverId>>().len()
    }

    /// Adds the loss of a window without a queue to the baseline, at most once per `BASELINE_WINDOW`.
    pub(super) fn book_loss(&mut self, now: Instant, loss: Loss) {
        if loss.of < 20.0 || now.since(self.baseline_at) < BASELINE_WINDOW {
            return;
        }
        self.baseline_at = now;
        self.learn_baseline(loss.part);
    }

    /// Adds the first loss after a cut to the baseline if it still exceeds it by `high`. It counts as several
    /// windows, because it shows best that the loss does not depend on the rate.
    pub(super) fn book_after_cut(&mut self, loss: Loss, high: f64) {
        if self.era_booked || loss.of < LEAST_OF {
            return;
        }
        self.era_booked = true;
        if self.baseline().is_some_and(|base| loss.beyond(base, high).is_some()) {
            (0..AFTER_CUT_WINDOWS).for_each(|_| self.learn_baseline(loss.part));
        }
    }

    /// Adds one window with this loss to the baseline.
    pub(super) fn learn_baseline(&mut self, part: f64) {
        if self.baseline.len() == BASELINE_WINDOWS {
            self.baseline.pop_front();
        }
        self.baseline.push_back(part);
    }

    /// The loss that does not depend on the rate: the lower quartile of the windows; `None` if unknown.
    pub(super) fn baseline(&self) -> Option<f64> {
        if self.baseline.len() < BASELINE_ENOUGH {
            return self.least;
        }
        let mut windows: Vec<f64> = self.baseline.iter().copied().collect();
        windows.sort_by(f64::total_cmp);
        windows.get(windows.len() / 4).copied()
    }
}

/// The median; of an even number of values the lower one of the two in the middle.
fn typical<T: PartialOrd>(values: impl Iterator<Item = T>) -> Option<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    let middle = values.len().checked_sub(1)? / 2;
    Some(values.swap_remove(middle))
}

/// The median; of an even number of values the mean of the two in the middle.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    Some((values[low] + values[high]) / 2.0)
}

impl PartialOrd for Loss {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.part.partial_cmp(&other.part)
    }
}

/// `part / of`; counters up to 2^53 are exact.
#[expect(clippy::cast_precision_loss, reason = "counters stay far below 2^53")]
pub(super) fn ratio(part: u64, of: u64) -> f64 {
    part as f64 / of as f64
}
