//! `diskcast images`: lists images, or the versions of one.

use std::collections::BTreeMap;

use base::limits::SECTOR_BYTES;
use base::units::show_bytes;
use image::Manifest;
use serde_json::{Value, json};
use store::{ImageName, Reference, Repository};

use super::Context;
use crate::clock;
use crate::exit::Result;
use crate::repository;
use crate::ui::table::{Align, Table};

/// List images, or the versions of one image
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast images
  diskcast images classroom --json")]
pub(crate) struct Args {
    /// List the versions of this image
    pub name: Option<String>,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let repository = repository::open(&context.global)?;
    match &args.name {
        Some(name) => versions(context, &repository, &name.parse()?),
        None => images(context, &repository),
    }
}

fn images(context: &Context, repository: &Repository) -> Result<()> {
    let names = repository.images()?;
    if names.is_empty() {
        context.output.note("no images yet: `diskcast capture SOURCE NAME` makes one");
        return Ok(());
    }
    let mut table = Table::new(&[
        ("IMAGE", Align::Left),
        ("VERSIONS", Align::Right),
        ("NEWEST", Align::Right),
        ("DISK", Align::Right),
        ("IMAGE SIZE", Align::Right),
        ("CREATED", Align::Left),
        ("TAGS", Align::Left),
    ]);
    let mut records = Vec::new();
    for name in names {
        let versions = repository.versions(&name)?;
        let tags = tags_by_version(repository, &name)?;
        let newest = repository.look(&Reference::Newest(name))?.0.manifest;
        let words: Vec<_> =
            tags.iter().flat_map(|(at, tags)| tags.iter().map(move |tag| format!("{tag}@{at}"))).collect();
        table.row([
            newest.image.clone(),
            versions.len().to_string(),
            newest.number.to_string(),
            show_bytes(disk_bytes(&newest)),
            show_bytes(newest.statistics.encoded_bytes),
            clock::short(&newest.created),
            words.join(" "),
        ]);
        records.push(json!({
            "type": "image", "name": newest.image, "versions": versions.len(), "newest": newest.number,
            "disk_bytes": disk_bytes(&newest), "encoded_bytes": newest.statistics.encoded_bytes,
            "created": newest.created, "tags": by_tag(&tags),
        }));
    }
    context.output.list(&records, &table)
}

fn versions(context: &Context, repository: &Repository, name: &ImageName) -> Result<()> {
    let mut table = Table::new(&[
        ("VERSION", Align::Right),
        ("DISK", Align::Right),
        ("ALLOCATED", Align::Right),
        ("IMAGE SIZE", Align::Right),
        ("CREATED", Align::Left),
        ("BY", Align::Left),
        ("TAGS", Align::Left),
    ]);
    let mut records = Vec::new();
    let numbers = repository.versions(name)?;
    let tags = tags_by_version(repository, name)?;
    for number in numbers {
        let version = repository.look(&Reference::Version(name.clone(), number))?.0.manifest;
        let tags = tags.get(&number).cloned().unwrap_or_default();
        table.row([
            number.to_string(),
            show_bytes(disk_bytes(&version)),
            show_bytes(version.statistics.allocated_bytes),
            show_bytes(version.statistics.encoded_bytes),
            clock::short(&version.created),
            version.creator.clone(),
            tags.join(" "),
        ]);
        records.push(json!({
            "type": "version", "image": version.image, "number": number, "disk_bytes": disk_bytes(&version),
            "allocated_bytes": version.statistics.allocated_bytes,
            "encoded_bytes": version.statistics.encoded_bytes, "created": version.created,
            "creator": version.creator, "labels": version.labels, "tags": tags,
        }));
    }
    context.output.list(&records, &table)
}

/// The tags of an image, by version number.
pub(crate) fn tags_by_version(
    repository: &Repository,
    name: &ImageName,
) -> Result<BTreeMap<u64, Vec<String>>> {
    let mut tags: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for tag in repository.tags(name)? {
        tags.entry(tag.version).or_default().push(tag.name.to_string());
    }
    Ok(tags)
}

fn by_tag(tags: &BTreeMap<u64, Vec<String>>) -> Value {
    tags.iter()
        .flat_map(|(&version, tags)| tags.iter().map(move |tag| (tag.clone(), json!(version))))
        .collect()
}

/// Size in bytes of the disk, or of the single partition, in the version.
pub(crate) fn disk_bytes(version: &Manifest) -> u64 {
    version.size_sectors * SECTOR_BYTES
}
