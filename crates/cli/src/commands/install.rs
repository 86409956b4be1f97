//! `diskcast install`: writes a version of an image to a disk or a file.

use std::io::{IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::Extent;
use base::limits::SECTOR_BYTES;
use base::units::{show_bytes, show_duration};
use disk::{Qcow2Stream, WriteAt};
use image::{
    Catalogue, InstallOptions, InstallReport, Installer, Manifest, ObjectSource, Part, Progress, Stage,
};
use net::fetch::{Counting, HostReporter};
use serde_json::json;
use store::Repository;

use super::{Context, grow, personalize};
use crate::args::{Effort, FromServer, Writing};
use crate::exit::{Exit, Failure, Result};
use crate::interrupt::{GO_ON, Leaves};
use crate::library::{Library, Objects};
use crate::target::Drafts;
use crate::ui::output::Output;
use crate::ui::progress::{Meter, show_rate};
use crate::{clock, interrupt, paced, repository, target, version};

/// Write a version of an image to a disk or a file
///
/// Refuses before the first write if the target is too small, mounted, in use, or the disk that the image was captured
/// from. Asks before it overwrites a disk, or a file that is not empty. Reads back what it wrote. After an
/// interruption, the same command with --resume continues.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast install classroom /dev/sdb
  diskcast install web@3 disk.img --free zero
  diskcast install web@4 disk.img --overwrite
  diskcast install web /dev/sdb --grow            fill a larger disk
  diskcast install web:stable /dev/sdb --resume --yes
  diskcast install web disk:serial=S5Y2NX0R --yes         whichever name it has today
  diskcast install web - | ssh other 'dd of=/dev/sdb bs=1M'
  diskcast install web /dev/sdb --also /dev/sdc --also /dev/sdd       three disks in one pass
  diskcast install web vm2.qcow2 --as qcow2 --copy-of vm1.img        an overlay of vm1.img
  diskcast install web /dev/vg0/web --create-volume
  diskcast install lab-pc /dev/sda --onto-source        back to the disk that it was captured from")]
pub(crate) struct Args {
    /// Version to install: image, image:tag or image@version
    pub name: String,
    /// Block device, or file to create or overwrite; `disk:serial=S1` or `disk:size=>=100G,model=<in> ssd` for the one
    /// disk that is meant; `nbd://HOST/EXPORT`; `-` for standard output; `null:` decodes and verifies, but writes
    /// nothing
    pub target: PathBuf,
    /// Install only this partition of the image
    #[arg(long, value_name = "NUMBER", conflicts_with = "compress")]
    pub partition: Option<u32>,
    #[command(flatten)]
    pub writing: Writing,
    #[command(flatten)]
    pub effort: Effort,
    #[command(flatten)]
    pub from: FromServer,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let targets = target::resolve_all(&args.target, &args.writing, context.output)?;
    // With the scrub log: a damaged object that is found here is removed from the log.
    let library = Library::open_with_scrubs(context, &args.from)?;
    let _keeper = library.keep_token(context)?;
    let reference = repository::reference(&args.name)?;
    let version = version::find(context, library.images(), &library.place(context)?, &reference)?.manifest;
    context.output.detail(&format!("version {}@{}", version.image, version.number));
    if args.target.as_os_str() == target::STDOUT {
        target::check_stream(&args.writing, &args.effort)?;
        return to_stdout(context, repository_of(&library)?, &version, args.partition);
    }
    let part = args.partition.map(|number| part_of(&library, &version, number)).transpose()?;
    if part.is_some() {
        targets.iter().try_for_each(|path| target::check_source_disk(path, &version, &args.writing))?;
    }
    match &part {
        None => install(context, args, &targets, &library, (&version, library.objects())),
        Some(part) => install(context, args, &targets, &library, (&part.manifest, part)),
    }
}

/// One partition of a version.
fn part_of<'a>(library: &'a Library, version: &Manifest, number: u32) -> Result<Part<'a>> {
    let catalogue = Catalogue::load(version, library.objects(), library.cipher())?;
    let part = Part::of(version, &catalogue, number, library.objects());
    part.map_err(|error| Failure::from(error).unwritten())
}

/// Writes `version`, whose objects come from `objects`, to `targets`.
fn install(
    context: &Context,
    args: &Args,
    targets: &[PathBuf],
    library: &Library,
    (version, objects): (&Manifest, &dyn ObjectSource),
) -> Result<()> {
    let beginnings = target::beginnings(targets, &args.writing);
    check_targets(&beginnings, version, (objects, library.cipher()), &args.writing)?;
    let here = if args.writing.compress { Some(repository_of(library)?) } else { None };
    let catalogue = Arc::new(Catalogue::load(version, objects, library.cipher())?);
    for target in &beginnings {
        target::show_old(target, version, &catalogue, &args.writing, context.output)?;
    }
    if context.global.dry_run {
        let record = json!({
            "type": "plan", "image": version.image, "number": version.number,
            "target": targets[0].display().to_string(), "targets": target::texts(targets),
            "into": args.writing.into, "data_bytes": version.statistics.data_bytes,
        });
        return context.output.result(&record, || target::plan(&beginnings, version, &args.writing));
    }
    for target in &beginnings {
        target::confirm(target, version, &context.global, Some(&args.writing))?;
    }
    if let Some(repository) = here {
        return to_compressed(context, args, repository, version);
    }
    let began = clock::now();
    let reporter = reporter(library, version, &args.target);
    interrupt::leaves(left_in(&args.target));
    let (disks, drafts) = match open_targets(targets, version, &args.writing, &args.effort) {
        Ok(opened) => opened,
        Err(refused) => {
            reporter.into_iter().for_each(|reporter| reporter.refused(&refused.message));
            return Err(refused);
        }
    };
    let meter = Meter::new(context.output, context.global.quiet);
    let options = target::options(&args.target, &args.writing, &args.effort);
    let done = match reporter {
        None => write(catalogue, objects, disks, options, &Arc::new(meter), |meter| meter),
        Some(reporter) => {
            let arrived = Arc::clone(reporter.arrived());
            let source = Counting::new(objects, &arrived);
            let meter = Arc::new(meter.of_network(&arrived));
            let done = write(catalogue, &source, disks, options, &meter, |meter| reporter.watch(meter));
            reporter.end_install(done.as_ref());
            done
        }
    };
    let done = done.map_err(|error| explain(error, &args.target))?;
    drafts.finish()?;
    interrupt::leaves(Leaves::Nothing);
    let took = clock::now().duration_since(began);
    let written = record(targets, version, args, &done, took);
    context.output.result(&written, || text(targets, version, args, &done, took))?;
    after_install(targets, version, &args.writing, context.output)
}

/// Checks, before anything is written, that all of `targets` can have what `writing` asks for of `version`, whose
/// objects come from `objects`.
pub(crate) fn check_targets(
    targets: &[PathBuf],
    version: &Manifest,
    objects: Objects<'_>,
    writing: &Writing,
) -> Result<()> {
    targets.iter().try_for_each(|target| {
        target::check_form(target, writing)?;
        target::check(target, version, writing)?;
        grow::check(target, version, objects, writing)?;
        personalize::check(target, version, writing)
    })?;
    target::check_room(targets, version, writing)
}

/// Opens all of `targets` for writing. Files are drafts until they are whole.
pub(crate) fn open_targets(
    targets: &[PathBuf],
    version: &Manifest,
    writing: &Writing,
    effort: &Effort,
) -> Result<(Vec<Arc<dyn WriteAt>>, Drafts)> {
    let drafts = Drafts::begin(targets, writing)?;
    let targets = drafts.paths();
    let open = |path: &PathBuf| Ok(paced::target(target::open(path, version, writing)?, effort.disk_rate));
    let volumes = target::new_volumes(targets, writing);
    let disks = targets.iter().map(open).collect();
    // Once more: a link to a file that was missing leads somewhere now.
    let disks = target::check_distinct(targets).and(disks);
    match disks {
        Ok(disks) => Ok((disks, drafts)),
        Err(failure) => {
            // Nothing was written, so nothing is to be left.
            volumes.iter().for_each(|volume| drop(volume.remove()));
            drafts.call_off();
            Err(failure)
        }
    }
}

/// Grows and changes all of `targets` as `writing` asks.
pub(crate) fn after_install(
    targets: &[PathBuf],
    version: &Manifest,
    writing: &Writing,
    output: Output,
) -> Result<()> {
    targets.iter().try_for_each(|target| {
        target::set_place(target, version, writing, output)?;
        grow::after_install(target, version, writing, output)?;
        personalize::after_install(target, writing, output)
    })
}

/// The repository, for what is written from the disk's first byte to its last.
fn repository_of(library: &Library) -> Result<&Repository> {
    match library {
        Library::Here(repository) => Ok(repository),
        Library::There(..) => {
            let text = "standard output and --compress take a disk from a repository, not through a server";
            Err(Failure::new(Exit::Usage, text))
        }
    }
}

/// Writes the whole disk into a compressed QCOW2.
fn to_compressed(context: &Context, args: &Args, repository: &Repository, version: &Manifest) -> Result<()> {
    let (name, bytes) =
        (format!("{}@{}", version.image, version.number), version.size_sectors * SECTOR_BYTES);
    if args.writing.size.is_some_and(|size| size != bytes) || args.effort.disk_rate.is_some() {
        let text = "a compressed QCOW2 gets the disk as it is: leave out --size and --disk-rate";
        return Err(Failure::new(Exit::Usage, text));
    }
    let cores = std::thread::available_parallelism().map_or(1, Into::into);
    let threads = args.effort.threads.map_or(cores, Into::into);
    let began = clock::now();
    let meter = Meter::new(context.output, context.global.quiet);
    // Before the file loses what it held.
    let snapshot = repository.snapshot(&name.parse()?)?;
    meter.begin(Stage::Install, bytes);
    interrupt::leaves(Leaves::PartOfFile);
    let drafts = Drafts::begin(std::slice::from_ref(&args.target), &args.writing)?;
    let mut stream = Qcow2Stream::create(&drafts.paths()[0], bytes, threads)?;
    let copied = snapshot.copy_to(0, bytes, &mut Metered { to: &mut stream, meter: &meter });
    let written = copied.and_then(|()| stream.finish());
    meter.finish();
    let written = written?;
    if !args.writing.no_verify {
        written.verify()?;
    }
    drafts.finish()?;
    interrupt::leaves(Leaves::Nothing);
    let (took, file_bytes) = (clock::now().duration_since(began), args.target.metadata()?.len());
    let record = json!({
        "type": "installed", "image": version.image, "number": version.number,
        "target": args.target.display().to_string(),
        "seconds": took.as_secs_f64(), "file_bytes": file_bytes, "verified": !args.writing.no_verify,
        "past_cache": false,
    });
    let (file, rate) = (show_bytes(file_bytes), show_rate(bytes, took));
    context.output.result(&record, || {
        let target = args.target.display();
        format!("installed {name} on {target}: compressed to {file}, {}, {rate}\n", show_duration(took))
    })
}

/// Writes the whole disk, or one partition, to standard output, from its first byte to its last. Free space reads as
/// zeros.
fn to_stdout(
    context: &Context,
    repository: &Repository,
    version: &Manifest,
    partition: Option<u32>,
) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    if context.output.is_json() || context.global.dry_run {
        return Err(Failure::new(
            Exit::Usage,
            "standard output is for the disk: leave out --json and --dry-run",
        ));
    }
    if stdout.is_terminal() {
        return Err(Failure::new(Exit::Usage, "standard output is a terminal: redirect it into a file"));
    }
    let extent = match partition {
        None => Extent::new(0, version.size_sectors),
        Some(number) => version.extent_of(number)?,
    };
    let (name, bytes) = (format!("{}@{}", version.image, version.number), extent.len_bytes());
    let meter = Meter::new(context.output, context.global.quiet);
    meter.begin(Stage::Install, bytes);
    interrupt::leaves(Leaves::PartOfStream);
    let began = clock::now();
    let snapshot = repository.snapshot(&name.parse()?)?;
    // Of a partition that was captured at least the beginning is there.
    let front = Extent::new(extent.start, extent.count.min(FRONT_SECTORS));
    if let Some(number) = partition
        && snapshot.allocated(front)?.is_empty()
    {
        return Err(image::Part::left_out(number).into());
    }
    let written =
        snapshot.copy_to(extent.offset_bytes(), bytes, &mut Metered { to: &mut stdout, meter: &meter });
    meter.finish();
    written.and_then(|()| {
        stdout.flush().map_err(|error| base::Error::from_io("write to standard output", error))
    })?;
    interrupt::leaves(Leaves::Nothing);
    let took = clock::now().duration_since(began);
    let (size, rate) = (show_bytes(bytes), show_rate(bytes, took));
    context.output.note(&format!("wrote {name} to standard output: {size}, {}, {rate}", show_duration(took)));
    Ok(())
}

/// The first 128 KiB.
const FRONT_SECTORS: u64 = 256;

/// Counts what is written.
struct Metered<'a> {
    to: &'a mut dyn Write,
    meter: &'a Meter,
}

impl Write for Metered<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.meter.advance(Stage::Install, written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// Tells a server that this machine installs from it.
fn reporter(library: &Library, version: &Manifest, target: &Path) -> Option<HostReporter> {
    let Library::There(client, _) = library else { return None };
    let reference = format!("{}@{}", version.image, version.number);
    let reporter = HostReporter::start(client, &repository::host_name(), reference).at_once();
    Some(if target::is_null(target) { reporter.only_verifying() } else { reporter })
}

fn write(
    catalogue: Arc<Catalogue>,
    source: &dyn ObjectSource,
    disks: Vec<Arc<dyn WriteAt>>,
    options: InstallOptions,
    meter: &Arc<Meter>,
    watch: impl FnOnce(Arc<dyn Progress>) -> Arc<dyn Progress>,
) -> base::Result<InstallReport> {
    let done =
        Installer::begin_several(catalogue, disks, options, watch(meter.clone())).and_then(|installer| {
            installer.pull(source)?;
            installer.finish()
        });
    meter.finish();
    done
}

/// What an install into `target` leaves behind when it is interrupted.
pub(crate) fn left_in(target: &Path) -> Leaves {
    if target::is_null(target) { Leaves::NoTarget } else { Leaves::PartOfTarget }
}

/// Adds a hint: an interrupted install can be resumed, and a refused one has written nothing.
pub(crate) fn explain(error: impl Into<Failure>, target: &Path) -> Failure {
    let failure = error.into();
    match failure.exit {
        Exit::Refused => failure.unwritten(),
        Exit::Verification => failure,
        // To go on would miss it again.
        Exit::NotFound => {
            failure.hint("`diskcast verify`, where the repository is, tells what is missing in it")
        }
        _ if target::is_null(target) => failure,
        _ => failure.hint(GO_ON),
    }
}

fn record(
    targets: &[PathBuf],
    version: &Manifest,
    args: &Args,
    done: &InstallReport,
    took: Duration,
) -> serde_json::Value {
    json!({
        "type": "installed", "image": version.image, "number": version.number,
        "target": targets[0].display().to_string(), "targets": target::texts(targets),
        "partition": args.partition, "into": args.writing.into,
        "seconds": took.as_secs_f64(), "report": report_record(done),
    })
}

/// The report of an install as JSON.
pub(crate) fn report_record(done: &InstallReport) -> serde_json::Value {
    json!({
        "written_bytes": done.written_bytes, "kept_bytes": done.kept_bytes, "moved_bytes": done.moved_bytes,
        "zeroed_bytes": done.zeroed_bytes,
        "discarded_bytes": done.discarded_bytes, "skipped_bytes": done.skipped_bytes,
        "verified_bytes": done.verified_bytes, "past_cache": done.past_cache,
        "erased_signatures": done.erased_signatures, "moved_gpt": done.moved_gpt,
    })
}

fn text(
    targets: &[PathBuf],
    version: &Manifest,
    args: &Args,
    done: &InstallReport,
    took: Duration,
) -> String {
    let (image, number, first) = (&version.image, version.number, &targets[0]);
    let rate = show_rate(done.written_bytes + done.kept_bytes + done.moved_bytes, took);
    let what = sentence(done, first);
    if target::is_null(first) {
        return format!("read {image}@{number}: {what}, {}, {rate}\n", show_duration(took));
    }
    let names = target::list(targets, &args.writing);
    format!("installed {image}@{number} on {names}: {what}, {}, {rate}\n", show_duration(took))
}

/// The report of an install on `target` as text.
pub(crate) fn sentence(done: &InstallReport, target: &Path) -> String {
    if target::is_null(target) {
        return format!("{} decoded and verified, nothing written", show_bytes(done.written_bytes));
    }
    let mut parts = vec![format!("{} written", show_bytes(done.written_bytes))];
    let mut add = |bytes: u64, what: &str| {
        if bytes > 0 {
            parts.push(format!("{} {what}", show_bytes(bytes)));
        }
    };
    add(done.kept_bytes, "right already");
    add(done.moved_bytes, "found elsewhere on it");
    add(done.zeroed_bytes, "zeroed");
    add(done.discarded_bytes, "discarded");
    add(
        done.verified_bytes,
        if done.past_cache { "verified" } else { "verified (in part from the page cache)" },
    );
    if done.verified_bytes == 0 {
        parts.push("not read back".to_owned());
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
