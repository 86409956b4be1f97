//! `diskcast clone`: a new image that begins as a version of another.

use serde_json::json;
use store::{ImageName, Reference};

use super::Context;
use super::running::{self, What};
use crate::args::{RunningDisk, There};
use crate::exit::{Exit, Failure, Result};
use crate::{reach, repository};

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
pub struct Args {
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

pub fn run(context: &Context, args: &Args) -> Result<()> {
    let Some(new) = &args.new else {
        return running::commit(
            context,
            &args.running,
            &What { image: Some(&args.name), new: true, merge: false },
        );
    };
    let from = repository::reference(&args.name)?;
    let image: ImageName = new.parse()?;
    let (version, number) = match &args.there.to {
        Some(server) => there(context, args, server, &from, &image)?,
        None => here(context, &from, &image)?,
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

/// The number of the version that is cloned in the repository here, and of the clone.
fn here(context: &Context, from: &Reference, image: &ImageName) -> Result<(u64, u64)> {
    let repository = repository::open(&context.global)?;
    let version = repository.resolve(from)?.number;
    if !context.global.dry_run {
        return Ok((version, repository.blob(image).clone_from(from, &repository::stamp())?.number));
    }
    if repository.images()?.contains(image) { Err(exists(image)) } else { Ok((version, 1)) }
}

/// The same in a server's repository.
fn there(
    context: &Context,
    args: &Args,
    server: &str,
    from: &Reference,
    image: &ImageName,
) -> Result<(u64, u64)> {
    let client = reach::writer(server, &args.there.reach, context, false)?;
    // Which version that is now: what is cloned is what is said.
    let name = client.read(&from.to_string(), 0, &mut [])?;
    let version: Reference = name.parse()?;
    let Reference::Version(_, number) = version else {
        return Err(Failure::new(Exit::Failed, format!("the server calls `{from}` the version `{name}`")));
    };
    if !context.global.dry_run {
        return Ok((number, client.clone_image(image.as_str(), &name)?.number));
    }
    match client.recent(image.as_str()) {
        Ok(_) => Err(exists(image)),
        Err(error) if error.kind() == net::ErrorKind::NotFound => Ok((number, 1)),
        Err(error) => Err(error.into()),
    }
}

fn exists(image: &ImageName) -> Failure {
    Failure::new(Exit::Refused, format!("there is an image `{image}` already"))
}
