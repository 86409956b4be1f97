//! Prints everything: results on stdout, as text or as JSON lines; everything else on stderr. Control characters end
//! here: what a server or a disk says may hold some, and a terminal would obey them.

use std::fmt::Display;
use std::io::{IsTerminal, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::Value;

use crate::args::Global;
use crate::clock;
use crate::exit::{Exit, Failure, Result};
use crate::ui::table::{Table, printable, printable_lines};

/// How to print.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
    verbose: bool,
}

impl Output {
    pub(crate) fn new(global: &Global) -> Self {
        Self { json: global.json, quiet: global.quiet, verbose: global.verbose }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Prints the result of a command: `record` as a line of JSON, or `text` for people. `record` has a `type`.
    pub(crate) fn result(self, record: &Value, text: impl FnOnce() -> String) -> Result<()> {
        debug_assert!(record["type"].is_string(), "a JSON line has a type");
        if self.json {
            print(&format!("{record}\n"))
        } else {
            print_unless(self.quiet, || printable_lines(&text()))
        }
    }

    /// Prints what the user asked for, also with --quiet.
    pub(crate) fn answer(self, record: &Value, text: impl FnOnce() -> String) -> Result<()> {
        debug_assert!(record["type"].is_string(), "a JSON line has a type");
        print(&if self.json { format!("{record}\n") } else { printable_lines(&text()) })
    }

    /// Prints a list that the user asked for: its `records` as lines of JSON, or a `table` that fits the terminal.
    pub(crate) fn list(self, records: &[Value], table: &Table) -> Result<()> {
        if self.json {
            return records.iter().try_for_each(|record| print(&format!("{record}\n")));
        }
        let stdout = std::io::stdout();
        let width = stdout.is_terminal().then(|| terminal_size::terminal_size_of(stdout)).flatten();
        print(&table.render(width.map(|(width, _)| usize::from(width.0))))
    }

    /// Logs an event: as a line of JSON on stdout, or as a line with the time on stderr. `event` has a `type`.
    pub(crate) fn event(self, event: &(impl Serialize + Display)) {
        let now = clock::now_rfc3339();
        if self.json {
            let mut record = serde_json::to_value(event).expect("an event is plain data");
            record["time"] = now.into();
            // A failure of the log must not stop the work.
            let _ = self.answer(&record, String::new);
        } else if !self.quiet {
            // The end of a session is told in several lines.
            complain(&printable_lines(&format!("{now} {event}\n")));
        }
    }

    /// Prints a remark on stderr, unless --quiet.
    pub(crate) fn note(self, text: &str) {
        if !self.quiet {
            complain(&format!("{}\n", printable(text)));
        }
    }

    /// Prints a change of plan on stderr, unless --quiet, and as JSON if --json.
    pub(crate) fn remark(self, text: &str) {
        if self.json {
            // A remark that cannot be printed must not stop the work.
            let _ = print(&format!("{}\n", serde_json::json!({"type": "note", "message": text})));
        }
        self.note(text);
    }

    /// Prints a remark on stderr if --verbose.
    pub(crate) fn detail(self, text: &str) {
        if self.verbose {
            self.note(text);
        }
    }

    /// Prints a warning on stderr, and as JSON if --json.
    pub(crate) fn warning(self, text: &str) {
        if self.json {
            // A warning that cannot be printed must not stop the work.
            let _ = print(&format!("{}\n", serde_json::json!({"type": "warning", "message": text})));
        }
        self.note(&format!("warning: {text}"));
    }

    /// Prints why the program fails.
    pub(crate) fn failure(self, failure: &Failure) {
        if self.json {
            let _ = print(&record_of(failure));
        }
        let mut text = format!("error: {}\n", printable(&failure.message));
        if let Some(hint) = &failure.hint {
            text.push_str(&format!("hint: {}\n", printable(hint)));
        }
        complain(&text);
    }

    /// Prints that the program was interrupted. Waits for nobody: another thread may be stuck in writing to standard
    /// output, whose reader may have gone to sleep.
    pub(crate) fn interruption(self, failure: &Failure) {
        if self.json {
            let stdout = std::io::stdout();
            let mut ready = [PollFd::new(&stdout, PollFlags::OUT)];
            if poll(&mut ready, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                let _ = rustix::io::write(&stdout, record_of(failure).as_bytes());
            }
        }
        self.note(&failure.message);
        failure.hint.iter().for_each(|hint| self.note(&format!("hint: {hint}")));
    }
}

/// A failure as a line of JSON.
fn record_of(failure: &Failure) -> String {
    let record = serde_json::json!({
        "type": "error", "exit": failure.exit as u8, "message": failure.message, "hint": failure.hint,
        "subject": failure.subject.map(base::Subject::word),
    });
    format!("{record}\n")
}

fn print_unless(quiet: bool, text: impl FnOnce() -> String) -> Result<()> {
    if quiet { Ok(()) } else { print(&text()) }
}

fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    match written {
        // The reader has closed the pipe, as in `diskcast images | head -1`.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::new(Exit::Failed, format!("write to standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

fn complain(text: &str) {
    // If stderr is closed, the text is lost.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_failure_is_about_survives_a_record() {
        let error = base::Error::new(base::ErrorKind::Refused, "no room").about(base::Subject::VolumeGroup);
        let record = serde_json::from_str(&record_of(&Failure::from(error))).unwrap();
        assert_eq!(Failure::of_record(&record).subject, Some(base::Subject::VolumeGroup));
    }
}
