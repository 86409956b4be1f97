//! `diskcast profile`: shows or removes the boot profile of an image.

use base::units::show_bytes;
use serde_json::json;

use super::Context;
use crate::exit::{Exit, Failure, Result};
use crate::repository;
use crate::ui::table::{Align, Table};

/// Show or remove the boot profile: what machines read when they start from an image
///
/// `diskcast attach` records what a machine reads when it starts from a new disk, and prefetches what earlier machines
/// read. A clone begins with the profile of its original.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast profile show classroom
  diskcast profile remove classroom     after a change to how machines start")]
pub(crate) struct Args {
    #[command(subcommand)]
    pub what: ProfileCommand,
}

/// What to do with profiles.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ProfileCommand {
    /// Show how much of the image the next machine will probably read, and how many boots were recorded
    Show {
        /// Image or version: image, image:tag or image@version
        image: String,
    },
    /// Remove the profile, also one that a clone has from its original
    Remove {
        /// Image or version: image, image:tag or image@version
        image: String,
    },
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    match &args.what {
        ProfileCommand::Show { image } => show(context, image),
        ProfileCommand::Remove { image } => remove(context, image),
    }
}

fn show(context: &Context, name: &str) -> Result<()> {
    let repository = repository::open(&context.global)?;
    let version = repository.resolve(&repository::reference(name)?)?;
    let found = repository.profile(&version.image.parse()?, version.number)?;
    let Some(found) = found else {
        let text = format!("nothing is known of how machines start from `{name}`");
        return Err(Failure::new(Exit::NotFound, text)
            .hint("`diskcast attach` keeps what a machine reads when it starts from a new disk"));
    };
    let chunks = found.order().len() as u64;
    let bytes = chunks * u64::from(found.chunk_bytes);
    let data_chunks = version.statistics.data_chunks;
    let share = chunks as f64 / data_chunks.max(chunks).max(1) as f64;
    let mut table = Table::new(&[
        ("VERSION", Align::Left),
        ("CHUNKS", Align::Right),
        ("BYTES", Align::Right),
        ("SHARE", Align::Right),
        ("BOOTS", Align::Right),
        ("KEPT WITH", Align::Left),
        ("NEWEST BOOT", Align::Left),
    ]);
    table.row([
        format!("{}@{}", version.image, version.number),
        chunks.to_string(),
        show_bytes(bytes),
        format!("{:.1} %", 100.0 * share),
        found.boots.to_string(),
        found.image.to_string(),
        found.created.clone(),
    ]);
    let record = json!({
        "type": "profile", "image": version.image, "number": version.number, "chunks": chunks, "bytes": bytes,
        "chunk_bytes": found.chunk_bytes, "share": share, "boots": found.boots, "kept_with": found.image.as_str(),
        "profile": found.number, "created": found.created, "creator": found.creator,
    });
    context.output.list(&[record], &table)
}

fn remove(context: &Context, name: &str) -> Result<()> {
    let repository = repository::open(&context.global)?;
    let version = repository.look(&repository::reference(name)?)?.0.manifest;
    let image = version.image.parse()?;
    if context.global.dry_run {
        repository.profile(&image, version.number)?;
    } else {
        repository.remove_profile(&image, version.number, &repository::stamp())?;
    }
    let record = json!({ "type": "removed", "profile_of": version.image, "dry_run": context.global.dry_run });
    context.output.result(&record, || format!("{}removed the profile of {image}\n", context.would()))
}
