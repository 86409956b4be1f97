//! How fast a lost device is rebuilt, over what the links of the others allow.

use std::time::{Duration, Instant};

use serde_json::json;

use super::rack::Rack;
use crate::context::Context;
use crate::figure::{Bar, Figure};
use crate::{Group, Result};

pub(super) const GROUP: Group = Group {
    figures: &[(
        "cluster.rebuild",
        "bytes read a second in the rebuild of one of 16 devices over what the links of the 15 others carry; at least \
         0.7",
    )],
    measure,
};

const DEVICES: u32 = 16;
/// The link of each device, in both directions.
const RATE: u64 = 40_000_000;
const BUFFER_BYTES: u64 = 256 << 10;
/// Each session of a client leaves three segments of one content each: components of 1 MiB. That is as long for this
/// link as 25 MiB for one of 1 Gbit/s; a full component has 128.
const SESSIONS: u64 = 128;
const CONTENTS: u64 = 3;
const CONTENT_BYTES: usize = 8 << 20;
/// Components that are read to compute one.
const READ: u64 = 8;
/// The host of the device that is lost.
const LOST: u32 = 3;
/// So long after its start the metadata service looks what is worth compacting; then not for a quarter of an hour.
const FIRST_LOOK: Duration = Duration::from_secs(15);

fn measure(context: &Context) -> Result<Vec<Figure>> {
    context.calm()?;
    let mut rack = Rack::start(context, DEVICES, 0)?;
    // Short segments would be put together to few long ones: as much as a link of 40 Mbit/s carries in minutes.
    std::thread::park_timeout(FIRST_LOOK);
    for session in 0..SESSIONS {
        rack.put(session * CONTENTS, CONTENTS, CONTENT_BYTES)?;
    }
    let address = format!("http://{}", rack.device_address(LOST));
    let status = rack.until("all segments to be sealed", |status| status.segments_open == 0)?;
    if status.compacting + status.segments_emptied > 0 {
        return Err("segments were compacted while they were filled".into());
    }
    let lost = status.devices.iter().find(|view| view.device.address == address);
    let lost = lost.ok_or("the metadata service does not know the device")?;
    let (number, held) = (lost.device.device, lost.used);
    for host in rack.device_hosts() {
        rack.star.shape_host(host, RATE, BUFFER_BYTES)?;
    }
    rack.erase_device(LOST)?;
    let is_down = |status: &cluster::wire::ClusterStatus| {
        let found = status.devices.iter().find(|view| view.device.device == number);
        found.is_some_and(|view| view.device.state == cluster::State::Down)
    };
    rack.until("the device to count as down", is_down)?;
    let received = |rack: &Rack| -> Result<u64> {
        let traffic = rack.star.traffic()?;
        Ok(rack.device_hosts().map(|host| traffic[host as usize].received.bytes).sum())
    };
    let before = received(&rack)?;
    let began = Instant::now();
    rack.order(&["lost", &number.to_string(), "--yes"])?;
    let parts = rack.status()?.rebuilding;
    rack.until("the end of the rebuild", |status| status.rebuilding == 0)?;
    let seconds = began.elapsed().as_secs_f64();
    let on_wire = received(&rack)? - before;
    figure(held, parts, seconds, on_wire)
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn figure(held: u64, parts: u64, seconds: f64, on_wire: u64) -> Result<Vec<Figure>> {
    if parts == 0 {
        return Err("nothing was to be rebuilt".into());
    }
    let links = f64::from(DEVICES - 1) * RATE as f64 / 8e6;
    let read = (held * READ) as f64 / 1e6;
    let workload = format!(
        "{parts} components of 1 MiB; 40 Mbit/s for each device; from the order until nothing is to be rebuilt"
    );
    let details = json!([{
        "lost MB": held as f64 / 1e6, "read MB": read, "s": seconds, "MB/s": read / seconds,
        "MB/s of the frames": on_wire as f64 / 1e6 / seconds,
    }]);
    let figure = Figure::new("cluster.rebuild", &[read / seconds / links], "ratio", Bar::AtLeast(0.7));
    let limit =
        "15 links of 40 Mbit/s: all devices that are left rebuild, and read 8 bytes for each lost one";
    let figure = figure.peer("limit", limit, links, "MB/s");
    Ok(vec![figure.on(&workload, super::LAB).with(details)])
}
