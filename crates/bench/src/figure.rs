//! A named figure: one measured number of diskcast, its bar (the limit that it must keep), and the results of other
//! programs in the same run.

use serde::{Deserialize, Serialize};

/// The limit of a value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bar {
    /// The value must be at least this.
    AtLeast(f64),
    /// The value must be at most this.
    AtMost(f64),
    /// No limit: the value is only shown.
    Shown,
}

impl Bar {
    fn holds(self, value: f64) -> Option<bool> {
        match self {
            Self::AtLeast(bar) => Some(value >= bar),
            Self::AtMost(bar) => Some(value <= bar),
            Self::Shown => None,
        }
    }
}

/// The share of its bar by which a thin value is apart from it, at most.
const THIN: f64 = 0.05;

/// The result of another program, or a computed limit, for the same workload in the same run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Peer {
    /// Program and version, or the basis of the limit.
    pub name: String,
    /// Its options.
    pub flags: String,
    /// Its result.
    pub value: f64,
    /// Unit of `value`.
    pub unit: String,
}

/// One measured number.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Dotted name, as documents call it.
    pub name: String,
    /// The measured value; the median if there were several runs.
    pub value: f64,
    /// Unit of `value`: `MB/s` (10^6 bytes), `MiB`, `s`, `ratio`.
    pub unit: String,
    /// Its limit.
    pub bar: Bar,
    /// Whether the limit is kept; `None` if there is none.
    pub holds: Option<bool>,
    /// Results of other programs in the same run.
    pub peers: Vec<Peer>,
    /// The workload.
    pub workload: String,
    /// Where the bytes were written to.
    pub sink: String,
    /// Values of the single runs, in their order.
    pub runs: Vec<f64>,
    /// Other numbers of the same run, for tables and plots.
    #[serde(default)]
    pub details: serde_json::Value,
}

impl Figure {
    /// A figure whose value is the median of `runs`.
    pub(crate) fn new(name: &str, runs: &[f64], unit: &str, bar: Bar) -> Self {
        let value = median(runs);
        Self {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
            bar,
            holds: bar.holds(value),
            peers: Vec::new(),
            workload: String::new(),
            sink: String::new(),
            runs: runs.to_vec(),
            details: serde_json::Value::Null,
        }
    }

    /// Adds the result of another program.
    pub(crate) fn peer(mut self, name: &str, flags: &str, value: f64, unit: &str) -> Self {
        let peer = Peer { name: name.to_owned(), flags: flags.to_owned(), value, unit: unit.to_owned() };
        self.peers.push(peer);
        self
    }

    /// Sets the workload and the sink.
    pub(crate) fn on(mut self, workload: &str, sink: &str) -> Self {
        workload.clone_into(&mut self.workload);
        sink.clone_into(&mut self.sink);
        self
    }

    /// Sets other numbers of the same run.
    pub(crate) fn with(mut self, details: serde_json::Value) -> Self {
        self.details = details;
        self
    }

    /// Whether the value is so near its bar that another run might judge it otherwise.
    pub(crate) fn is_thin(&self) -> bool {
        match self.bar {
            Bar::AtLeast(bar) | Bar::AtMost(bar) => (self.value - bar).abs() <= bar.abs() * THIN,
            Bar::Shown => false,
        }
    }

    /// The one of this figure and `again` whose value is in the middle. Its runs are the values of all.
    pub(crate) fn middle<'a>(&'a self, again: impl Iterator<Item = &'a Self>) -> Self {
        let all: Vec<_> = std::iter::once(self).chain(again).collect();
        let runs: Vec<_> = all.iter().map(|figure| figure.value).collect();
        let mut sorted = all.clone();
        sorted.sort_by(|one, other| one.value.total_cmp(&other.value));
        let middle = sorted[sorted.len() / 2].clone();
        let workload =
            format!("{}; the middle of {} measurements, since it is thin", middle.workload, all.len());
        Self { runs, workload, ..middle }
    }

    /// The figure as a line of text.
    pub(crate) fn line(&self) -> String {
        let bar = match self.bar {
            Bar::AtLeast(bar) => format!(">= {}", show(bar)),
            Bar::AtMost(bar) => format!("<= {}", show(bar)),
            Bar::Shown => String::new(),
        };
        let verdict = match self.holds {
            Some(true) => "holds",
            Some(false) => "FALLS SHORT",
            None => "shown",
        };
        let peers: Vec<_> = self
            .peers
            .iter()
            .map(|peer| format!("{} {} {}", peer.name, show(peer.value), peer.unit))
            .collect();
        let value = format!("{} {}", show(self.value), self.unit);
        format!("{:<28} {value:>14}  {bar:<10} {verdict:<12} {}", self.name, peers.join("; "))
    }
}

/// The middle value; the mean of the middle two if their number is even; NaN if there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => f64::NAN,
        (length, middle) if length % 2 == 1 => sorted[middle],
        (_, middle) => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

fn show(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_bars() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[1.0, 2.0]) - 1.5).abs() < 1e-9);
        assert!(median(&[]).is_nan());
        assert_eq!(Figure::new("a", &[f64::NAN], "s", Bar::AtMost(1.0)).holds, Some(false));
        assert_eq!(Figure::new("a", &[0.9, 1.1, 1.0], "s", Bar::AtLeast(1.0)).holds, Some(true));
    }

    #[test]
    fn thin_figures_are_known_and_the_middle_one_is_taken() {
        let of = |value: f64| Figure::new("a", &[value], "s", Bar::AtMost(1.0));
        let thin = [0.94, 0.96, 1.0, 1.04, 1.06].map(|value| of(value).is_thin());
        assert_eq!(thin, [false, true, true, true, false]);
        assert!(!Figure::new("a", &[1.0], "s", Bar::Shown).is_thin());
        let middle = of(1.02).middle([of(0.9), of(0.98)].iter());
        assert_eq!((middle.value, middle.holds, middle.runs), (0.98, Some(true), vec![1.02, 0.9, 0.98]));
    }
}
