//! `diskcast images`: lists images, or the versions of one.

use base::limits::SECTOR_BYTES;
use base::units::show_bytes;
use image::Manifest;
use serde_json::{Value, json};
use store::{ImageName, Reference};

use super::Context;
use crate::args::FromServer;
use crate::exit::Result;
use crate::library::{Library, Listed, Tags};
use crate::ui::table::{Align, Table};
use crate::{clock, version};

/// List images, or the versions of one image
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast images
  diskcast images classroom --json")]
pub(crate) struct Args {
    /// List the versions of this image
    pub name: Option<String>,
    #[command(flatten)]
    pub from: FromServer,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let library = Library::open(context, &args.from)?;
    match &args.name {
        Some(name) => versions(context, &library, &name.parse()?),
        None => images(context, &library),
    }
}

fn images(context: &Context, library: &Library) -> Result<()> {
    let images = library.list()?;
    if images.is_empty() {
        context.output.note(&why_none(library));
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
    for Listed { newest, versions, tags } in images {
        let words: Vec<_> =
            tags.iter().flat_map(|(at, tags)| tags.iter().map(move |tag| format!("{tag}@{at}"))).collect();
        table.row([
            newest.image.clone(),
            versions.to_string(),
            newest.number.to_string(),
            show_bytes(disk_bytes(&newest)),
            show_bytes(newest.statistics.encoded_bytes),
            clock::short(&newest.created),
            words.join(" "),
        ]);
        records.push(json!({
            "type": "image", "name": newest.image, "versions": versions, "newest": newest.number,
            "disk_bytes": disk_bytes(&newest), "encoded_bytes": newest.statistics.encoded_bytes,
            "created": newest.created, "labels": newest.labels, "tags": by_tag(&tags),
        }));
    }
    context.output.list(&records, &table)
}

/// Why the list is empty: a token that is good for some images hides the others.
fn why_none(library: &Library) -> String {
    if let Library::There(client, _) = library
        && let Ok(grant) = client.token_grant()
        && !grant.images.iter().any(|pattern| pattern == "*")
    {
        let names = grant.images.join(", ");
        return format!("this token gives access to no image of the server; it is for images named {names}");
    }
    "no images yet: `diskcast capture SOURCE NAME` makes one".to_owned()
}

fn versions(context: &Context, library: &Library, name: &ImageName) -> Result<()> {
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
    let numbers = library.images().version_numbers(name).map_err(|error| {
        version::missing(library.images(), &Reference::Newest(name.clone()), error.into())
    })?;
    let tags = library.tags(name)?;
    for number in numbers {
        let version = library.look(&Reference::Version(name.clone(), number))?.manifest;
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

fn by_tag(tags: &Tags) -> Value {
    tags.iter()
        .flat_map(|(&version, tags)| tags.iter().map(move |tag| (tag.clone(), json!(version))))
        .collect()
}

/// Size in bytes of the disk, or of the single partition, in the version.
pub(crate) fn disk_bytes(version: &Manifest) -> u64 {
    version.size_sectors * SECTOR_BYTES
}
