//! `diskcast clone`: a new image that begins as a version of another.

use serde_json::json;
use store::ImageName;

use super::Context;
use crate::args::Clone;
use crate::exit::{Exit, Failure, Result};
use crate::repository;

pub fn run(context: &Context, args: &Clone) -> Result<()> {
    let repository = repository::open(&context.global)?;
    let from = repository::reference(&args.name)?;
    let version = repository.resolve(&from)?;
    let image: ImageName = args.new.parse()?;
    let number = if context.global.dry_run {
        if repository.images()?.contains(&image) {
            return Err(Failure::new(Exit::Refused, format!("there is an image `{image}` already")));
        }
        1
    } else {
        repository.blob(&image).clone_from(&from, &repository::stamp())?.number
    };
    let record = json!({
        "type": "cloned", "image": image.as_str(), "number": number,
        "from": { "image": version.image, "number": version.number }, "dry_run": context.global.dry_run,
    });
    context.output.result(&record, || {
        format!("{}cloned {}@{} as {image}@{number}\n", context.would(), version.image, version.number)
    })
}
