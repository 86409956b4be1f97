//! A commit of a whole disk. The disk is surveyed and captured as by `capture`, and becomes the version after the
//! newest one: which sectors are free is known from the disk alone, never from the version before or from content.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::limits::{PIPELINE_BYTES_DEFAULT, SECTOR_BYTES};
use base::{Extent, ExtentSet};
use bytes::Bytes;
use disk::{Partition, SurveyOptions, TableKind};
use image::manifest::Parent;
use image::{
    Captured, ChunkExtents, DecryptedNodes, Differences, Leaf, Made, Manifest, MemoryObjects, ObjectKind,
    ObjectRef, ObjectSink, ObjectSource, SignedManifest,
};
use mirror::{Images, Written};
use store::{FreeProofs, ImageName, Reference, Repository, Writer};

use super::args::Args;
use super::holes::Holes;
use super::sum::Sum;
use crate::args::{Effort, Taking};
use crate::commands::Context;
use crate::commands::capture::known_of;
use crate::commands::surveyed::{self, Disk, Surveyed};
use crate::exit::{Exit, Failure, Result};
use crate::interrupt::{self, Leaves};
use crate::source::{self, Contents, StableSource};
use crate::{clock, repository};

/// The commit of a disk onto the version `base`.
struct Whole<'a> {
    context: &'a Context,
    args: &'a Args,
    image: &'a ImageName,
    repository: &'a Repository,
    base: &'a SignedManifest,
}

/// Makes the disk at `path` the next version of `image`.
pub(super) fn commit(context: &Context, args: &Args, image: &ImageName, path: &Path) -> Result<()> {
    let global = &context.global;
    interrupt::leaves(Leaves::NoVersion);
    let repository = repository::with_scrubs(global, repository::open(global)?);
    let base = repository.find(&Reference::Newest(image.clone()))?;
    let number = base.manifest.number;
    if let Some(expected) = args.expect.filter(|expected| *expected != number) {
        let text = format!("`{image}` is at version {number} by now, not at {expected}");
        return Err(Failure::new(Exit::Refused, text));
    }
    let whole = Whole { context, args, image, repository: &repository, base: &base };
    let all = SurveyOptions::default();
    let taking = Taking { format: args.format, backing: args.backing, ..Taking::default() };
    let source = disk::open_source(path)?;
    let stable = StableSource::of_commit(&source, &all)?;
    source::read(context, (&source, &stable), &taking, |contents, stable| whole.take(path, contents, stable))
}

/// Finds what `repository` cannot prove to be free in `version`.
fn is_unproven(repository: &Repository, version: &Manifest) -> base::Result<bool> {
    FreeProofs::new(|reference: &Reference| repository.look(reference).map(|(found, _)| found))
        .is_unproven(version)
}

impl Whole<'_> {
    /// Surveys the disk in `contents` and makes the version.
    fn take(&self, path: &Path, contents: &Contents<'_>, stable: &[&StableSource<'_>]) -> Result<()> {
        let (base, disk) = (&self.base.manifest, contents.disk());
        let expected = base.layout()?.size_bytes();
        let recorded = self.options()?;
        // The partition's own device or file, instead of the whole disk.
        let is_part = recorded.partition.is_some() && disk.geometry().size_bytes == expected;
        let options =
            SurveyOptions { partition: recorded.partition.filter(|_| !is_part), ..recorded.clone() };
        let effort = Effort { threads: None, memory: PIPELINE_BYTES_DEFAULT, disk_rate: None };
        let file = matches!(contents, Contents::Raw(_)).then(|| File::open(path)).transpose()?;
        let holes = Holes { disk, file: file.as_ref() };
        // A filesystem that does not tell whether it is at rest is taken whole, as by `capture --live`.
        let live = stable.iter().any(|stable| stable.is_open_for_writing());
        let disk = Disk { disk, path, live, rescue: false, stable };
        surveyed::survey(self.context, disk, &options, (base.chunk_bytes, &effort), |mut surveyed| {
            let window = surveyed.map.window.len_bytes();
            if window != expected {
                let what =
                    options.partition.map_or("disk".to_owned(), |number| format!("partition {number}"));
                let text = format!("the {what} has {window} bytes, the image {expected}");
                let hint = "if it is the right one, `diskcast capture` makes a version of another size; \
                            --at OFFSET, --append or --range write a part of the image";
                return Err(Failure::new(Exit::Refused, text).hint(hint));
            }
            if is_part {
                self.as_a_part(&mut surveyed, &recorded)?;
            }
            if self.args.free_holes {
                free_holes(&mut surveyed, &holes);
            }
            match self.context.global.dry_run {
                true => self.plan(&surveyed),
                false => self.make(&surveyed),
            }
        })
    }

    /// Makes the survey of a partition's own device one of the disk that it belongs to, as the base describes it.
    /// `Refused` if it is a whole disk of the same size.
    fn as_a_part(&self, surveyed: &mut Surveyed<'_>, recorded: &SurveyOptions) -> Result<()> {
        if surveyed.map.table != TableKind::None {
            let text = format!("`{}` is a disk with a partition table, the image a partition", self.image);
            return Err(Failure::new(Exit::Refused, text).hint("--whole makes the disk the next version"));
        }
        surveyed.options.partition = recorded.partition;
        surveyed.part_of = Some(self.base.manifest.clone());
        Ok(())
    }

    /// How to survey the disk: as the options say, else as the base was surveyed.
    fn options(&self) -> Result<SurveyOptions> {
        let (args, base) = (self.args, &self.base.manifest);
        if args.whole || args.raw || args.partition.is_some() || !args.skip.is_empty() {
            let (raw, partition, skip) = (args.raw, args.partition, args.skip.clone());
            return Ok(SurveyOptions { raw, partition, skip, live: false });
        }
        let Some(record) = base.made.as_ref().and_then(|made| made.survey.as_ref()) else {
            let text = format!(
                "`{}@{}` does not say how its disk was surveyed: an older program made it",
                base.image, base.number
            );
            return Err(Failure::new(Exit::Refused, text).hint(
                "say it once, later versions record it: --whole if it was captured without --raw, --skip and \
                 --partition, else these options",
            ));
        };
        self.check_skipped(&record.skip)?;
        Ok(record.options())
    }

    /// `Refused` if something was written into partitions that were left out: a survey that leaves them out again would
    /// free it.
    fn check_skipped(&self, skip: &[u32]) -> Result<()> {
        let base = &self.base.manifest;
        let version = self.repository.snapshot(&Reference::Version(self.image.clone(), base.number))?;
        for partition in base.disk.partitions.iter().filter(|partition| skip.contains(&partition.number)) {
            let start = partition.start_sector.saturating_sub(base.origin.start_sector);
            if !version.allocated(Extent::new(start, partition.sectors))?.is_empty() {
                let number = partition.number;
                let text = format!(
                    "partition {number} was left out once (--skip {number}), and `{}@{}` has content in it",
                    base.image, base.number
                );
                let hint =
                    format!("--whole takes it in, --skip {number} leaves it out and frees that content");
                return Err(Failure::new(Exit::Refused, text).hint(hint));
            }
        }
        Ok(())
    }

    /// Whether `captured` is what the newest version says of itself already: equal, surveyed, and without a doubt.
    fn is_known(&self, captured: &Captured) -> Result<bool> {
        let base = &self.base.manifest;
        let is_recorded = base.made.as_ref().is_some_and(|made| made.survey.is_some());
        Ok(captured.root == base.root && is_recorded && !is_unproven(self.repository, base)?)
    }

    /// Only says what a commit would do.
    fn plan(&self, surveyed: &Surveyed<'_>) -> Result<()> {
        let sink = Sink::new(self.repository, None);
        let captured = self.capture(surveyed, &sink)?;
        surveyed.disk.stable.iter().try_for_each(|stable| stable.end().map(drop))?;
        let sum = self.compare(&captured, &sink)?;
        if sum.ranges == 0 && !self.is_known(&captured)? {
            let text =
                "the bytes are those of the newest version; a new one would record that they are surveyed";
            self.context.output.note(text);
        }
        sum.show_plan(self.context, self.image, self.base.manifest.number)
    }

    fn make(&self, surveyed: &Surveyed<'_>) -> Result<()> {
        let began = clock::now();
        let told = || {
            let text =
                "a prune considered this commit dead, since it was silent for too long: it starts again";
            self.context.output.warning(text);
        };
        let made = Writer::retrying(self.repository, &repository::stamp(), told, |writer| -> Result<_> {
            let sink = Sink::new(self.repository, Some(writer));
            let captured = self.capture(surveyed, &sink)?;
            let sum = self.compare(&captured, &sink)?;
            let mut draft = surveyed.draft(self.image.as_str(), &captured, Made::COMMIT)?;
            let base = &self.base.manifest;
            if self.is_known(&captured)? {
                return Ok((sum, None));
            }
            let (image, number, digest) = (base.image.clone(), base.number, self.base.digest());
            draft.parent = Some(Parent { image, number, digest });
            draft.labels = base.labels.clone();
            let version = writer.publish_onto(self.image, draft, base.number)?;
            let stored_bytes = sink.stored.into_inner();
            Ok((sum, Some(Written { number: version.number, stored_bytes, retries: 0, merged_chunks: 0 })))
        })?;
        interrupt::leaves(Leaves::Nothing);
        match made {
            (sum, Some(written)) => {
                let took = clock::now().duration_since(began);
                sum.show_done(self.context, self.image, &written, (took, None))
            }
            (sum, None) => sum.show_plan(self.context, self.image, self.base.manifest.number),
        }
    }

    fn capture(&self, surveyed: &Surveyed<'_>, sink: &Sink<'_>) -> Result<Captured> {
        let cipher = self.repository.cipher();
        let known = known_of(&self.base.manifest, self.repository, cipher)?;
        surveyed.capture((sink, cipher), known)
    }

    /// What differs between the base and `captured`, whose new nodes are in `sink`.
    fn compare(&self, captured: &Captured, sink: &Sink<'_>) -> Result<Sum> {
        let cipher = self.repository.cipher();
        let nodes = |source| DecryptedNodes { source, cipher };
        let before = (nodes(self.repository), &self.base.manifest.root);
        let differences = Differences::new(captured.layout.chunk, before, (nodes(sink), &captured.root));
        let (mut sum, mut end) = (Sum::default(), None);
        for difference in differences {
            let difference = difference?;
            let (before, after) = (sectors(&difference.before), sectors(&difference.after));
            let mut freed = before;
            after.runs().iter().for_each(|run| freed.remove(*run));
            sum.bytes += after.sectors() * SECTOR_BYTES * difference.count;
            sum.freed += freed.sectors() * SECTOR_BYTES * difference.count;
            sum.ranges += usize::from(end != Some(difference.first));
            end = Some(difference.first + difference.count);
        }
        Ok(sum)
    }
}

/// Makes the holes of the disk free, rounded inwards to logical sectors, in partitions that the survey took whole, and
/// on a disk that it can't divide. In a filesystem that it understands, a hole that is allocated is zeros of a file.
fn free_holes(surveyed: &mut Surveyed<'_>, holes: &Holes<'_>) {
    let unit = u64::from(surveyed.map.geometry.logical_sector_bytes);
    let is_whole =
        |partition: &&Partition| !partition.filesystem.as_ref().is_some_and(|found| found.understood);
    let map = &surveyed.map;
    let whole: Vec<Extent> = match map.partitions.is_empty() {
        true => vec![map.window],
        false => map.partitions.iter().filter(is_whole).map(|partition| partition.extent).collect(),
    };
    let runs: Vec<Extent> = whole.into_iter().flat_map(|extent| map.allocated.within(extent)).collect();
    for run in runs {
        for hole in holes.within(&(run.start * SECTOR_BYTES..run.end() * SECTOR_BYTES)) {
            let (start, end) = (hole.start.next_multiple_of(unit), hole.end / unit * unit);
            surveyed
                .map
                .allocated
                .remove(Extent::between(start / SECTOR_BYTES, end.max(start) / SECTOR_BYTES));
        }
    }
}

/// The allocated sectors of a leaf.
fn sectors(leaf: &Leaf) -> ExtentSet {
    let mut set = ExtentSet::new();
    for run in leaf.extents().into_iter().flat_map(ChunkExtents::runs) {
        set.insert(Extent::new(run.start.into(), run.count.into()));
    }
    set
}

/// Where the objects of the version go: into the repository, or nowhere. Keeps the new nodes, so that they can be
/// compared before they are durable.
struct Sink<'a> {
    repository: &'a Repository,
    writer: Option<&'a Writer>,
    nodes: MemoryObjects,
    /// Bytes that were put.
    stored: AtomicU64,
}

impl<'a> Sink<'a> {
    fn new(repository: &'a Repository, writer: Option<&'a Writer>) -> Self {
        Self { repository, writer, nodes: MemoryObjects::new(), stored: AtomicU64::new(0) }
    }
}

impl ObjectSink for Sink<'_> {
    fn contains(&self, object: &ObjectRef) -> base::Result<bool> {
        match self.writer {
            Some(writer) => writer.contains(object),
            None => Ok(object.kind == ObjectKind::Chunk || self.repository.verified(object).is_ok()),
        }
    }

    fn put(&self, object: &ObjectRef, bytes: Bytes) -> base::Result<()> {
        self.stored.fetch_add(bytes.len() as u64, Relaxed);
        if object.kind == ObjectKind::Node {
            self.nodes.put(object, bytes.clone())?;
        }
        self.writer.map_or(Ok(()), |writer| writer.put(object, bytes))
    }
}

impl ObjectSource for Sink<'_> {
    fn fetch(&self, object: &ObjectRef) -> base::Result<Bytes> {
        self.nodes.fetch(object).or_else(|_| self.repository.fetch(object))
    }
}
