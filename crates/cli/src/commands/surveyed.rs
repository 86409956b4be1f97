//! A disk that was surveyed and is to become a version: `capture` and `commit` take it in the same way.

use std::path::Path;

use base::ExtentSet;
use disk::{DiskMap, ReadAt, Rescue, SurveyOptions};
use image::manifest::{DiskRecord, PartitionRecord};
use image::{
    CaptureOptions, Captured, ChunkSize, Cipher, KnownChunks, Made, Manifest, ObjectSink, SourceRecord,
    UnreadableRange,
};

use super::Context;
use crate::args::Effort;
use crate::exit::Result;
use crate::source::{self, StableSource};
use crate::ui::progress::Meter;
use crate::{interrupt, paced, repository, unreadable};

/// The disk, as a source of a capture.
pub(super) struct Disk<'a> {
    /// What it holds.
    pub(super) disk: &'a dyn ReadAt,
    /// What the user called it.
    pub(super) path: &'a Path,
    /// Whether something may write to it meanwhile.
    pub(super) live: bool,
    /// Whether what can't be read counts as zeros.
    pub(super) rescue: bool,
    /// Its files, which must not change meanwhile.
    pub(super) stable: &'a [&'a StableSource<'a>],
}

/// See the module.
pub(super) struct Surveyed<'a> {
    pub(super) context: &'a Context,
    pub(super) disk: Disk<'a>,
    /// Knows what could not be read of it.
    rescue: &'a Rescue<'a>,
    /// The options that the survey had.
    pub(super) options: SurveyOptions,
    /// What the survey found.
    pub(super) map: DiskMap,
    /// The version whose disk it is a part of, if only the part is there.
    pub(super) part_of: Option<Manifest>,
    pub(super) chunk: ChunkSize,
    pub(super) effort: &'a Effort,
}

/// Surveys `disk`, shows the warnings, and hands the result to `then`.
pub(super) fn survey(
    context: &Context,
    disk: Disk<'_>,
    options: &SurveyOptions,
    (chunk_bytes, effort): (u32, &Effort),
    then: impl FnOnce(Surveyed<'_>) -> Result<()>,
) -> Result<()> {
    let paced = effort.disk_rate.map(|rate| paced::source(disk.disk, rate));
    let read = paced.as_ref().map_or(disk.disk, |paced| paced);
    let options = SurveyOptions { live: disk.live, ..options.clone() };
    let rescue = Rescue::new(read);
    let surveyed = match disk.rescue {
        true => disk::survey_failing(&rescue, &options),
        false => disk::survey(&rescue, &options),
    };
    let map = surveyed.map_err(|error| unreadable::explain(error, read))?;
    map.warnings.iter().for_each(|warning| context.output.warning(warning));
    let chunk = ChunkSize::from_bytes(chunk_bytes).expect("a checked argument, or from a manifest");
    let filled = rescue.filled();
    let disk = Disk { disk: if disk.rescue { &filled } else { &rescue }, ..disk };
    then(Surveyed { context, disk, rescue: &rescue, options, map, part_of: None, chunk, effort })
}

impl Surveyed<'_> {
    /// Reads the disk and stores it in `sink`.
    pub(super) fn capture(
        &self,
        (sink, cipher): (&dyn ObjectSink, &Cipher),
        known: KnownChunks,
    ) -> Result<Captured> {
        let meter = Meter::new(self.context.output, self.context.global.quiet);
        let options = CaptureOptions {
            chunk: self.chunk,
            threads: self.effort.threads.map_or(0, Into::into),
            memory_bytes: self.effort.memory,
            known,
            cipher: cipher.clone(),
            ..CaptureOptions::default()
        };
        let captured = image::capture(self.disk.disk, &self.map, sink, &options, &meter);
        meter.finish();
        captured.map_err(|error| unreadable::explain(error, self.disk.disk))
    }

    /// The sectors of the image that could not be read so far.
    pub(super) fn unreadable(&self) -> ExtentSet {
        let all = self.rescue.unreadable();
        self.map.allocated.runs().iter().flat_map(|run| all.within(*run)).collect()
    }

    /// The version, without a number, after the last read. An error if the disk changed meanwhile; if that was
    /// allowed, the version is marked. `by` says what makes the version.
    pub(super) fn draft(&self, image: &str, captured: &Captured, by: &str) -> Result<Manifest> {
        let stamp = repository::stamp();
        let mut draft = Manifest::draft(image, &self.map, captured, &stamp.created);
        draft.creator = stamp.creator;
        draft.made = Some(Made::surveyed(by, &self.options));
        if let Some(whole) = &self.part_of {
            let filesystem = draft.disk.partitions.pop().and_then(|alone| alone.filesystem);
            let partitions = whole.disk.partitions.iter().cloned();
            let partitions =
                partitions.map(|partition| PartitionRecord { filesystem: filesystem.clone(), ..partition });
            draft.origin = whole.origin;
            draft.disk = DiskRecord { partitions: partitions.collect(), ..whole.disk.clone() };
            draft.disk.live.clear();
        }
        draft.disk.unreadable = UnreadableRange::all(&self.unreadable());
        if source::is_local(self.disk.path) {
            let mut salt = [0; 16];
            getrandom::fill(&mut salt).map_err(std::io::Error::from)?;
            draft.disk.source = SourceRecord::of(&disk::place_of(self.disk.path)?, self.map.window, salt);
        }
        for stable in self.disk.stable {
            draft.disk.live.extend(stable.end()?);
        }
        // Nobody watches an export.
        if self.disk.live && self.disk.stable.is_empty() {
            draft.disk.live.push("is exported for writing".to_owned());
        }
        draft.disk.live.iter().for_each(|how| {
            let name = self.disk.disk.name();
            self.context.output.warning(&format!("{name} {how}: the version is marked"));
        });
        interrupt::leaves(interrupt::Leaves::PerhapsVersion);
        Ok(draft)
    }
}
