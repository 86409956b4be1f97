//! How much a commit changes, as text for people and as a record for scripts.

use std::time::Duration;

use base::units::{show_bytes, show_duration};
use mirror::Written;
use serde_json::json;
use store::ImageName;

use crate::commands::Context;
use crate::exit::Result;

/// How much changes: bytes that are written and freed, and ranges. Of a whole disk the ranges are those of chunks that
/// differ, with all their allocated bytes.
#[derive(Default)]
pub(super) struct Sum {
    pub(super) bytes: u64,
    pub(super) freed: u64,
    pub(super) ranges: usize,
}

impl Sum {
    /// `and`, words and the number of bytes that are freed, if any are.
    fn and_freed(&self, words: &str) -> String {
        match self.freed {
            0 => String::new(),
            _ => format!(" and {words}{}", show_bytes(self.freed)),
        }
    }

    /// Shows what would change after version `newest` of `image`.
    pub(super) fn show_plan(&self, context: &Context, image: &ImageName, newest: u64) -> Result<()> {
        let Self { bytes, freed, ranges } = *self;
        let record = json!({
            "type": "plan", "image": image.as_str(), "ranges": ranges, "bytes": bytes, "freed_bytes": freed,
        });
        context.output.result(&record, || match ranges {
            0 => format!("nothing differs from {image}@{newest}\n"),
            _ => {
                let free = self.and_freed("free ");
                format!("{}commit {}{free} in {ranges} ranges\n", context.would(), show_bytes(bytes))
            }
        })
    }

    /// Shows the version that was made, how long that took, and on which server.
    pub(super) fn show_done(
        &self,
        context: &Context,
        image: &ImageName,
        made: &Written,
        (took, server): (Duration, Option<&str>),
    ) -> Result<()> {
        let Self { bytes, freed, ranges } = *self;
        let record = json!({
            "type": "committed", "image": image.as_str(), "number": made.number, "bytes": bytes,
            "freed_bytes": freed, "ranges": ranges, "stored_bytes": made.stored_bytes, "retries": made.retries,
            "merged_chunks": made.merged_chunks, "seconds": took.as_secs_f64(), "server": server,
        });
        context.output.result(&record, || {
            let (written, stored, took) =
                (show_bytes(bytes), show_bytes(made.stored_bytes), show_duration(took));
            let free = self.and_freed("freed ");
            format!("committed {written}{free} as {image}@{}, {stored} stored, {took}\n", made.number)
        })
    }
}
