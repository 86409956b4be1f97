//! `diskcast clone`: makes a new image that begins as a version of another one.

use mirror::images::if_found;
use serde_json::json;
use store::{ImageName, Reference};

use super::Context;
use super::commit_attached::{self, What};
use crate::args::{RunningDisk, There};
use crate::exit::{Exit, Failure, Result};
use crate::{connect, repository, version};

/// Create a new image that begins as a version of another
///
/// Takes almost no time and space, whatever the size: both images share all data until one of them changes. With --disk
/// the new image begins with the current content of an attached disk, which keeps running; this stores what was written
/// to the disk, and later commits of the disk go to the new image.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast clone classroom@3 lab-pc
  diskcast clone classroom:stable lab-pc --json
  diskcast clone --disk vm1 lab-pc                      from an attached disk")]
pub(crate) struct Args {
    /// Version to clone: image, image:tag or image@version; with --disk the name of the new image
    pub name: String,
    /// Name of the new image
    #[arg(required_unless_present = "disk", conflicts_with = "disk")]
    pub new: Option<String>,
    #[command(flatten)]
    pub running: RunningDisk,
    #[command(flatten)]
    pub there: There,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let Some(new) = &args.new else {
        return commit_attached::commit(
            context,
            &args.running,
            &What { image: Some(&args.name), new: true, merge: false },
        );
    };
    let from = repository::reference(&args.name)?;
    let image: ImageName = new.parse()?;
    let (images, place) = connect::images_at(context, &args.there)?;
    let version = version::sight(context, &*images, &place, &from)?.manifest.number;
    let number = if context.global.dry_run {
        match if_found(images.find(&Reference::Newest(image.clone())))? {
            Some(_) => return Err(exists(&image)),
            None => 1,
        }
    } else {
        // Clone exactly the version that is reported, even if the tag or the newest version moves meanwhile.
        let from = Reference::Version(from.image().clone(), version);
        images.clone_version(&from, &image, &repository::stamp())?
    };
    let record = json!({
        "type": "cloned", "image": image.as_str(), "number": number,
        "from": { "image": from.image().as_str(), "number": version }, "dry_run": context.global.dry_run,
        "server": args.there.to,
    });
    context.output.result(&record, || {
        format!("{}cloned {}@{version} as {image}@{number}\n", context.would(), from.image())
    })
}

fn exists(image: &ImageName) -> Failure {
    Failure::new(Exit::Refused, format!("there is an image `{image}` already"))
}
