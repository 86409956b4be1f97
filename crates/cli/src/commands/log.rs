//! `diskcast log`: lists the versions of an image, newest first, each with its parent.

use base::units::show_bytes;
use image::{Manifest, SignedManifest};
use serde_json::json;
use store::{ImageName, Reference};

use super::Context;
use super::images::disk_bytes;
use crate::args::FromServer;
use crate::exit::Result;
use crate::library::Library;
use crate::ui::table::{Align, Table};
use crate::{clock, unreadable, version};

/// List the versions of an image, newest first, each with its parent
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast log classroom
  diskcast log classroom --limit 5 --json")]
pub(crate) struct Args {
    /// Image to list
    pub name: String,
    /// Maximum number of versions to list
    #[arg(long, value_name = "COUNT", default_value = "1000")]
    pub limit: usize,
    #[command(flatten)]
    pub from: FromServer,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let library = Library::open(context, &args.from)?;
    let mut table = Table::new(&[
        ("VERSION", Align::Right),
        ("PARENT", Align::Left),
        ("CREATED", Align::Left),
        ("BY", Align::Left),
        ("DISK", Align::Right),
        ("ALLOCATED", Align::Right),
        ("IMAGE SIZE", Align::Right),
        ("NOTE", Align::Left),
    ]);
    let mut records = Vec::new();
    let image: ImageName = args.name.parse()?;
    let versions = library
        .log(&image)
        .map_err(|error| version::missing(library.images(), &Reference::Newest(image), error.into()))?;
    let mut proofs = library.free_proofs();
    for sealed in versions.take(args.limit) {
        let sealed = sealed?;
        let version = &sealed.manifest;
        let is_unproven = proofs.is_unproven(version)?;
        table.row([
            version.number.to_string(),
            parent(&sealed),
            clock::short(&version.created),
            version.creator.clone(),
            show_bytes(disk_bytes(version)),
            show_bytes(version.statistics.allocated_bytes),
            show_bytes(version.statistics.encoded_bytes),
            note(version, is_unproven),
        ]);
        records.push(json!({
            "type": "version", "image": version.image, "number": version.number,
            "manifest": sealed.digest().to_hex(), "parent": version.parent, "copied": version.copied,
            "created": version.created, "creator": version.creator, "labels": version.labels,
            "disk_bytes": disk_bytes(version), "allocated_bytes": version.statistics.allocated_bytes,
            "encoded_bytes": version.statistics.encoded_bytes, "live": version.disk.live,
            "made": version.made, "unproven_free": is_unproven,
            "unreadable_bytes": unreadable::bytes_of(version),
        }));
    }
    context.output.list(&records, &table)
}

/// What to know before the version is used.
fn note(version: &Manifest, is_unproven: bool) -> String {
    let live = (!version.disk.live.is_empty()).then_some("of a live disk");
    let unread = (!version.disk.unreadable.is_empty()).then_some("could not be read in full");
    let lacks = is_unproven.then_some("zeros may be missing");
    live.into_iter().chain(unread).chain(lacks).collect::<Vec<_>>().join("; ")
}

/// The parent of a version, or the version that it is a copy of, as short text.
fn parent(sealed: &SignedManifest) -> String {
    let SignedManifest { manifest, .. } = sealed;
    match (&manifest.parent, &manifest.copied) {
        (Some(parent), _) if parent.image == manifest.image => format!("@{}", parent.number),
        (Some(parent), _) => format!("{}@{}", parent.image, parent.number),
        (None, Some(copied)) => format!("copy of {}@{}", copied.image, copied.number),
        (None, None) => String::new(),
    }
}
