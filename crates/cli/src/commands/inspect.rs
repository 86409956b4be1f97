//! `diskcast inspect`: shows what a version contains.

use std::fmt::Write;

use base::limits::SECTOR_BYTES;
use base::units::show_bytes;
use image::manifest::{Member, PartitionRecord};
use image::{Made, Manifest, SurveyRecord, UnreadableRange};
use serde_json::json;

use super::Context;
use super::images::disk_bytes;
use crate::args::FromServer;
use crate::exit::Result;
use crate::library::{self, Library};
use crate::ui::table::{Align, Table, printable};
use crate::{repository, unreadable, version};

/// Show what a version contains
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast inspect classroom
  diskcast inspect classroom@3 --json")]
pub(crate) struct Args {
    /// Version to show: image, image:tag or image@version
    pub name: String,
    #[command(flatten)]
    pub from: FromServer,
}

/// Most ranges that are shown as text.
const RANGES_SHOWN: usize = 16;

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let library = Library::open(context, &args.from)?;
    let reference = repository::reference(&args.name)?;
    let looked = library.look(&reference);
    let sealed = looked.map_err(|error| version::missing(library.images(), &reference, error.into()))?;
    let signers = sealed.signed().signers()?;
    let signers: Vec<_> = signers.iter().map(|key| library.show_key(*key)).collect();
    let (version, digest) = (&sealed.manifest, sealed.digest().to_hex());
    let tags = library.tags(reference.image())?.remove(&version.number).unwrap_or_default();
    let is_unproven = library.free_proofs().is_unproven(version)?;
    let record = json!({
        "type": "version", "digest": digest, "tags": tags, "signers": signers, "manifest": version,
        "unproven_free": is_unproven,
    });
    context.output.answer(&record, || text(version, is_unproven, &digest, &tags, &signers))
}

fn text(version: &Manifest, is_unproven: bool, digest: &str, tags: &[String], signers: &[String]) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        writeln!(text, "{name:<11} {}", printable(&value)).expect("a string takes everything");
    };
    let found = &version.statistics;
    line("version", format!("{}@{}", version.image, version.number));
    line("digest", digest.to_owned());
    if !tags.is_empty() {
        line("tags", tags.join(" "));
    }
    line("signed by", if signers.is_empty() { "nobody".to_owned() } else { signers.join(", ") });
    line("created", format!("{} by {}", version.created, version.creator));
    if let Some(parent) = &version.parent {
        line("parent", format!("{}@{}", parent.image, parent.number));
    }
    if let Some(made) = &version.made {
        line("made by", how_made(made));
    }
    if is_unproven {
        line("in doubt", format!("{}; {}", library::MAY_LACK_ZEROS, library::HEALS));
    }
    version.disk.live.iter().for_each(|how| line("live", format!("its disk {how}")));
    if let Some(lacks) = unreadable::summary(version) {
        line("unreadable", lacks);
        unreadable_ranges(version).into_iter().for_each(|range| line("", range));
    }
    line("disk", size(version));
    line(
        "allocated",
        format!("{}, of it zeros {}", show_bytes(found.allocated_bytes), show_bytes(found.zero_bytes)),
    );
    line("image size", show_bytes(found.encoded_bytes));
    line(
        "chunks",
        format!(
            "{} of data, {} of zeros, {} free, each of {}",
            found.data_chunks,
            found.zero_chunks,
            found.free_chunks,
            show_bytes(version.chunk_bytes.into())
        ),
    );
    for Member { name, image, number, .. } in &version.members {
        line("member", format!("{name}: {image}@{number}"));
    }
    version.labels.iter().for_each(|(key, value)| line("label", format!("{key}={value}")));
    version.warnings.iter().for_each(|warning| line("warning", warning.clone()));
    let id = version.disk.id.as_deref().map(|id| format!(" {id}")).unwrap_or_default();
    line("table", format!("{}{id}", version.disk.table));
    if !version.disk.partitions.is_empty() {
        text.push('\n');
        text.push_str(&partitions(&version.disk.partitions).render(None));
    }
    text
}

/// The ranges of bytes that could not be read, on the whole disk.
fn unreadable_ranges(version: &Manifest) -> Vec<String> {
    let ranges = &version.disk.unreadable;
    let bytes = |range: &UnreadableRange| (range.extent().offset_bytes(), range.extent().len_bytes());
    let text = |(offset, len)| format!("{len} bytes at offset {offset}");
    let mut shown: Vec<_> = ranges.iter().take(RANGES_SHOWN).map(bytes).map(text).collect();
    if let Some(more) = ranges.len().checked_sub(RANGES_SHOWN).filter(|&more| more > 0) {
        shown.push(format!("and {more} ranges more, which --json lists"));
    }
    shown
}

/// What made a version, and with which options its disk was surveyed.
fn how_made(made: &Made) -> String {
    let Some(SurveyRecord { raw, partition, skip }) = &made.survey else { return made.by.clone() };
    let raw = raw.then(|| "--raw".to_owned());
    let partition = partition.map(|number| format!("--partition {number}"));
    let skip = skip.iter().map(|number| format!("--skip {number}"));
    let options = raw.into_iter().chain(partition).chain(skip);
    std::iter::once(made.by.clone()).chain(options).collect::<Vec<_>>().join(" ")
}

fn size(version: &Manifest) -> String {
    let bytes = disk_bytes(version);
    let sectors = version.logical_sector_bytes;
    let whole = version.origin.disk_sectors == version.size_sectors;
    let part = if whole {
        String::new()
    } else {
        format!(", a part of {}", show_bytes(version.origin.disk_sectors * SECTOR_BYTES))
    };
    format!("{} ({bytes} bytes), sectors of {sectors} bytes{part}", show_bytes(bytes))
}

fn partitions(partitions: &[PartitionRecord]) -> Table {
    let mut table = Table::new(&[
        ("PARTITION", Align::Right),
        ("START", Align::Right),
        ("SIZE", Align::Right),
        ("FILESYSTEM", Align::Left),
        ("LABEL", Align::Left),
        ("NAME", Align::Left),
        ("CAPTURED", Align::Left),
    ]);
    for partition in partitions {
        let filesystem = partition.filesystem.as_ref();
        table.row([
            if partition.number == 0 { "(disk)".to_owned() } else { partition.number.to_string() },
            (partition.start_sector * SECTOR_BYTES).to_string(),
            show_bytes(partition.sectors * SECTOR_BYTES),
            filesystem.map_or("-".to_owned(), |found| found.kind.clone()),
            filesystem.and_then(|found| found.label.clone()).unwrap_or_default(),
            partition.name.clone().unwrap_or_default(),
            if filesystem.is_some_and(|found| found.understood) { "what is in use" } else { "whole" }
                .to_owned(),
        ]);
    }
    table
}
