//! Figures of machines that serve each other: what the server sends, and how long each host takes.
//!
//! "Images" is the payload that the server sent, by multicast and unicast, over the encoded image.

mod agents;
mod boots;
mod compared;
mod cost;
mod defaults;
mod delays;
mod faults;
mod latency;
mod leech;
mod member;
mod simulated;
mod starts;
mod switch;
mod uplinks;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::context::Context;
use crate::crew::{Crew, Member};
use crate::figure::median;
use crate::room::{Fetched, Room, collect, star};
use crate::transfer::Load;
use crate::{Group, Result};

pub(crate) const GROUPS: &[&Group] = &[
    &starts::SKEW,
    &starts::TOGETHER,
    &starts::SEQUENCE,
    &starts::LATE,
    &defaults::GROUP,
    &faults::GROUP,
    &cost::GROUP,
    &uplinks::BY_SERVER,
    &uplinks::BY_SWITCH,
    &delays::GROUP,
    &latency::GROUP,
    &boots::GROUP,
    &compared::ONE_HOST,
    &compared::VS_BEST,
    &simulated::SIMULATED,
    &switch::USERSPACE,
    #[cfg(feature = "ebpf")]
    &switch::KERNEL,
];

/// Runs of each measurement, of which the median counts.
const RUNS: usize = 3;
/// Where hosts write the image: `null:` drops the objects after their digests are verified.
const SINK: &str = "null, verifying";

/// Fetches of one image, each of which goes on serving the others for a time.
struct Done {
    fetched: Vec<Fetched>,
    /// Payload that the server sent by multicast.
    multicast_bytes: u64,
    /// Bytes of the encoded image, which each host got.
    image_bytes: u64,
}

impl Done {
    /// Payload that the server sent, divided by the image's encoded bytes.
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    fn images(&self) -> f64 {
        let unicast: u64 = self.fetched.iter().map(Fetched::unicast_bytes).sum();
        (self.multicast_bytes + unicast) as f64 / self.image_bytes as f64
    }

    /// Each host's own time, in seconds.
    fn own(&self) -> Vec<f64> {
        self.fetched.iter().map(|host| host.received - host.began).collect()
    }

    fn row(&self, load: &Load, alone: f64) -> Value {
        let own = self.own();
        let sum =
            |name: &str| -> u64 { self.fetched.iter().filter_map(|host| host.report[name].as_u64()).sum() };
        json!({
            "workload": load.words, "hosts": self.fetched.len(), "images sent": self.images(), "alone s": alone,
            "own time median s": median(&own), "own time most s": own.iter().copied().fold(0.0, f64::max),
            "bytes by multicast at hosts": sum("multicast_bytes"), "bytes from other hosts": sum("peer_bytes"),
            "bytes from the server by unicast": sum("unicast_bytes"), "own times s": own,
            "peers": self.fetched.iter().map(|host| host.report["peers"].clone()).collect::<Vec<_>>(),
        })
    }
}

/// `hosts` hosts fetch an image, host `i` from `after(i)` seconds on, and serve each other for `serve_for` seconds
/// more.
fn fetch(
    context: &Context,
    repo: &Path,
    load: &Load,
    (hosts, rate): (u32, u64),
    serve_for: u64,
    after: impl Fn(u32) -> Duration,
) -> Result<Done> {
    let room = Room::open_with(context, &[repo], &star(hosts, rate, 0))?;
    let time = format!("{serve_for}s");
    let options: &[&str] = if serve_for > 0 { &["--serve-for", &time] } else { &[] };
    let fetched = fetch_in(&room, load, room.clients(), options, after)?;
    done(room, fetched)
}

/// `hosts` of a room fetch an image, host `i` from `after(i)` on, with further `options` of `fetch`.
fn fetch_in(
    room: &Room,
    load: &Load,
    hosts: impl Iterator<Item = u32>,
    options: &[&str],
    after: impl Fn(u32) -> Duration,
) -> Result<Vec<Fetched>> {
    let mut crew = Crew::new();
    let mut members: Vec<Member> = Vec::new();
    for host in hosts {
        crew.wait_until(after(host));
        members.push(crew.start(room.fetch_with_peers(host, &load.name, "null:").args(options))?);
    }
    collect(&mut crew, &members)
}

/// What the server of a room sent, after its end.
fn done(mut room: Room, fetched: Vec<Fetched>) -> Result<Done> {
    let sessions = room.ended_sessions(0)?;
    let multicast_bytes = sessions.iter().filter_map(|session| session["payload_bytes"].as_u64()).sum();
    let all = |host: &Fetched| -> u64 {
        ["multicast_bytes", "peer_bytes", "unicast_bytes"]
            .iter()
            .filter_map(|way| host.report[way].as_u64())
            .sum()
    };
    let image_bytes = fetched.iter().map(all).min().unwrap_or(0);
    Ok(Done { fetched, multicast_bytes, image_bytes })
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}
