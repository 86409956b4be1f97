//! `diskcast copy`: copies versions from this repository into another one.

use std::path::PathBuf;

use base::Subject;
use base::units::show_bytes;
use serde_json::json;
use store::{Copier, ImageName, Reference, Repository};

use super::Context;
use crate::exit::{Exit, Failure, Result};
use crate::{repository, version};

/// Copy versions into another repository
///
/// Sends only what is missing there. Content and digests stay the same; the version gets the next number there. A
/// version that was copied before is recognised. A signature is for one repository and number: --sign-key signs the
/// copies anew.
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
    /// Copy signed versions without a signature, if --sign-key names no key that signs the copies
    #[arg(long)]
    pub without_signature: bool,
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
    if args.without_signature {
        copier = copier.without_signatures();
    }
    let place = repository::place(&context.global)?;
    for version in versions {
        let number = version::sight(context, &from, &place, &version)?.manifest.number;
        let exactly = Reference::Version(version.image().clone(), number);
        let done = copier.copy(&exactly).map_err(explain)?;
        let number = done.manifest.number;
        let record = json!({
            "type": "copied", "from": version.to_string(), "image": image.as_str(), "number": number,
            "known": done.known, "objects": done.objects, "bytes": done.bytes,
            "lost_signature": done.lost_signature,
        });
        context.output.result(&record, || match done.known {
            true => format!("{version} is there already: {image}@{number}\n"),
            false => {
                let lost = if done.lost_signature { "; it has no signature there" } else { "" };
                format!("copied {version} as {image}@{number}, {} sent{lost}\n", show_bytes(done.bytes))
            }
        })?;
    }
    Ok(())
}

/// Adds a hint if a signed version can't be signed anew.
fn explain(error: base::Error) -> Failure {
    let failure = Failure::from(error);
    match failure.subject == Some(Subject::LostSignature) {
        true => failure.hint("--sign-key signs the copies; --without-signature copies without a signature"),
        false => failure,
    }
}
