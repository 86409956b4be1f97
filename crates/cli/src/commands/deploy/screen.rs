//! Shows how far a deployment is: a line for all and one for each host at work on a terminal, else a line now and then;
//! and a line for each host that has ended.

use std::time::Duration;

use base::Instant;
use base::units::{show_bytes, show_seconds};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use net::deploy::{Deploy, HostState};
use serde_json::json;

use crate::commands::Context;
use crate::inventory::Entry;
use crate::ui::output::Output;
use crate::ui::table::printable;

/// Lines of hosts at work.
const LINES_MAX: usize = 16;
/// Time from one line to the next where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// The same with --json.
const JSON_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Screen<'a> {
    output: Output,
    quiet: bool,
    entries: &'a [Entry],
    /// Hosts whose end was told.
    told: Vec<bool>,
    reported: Option<Instant>,
    bars: MultiProgress,
    all: ProgressBar,
    lines: Vec<ProgressBar>,
    shown: bool,
}

impl<'a> Screen<'a> {
    pub(super) fn new(context: &Context, entries: &'a [Entry]) -> Self {
        let (output, quiet) = (context.output, context.global.quiet);
        let shown = !quiet && !output.is_json() && std::io::IsTerminal::is_terminal(&std::io::stderr());
        let draw = if shown { ProgressDrawTarget::stderr_with_hz(8) } else { ProgressDrawTarget::hidden() };
        let bars = MultiProgress::with_draw_target(draw);
        let style = "{bar:24} {msg}";
        let style = ProgressStyle::with_template(style).expect("the template is valid").progress_chars("━╸╌");
        let all = bars.add(ProgressBar::new(entries.len() as u64).with_style(style));
        let told = vec![false; entries.len()];
        Self { output, quiet, entries, told, reported: None, bars, all, lines: Vec::new(), shown }
    }

    /// Shows how far it is now.
    pub(super) fn show(&mut self, deploy: &Deploy, now: Instant) {
        for host in 0..self.entries.len() {
            if !self.told[host] {
                self.told[host] = self.tell_end(host, deploy);
            }
        }
        let words = summary(deploy, now);
        if self.shown {
            self.all.set_position(deploy.counts().ready as u64);
            self.all.set_message(words);
            return self.draw_hosts(deploy, now);
        }
        let every = if self.output.is_json() { JSON_INTERVAL } else { LINE_INTERVAL };
        let is_due = self.reported.is_none_or(|last| now.since(last) >= every);
        if self.quiet || !is_due || deploy.is_over() {
            return;
        }
        // The first look is of no interest.
        if self.reported.replace(now).is_some() {
            if self.output.is_json() {
                // The end is told to a reader that is there.
                let _ = self.output.answer(&self.record(deploy, now), String::new);
            } else {
                self.output.note(&words);
            }
        }
    }

    /// Takes the lines off the screen.
    pub(super) fn end(&self) {
        self.lines.iter().chain([&self.all]).for_each(ProgressBar::finish_and_clear);
    }

    /// Tells of a host that has ended. Returns whether it has.
    fn tell_end(&self, host: usize, deploy: &Deploy) -> bool {
        let name = &self.entries[host].name;
        let (state, words, why) = match deploy.host(host) {
            HostState::Ready { took } => {
                ("ready", format!("ready after {}", base::units::show_duration(*took)), None)
            }
            HostState::Failed { why } => ("failed", format!("failed: {why}"), Some(why)),
            HostState::LeftOut { why } => ("left_out", format!("left out: {why}"), Some(why)),
            _ => return false,
        };
        if self.output.is_json() {
            let took = match deploy.host(host) {
                HostState::Ready { took } => Some(took.as_secs_f64()),
                _ => None,
            };
            let record = json!({ "type": "host", "host": name, "state": state, "why": why, "seconds": took });
            let _ = self.output.answer(&record, String::new);
        } else {
            self.bars.suspend(|| self.output.note(&format!("{name}: {words}")));
        }
        true
    }

    /// A line for each host at work, those that began first.
    fn draw_hosts(&mut self, deploy: &Deploy, now: Instant) {
        let mut number = 0;
        for host in 0..self.entries.len() {
            let Some(words) = line(&self.entries[host].name, deploy, host, now) else { continue };
            if number == LINES_MAX {
                break;
            }
            if number == self.lines.len() {
                let style = ProgressStyle::with_template("  {msg}").expect("the template is valid");
                self.lines.push(self.bars.add(ProgressBar::new(1).with_style(style)));
            }
            self.lines[number].set_message(words);
            number += 1;
        }
        for unused in self.lines.drain(number..) {
            unused.finish_and_clear();
            self.bars.remove(&unused);
        }
    }

    fn record(&self, deploy: &Deploy, now: Instant) -> serde_json::Value {
        let counts = deploy.counts();
        let host = |host: usize| match deploy.host(host) {
            HostState::Working { done, total, step, .. } => Some(json!({
                "host": self.entries[host].name, "step": name_of(step.0), "bytes": done, "total_bytes": total,
                "left_seconds": deploy.host_left(host, now).map(|left| left.as_secs()),
            })),
            _ => None,
        };
        let hosts: Vec<_> = (0..self.entries.len()).filter_map(host).collect();
        json!({
            "type": "progress", "waiting": counts.waiting, "working": counts.working, "ready": counts.ready,
            "failed": counts.failed, "left_seconds": deploy.left(now).map(|left| left.as_secs()), "hosts": hosts,
        })
    }
}

fn name_of(step: u8) -> &'static str {
    match step {
        1 => "compare",
        2 => "install",
        3 => "verify",
        4 => "after",
        _ => "begin",
    }
}

/// All hosts in one line.
fn summary(deploy: &Deploy, now: Instant) -> String {
    let counts = deploy.counts();
    let parts = [
        (counts.ready, "ready"),
        (counts.working, "at work"),
        (counts.waiting, "waiting"),
        (counts.failed, "failed"),
        (counts.left_out, "left out"),
    ];
    let parts: Vec<_> = parts
        .into_iter()
        .filter(|(hosts, _)| *hosts > 0)
        .map(|(hosts, what)| format!("{hosts} {what}"))
        .collect();
    let left = deploy.left(now).filter(|_| !deploy.is_over());
    let left = left.map(|left| format!("; {} left", show_seconds(left.as_secs()))).unwrap_or_default();
    parts.join(", ") + &left
}

/// A host at work in one line.
fn line(name: &str, deploy: &Deploy, host: usize, now: Instant) -> Option<String> {
    let HostState::Working { done, total, step, ending, .. } = deploy.host(host) else { return None };
    let words = match (ending, *total) {
        (Some(why), _) => format!("is stopped: {why}"),
        (None, 0) if step.0 == 0 => "begins".to_owned(),
        (None, 0) => "runs the command after".to_owned(),
        (None, total) => {
            let percent = u128::from(*done) * 100 / u128::from(total);
            let left = deploy.host_left(host, now);
            let left =
                left.map(|left| format!("  {} left", show_seconds(left.as_secs()))).unwrap_or_default();
            let step = name_of(step.0);
            format!("{step:7} {percent:>3} %  {} of {}{left}", show_bytes(*done), show_bytes(total))
        }
    };
    Some(printable(&format!("{name:16} {words}")))
}
