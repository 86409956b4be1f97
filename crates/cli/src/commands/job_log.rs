//! What is sent of what a job said.

use net::api::JobProgress;
use serde_json::Value;

/// Longest words of a failure, and longest log, that are sent, in bytes.
const WORDS_BYTES_MAX: usize = 1500;
const LOG_BYTES_MAX: usize = 16 << 10;

/// Cuts the words of a failure.
pub(super) fn cut(words: &mut String) {
    words.truncate(words.floor_char_boundary(WORDS_BYTES_MAX));
}

/// How far a command is that was started with `--json`, if `record` tells it.
pub(super) fn progress_of(record: &Value) -> Option<JobProgress> {
    let bytes = |name: &str| record[name].as_u64().unwrap_or(0);
    (record["type"] == "progress").then(|| JobProgress {
        step: record["stage"].as_str().unwrap_or_default().to_owned(),
        done_bytes: bytes("bytes"),
        total_bytes: bytes("total_bytes"),
    })
}

/// What the commands have said.
#[derive(Default)]
pub(super) struct Log(String);

impl Log {
    pub(super) fn add(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
        // Not each time: that would copy all of it for each line.
        if self.0.len() > 2 * LOG_BYTES_MAX {
            let begin = self.0.ceil_char_boundary(self.0.len() - LOG_BYTES_MAX);
            self.0.drain(..begin);
        }
    }

    /// The end of it.
    pub(super) fn into_text(self) -> Option<String> {
        let begin = self.0.ceil_char_boundary(self.0.len().saturating_sub(LOG_BYTES_MAX));
        Some(self.0[begin..].to_owned()).filter(|text| !text.is_empty())
    }
}
