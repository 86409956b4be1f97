//! `diskcast diff`: shows where two versions differ.

use base::units::show_bytes;
use serde_json::json;
use store::{Changed, Closeness};

use super::Context;
use crate::exit::Result;
use crate::repository;

/// Show where two versions differ
///
/// Prints a line for each range: offset and length in bytes, and whether it was written, allocated or freed. Versions
/// with the same chunk size are compared by their chunks' digests, which is fast; differences are then whole chunks.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast diff classroom@3 classroom
  diskcast diff classroom@3 lab-pc@1 --exact --summary")]
pub(crate) struct Args {
    /// Older version: image, image:tag or image@version
    pub before: String,
    /// Newer version
    pub after: String,
    /// Read the chunks that differ and print only the sectors that differ
    #[arg(long)]
    pub exact: bool,
    /// Print the sums only
    #[arg(long)]
    pub summary: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let repository = repository::open(&context.global)?;
    let before = repository.snapshot(&repository::reference(&args.before)?)?;
    let after = repository.snapshot(&repository::reference(&args.after)?)?;
    let closeness = if args.exact { Closeness::Sectors } else { Closeness::Chunks };
    let mut unsaid = Ok(());
    let totals = before.diff(&after, closeness, &mut |changed| {
        if !args.summary && unsaid.is_ok() {
            unsaid = show(context, changed);
        }
        Ok(())
    })?;
    unsaid?;
    let changed_bytes = totals.written_bytes + totals.allocated_bytes + totals.freed_bytes;
    let record = json!({
        "type": "diff", "before": name(&before), "after": name(&after), "ranges": totals.ranges,
        "changed_bytes": changed_bytes, "written_bytes": totals.written_bytes,
        "allocated_bytes": totals.allocated_bytes, "freed_bytes": totals.freed_bytes, "exact": args.exact,
    });
    context.output.answer(&record, || {
        let [written, allocated, freed] =
            [totals.written_bytes, totals.allocated_bytes, totals.freed_bytes].map(show_bytes);
        let ranges = totals.ranges;
        format!(
            "{} and {}: {ranges} ranges, {written} written, {allocated} allocated, {freed} freed\n",
            name(&before),
            name(&after)
        )
    })
}

fn name(snapshot: &store::Snapshot<'_>) -> String {
    format!("{}@{}", snapshot.manifest().image, snapshot.manifest().number)
}

fn show(context: &Context, changed: Changed) -> Result<()> {
    let what = changed.change.name();
    let (offset, bytes) = (changed.extent.offset_bytes(), changed.extent.len_bytes());
    let record = json!({ "type": "range", "offset": offset, "bytes": bytes, "change": what });
    context.output.answer(&record, || format!("{offset:>20} {bytes:>16}  {what}\n"))
}
