//! `diskcast create`: an empty image, to be written with `commit`.

use base::units::show_bytes;
use image::ChunkSize;
use serde_json::json;
use store::{ImageName, Shape};

use super::Context;
use crate::args::Create;
use crate::exit::Result;
use crate::repository;

pub fn run(context: &Context, args: &Create) -> Result<()> {
    let image: ImageName = args.name.parse()?;
    let chunk = ChunkSize::from_bytes(args.chunk).expect("the argument was checked");
    let shape = Shape { size_bytes: args.size, chunk, logical_sector_bytes: args.sector };
    let number = if context.global.dry_run {
        1
    } else {
        let repository = repository::open_or_create(&context.global)?;
        repository.blob(&image).create(&shape, &repository::stamp())?.number
    };
    let record = json!({
        "type": "created", "image": image.as_str(), "number": number, "disk_bytes": args.size,
        "dry_run": context.global.dry_run,
    });
    context.output.result(&record, || {
        format!("{}created {image}@{number}, {}, all of it free\n", context.would(), show_bytes(args.size))
    })
}
