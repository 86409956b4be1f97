//! Shows the progress of a command: a bar if stderr is a terminal, lines of JSON with --json, else a line now and then.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use base::units::{show_bytes, show_bytes_per_second, show_duration, show_seconds};
use image::{Progress, Stage};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use parking_lot::Mutex;

use crate::clock;
use crate::ui::output::Output;

const BAR: &str = "{msg:>7} {bar:24} {percent:>3} %  {done} of {all}  {rate}  {left}";
const JSON_INTERVAL: Duration = Duration::from_secs(1);
/// Time from one line to the next where there is no terminal, as in a log.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// The bar shows no rate and no remaining time before: they would come from the first moments.
const RATE_TIME_MIN: Duration = Duration::from_secs(1);

/// The progress of a capture, an install or a fetch.
pub(crate) struct Meter {
    output: Output,
    shown: bool,
    quiet: bool,
    stage: Mutex<Option<Running>>,
}

struct Running {
    stage: Stage,
    bar: ProgressBar,
    began: Instant,
    reported: Instant,
}

impl Meter {
    pub(crate) fn new(output: Output, quiet: bool) -> Self {
        let shown = !quiet && !output.is_json() && std::io::stderr().is_terminal();
        Self { output, shown, quiet, stage: Mutex::new(None) }
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

    fn report(&self, running: &mut Running, now: Instant) {
        running.reported = now;
        let (done, total) = (running.bar.position(), running.bar.length().unwrap_or(0));
        let record = serde_json::json!({
            "type": "progress", "stage": word(running.stage), "bytes": done, "total_bytes": total,
            "elapsed_seconds": now.duration_since(running.began).as_secs_f64(),
            "left_seconds": running.bar.eta().as_secs(),
        });
        // A failure to print progress must not stop the work; printing the result will fail, too.
        let _ = self.output.answer(&record, String::new);
    }
}

impl Progress for Meter {
    fn begin(&self, stage: Stage, bytes: u64) {
        self.finish();
        let target =
            if self.shown { ProgressDrawTarget::stderr_with_hz(8) } else { ProgressDrawTarget::hidden() };
        let bar =
            ProgressBar::with_draw_target(Some(bytes), target).with_style(style()).with_message(word(stage));
        let now = clock::now();
        let running = Running { stage, bar, began: now, reported: now };
        *self.stage.lock() = Some(running);
    }

    fn advance(&self, stage: Stage, bytes: u64) {
        let mut running = self.stage.lock();
        let Some(running) = running.as_mut().filter(|running| running.stage == stage) else { return };
        running.bar.inc(bytes);
        let now = clock::now();
        let since = now.duration_since(running.reported);
        if self.output.is_json() {
            if since >= JSON_INTERVAL {
                self.report(running, now);
            }
        } else if !self.shown && !self.quiet && since >= LINE_INTERVAL {
            running.reported = now;
            self.output.note(&line(running, now));
        }
    }
}

/// The progress as a line of a log.
fn line(running: &Running, now: Instant) -> String {
    let (done, total) = (running.bar.position(), running.bar.length().unwrap_or(0));
    let rate = show_rate(done, now.duration_since(running.began));
    let percent = (u128::from(done) * 100).checked_div(u128::from(total)).unwrap_or(100);
    let (stage, left) = (word(running.stage), show_seconds(running.bar.eta().as_secs()));
    format!("{stage}: {percent} %, {} of {}, {rate}, {left} left", show_bytes(done), show_bytes(total))
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
        Stage::Capture => "capture",
        Stage::Resume => "compare",
        Stage::Install => "install",
        Stage::Verify => "verify",
    }
}

fn style() -> ProgressStyle {
    let style = ProgressStyle::with_template(BAR).expect("the template is valid").progress_chars("━╸╌");
    style
        .with_key("done", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = out.write_str(&show_bytes(state.pos()));
        })
        .with_key("all", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = out.write_str(&show_bytes(state.len().unwrap_or(0)));
        })
        .with_key("rate", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is shown")]
            let rate = state.per_sec() as u64;
            let known = state.elapsed() >= RATE_TIME_MIN;
            let _ = out.write_str(&if known { show_bytes_per_second(rate) } else { "-".to_owned() });
        })
        .with_key("left", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let known = state.elapsed() >= RATE_TIME_MIN;
            let left = if known { show_duration(state.eta()) } else { "-".to_owned() };
            let _ = write!(out, "{left} left");
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_no_time_has_no_rate() {
        assert_eq!(show_rate(93_000_000, Duration::from_micros(900)), "-");
        assert_eq!(show_rate(93_000_000, Duration::ZERO), "-");
        assert_eq!(show_rate(93_000_000, Duration::from_millis(500)), "186 MB/s");
        assert!(!show_rate(u64::MAX, Duration::from_millis(5)).is_empty());
    }
}
