//! `diskcast create`: an empty image, to be written with `commit`.

use base::units::show_bytes;
use image::ChunkSize;
use net::api::CreateRequest;
use serde_json::json;
use store::{ImageName, Shape};

use super::Context;
use crate::args::Create;
use crate::exit::Result;
use crate::{reach, repository};

pub fn run(context: &Context, args: &Create) -> Result<()> {
    let image: ImageName = args.name.parse()?;
    let chunk = ChunkSize::from_bytes(args.chunk).expect("the argument was checked");
    let shape = Shape { size_bytes: args.size, chunk, logical_sector_bytes: args.sector };
    let number = match &args.there.to {
        _ if context.global.dry_run => 1,
        Some(server) => {
            let request = CreateRequest {
                size_bytes: args.size,
                chunk_bytes: Some(args.chunk),
                logical_sector_bytes: Some(args.sector),
            };
            reach::writer(server, &args.there.reach, context, false)?.create(image.as_str(), &request)?.number
        }
        None => {
            let repository = repository::open_or_create(&context.global)?;
            repository.blob(&image).create(&shape, &repository::stamp())?.number
        }
    };
    let record = json!({
        "type": "created", "image": image.as_str(), "number": number, "disk_bytes": args.size,
        "dry_run": context.global.dry_run, "server": args.there.to,
    });
    context.output.result(&record, || {
        format!("{}created {image}@{number}, {}, all of it free\n", context.would(), show_bytes(args.size))
    })
}
