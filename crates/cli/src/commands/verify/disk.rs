//! `diskcast verify --disk`: is this disk what the version says, and where is it not? Nothing is written to it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::limits::SECTOR_BYTES;
use base::units::{show_bytes, show_duration};
use base::{Extent, ExtentSet};
use disk::{DiskMap, FileThere, ReadAt, SurveyOptions, Watch};
use image::{Catalogue, Comparison, Manifest, ObjectSource, Part};
use serde_json::json;

use super::pieces::{Piece, pieces};
use crate::args::{FromServer, SourceForm, Taking};
use crate::commands::Context;
use crate::exit::{Exit, Failure, Result};
use crate::library::Library;
use crate::source::{self, Contents};
use crate::ui::progress::{Meter, show_rate};
use crate::{clock, interrupt, repository, target, version};

/// Most ranges, and most files of a partition, that are printed as text; JSON has all of them.
const SHOWN_MAX: usize = 100;

/// The disk that is compared with a version.
#[derive(Debug, clap::Args)]
pub(crate) struct Other {
    /// Compare this disk with the version: a block device or a file in any form that `capture` reads; `disk:serial=S1`
    /// for the one disk that is meant
    #[arg(long, value_name = "DISK", requires = "name", conflicts_with = "repair")]
    pub disk: Option<PathBuf>,
    /// The disk holds only this partition of the image
    #[arg(long, value_name = "NUMBER", requires = "disk")]
    pub partition: Option<u32>,
    /// Treat the disk as a raw one although it begins like a file of another format, such as QCOW2
    #[arg(long, value_enum, requires = "disk")]
    pub format: Option<SourceForm>,
    /// Also read the files that a QCOW2 or VMDK names, such as the base of an overlay
    #[arg(long, requires = "disk")]
    pub backing: bool,
    /// Which disk of an OVA, if it has several: its name in the archive
    #[arg(long, value_name = "NAME", requires = "disk")]
    pub member: Option<String>,
}

pub(super) fn run(context: &Context, args: &Other, from: &FromServer, disk: &Path, name: &str) -> Result<()> {
    let disk = target::resolve(disk, context.output)?;
    let library = Library::open_with_scrubs(context, from)?;
    let reference = repository::reference(name)?;
    let version = version::find(context, library.images(), &library.place(context)?, &reference)?.manifest;
    let whole = Catalogue::load(&version, library.objects(), library.cipher())?;
    let part = args.partition.map(|number| Part::of(&version, &whole, number, library.objects()));
    match part.transpose()? {
        None => open(context, args, &disk, &Job::of(context, &version, &whole, library.objects())),
        Some(part) => {
            let catalogue = Catalogue::load(&part.manifest, &part, library.cipher())?;
            open(context, args, &disk, &Job::of(context, &part.manifest, &catalogue, &part))
        }
    }
}

/// Opens the disk and compares it.
fn open(context: &Context, args: &Other, path: &Path, job: &Job<'_>) -> Result<()> {
    let (format, backing, member) = (args.format, args.backing, args.member.clone());
    let taking = Taking { format, backing, member, live: true, ..Taking::default() };
    if let Some(address) = source::export(path) {
        return job.compare(&source::open_export(address, &taking)?, None, || Ok(()));
    }
    // The comparison tells whether it is too short.
    let opened = source::open(context, path, &taking, true)?;
    let contents = Contents::of(context, &opened, &taking)?;
    let options = SurveyOptions::default();
    let writers = disk::writers(&opened, &options)?;
    for writer in &writers {
        let text = "what is written meanwhile counts as a difference";
        context.output.warning(&format!("`{}` {}: {text}", path.display(), writer.how));
    }
    let is_mountable = source::is_local(path) && matches!(contents, Contents::Raw(_)) && writers.is_empty();
    let watch = Watch::begin(&opened, &options, writers)?;
    job.compare(contents.disk(), is_mountable.then_some(path), || {
        for change in watch.changes()? {
            let text = "compare it again when nothing writes to it";
            context.output.warning(&format!("`{}` {change} while it was read: {text}", path.display()));
        }
        Ok(())
    })
}

/// The comparison of a disk with a version.
struct Job<'a> {
    context: &'a Context,
    version: &'a Manifest,
    catalogue: &'a Catalogue,
    objects: &'a dyn ObjectSource,
    began: Instant,
}

/// What differs in a piece of the image.
struct Unlike {
    piece: Piece,
    compared_bytes: u64,
    other: ExtentSet,
    unreadable: ExtentSet,
    untold: ExtentSet,
}

impl Unlike {
    fn of(piece: Piece, found: &Comparison) -> Self {
        let compared_bytes = piece.part_of(&found.compared).sectors() * SECTOR_BYTES;
        let [other, unreadable, untold] =
            [&found.other, &found.unreadable, &found.untold].map(|sectors| piece.part_of(sectors));
        Self { piece, compared_bytes, other, unreadable, untold }
    }

    /// The ranges that differ, ascending, with what is known of each.
    fn ranges(&self) -> Vec<(Extent, &'static str)> {
        let sets =
            [(&self.other, "differs"), (&self.unreadable, "unreadable"), (&self.untold, "differs somewhere")];
        let all = sets.into_iter().flat_map(|(set, what)| set.runs().iter().map(move |run| (*run, what)));
        let mut all: Vec<_> = all.collect();
        all.sort_unstable_by_key(|(run, _)| run.start);
        all
    }

    fn bytes(&self) -> u64 {
        self.ranges().iter().map(|(run, _)| run.len_bytes()).sum()
    }

    /// One word for it.
    fn state(&self) -> &'static str {
        match (self.compared_bytes, self.bytes()) {
            (_, 1..) => "differs",
            (0, 0) => "left-out",
            _ => "equal",
        }
    }
}

impl<'a> Job<'a> {
    fn of(
        context: &'a Context,
        version: &'a Manifest,
        catalogue: &'a Catalogue,
        objects: &'a dyn ObjectSource,
    ) -> Self {
        Self { context, version, catalogue, objects, began: clock::now() }
    }

    /// Compares `disk`. Files are named if it is the raw one at `path`. `watched` warns of changes meanwhile.
    fn compare(
        &self,
        disk: &dyn ReadAt,
        path: Option<&Path>,
        watched: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let meter = Meter::new(self.context.output, self.context.global.quiet);
        let found = image::compare(self.catalogue, disk, self.objects, &meter);
        meter.finish();
        let found = found?;
        watched()?;
        // Of a disk that is equal, the table is, too. One that can't be surveyed has been compared all the same.
        let map = (!found.is_equal()).then(|| disk::survey(disk, &SurveyOptions::default()).ok()).flatten();
        let all = pieces(self.version, map.as_ref()).into_iter().map(|piece| Unlike::of(piece, &found));
        let all: Vec<_> = all.filter(|one| one.compared_bytes > 0 || one.piece.number.is_some()).collect();
        all.iter().try_for_each(|one| self.show(one))?;
        self.show_ranges(&all)?;
        let files = match (path, &map) {
            (Some(path), Some(map)) => self.show_files(path, map, &all)?,
            _ => 0,
        };
        self.conclude(disk.name(), &found, &all, files)
    }

    /// Tells of a piece whether it is equal.
    fn show(&self, one: &Unlike) -> Result<()> {
        let Unlike { piece, compared_bytes, .. } = one;
        let (state, bytes, ranges) = (one.state(), one.bytes(), one.ranges().len());
        let record = json!({
            "type": "piece", "partition": piece.number, "filesystem": piece.kind, "state": state,
            "compared_bytes": compared_bytes, "differing_bytes": bytes, "ranges": ranges,
            "changes": piece.changes,
        });
        self.context.output.result(&record, || {
            let told = match state {
                "left-out" => "the image holds nothing of it".to_owned(),
                "equal" => format!("equal, {}", show_bytes(*compared_bytes)),
                _ => {
                    let (bytes, all) = (show_bytes(bytes), show_bytes(*compared_bytes));
                    format!("differs: {bytes} of {all} in {ranges} ranges")
                }
            };
            let changes = piece.changes.iter().map(|change| format!("  {change}\n"));
            format!("{}: {told}\n{}", piece.name(), changes.collect::<String>())
        })
    }

    /// Lists the ranges that differ.
    fn show_ranges(&self, all: &[Unlike]) -> Result<()> {
        let output = self.context.output;
        let ranges = all.iter().flat_map(|one| one.ranges().into_iter().map(move |range| (one, range)));
        for (index, (one, (run, what))) in ranges.enumerate() {
            if !output.is_json() && index == SHOWN_MAX {
                output.note("--json lists all ranges");
                break;
            }
            let (offset, bytes) = (run.offset_bytes(), run.len_bytes());
            let record = json!({
                "type": "range", "offset": offset, "bytes": bytes, "what": what, "partition": one.piece.number,
            });
            output.answer(&record, || format!("{offset:>20} {bytes:>16}  {what}, {}\n", one.piece.name()))?;
        }
        Ok(())
    }

    /// Names the files that lie in what differs. Returns their number.
    fn show_files(&self, path: &Path, map: &DiskMap, all: &[Unlike]) -> Result<usize> {
        let output = self.context.output;
        let mut count = 0;
        for one in all.iter().filter(|one| !one.other.is_empty() || !one.unreadable.is_empty()) {
            let Some(there) = &one.piece.there else { continue };
            let Some(filesystem) = &there.filesystem else { continue };
            let sets = [&one.other, &one.unreadable].into_iter().flat_map(|set| set.runs());
            let inside = sets.filter_map(|run| run.intersection(there.extent));
            let mut inside: Vec<_> =
                inside.map(|run| Extent::new(run.start - there.extent.start, run.count)).collect();
            inside.sort_unstable_by_key(|run| run.start);
            let sectors: ExtentSet = inside.into_iter().collect();
            // A filesystem that is mounted must not be left.
            interrupt::hold();
            let unit = map.geometry.logical_sector_bytes;
            let named = disk::files_at(path, there.extent, unit, filesystem.kind, &sectors);
            interrupt::release()?;
            match named {
                Ok(files) => {
                    count += files.len();
                    self.show_named(one, &files)?;
                }
                Err(error) => {
                    let (name, why) = (one.piece.name(), base::chain(&error));
                    output.note(&format!("{name}: it is not known which files differ: {why}"));
                }
            }
        }
        Ok(count)
    }

    fn show_named(&self, one: &Unlike, files: &[FileThere]) -> Result<()> {
        let output = self.context.output;
        for (index, file) in files.iter().enumerate() {
            if !output.is_json() && index == SHOWN_MAX {
                output.note("--json lists all files");
                break;
            }
            let kind = if file.is_folder { "folder" } else { "file" };
            let path = file.path.to_string_lossy();
            let record = json!({
                "type": "file", "partition": one.piece.number, "path": path, "kind": kind, "bytes": file.bytes,
            });
            output.answer(&record, || {
                format!("{}: {kind} {path}, {}\n", one.piece.name(), show_bytes(file.bytes))
            })?;
        }
        Ok(())
    }

    fn conclude(&self, disk: &str, found: &Comparison, all: &[Unlike], files: usize) -> Result<()> {
        let name = format!("{}@{}", self.version.image, self.version.number);
        let took = clock::now().duration_since(self.began);
        let compared = found.compared.sectors() * SECTOR_BYTES;
        let bytes: u64 = all.iter().map(Unlike::bytes).sum();
        let ranges: usize = all.iter().map(|one| one.ranges().len()).sum();
        let record = json!({
            "type": "compared", "image": self.version.image, "number": self.version.number, "disk": disk,
            "equal": found.is_equal(), "compared_bytes": compared, "differing_bytes": bytes, "ranges": ranges,
            "unreadable_bytes": found.unreadable.sectors() * SECTOR_BYTES, "files": files,
            "moved_gpt": found.moved_gpt, "seconds": took.as_secs_f64(),
        });
        self.context.output.result(&record, || sentence(disk, &name, compared, found, took))?;
        if !found.untold.is_empty() {
            let text = "the objects of some chunks that differ are missing or damaged: \
                        it is not known which of their sectors differ";
            self.context.output.warning(&format!("{text}; `diskcast verify {name}` checks the objects"));
        }
        if found.is_equal() {
            return Ok(());
        }
        let text = format!("`{disk}` differs from {name}: {} in {ranges} ranges", show_bytes(bytes));
        Err(Failure::new(Exit::Verification, text).hint(format!(
            "`diskcast install {name} DISK --resume` writes what differs; all that was changed on the disk is lost then"
        )))
    }
}

fn sentence(disk: &str, name: &str, compared: u64, found: &Comparison, took: Duration) -> String {
    let moved = if found.moved_gpt { ", its backup GPT is at the end of the disk" } else { "" };
    let is = if found.is_equal() { "holds" } else { "does not hold" };
    let (size, rate) = (show_bytes(compared), show_rate(compared, took));
    format!("{disk} {is} {name}: {size} compared{moved}, {}, {rate}\n", show_duration(took))
}
