//! The figure of a server with many images: how long `images` takes to list them from another machine.

use serde_json::json;
use store::{ImageName, Location, Reference, Repository, Shape};

use crate::context::{Context, timed};
use crate::figure::{Bar, Figure};
use crate::room::Room;
use crate::versions::stamp;
use crate::{Group, Result};

pub(crate) const GROUP: Group = Group {
    figures: &[("versions.server_images", "s for `images` to list the 1,200 images of a server; at most 1")],
    measure,
};

const IMAGES: usize = 1200;
const RATE: u64 = 1_000_000_000;
const RUNS: usize = 5;

fn measure(context: &Context) -> Result<Vec<Figure>> {
    let folder = context.folder()?.join("repository");
    let repository = Repository::create(&Location::Folder(folder.clone()))?;
    let first: ImageName = "image-0".parse()?;
    let shape = Shape { size_bytes: 8 << 30, ..Shape::default() };
    repository.blob(&first).create(&shape, &stamp())?;
    for number in 1..IMAGES {
        let name: ImageName = format!("image-{number}").parse()?;
        repository.blob(&name).clone_from(&Reference::Newest(first.clone()), &stamp())?;
    }
    let room = Room::open(context, &folder, 1, RATE)?;
    let mut seconds = Vec::new();
    for _ in 0..RUNS {
        let usage = timed(&mut room.images_command(1, 0))?;
        let listed = usage.output.lines().filter(|line| line.contains("\"type\":\"image\"")).count();
        if listed != IMAGES {
            return Err(format!("{listed} of {IMAGES} images are listed: {}", usage.output).into());
        }
        seconds.push(usage.seconds);
    }
    let workload = format!("{IMAGES} images of one version each, 1 Gbit/s; images --repo URL --json");
    let slowest = seconds.iter().copied().fold(0.0, f64::max);
    Ok(vec![
        Figure::new("versions.server_images", &[slowest], "s", Bar::AtMost(1.0))
            .on(&workload, "the slowest of five; the first asks a server that has just begun")
            .with(json!(seconds)),
    ])
}
