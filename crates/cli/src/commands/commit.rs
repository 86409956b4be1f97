//! `diskcast commit`: stores the changes of a disk as a new version, in the repository or on a server.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use base::limits::SECTOR_BYTES;
use base::units::{show_bytes, show_duration};
use base::{Extent, ExtentSet};
use disk::{ReadAt, SurveyOptions, Watch};
use mirror::{Images, Written};
use rustix::fs::SeekFrom;
use serde_json::json;
use store::{Content, ImageName, Reference, Snapshot};

use super::Context;
use super::running::{self, What};
use crate::args::parse::{parse_range, parse_size};
use crate::args::{RunningDisk, SourceForm, Taking, There};
use crate::exit::{Exit, Failure, Result};
use crate::source::Contents;
use crate::{clock, connect, repository, source};

/// Store the changes of a disk as a new version of its image
///
/// Without --range, --at, --free or --append the disk is compared with the image's newest version, of the same size,
/// and the differences are stored. Only changed chunks are stored. Several programs may commit to the same image at the
/// same time; each commit makes a version that contains all earlier ones.
///
/// With --disk the source is an attached disk, which keeps running: the version has its content at one moment, and is
/// published where the disk's image came from. It follows the version that the disk began as, or was last committed as.
/// It is refused if somebody else has published a version since then, unless --merge is given and they changed other
/// sectors.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast commit lab-pc disk.img                       the differences from the newest version
  diskcast commit lab-pc disk.img --range 1M+4096 --range 3G+64K --expect 7
  diskcast commit web vm2.qcow2 --backing               an overlay over another file
  diskcast commit lab-pc part.img --at 1M               a whole file, at this offset
  diskcast commit archive day.tar --append              after the end of the image
  diskcast commit lab-pc disk.img --free-holes          also free what the guest discarded
  diskcast commit lab-pc disk.img --range 1M+4096 --to https://10.0.0.1:7717 --token-file write.token
  diskcast commit --disk vm1 --quiesce agent:/run/vm1.qga                      an attached disk")]
pub(crate) struct Args {
    /// Image that gets the new version [with --disk the default: that of the disk's base]
    #[arg(required_unless_present = "disk")]
    pub name: Option<String>,
    /// Disk with the changes: a block device, a raw file, QCOW2, and the other forms that `capture` reads
    #[arg(required_unless_present = "disk", conflicts_with = "disk")]
    pub source: Option<PathBuf>,
    #[command(flatten)]
    pub running: RunningDisk,
    /// Commit also if others have published a version since then, as long as they changed other sectors
    #[arg(long, requires = "disk")]
    pub merge: bool,
    /// Write these bytes of SOURCE at the same offset of the image; may be repeated
    #[arg(
        long = "range",
        value_name = "OFFSET+LENGTH",
        value_parser = parse_range,
        conflicts_with_all = ["at", "append", "disk"]
    )]
    pub ranges: Vec<std::ops::Range<u64>>,
    /// Write all of SOURCE at this offset of the image
    #[arg(long, value_name = "OFFSET", value_parser = parse_size, conflicts_with_all = ["append", "disk"])]
    pub at: Option<u64>,
    /// Append all of SOURCE to the image
    #[arg(long, conflicts_with_all = ["expect", "disk"])]
    pub append: bool,
    /// Mark these bytes as free: they read as zeros, and are neither stored nor installed; may be repeated
    #[arg(
        long = "free",
        value_name = "OFFSET+LENGTH",
        value_parser = parse_range,
        conflicts_with_all = ["append", "disk"]
    )]
    pub freed: Vec<std::ops::Range<u64>>,
    /// Mark holes of SOURCE as free, too, instead of storing them as zeros: for disks of virtual machines that discard
    /// unused space
    #[arg(long, conflicts_with_all = ["append", "disk"])]
    pub free_holes: bool,
    /// Refuse unless the newest version has this number
    #[arg(long, value_name = "NUMBER", conflicts_with = "disk")]
    pub expect: Option<u64>,
    /// Treat SOURCE as a raw disk although it begins like a file of another format, such as QCOW2
    #[arg(long, value_enum, conflicts_with = "disk")]
    pub format: Option<SourceForm>,
    /// Also read the files that a QCOW2 or VMDK names, such as the base of an overlay. Whoever made it chose these
    /// names
    #[arg(long, conflicts_with = "disk")]
    pub backing: bool,
    #[command(flatten)]
    pub there: There,
}

/// Bytes of the source that are searched for holes at a time.
const PIECE_BYTES: u64 = 4 << 20;
/// The unit in which a disk in another form than raw is searched for zeros: a cluster of most QCOW2 files.
const CLUSTER_BYTES: u64 = 64 << 10;
/// Maximum number of ranges in a commit; beyond that, the gaps between some ranges are written too.
const RANGES_MAX: usize = 1 << 20;

/// A file or device whose byte 0 is byte `by` of the image.
struct Source<'a> {
    /// What it holds.
    disk: &'a dyn ReadAt,
    /// For finding holes, if it is raw.
    file: Option<File>,
    by: u64,
    bytes: u64,
    opened: &'a disk::Source,
    /// Of the source and of the files that it names.
    watches: Vec<Watch<'a>>,
}

impl Content for Source<'_> {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let at = offset - self.by;
        if at.saturating_add(into.len() as u64) > self.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.disk.read_exact_at(into, at).map_err(io::Error::other)
    }

    fn is_known_zero(&self, offset: u64, bytes: u64) -> bool {
        self.disk.is_hole(offset - self.by, bytes)
    }
}

/// A source that is checked for changes after each read. The version is published right after the last read, so no
/// later check is needed.
struct Watched<'a>(&'a Source<'a>);

impl Content for Watched<'_> {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, into)?;
        if self.0.is_still() {
            return Ok(());
        }
        Err(io::Error::other(format!("`{}` was written meanwhile", self.0.opened.path().display())))
    }
}

/// The commit of a source.
struct Job<'a> {
    context: &'a Context,
    args: &'a Args,
    image: ImageName,
    source: Source<'a>,
}

/// Bytes of the image that change, ascending without overlaps, and the version that the commit must follow, if that
/// is fixed.
#[derive(Default)]
struct Changes {
    written: Vec<Range<u64>>,
    freed: Vec<Range<u64>>,
    expected: Option<u64>,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let (Some(name), Some(source)) = (&args.name, &args.source) else {
        let what = What { image: args.name.as_deref(), new: false, merge: args.merge };
        return running::commit(context, &args.running, &what);
    };
    let image: ImageName = name.parse()?;
    let opened = disk::open_source(source)?;
    // With --at and --append the source may be any file, which is taken as it is.
    let is_disk = args.at.is_none() && !args.append;
    let format = if is_disk { args.format } else { Some(SourceForm::Raw) };
    let taking = Taking { format, backing: args.backing, ..Taking::default() };
    let options = SurveyOptions::default();
    let watch = |file| -> Result<Watch<'_>> {
        if is_disk {
            source::check_unused(file)?;
        }
        Ok(Watch::begin(file, &options, disk::writers(file, &options)?)?)
    };
    let mut watches = vec![watch(&opened)?];
    let mut contents = Contents::of(context, &opened, &taking)?;
    let linked = contents.linked().iter().map(|path| disk::open_source(path));
    let linked = linked.collect::<base::Result<Vec<_>>>()?;
    for file in &linked {
        watches.push(watch(file)?);
    }
    if !linked.is_empty() {
        // Again, now that a change to its other files is noticed.
        contents = Contents::of(context, &opened, &taking)?;
    }
    let (file, bytes) = match &contents {
        Contents::Raw(_) => (Some(File::open(source)?), size_of(&opened)?),
        other => (None, other.disk().geometry().size_bytes),
    };
    let by = args.at.unwrap_or(0);
    let source = Source { disk: contents.disk(), file, by, bytes, opened: &opened, watches };
    Job { context, args, image, source }.run()
}

impl Job<'_> {
    fn run(&self) -> Result<()> {
        let (global, there) = (&self.context.global, &self.args.there);
        let repository = match there.to {
            Some(_) => None,
            None => Some(repository::with_scrubs(global, repository::open(global)?)),
        };
        let images: Box<dyn Images> = match &repository {
            Some(repository) => Box::new(repository.clone()),
            None => connect::images(self.context, there)?,
        };
        let newest = Reference::Newest(self.image.clone());
        let began = clock::now();
        if self.args.append {
            let newest = images.find(&newest)?.manifest;
            let changes = self.behind(newest.layout()?.size_bytes());
            return self.conclude(&changes, newest.number, began, || {
                let content = Watched(&self.source);
                images.append_bytes(&self.image, self.source.bytes, &content, &repository::stamp())
            });
        }
        let (changes, number) = match (self.named()?, &repository) {
            (Some(changes), _) => (changes, images.find(&newest)?.manifest.number),
            (None, Some(repository)) => {
                let newest = repository.snapshot(&newest)?;
                (compare(&newest, &self.source, self.args)?, newest.manifest().number)
            }
            (None, None) => {
                let text = "a disk is compared with an image only where the repository is";
                return Err(Failure::new(Exit::Usage, text)
                    .hint("say what goes to the server: --range, --at, --append or --free"));
            }
        };
        self.conclude(&changes, number, began, || {
            let (written, freed) = (&changes.written[..], &changes.freed[..]);
            let all = store::Changes { written, content: &Watched(&self.source), freed };
            images.commit_changes(&self.image, &all, changes.expected, &repository::stamp())
        })
    }

    /// Appends the whole source after the image's `end`.
    fn behind(&self, end: u64) -> Changes {
        let place = end..end + self.source.bytes;
        Changes { written: vec![place], ..Changes::default() }
    }

    /// The changes that the options name; `None` if the source must be compared with the image.
    fn named(&self) -> Result<Option<Changes>> {
        let args = self.args;
        if args.at.is_none() && args.ranges.is_empty() && args.freed.is_empty() {
            return Ok(None);
        }
        let whole = self.source.by..self.source.by.saturating_add(self.source.bytes);
        let mut written: ExtentSet = bytes_set(&args.ranges);
        if args.at.is_some() {
            written.insert(span(&whole));
        }
        let mut freed = bytes_set(&args.freed);
        if args.free_holes {
            for range in written.runs().to_vec() {
                for hole in self.source.holes(&(range.start..range.end()))? {
                    written.remove(span(&hole));
                    freed.insert(span(&hole));
                }
            }
        }
        written.runs().iter().for_each(|range| freed.remove(*range));
        Ok(Some(Changes { written: ranges(&written), freed: ranges(&freed), expected: args.expect }))
    }

    /// Makes the version and reports it; with --dry-run, or if nothing differs, only reports.
    fn conclude(
        &self,
        changes: &Changes,
        newest: u64,
        began: std::time::Instant,
        make: impl FnOnce() -> base::Result<Written>,
    ) -> Result<()> {
        let (context, image) = (self.context, &self.image);
        let sum = |ranges: &[Range<u64>]| -> u64 { ranges.iter().map(|range| range.end - range.start).sum() };
        let (bytes, freed) = (sum(&changes.written), sum(&changes.freed));
        let ranges = changes.written.len() + changes.freed.len();
        // The source must not have changed while it was compared.
        let meanwhile = self.source.changes()?;
        if !meanwhile.is_empty() {
            return Err(source::changed(self.source.opened, &meanwhile));
        }
        let and_freed = |words: &str| match freed {
            0 => String::new(),
            _ => format!(" and {words}{}", show_bytes(freed)),
        };
        if context.global.dry_run || ranges == 0 {
            let record = json!({
                "type": "plan", "image": image.as_str(), "ranges": ranges, "bytes": bytes, "freed_bytes": freed,
            });
            return context.output.result(&record, || match ranges {
                0 => format!("nothing differs from {image}@{newest}\n"),
                _ => {
                    let free = and_freed("free ");
                    format!("{}commit {}{free} in {ranges} ranges\n", context.would(), show_bytes(bytes))
                }
            });
        }
        let made = make()?;
        let took = clock::now().duration_since(began);
        let record = json!({
            "type": "committed", "image": image.as_str(), "number": made.number, "bytes": bytes,
            "freed_bytes": freed, "ranges": ranges, "stored_bytes": made.stored_bytes, "retries": made.retries,
            "merged_chunks": made.merged_chunks, "seconds": took.as_secs_f64(), "server": self.args.there.to,
        });
        context.output.result(&record, || {
            let (written, stored, took) =
                (show_bytes(bytes), show_bytes(made.stored_bytes), show_duration(took));
            let free = and_freed("freed ");
            format!("committed {written}{free} as {image}@{}, {stored} stored, {took}\n", made.number)
        })
    }
}

/// Number of bytes of the source: the length of a file, the capacity of a device.
fn size_of(source: &disk::Source) -> Result<u64> {
    let found = source.path().metadata()?;
    if found.is_file() { Ok(found.len()) } else { Ok(source.geometry().size_bytes) }
}

impl Source<'_> {
    /// Whether nothing has changed so far.
    fn is_still(&self) -> bool {
        self.watches.iter().all(Watch::is_still)
    }

    /// What has changed so far.
    fn changes(&self) -> Result<Vec<String>> {
        let all = self.watches.iter().map(Watch::changes).collect::<base::Result<Vec<_>>>()?;
        Ok(all.concat())
    }

    /// The holes in `range` (bytes of the image), ascending; none for a device.
    fn holes(&self, range: &Range<u64>) -> Result<Vec<Range<u64>>> {
        match &self.file {
            Some(file) => self.holes_of(file, range),
            None => Ok(self.known_zeros(range)),
        }
    }

    /// What a disk in another form than raw knows to be zeros, piece by piece.
    fn known_zeros(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut zeros: Vec<Range<u64>> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / CLUSTER_BYTES + 1) * CLUSTER_BYTES);
            if self.disk.is_hole(at - self.by, end - at) {
                match zeros.last_mut() {
                    Some(last) if last.end == at => last.end = end,
                    _ => zeros.push(at..end),
                }
            }
            at = end;
        }
        zeros
    }

    /// The holes of a raw file.
    fn holes_of(&self, file: &File, range: &Range<u64>) -> Result<Vec<Range<u64>>> {
        let mut holes = Vec::new();
        let (mut at, end) = (range.start - self.by, range.end - self.by);
        while at < end {
            // A filesystem that cannot report holes counts as having none. After the last data there is a hole up to
            // the end.
            let hole = rustix::fs::seek(file, SeekFrom::Hole(at)).unwrap_or(end);
            let data = match rustix::fs::seek(file, SeekFrom::Data(hole)) {
                Ok(data) => data.min(end),
                // If the file became shorter, the missing part is not a hole.
                Err(_) if !self.is_still() => {
                    return Err(source::changed(self.opened, &self.changes()?));
                }
                Err(_) => end,
            };
            if hole < end {
                holes.push(hole + self.by..data + self.by);
            }
            at = data.max(hole).max(at + 1);
        }
        Ok(holes)
    }
}

/// The changes that make `version` equal to `source`. Of sectors that are free in `version`, those that are not zero
/// in `source` are written.
fn compare(version: &Snapshot<'_>, source: &Source<'_>, args: &Args) -> Result<Changes> {
    let (size, expected) = (source.bytes, version.layout().size_bytes());
    if size != expected {
        let text = format!("the disk has {size} bytes, the image {expected}");
        return Err(
            Failure::new(Exit::Refused, text).hint("say where it goes: --at OFFSET, --append, or --range")
        );
    }
    // The commit must follow exactly the version that was compared.
    let expected = args.expect.or(Some(version.manifest().number));
    let written = version.differences(source, RANGES_MAX)?;
    if !args.free_holes {
        return Ok(Changes { written, expected, ..Changes::default() });
    }
    let mut freed = ExtentSet::new();
    for start in (0..size).step_by(usize::try_from(PIECE_BYTES).expect("it is small")) {
        // Holes beyond `RANGES_MAX` are written as zeros instead.
        if freed.runs().len() < RANGES_MAX {
            let window = start..size.min(start + PIECE_BYTES);
            holes_in_use(version, source, &window)?.runs().iter().for_each(|run| freed.insert(*run));
        }
    }
    let mut kept = ExtentSet::new();
    written.iter().for_each(|range| kept.insert(Extent::between(range.start / 512, range.end / 512)));
    freed.runs().iter().for_each(|run| kept.remove(*run));
    let bytes = |set: &ExtentSet| set.runs().iter().map(|run| bytes_of(*run)).collect();
    Ok(Changes { written: bytes(&kept), freed: bytes(&freed), expected })
}

/// The allocated sectors of `window` that are holes of `source`, rounded inwards to logical sectors.
fn holes_in_use(version: &Snapshot<'_>, source: &Source<'_>, window: &Range<u64>) -> Result<ExtentSet> {
    let unit = u64::from(version.layout().logical_sector_bytes);
    let mut freed = ExtentSet::new();
    for hole in source.holes(window)? {
        let (start, end) = (hole.start.next_multiple_of(unit), hole.end / unit * unit);
        let hole = Extent::between(start / SECTOR_BYTES, end.max(start) / SECTOR_BYTES);
        version.allocated(hole)?.runs().iter().for_each(|run| freed.insert(*run));
    }
    Ok(freed)
}

/// A set of byte ranges; here, an `ExtentSet` counts bytes instead of sectors.
fn bytes_set(ranges: &[Range<u64>]) -> ExtentSet {
    let mut set = ExtentSet::new();
    ranges.iter().for_each(|range| set.insert(span(range)));
    set
}

fn span(range: &Range<u64>) -> Extent {
    Extent::between(range.start, range.end)
}

fn ranges(set: &ExtentSet) -> Vec<Range<u64>> {
    set.runs().iter().map(|run| run.start..run.end()).collect()
}

/// The bytes of a run of sectors.
fn bytes_of(run: Extent) -> Range<u64> {
    run.start * SECTOR_BYTES..run.end() * SECTOR_BYTES
}
