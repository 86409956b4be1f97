//! How contiguous components lie on the disk when many clients write at the same time: seed 002, section 3.2, has
//! 396 KB with 60 writers on one device.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::rack::Rack;
use crate::context::{Context, said};
use crate::figure::{Bar, Figure};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[(
        "cluster.contiguity",
        "bytes of an extent on the disk after 60 clients wrote at the same time to ten devices, the mean; at least 396 \
         (the seed's)",
    )],
    measure,
};

const DEVICES: u32 = 10;
const WRITERS: u64 = 60;
/// What each writes: components of 1 MiB, in two appends.
const CONTENTS: u64 = 6;
const CONTENT_BYTES: usize = 4 << 20;

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn measure(context: &Context) -> Result<Vec<Figure>> {
    context.calm()?;
    let rack = Rack::start(context, DEVICES, 0)?;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| rack.start_put(writer * CONTENTS, CONTENTS, CONTENT_BYTES))
        .collect::<Result<_>>()?;
    writers.into_iter().try_for_each(super::rack::Running::end)?;
    rack.until("all segments to be sealed", |status| status.segments_open == 0)?;
    said(&mut Command::new("sync"))?;
    let (mut files, mut bytes, mut extents) = (0, 0, 0);
    for host in rack.device_hosts() {
        for file in objects(&rack.device_folder(host))? {
            let told = said(Command::new("filefrag").arg(&file))?;
            let count =
                told.rsplit(": ").next().and_then(|words| words.split(' ').next()?.parse::<u64>().ok());
            extents += count.ok_or_else(|| format!("no extents in `{told}`"))?;
            bytes += std::fs::metadata(&file)?.len();
            files += 1;
        }
    }
    let mean = bytes as f64 / 1e3 / extents as f64;
    let rows = json!([{
        "components": files, "KB of a component": bytes as f64 / 1e3 / f64::from(files),
        "extents of a component": extents as f64 / f64::from(files), "KB of an extent": mean,
    }]);
    let workload = "60 clients, 6 contents of 4 MiB each, durable";
    let sink = "ten device processes on one ext4, told by filefrag";
    let figure = Figure::new("cluster.contiguity", &[mean], "KB", Bar::AtLeast(396.0));
    Ok(vec![figure.peer("seed 002", "60 writers, text", 396.0, "KB").on(workload, sink).with(rows)])
}

/// The files of the objects of a device.
fn objects(folder: &Path) -> Result<Vec<String>> {
    let found = said(Command::new("find").arg(folder.join("objects")).args(["-type", "f", "-size", "+0"]))?;
    Ok(found.lines().map(str::to_owned).collect())
}
