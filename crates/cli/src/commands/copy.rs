//! `diskcast copy`: copies versions from this repository into another one.

use std::path::PathBuf;

use base::units::show_bytes;
use serde_json::json;
use store::{Copier, ImageName, Reference, Repository};

use super::Context;
use crate::exit::{Exit, Failure, Result};
use crate::repository;

/// Copy versions into another repository
///
/// Sends only what is missing there. Content and digests stay the same; the version gets the next number there. A
/// version that was copied before is recognised.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast copy classroom:stable /mnt/backup
  diskcast copy classroom /mnt/backup --all --as classroom-site2")]
pub(crate) struct Args {
    /// Version to copy: image, image:tag or image@version
    pub name: String,
    /// Folder or URL of the other repository; created if it does not exist
    pub to: String,
    /// Name of the image there [default: the same]
    #[arg(long = "as", value_name = "IMAGE")]
    pub r#as: Option<String>,
    /// Copy all versions of the image
    #[arg(long)]
    pub all: bool,
    /// Key of the other repository, if it is encrypted with another key
    #[arg(long, value_name = "FILE")]
    pub to_key: Option<PathBuf>,
    /// Copy from an encrypted repository into an unencrypted one
    #[arg(long)]
    pub decrypt: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let from = repository::open(&context.global)?;
    let reference = repository::reference(&args.name)?;
    let image: ImageName = match &args.r#as {
        Some(name) => name.parse()?,
        None => reference.image().clone(),
    };
    let versions = match (args.all, &reference) {
        (false, _) => vec![reference],
        (true, Reference::Newest(name)) => {
            let numbers = from.versions(name)?.into_iter();
            numbers.map(|number| Reference::Version(name.clone(), number)).collect()
        }
        (true, _) => {
            return Err(Failure::new(Exit::Usage, "--all copies an image: name it without a version"));
        }
    };
    if context.global.dry_run {
        let record = json!({ "type": "plan", "image": image.as_str(), "versions": versions.len() });
        return context.output.result(&record, || {
            format!("{}copy {} versions into {} as {image}\n", context.would(), versions.len(), args.to)
        });
    }
    // Encrypted content must not be written unencrypted by mistake.
    let stays_sealed = from.key_check().is_some() && !args.decrypt;
    let open = if stays_sealed { Repository::open_with } else { Repository::open_or_create_with };
    let to = repository::other(&args.to, &context.global, args.to_key.as_deref(), open)?;
    if stays_sealed && to.key_check().is_none() {
        let text = format!("`{}` is encrypted, and `{}` is not", from.name(), to.name());
        return Err(Failure::new(Exit::Refused, text).hint(
            "--decrypt copies all the same; `diskcast init --encryption-key` makes an encrypted repository",
        ));
    }
    let mut copier = Copier::new(&from, &to, &image)?;
    for version in versions {
        let done = copier.copy(&version)?;
        let number = done.manifest.number;
        let record = json!({
            "type": "copied", "from": version.to_string(), "image": image.as_str(), "number": number,
            "known": done.known, "objects": done.objects, "bytes": done.bytes,
        });
        context.output.result(&record, || match done.known {
            true => format!("{version} is there already: {image}@{number}\n"),
            false => format!("copied {version} as {image}@{number}, {} sent\n", show_bytes(done.bytes)),
        })?;
    }
    Ok(())
}
