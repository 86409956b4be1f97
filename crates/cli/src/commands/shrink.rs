//! `diskcast shrink`: makes an image that fits a smaller disk.

use std::path::PathBuf;
use std::sync::Arc;

use base::units::show_bytes;
use disk::TargetOptions;
use disk::shrink::{self, Plan};
use image::{Catalogue, InstallOptions, Installer, Manifest};
use serde_json::json;
use store::ImageName;

use super::{Context, capture};
use crate::args::Effort;
use crate::args::parse::parse_size;
use crate::exit::{Exit, Failure, Result};
use crate::interrupt::Leaves;
use crate::source::scratch_folder;
use crate::ui::progress::Meter;
use crate::{interrupt, repository, version};

/// Make an image that fits a smaller disk
///
/// Writes the version to a temporary file in TMPDIR, or /var/tmp, shrinks there the largest partition that can (ext2,
/// ext3, ext4, btrfs or NTFS, by their own tools), moves those behind it down, and captures the result as a version of
/// another image, which shares its data with the first. No disk is touched. Shows its plan first; with --dry-run it
/// ends there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast shrink classroom 60G classroom-60g
  diskcast shrink lab-pc@3 100G lab-pc-small --partition 2 -n      show the plan")]
pub(crate) struct Args {
    /// Version that is too large: image, image:tag or image@version
    pub name: String,
    /// Size of the smaller disk, in bytes or as 60G; exactly that of the disk, if it is known
    #[arg(value_parser = parse_size)]
    pub size: u64,
    /// Image that gets the version for the smaller disk; it need not exist yet
    pub new: String,
    /// Partition that shrinks, if not the largest that can
    #[arg(long, value_name = "NUMBER")]
    pub partition: Option<u32>,
    #[command(flatten)]
    pub effort: Effort,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let new: ImageName = args.new.parse()?;
    let global = &context.global;
    let repository = repository::open(global)?;
    let reference = repository::reference(&args.name)?;
    let from = version::find(context, &repository, repository.name(), &reference)?.manifest;
    if new.as_str() == from.image {
        let text = format!(
            "`{new}` is the image itself: users who install it on a disk of the old size would be surprised"
        );
        return Err(Failure::new(Exit::Refused, text).hint("name another image; they share all data"));
    }
    let why = match () {
        () if from.origin.start_sector > 0 => Some("is the image of one partition"),
        () if !from.disk.live.is_empty() => Some("was captured while it was in use"),
        () if !from.disk.unreadable.is_empty() => Some("lacks what could not be read of its disk"),
        () => None,
    };
    if let Some(why) = why {
        return Err(Failure::new(Exit::Refused, format!("{}@{} {why}", from.image, from.number)));
    }
    let catalogue = Arc::new(Catalogue::load(&from, &repository, repository.cipher())?);
    let skip = image::left_out(&catalogue)?;
    let copy = Copy::of(context, &from, (&repository, catalogue), &args.effort)?;
    let found = disk::open_source(&copy.path)?;
    if disk::ReadAt::geometry(&found).logical_sector_bytes != from.logical_sector_bytes {
        let text =
            format!("a disk with sectors of {} bytes and no GPT can't shrink", from.logical_sector_bytes);
        return Err(Failure::new(Exit::Refused, text));
    }
    drop(found);
    // A filesystem that is mounted or half changed must not be left.
    interrupt::hold();
    let plan = shrink::plan(&copy.path, args.size, args.partition)?;
    if let Some(number) = plan.moved.iter().find(|number| skip.contains(number)) {
        let text =
            format!("partition {number} was left out of the image: what disks have there would have to move");
        return Err(Failure::new(Exit::Refused, text));
    }
    let text = describe(&plan);
    if global.dry_run {
        let record = record(&from, &new, &plan);
        return context.output.result(&record, || format!("would do: {text}\n"));
    }
    context.output.note(&text);
    shrink::shrink(&copy.path, &plan)?;
    interrupt::release()?;
    let base = format!("{}@{}", from.image, from.number);
    let of = capture::Made { path: &copy.path, from: &from, base, skip };
    capture::file(context, of, &args.new, &args.effort)
}

/// A version in a temporary file, which is removed when this is dropped.
struct Copy {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Copy {
    fn of(
        context: &Context,
        version: &Manifest,
        (repository, catalogue): (&store::Repository, Arc<Catalogue>),
        effort: &Effort,
    ) -> Result<Self> {
        let scratch = scratch_folder();
        let failed = |error| base::Error::from_io(format!("make a folder in `{}`", scratch.display()), error);
        let folder = disk::private_folder(Some(&scratch)).map_err(failed)?;
        let path = folder.path().join("disk.img");
        let removed = folder.path().to_owned();
        // What is left of it does no harm, but takes room.
        interrupt::at_last(move || drop(std::fs::remove_dir_all(&removed)));
        let options = TargetOptions {
            create_size: Some(version.size_sectors * base::limits::SECTOR_BYTES),
            file_sector_bytes: Some(version.logical_sector_bytes),
            ..TargetOptions::default()
        };
        let target = Arc::new(disk::open_target(&path, &options)?);
        let options = InstallOptions {
            // Both digests of each chunk are checked before it is written, and the file is read back by the capture.
            verify: false,
            keep_gpt: true,
            keep_signatures: true,
            threads: effort.threads.map_or(0, Into::into),
            memory_bytes: effort.memory,
            ..InstallOptions::default()
        };
        let meter = Arc::new(Meter::new(context.output, context.global.quiet));
        interrupt::leaves(Leaves::NoVersion);
        let done = Installer::begin(catalogue, target, options, meter.clone()).and_then(|installer| {
            installer.pull(repository)?;
            installer.finish()
        });
        meter.finish();
        let hint = "set TMPDIR to a folder that has room for what is in use on the disk";
        done.map_err(|error| match error.kind() {
            base::ErrorKind::Full => Failure::from(error).hint(hint),
            _ => error.into(),
        })?;
        Ok(Self { path, _folder: folder })
    }
}

fn record(from: &Manifest, new: &ImageName, plan: &Plan) -> serde_json::Value {
    json!({
        "type": "plan", "image": from.image, "number": from.number, "new": new.as_str(),
        "disk_bytes": plan.disk_bytes, "partition": plan.number, "kind": plan.kind,
        "bytes_before": plan.bytes.0, "bytes": plan.bytes.1, "least_bytes": plan.least_bytes, "moved": plan.moved,
    })
}

fn describe(plan: &Plan) -> String {
    let disk = show_bytes(plan.disk_bytes);
    let Some(number) = plan.number else {
        return format!("shorten the disk to {disk}: what lies behind is free");
    };
    let what = if number == 0 { "the disk".to_owned() } else { format!("partition {number}") };
    let [before, now, least] = [plan.bytes.0, plan.bytes.1, plan.least_bytes].map(show_bytes);
    let moved = match &plan.moved[..] {
        [] => String::new(),
        [one] => format!("; partition {one} moves down"),
        more => {
            let numbers: Vec<_> = more.iter().map(u32::to_string).collect();
            format!("; partitions {} move down", numbers.join(", "))
        }
    };
    format!(
        "shrink {what} ({}) from {before} to {now}, of which it needs {least}, for a disk of {disk}{moved}",
        plan.kind
    )
}
