//! Shows the progress of a command: a bar if stderr is a terminal, lines of JSON with --json, else a line now and then.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::units::{show_bytes, show_bytes_per_second, show_duration, show_seconds};
use image::{Progress, Stage};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use net::fetch::Arrived;
use net::recent::Recent;
use parking_lot::Mutex;

use crate::clock;
use crate::ui::output::Output;

const BAR: &str = "{msg:>7} {bar:24} {percent:>3} %  {done} of {all}  {rate}  {left}";
/// Of a stage whose end is not known, such as reading a stream.
const COUNTER: &str = "{msg:>7} {done}  {rate}";
const JSON_INTERVAL: Duration = Duration::from_secs(1);
/// Time from one line to the next where there is no terminal, as in a log.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// The bar shows no remaining time before: it would come from the first moments.
const LEFT_TIME_MIN: Duration = Duration::from_secs(1);
/// Rates are those of the last seconds.
const RATE_WINDOW: Duration = Duration::from_secs(8);

/// The progress of a capture, an install or a fetch.
pub(crate) struct Meter {
    output: Output,
    shown: bool,
    quiet: bool,
    arrived: Option<Arc<Arrived>>,
    stage: Mutex<Option<Running>>,
}

struct Running {
    stage: Stage,
    bar: ProgressBar,
    began: Instant,
    reported: Instant,
    /// What arrives from the network, while it is that which the stage waits for.
    arrived: Option<Arc<Arrived>>,
    /// How fast it does; else how fast the stage goes on. Shared with the bar.
    rate: Arc<Mutex<Recent>>,
}

impl Meter {
    pub(crate) fn new(output: Output, quiet: bool) -> Self {
        let shown = !quiet && !output.is_json() && std::io::stderr().is_terminal();
        Self { output, shown, quiet, arrived: None, stage: Mutex::new(None) }
    }

    /// The same for a fetch: while it installs, the rate is that of what arrives. What of the target is done grows
    /// faster than any network where chunks are compressed well.
    pub(crate) fn of_network(self, arrived: &Arc<Arrived>) -> Self {
        Self { arrived: Some(Arc::clone(arrived)), ..self }
    }

    /// Runs `print` with the bar off the screen.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        match &*self.stage.lock() {
            Some(running) => running.bar.suspend(print),
            None => print(),
        }
    }

    /// Takes the bar off the screen.
    pub(crate) fn finish(&self) {
        if let Some(running) = self.stage.lock().take() {
            running.bar.finish_and_clear();
        }
    }

    fn report(&self, running: &Running, now: Instant) {
        let (done, total) = (running.bar.position(), running.bar.length().unwrap_or(0));
        let mut record = serde_json::json!({
            "type": "progress", "stage": word(running.stage), "bytes": done,
            "total_bytes": (total > 0).then_some(total),
            "elapsed_seconds": now.duration_since(running.began).as_secs_f64(),
            "left_seconds": (total > 0).then(|| running.bar.eta().as_secs()),
        });
        if let Some(arrived) = &running.arrived {
            record["received_bytes"] = arrived.all_bytes().into();
        }
        // A failure to print progress must not stop the work; printing the result will fail, too.
        let _ = self.output.answer(&record, String::new);
    }
}

impl Progress for Meter {
    fn begin(&self, stage: Stage, bytes: u64) {
        self.finish();
        let target =
            if self.shown { ProgressDrawTarget::stderr_with_hz(8) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(bytes), target);
        let arrived = self.arrived.clone().filter(|_| stage == Stage::Install);
        *self.stage.lock() = Some(Running::begin(stage, bar, arrived, clock::now()));
    }

    fn advance(&self, stage: Stage, bytes: u64) {
        let mut running = self.stage.lock();
        let Some(running) = running.as_mut().filter(|running| running.stage == stage) else { return };
        let now = clock::now();
        running.advance(bytes, now);
        if self.output.is_json() {
            if running.is_due(JSON_INTERVAL, now) {
                self.report(running, now);
            }
        } else if !self.shown && !self.quiet && running.is_due(LINE_INTERVAL, now) {
            self.output.note(&running.line());
        }
    }
}

impl Running {
    fn begin(stage: Stage, bar: ProgressBar, arrived: Option<Arc<Arrived>>, now: Instant) -> Self {
        let rate = Arc::new(Mutex::new(Recent::over(RATE_WINDOW)));
        let template = if bar.length() == Some(0) { COUNTER } else { BAR };
        let style = style(template, Arc::clone(&rate), arrived.is_some());
        let bar = bar.with_style(style).with_message(word(stage));
        let running = Self { stage, bar, began: now, reported: now, arrived, rate };
        running.count(now);
        running
    }

    fn advance(&self, bytes: u64, now: Instant) {
        self.bar.inc(bytes);
        self.count(now);
    }

    fn count(&self, now: Instant) {
        let bytes = self.arrived.as_ref().map_or_else(|| self.bar.position(), |arrived| arrived.all_bytes());
        self.rate.lock().count(now.duration_since(self.began), bytes);
    }

    /// Whether `every` has passed since this last was true.
    fn is_due(&mut self, every: Duration, now: Instant) -> bool {
        let is_due = now.duration_since(self.reported) >= every;
        if is_due {
            self.reported = now;
        }
        is_due
    }

    /// The progress as a line of a log.
    fn line(&self) -> String {
        let (done, total) = (self.bar.position(), self.bar.length().unwrap_or(0));
        let rate = show_recent(&self.rate.lock(), self.arrived.is_some());
        let (stage, left) = (word(self.stage), show_seconds(self.bar.eta().as_secs()));
        let Some(percent) = (u128::from(done) * 100).checked_div(u128::from(total)) else {
            return format!("{stage}: {}, {rate}", show_bytes(done));
        };
        format!("{stage}: {percent} %, {} of {}, {rate}, {left} left", show_bytes(done), show_bytes(total))
    }
}

/// A rate as text, `-` if there is none yet.
fn show_recent(rate: &Recent, of_network: bool) -> String {
    let rate = rate.per_second().map_or_else(|| "-".to_owned(), show_bytes_per_second);
    if of_network { format!("{rate} received") } else { rate }
}

/// A rate over a shorter time says nothing.
const MEASURED_MIN: Duration = Duration::from_millis(5);

/// A rate as text, in bytes per second; `-` if there was no time to measure one.
pub(crate) fn show_rate(bytes: u64, took: Duration) -> String {
    if took < MEASURED_MIN {
        return "-".to_owned();
    }
    let rate = u128::from(bytes) * 1_000_000 / took.as_micros();
    show_bytes_per_second(u64::try_from(rate).unwrap_or(u64::MAX))
}

fn word(stage: Stage) -> &'static str {
    match stage {
        Stage::Unpack => "unpack",
        Stage::Capture => "capture",
        Stage::Resume => "compare",
        Stage::Install => "install",
        Stage::Verify => "verify",
    }
}

fn style(template: &str, rate: Arc<Mutex<Recent>>, of_network: bool) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).expect("the template is valid").progress_chars("━╸╌");
    style
        .with_key("done", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = out.write_str(&show_bytes(state.pos()));
        })
        .with_key("all", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = out.write_str(&show_bytes(state.len().unwrap_or(0)));
        })
        .with_key("rate", move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = out.write_str(&show_recent(&rate.lock(), of_network));
        })
        .with_key("left", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let known = state.elapsed() >= LEFT_TIME_MIN;
            let left = if known { show_duration(state.eta()) } else { "-".to_owned() };
            let _ = write!(out, "{left} left");
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_each_ten_seconds() {
        let begin = clock::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let bar = || ProgressBar::with_draw_target(Some(100 << 20), ProgressDrawTarget::hidden());
        let mut running = Running::begin(Stage::Capture, bar(), None, begin);
        let due: Vec<_> = (1..=40)
            .filter(|&second| {
                running.advance(2 << 20, at(second));
                running.is_due(LINE_INTERVAL, at(second))
            })
            .collect();
        assert_eq!(due, [10, 20, 30, 40]);
        let line = running.line();
        assert!(line.starts_with("capture: 80 %, 80.0 MiB of 100 MiB, 2.1 MB/s, "), "{line}");
    }

    #[test]
    fn the_rate_of_a_fetch_is_that_of_the_network() {
        let begin = clock::now();
        let arrived = Arc::<Arrived>::default();
        let bar = ProgressBar::with_draw_target(Some(100 << 20), ProgressDrawTarget::hidden());
        let running = Running::begin(Stage::Install, bar, Some(Arc::clone(&arrived)), begin);
        assert!(running.line().contains(", - received, "), "{}", running.line());
        for second in 1..=10 {
            arrived.add_unicast(1_000_000);
            running.advance(10 << 20, begin + Duration::from_secs(second));
        }
        let line = running.line();
        assert!(line.starts_with("install: 100 %, 100 MiB of 100 MiB, 1.0 MB/s received, "), "{line}");
    }

    #[test]
    fn what_took_no_time_has_no_rate() {
        assert_eq!(show_rate(93_000_000, Duration::from_micros(900)), "-");
        assert_eq!(show_rate(93_000_000, Duration::ZERO), "-");
        assert_eq!(show_rate(93_000_000, Duration::from_millis(500)), "186 MB/s");
        assert!(!show_rate(u64::MAX, Duration::from_millis(5)).is_empty());
    }
}
