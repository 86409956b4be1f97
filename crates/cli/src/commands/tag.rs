//! `diskcast tag`: sets a tag, which is a movable name of a version.

use serde_json::json;
use store::TagName;

use super::Context;
use crate::exit::Result;
use crate::repository;
use crate::version;

/// Give a version a name that can be moved
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast tag classroom@3 stable        then: diskcast install classroom:stable /dev/sdb")]
pub(crate) struct Args {
    /// Version to tag: image, image:tag or image@version
    pub name: String,
    /// Name of the tag; an existing tag is moved
    pub tag: String,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let repository = repository::open(&context.global)?;
    let reference = repository::reference(&args.name)?;
    let tag: TagName = args.tag.parse()?;
    let version = repository
        .resolve(&reference)
        .map_err(|error| version::missing(&repository, &reference, error.into()))?;
    let image = reference.image();
    let before =
        repository.tags(image)?.into_iter().find(|found| found.name == tag).map(|found| found.version);
    if !context.global.dry_run {
        repository.tag(image, &tag, version.number, &repository::stamp())?;
    }
    let record = json!({
        "type": "tagged", "image": version.image, "tag": tag.as_str(), "number": version.number, "before": before,
        "dry_run": context.global.dry_run,
    });
    context.output.result(&record, || {
        let moved = before.map(|number| format!(" (was @{number})")).unwrap_or_default();
        format!("{}{image}:{tag} is {image}@{}{moved}\n", context.would(), version.number)
    })
}
