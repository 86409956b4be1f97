//! Whether devices foresee what many clients read in order. Seed 002, section 3.2: over 90 % with 60 streams.

use std::process::Command;

use cluster::client::Cluster;
use cluster::wire::DeviceStatus;
use futures::executor::block_on;
use object_store::ObjectStoreExt as _;
use serde_json::json;

use super::rack::{DEVICE_PORT, Rack, Running, name};
use crate::context::{Context, said};
use crate::figure::{Bar, Figure};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[(
        "cluster.prefetch",
        "reads that found in memory what they wanted, of all that 60 clients made in order of what was not there; at \
         least 0.9 (the seed's)",
    )],
    measure,
};

const DEVICES: u32 = 10;
const CLIENTS: u64 = 60;
/// What each has written, and reads: 120 KiB on each of eight devices at a time. Longer contents would be in several
/// segments, each of them a stream.
const CONTENTS: u64 = 120;
const CONTENT_BYTES: usize = 960 << 10;

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn measure(context: &Context) -> Result<Vec<Figure>> {
    context.calm()?;
    let rack = Rack::start(context, DEVICES, 0)?;
    let writers: Vec<_> = (0..CLIENTS)
        .map(|client| rack.start_put(client * CONTENTS, CONTENTS, CONTENT_BYTES))
        .collect::<Result<_>>()?;
    writers.into_iter().try_for_each(Running::end)?;
    rack.until("all segments to be sealed", |status| status.segments_open == 0)?;
    said(&mut Command::new("sync"))?;
    std::fs::write("/proc/sys/vm/drop_caches", "3")?;

    let before = reads(&rack)?;
    let began = std::time::Instant::now();
    let readers: Vec<_> = (0..CLIENTS).map(|client| start_get(&rack, client)).collect::<Result<_>>()?;
    readers.into_iter().try_for_each(Running::end)?;
    let seconds = began.elapsed().as_secs_f64();
    let after = reads(&rack)?;
    let (all, in_memory) = (after.0 - before.0, after.1 - before.1);
    let share = in_memory as f64 / all as f64;
    let bytes = (CLIENTS * CONTENTS) as f64 * CONTENT_BYTES as f64;
    let rows = json!([{ "reads": all, "in memory": in_memory, "MB/s": bytes / 1e6 / seconds }]);
    let workload = "60 clients, 120 contents of 960 KiB each, in order";
    let sink = "ten device processes on one disk, caches dropped before";
    let figure = Figure::new("cluster.prefetch", &[share], "ratio", Bar::AtLeast(0.9));
    Ok(vec![figure.peer("seed 002", "60 streams, text", 0.9, "ratio").on(workload, sink).with(rows)])
}

/// Reads what a client wrote, in order.
fn start_get(rack: &Rack, client: u64) -> Result<Running<()>> {
    rack.with_client(0, move |cluster: Cluster| {
        (client * CONTENTS..(client + 1) * CONTENTS).try_for_each(|number| {
            let got = block_on(async { cluster.get(&name(number)).await?.bytes().await });
            let got = got.map_err(|error| error.to_string())?;
            if got.len() == CONTENT_BYTES { Ok(()) } else { Err(format!("content {number} is short")) }
        })
    })
}

/// Reads of all devices, and those that found what they wanted in memory.
fn reads(rack: &Rack) -> Result<(u64, u64)> {
    let mut sum = (0, 0);
    for host in rack.device_hosts() {
        let host = rack.star.host(host);
        let url = format!("http://{}:{DEVICE_PORT}/device/v1/status", host.ipv4());
        let told: DeviceStatus =
            serde_json::from_str(&said(host.command("curl").args(["--silent", "--fail"]).arg(url))?)?;
        sum = (sum.0 + told.reads, sum.1 + told.reads_in_memory);
    }
    Ok(sum)
}
