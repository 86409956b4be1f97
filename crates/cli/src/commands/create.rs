//! `diskcast create`: makes an empty image, to be written with `commit`.

use base::units::show_bytes;
use image::ChunkSize;
use mirror::Images;
use serde_json::json;
use store::{ImageName, Shape};

use super::Context;
use crate::args::There;
use crate::args::parse::{parse_chunk_bytes, parse_size};
use crate::exit::Result;
use crate::{connect, repository};

/// Create an empty image, to be written with `commit`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  diskcast create scratch 20G
  diskcast create archive 64T --chunk 1M --sector 4096")]
pub(crate) struct Args {
    /// Name of the new image
    pub name: String,
    /// Size of its disk
    #[arg(value_parser = parse_size)]
    pub size: u64,
    /// Logical size of a chunk, a power of two
    #[arg(long, value_name = "SIZE", value_parser = parse_chunk_bytes, default_value = "256K")]
    pub chunk: u32,
    /// Logical sector size of the disk, in bytes
    #[arg(long, value_name = "BYTES", default_value = "512")]
    pub sector: u32,
    #[command(flatten)]
    pub there: There,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<()> {
    let image: ImageName = args.name.parse()?;
    let chunk = ChunkSize::from_bytes(args.chunk).expect("the argument was checked");
    let shape = Shape { size_bytes: args.size, chunk, logical_sector_bytes: args.sector };
    let number = match (&args.there.to, context.global.dry_run) {
        (_, true) => 1,
        (Some(_), false) => {
            connect::images(context, &args.there)?.create_image(&image, &shape, &repository::stamp())?
        }
        (None, false) => {
            repository::open_or_create(&context.global)?.create_image(&image, &shape, &repository::stamp())?
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
