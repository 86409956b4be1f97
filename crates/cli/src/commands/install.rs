//! `diskcast install`: writes a version of an image to a disk or a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::units::{show_bytes, show_duration};
use disk::WriteAt;
use image::{Catalogue, InstallOptions, InstallReport, Installer, Manifest, ObjectSource};
use serde_json::json;

use super::Context;
use super::capture::show_rate;
use crate::args::{Effort, Writing};
use crate::exit::{Exit, Failure, Result};
use crate::ui::progress::Meter;
use crate::{clock, interrupt, repository, target, version};

/// Write a version of an image to a disk or a file
///
/// Refuses before the first write if the target is too small, mounted, in use, or the disk that the image was captured
/// from. Asks before it overwrites a disk, or a file that is not empty. Reads back what it wrote. After an
/// interruption, the same command with --resume continues.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast install classroom /dev/sdb
  diskcast install web@3 disk.img --free zero
  diskcast install web@4 disk.img --overwrite
  diskcast install web:stable /dev/sdb --resume --yes
  diskcast install lab-pc /dev/sda --onto-source        back to the disk that it was captured from")]
pub(crate) struct Args {
    /// Version to install: image, image:tag or image@version
    pub name: String,
    /// Block device, or file to create or overwrite; `null:` decodes and verifies, but writes nothing
    pub target: PathBuf,
    #[command(flatten)]
    pub writing: Writing,
    #[command(flatten)]
    pub effort: Effort,
}

/// Hint after an interrupted install.
pub(crate) const GO_ON: &str =
    "the target holds a part of the image; the same command with --resume goes on from here";

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    // With the scrub log: a damaged object that is found here is removed from the log.
    let repository = repository::with_scrubs(&context.global, repository::open(&context.global)?);
    let reference = repository::reference(&args.name)?;
    let version = version::find(context, &repository, &reference)?.manifest;
    context.output.detail(&format!(
        "repository {}, version {}@{}",
        repository.name(),
        version.image,
        version.number
    ));
    target::check(&args.target, &version, args.writing.onto_source)?;
    let catalogue = Arc::new(Catalogue::load(&version, &repository, repository.cipher())?);
    target::show_old(&args.target, &version, &catalogue, &args.writing, context.output)?;
    if context.global.dry_run {
        let record = json!({
            "type": "plan", "image": version.image, "number": version.number, "target": args.target,
            "data_bytes": version.statistics.data_bytes,
        });
        return context.output.result(&record, || target::plan(&args.target, &version));
    }
    target::confirm(&args.target, &version, &context.global, Some(&args.writing))?;
    let began = clock::now();
    let disk = target::open(&args.target, &version, &args.writing)?;
    interrupt::hint(GO_ON);
    let meter = Arc::new(Meter::new(context.output, context.global.quiet));
    let options = target::options(&args.target, &args.writing, &args.effort);
    let done = write(catalogue, &repository, disk, options, meter.clone());
    meter.finish();
    let done = done.map_err(explain)?;
    let took = clock::now().duration_since(began);
    context.output.result(&record(args, &version, &done, took), || text(args, &version, &done, took))
}

fn write(
    catalogue: Arc<Catalogue>,
    source: &dyn ObjectSource,
    disk: Arc<dyn WriteAt>,
    options: InstallOptions,
    meter: Arc<Meter>,
) -> base::Result<InstallReport> {
    let installer = Installer::begin(catalogue, disk, options, meter)?;
    installer.pull(source)?;
    installer.finish()
}

/// Adds a hint: an interrupted install can be resumed, and a refused one has written nothing.
pub(crate) fn explain(error: impl Into<Failure>) -> Failure {
    let failure = error.into();
    match failure.exit {
        Exit::Refused => failure.hint("nothing was written"),
        Exit::Verification => failure,
        _ => failure.hint(GO_ON),
    }
}

fn record(args: &Args, version: &Manifest, done: &InstallReport, took: Duration) -> serde_json::Value {
    json!({
        "type": "installed", "image": version.image, "number": version.number, "target": args.target,
        "seconds": took.as_secs_f64(), "report": report_record(done),
    })
}

/// The report of an install as JSON.
pub(crate) fn report_record(done: &InstallReport) -> serde_json::Value {
    json!({
        "written_bytes": done.written_bytes, "kept_bytes": done.kept_bytes, "zeroed_bytes": done.zeroed_bytes,
        "discarded_bytes": done.discarded_bytes, "skipped_bytes": done.skipped_bytes,
        "verified_bytes": done.verified_bytes, "past_cache": done.past_cache,
        "erased_signatures": done.erased_signatures, "moved_gpt": done.moved_gpt,
    })
}

fn text(args: &Args, version: &Manifest, done: &InstallReport, took: Duration) -> String {
    let (image, number, path) = (&version.image, version.number, args.target.display());
    let rate = show_rate(done.written_bytes + done.kept_bytes, took);
    format!("installed {image}@{number} on {path}: {}, {}, {rate}\n", sentence(done), show_duration(took))
}

/// The report of an install as text.
pub(crate) fn sentence(done: &InstallReport) -> String {
    let mut parts = vec![format!("{} written", show_bytes(done.written_bytes))];
    let mut add = |bytes: u64, what: &str| {
        if bytes > 0 {
            parts.push(format!("{} {what}", show_bytes(bytes)));
        }
    };
    add(done.kept_bytes, "right already");
    add(done.zeroed_bytes, "zeroed");
    add(done.discarded_bytes, "discarded");
    add(
        done.verified_bytes,
        if done.past_cache { "verified" } else { "verified (in part from the page cache)" },
    );
    if done.verified_bytes == 0 {
        parts.push("not verified".to_owned());
    }
    match done.erased_signatures {
        0 => {}
        1 => parts.push("1 old signature erased".to_owned()),
        count => parts.push(format!("{count} old signatures erased")),
    }
    if done.moved_gpt {
        parts.push("backup GPT moved to the end of the disk".to_owned());
    }
    parts.join(", ")
}
