//! `diskcast commit`: stores the changes of a disk as a new version, in the repository or on a server.

mod args;
mod holes;
mod sum;
mod whole;

use std::io;
use std::ops::Range;
use std::time::Instant;

pub(crate) use args::Args;
use base::{Extent, ExtentSet};
use disk::{ReadAt, SurveyOptions, Watch};
use mirror::{Images, Written};
use store::{Content, ImageName, Reference};
use sum::Sum;

use super::Context;
use super::commit_attached::{self, What};
use crate::args::{SourceForm, Taking};
use crate::exit::{Exit, Failure, Result};
use crate::source::{self, Contents};
use crate::{clock, connect, repository};

/// A file or device whose byte 0 is byte `by` of the image.
struct Source<'a> {
    /// What it holds.
    disk: &'a dyn ReadAt,
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

/// Bytes of the image that change, ascending without overlaps.
#[derive(Default)]
struct Changes {
    written: Vec<Range<u64>>,
    freed: Vec<Range<u64>>,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let (Some(name), Some(source)) = (&args.name, &args.source) else {
        let what = What { image: args.name.as_deref(), new: false, merge: args.merge };
        return commit_attached::commit(context, &args.running, &what);
    };
    let image: ImageName = name.parse()?;
    if args.is_whole() {
        if args.there.to.is_some() {
            let text = "a whole disk is committed only where the repository is";
            return Err(Failure::new(Exit::Usage, text)
                .hint("say what goes to the server: --range, --at, --append or --free"));
        }
        return whole::commit(context, args, &image, source);
    }
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
    let bytes = match &contents {
        Contents::Raw(_) => size_of(&opened)?,
        other => other.disk().geometry().size_bytes,
    };
    let by = args.at.unwrap_or(0);
    let source = Source { disk: contents.disk(), by, bytes, opened: &opened, watches };
    Job { context, args, image, source }.run()
}

impl Job<'_> {
    fn run(&self) -> Result<()> {
        let (global, there) = (&self.context.global, &self.args.there);
        let images: Box<dyn Images> = match there.to {
            Some(_) => connect::images(self.context, there)?,
            None => Box::new(repository::with_scrubs(global, repository::open(global)?)),
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
        let (changes, number) = (self.named(), images.find(&newest)?.manifest.number);
        self.conclude(&changes, number, began, || {
            let (written, freed) = (&changes.written[..], &changes.freed[..]);
            let all = store::Changes { written, content: &Watched(&self.source), freed };
            images.commit_changes(&self.image, &all, self.args.expect, &repository::stamp())
        })
    }

    /// Appends the whole source after the image's `end`.
    fn behind(&self, end: u64) -> Changes {
        let place = Some(end..end + self.source.bytes).filter(|place| !place.is_empty());
        Changes { written: place.into_iter().collect(), ..Changes::default() }
    }

    /// The changes that the options name.
    fn named(&self) -> Changes {
        let args = self.args;
        let whole = self.source.by..self.source.by.saturating_add(self.source.bytes);
        let mut written: ExtentSet = bytes_set(&args.ranges);
        if args.at.is_some() {
            written.insert(span(&whole));
        }
        let mut freed = bytes_set(&args.freed);
        written.runs().iter().for_each(|range| freed.remove(*range));
        Changes { written: ranges(&written), freed: ranges(&freed) }
    }

    /// Makes the version and reports it; with --dry-run, or if nothing differs, only reports.
    fn conclude(
        &self,
        changes: &Changes,
        newest: u64,
        began: Instant,
        make: impl FnOnce() -> base::Result<Written>,
    ) -> Result<()> {
        let (context, image) = (self.context, &self.image);
        let bytes = |ranges: &[Range<u64>]| ranges.iter().map(|range| range.end - range.start).sum();
        let ranges = changes.written.len() + changes.freed.len();
        let sum = Sum { bytes: bytes(&changes.written), freed: bytes(&changes.freed), ranges };
        // The source must not have changed since it was opened.
        let meanwhile = self.source.changes()?;
        if !meanwhile.is_empty() {
            return Err(source::changed(self.source.opened, &meanwhile));
        }
        if context.global.dry_run || ranges == 0 {
            return sum.show_plan(context, image, newest);
        }
        let made = make()?;
        let took = clock::now().duration_since(began);
        sum.show_done(context, image, &made, (took, self.args.there.to.as_deref()))
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
