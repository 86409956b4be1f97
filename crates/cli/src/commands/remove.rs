//! `diskcast remove`: removes a version or a tag.

use base::{Error, ErrorKind};
use image::manifest::Member;
use serde_json::json;
use store::{ImageName, Reference, Removed, Repository};

use super::Context;
use crate::exit::{Exit, Failure, Result};
use crate::{repository, ui::prompt};

/// Remove a version, or a tag
///
/// A version's number is never used again. `diskcast prune` deletes its data, except data that other versions share. A
/// version that has a tag cannot be removed until the tag is moved or removed. A disk of a set cannot be removed before
/// the set.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast remove classroom@3
  diskcast remove classroom:stable     the tag only")]
pub(crate) struct Args {
    /// What to remove: image@version, or image:tag for the tag only
    pub name: String,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let repository = repository::open(&context.global)?;
    let reference = repository::reference(&args.name)?;
    if let Reference::Newest(image) = &reference {
        return Err(Failure::new(Exit::Usage, format!("`{image}` does not say which version to remove"))
            .hint(format!(
                "say `{image}@NUMBER` for a version or `{image}:TAG` for a tag; \
                 `diskcast images {image}` lists them"
            )));
    }
    let (number, about) = find(&repository, &reference)?;
    let is_version = matches!(reference, Reference::Version(..));
    if is_version && let Some(set) = set_of(&repository, reference.image(), number)? {
        return Err(Failure::new(Exit::Refused, format!("{reference} is a disk of the set {set}"))
            .hint(format!("remove the set first: `diskcast remove {set}`")));
    }
    if is_version && !context.global.yes && !context.global.dry_run {
        prompt::confirm(&format!("{reference}, {about}, will be removed"), "say --yes if you are sure")?;
    }
    if !context.global.dry_run {
        let removed = repository.remove(&reference, &repository::stamp()).map_err(explain)?;
        debug_assert_eq!(is_version, matches!(removed, Removed::Version(_)));
    }
    let record = json!({
        "type": "removed", "image": reference.image().as_str(), "number": number,
        "what": if is_version { "version" } else { "tag" }, "dry_run": context.global.dry_run,
    });
    context.output.result(&record, || {
        let stays = if is_version { "" } else { "; the version stays" };
        format!("{}removed {reference}{stays}\n", context.would())
    })
}

/// The number of the version that `reference` names, and a description of it. A version whose manifest is damaged or
/// lost can be removed, too.
fn find(repository: &Repository, reference: &Reference) -> Result<(u64, String)> {
    match (repository.look(reference), reference) {
        (Ok((sealed, _)), _) => {
            let manifest = sealed.manifest;
            Ok((manifest.number, format!("made {}", manifest.created)))
        }
        (Err(error), Reference::Version(image, number))
            if error.kind() == ErrorKind::Corrupt || repository.is_lost(image, *number)? =>
        {
            Ok((*number, "whose manifest is damaged or lost".to_owned()))
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// The set that has this version as one of its disks. The images of a set's disks are called `SET.HOST`, and each of
/// both may have dots.
fn set_of(repository: &Repository, image: &ImageName, number: u64) -> Result<Option<String>> {
    let name = image.as_str();
    for (dot, _) in name.match_indices('.') {
        let Ok(set) = name[..dot].parse::<ImageName>() else { continue };
        // There need not be such an image.
        for version in repository.versions(&set).unwrap_or_default() {
            let Ok((sealed, _)) = repository.look(&Reference::Version(set.clone(), version)) else {
                continue;
            };
            let is_it = |member: &Member| member.image == name && member.number == number;
            if sealed.manifest.members.iter().any(is_it) {
                return Ok(Some(format!("{set}@{version}")));
            }
        }
    }
    Ok(None)
}

fn explain(error: Error) -> Failure {
    let kind = error.kind();
    let failure = Failure::from(error);
    match kind {
        ErrorKind::Refused => {
            failure.hint("move its tags to another version first, or remove them: `diskcast remove IMAGE:TAG`")
        }
        ErrorKind::Full => failure.hint(
            "the disk of the repository has no room even for this: delete some MiB of other files there, then remove \
             and prune",
        ),
        _ => failure,
    }
}
