//! Two switches with a slow link between them: how often the image crosses it, and how long that takes.
//!
//! The server and four hosts are at one switch, eight at the other. The link runs at a tenth of the rate of the ports.
//! Times are compared with that of a single far host that fetches by unicast: of one image over that link.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::{StarOptions, SwitchOptions};
use serde_json::{Value, json};

use super::agents::Agents;
use super::{RUNS, SINK, done, fetch_in, most};
use crate::context::Context;
use crate::figure::{Bar, Figure};
use crate::room::{Room, star};
use crate::transfer::{Load, library};
use crate::{Group, Result};

pub(super) const BY_SERVER: Group = Group {
    figures: &[
        (
            "peers.two_switches",
            "images over the link between two switches, to 4 hosts at the server's and 8 at the other; the server \
             knows their places; at most 1.2",
        ),
        (
            "peers.two_switches_time",
            "time of the last of them over that of one image over the link; at most 1.3",
        ),
    ],
    measure: by_server,
};

pub(super) const BY_SWITCH: Group = Group {
    figures: &[
        (
            "switch.two_switches",
            "images over that link with agents at both switches, no multicast, and a server that knows the places; \
             at most 1.2",
        ),
        (
            "switch.two_switches_time",
            "time of the last of them over that of one image over the link; at most 1.3",
        ),
    ],
    measure: by_switch,
};

const NEAR: u32 = 4;
const HOSTS: u32 = 12;
const RATE: u64 = 200_000_000;
const LINK_RATE: u64 = RATE / 10;
const MEBIBYTES: u64 = 32;

/// What a run uses.
struct Way<'a> {
    words: &'a str,
    places: bool,
    agents: bool,
    multicast: bool,
}

const HYBRID: Way = Way { words: "hybrid, places", places: true, agents: false, multicast: true };
const PEERS: Way = Way { words: "no multicast, places", places: true, agents: false, multicast: false };
const AGENTS: Way =
    Way { words: "no multicast, agents, places", places: true, agents: true, multicast: false };
const AGENTS_ONLY: Way = Way { words: "no multicast, agents", places: false, agents: true, multicast: false };
const BOTH: Way = Way { words: "hybrid, agents", places: false, agents: true, multicast: true };

/// A link between two switches, a load, and the time of one image over that link.
struct Scene<'a> {
    context: &'a Context,
    repo: PathBuf,
    load: Load,
    places: PathBuf,
    /// Seconds.
    alone: f64,
}

/// A run, or the medians of several.
#[derive(Clone, Copy)]
struct Crossed {
    images: f64,
    /// Over the time of one image over the link.
    time: f64,
}

fn options() -> StarOptions {
    let far = SwitchOptions {
        hosts: (NEAR + 1..=HOSTS).collect(),
        rate_bits_per_second: Some(LINK_RATE),
        ..SwitchOptions::default()
    };
    StarOptions { switches: vec![far], ..star(HOSTS, RATE, 0) }
}

impl<'a> Scene<'a> {
    fn new(context: &'a Context) -> Result<Self> {
        let (repo, mut loads) = library(context, &[MEBIBYTES], false)?;
        let load = loads.remove(0);
        let places = context.folder()?.join("places");
        let room = Room::open_with(context, &[&repo], &options())?;
        let line = |host: u32| {
            let place = if host <= NEAR { "near" } else { "far" };
            format!("{}/32 {place}\n", room.star.host(host).ipv4())
        };
        std::fs::write(&places, (1..=HOSTS).map(line).collect::<String>())?;
        let alone =
            fetch_in(&room, &load, [HOSTS].into_iter(), &["--transport", "unicast"], |_| Duration::ZERO)?;
        let alone = alone[0].received;
        Ok(Self { context, repo, load, places, alone })
    }

    fn room(&self, way: &Way<'_>) -> Result<Room> {
        let places = self.places.to_string_lossy();
        let mut serve = vec![];
        if way.places {
            serve.extend(["--places", &places]);
        }
        if !way.multicast {
            serve.push("--no-multicast");
        }
        Room::open_serving(self.context, &[&self.repo as &Path], &options(), &serve)
    }

    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    fn run(&self, way: &Way<'_>) -> Result<(Crossed, Value)> {
        let room = self.room(way)?;
        let agents = way.agents.then(|| Agents::start(&room, 2)).transpose()?;
        let fetched =
            fetch_in(&room, &self.load, room.clients(), &["--serve-for", "2s"], |_| Duration::ZERO)?;
        let (crossed, agents) = (room.star.uplink_traffic(1)?, agents.map(Agents::end).transpose()?);
        let done = done(room, fetched)?;
        let images = crossed.down.bytes as f64 / done.image_bytes as f64;
        let own = done.own();
        let (near, far) = own.split_at(NEAR as usize);
        let row = json!({
            "way": way.words, "images over the link": images, "up the link": crossed.up.bytes as f64
                / done.image_bytes as f64, "frames lost there": crossed.overflowed,
            "one image over the link s": self.alone, "last near host s": most(near), "last far host s": most(far),
            "images that the server sent": done.images(), "images by multicast": done.multicast_bytes as f64
                / done.image_bytes as f64,
            "agents": agents, "hosts": done.row(&self.load, self.alone)["peers"],
        });
        Ok((Crossed { images, time: most(&own) / self.alone }, row))
    }

    fn runs(&self, way: &Way<'_>, count: usize, rows: &mut Vec<Value>) -> Result<Vec<Crossed>> {
        let mut runs = vec![];
        for _ in 0..count {
            let (crossed, row) = self.run(way)?;
            runs.push(crossed);
            rows.push(row);
        }
        Ok(runs)
    }

    fn figures(&self, names: [&str; 2], way: &Way<'_>, others: &[&Way<'_>]) -> Result<Vec<Figure>> {
        let mut rows = vec![];
        let runs = self.runs(way, RUNS, &mut rows)?;
        // For comparison.
        others.iter().try_for_each(|other| self.runs(other, 1, &mut rows).map(drop))?;
        let workload = format!(
            "{}, 200 Mbit/s ports, 20 Mbit/s between the switches; fetch --serve-for 2s",
            self.load.words
        );
        let values = |value: fn(&Crossed) -> f64| runs.iter().map(value).collect::<Vec<_>>();
        Ok(vec![
            Figure::new(names[0], &values(|run| run.images), "images", Bar::AtMost(1.2))
                .on(&workload, SINK)
                .with(json!(rows)),
            Figure::new(names[1], &values(|run| run.time), "ratio", Bar::AtMost(1.3)).on(&workload, SINK),
        ])
    }
}

fn by_server(context: &Context) -> Result<Vec<Figure>> {
    Scene::new(context)?.figures(["peers.two_switches", "peers.two_switches_time"], &HYBRID, &[&PEERS])
}

fn by_switch(context: &Context) -> Result<Vec<Figure>> {
    Scene::new(context)?.figures(
        ["switch.two_switches", "switch.two_switches_time"],
        &AGENTS,
        &[&AGENTS_ONLY, &BOTH],
    )
}
